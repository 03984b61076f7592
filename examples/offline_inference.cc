// Three prompts at once, printed as they come: offline_inference models/nano

#include <deepinfer/engine.h>

#include <cstdio>
#include <map>

int main(int argc, char** argv) {
  if (argc != 2) return std::fprintf(stderr, "usage: %s CHECKPOINT\n", argv[0]), 2;
  deepinfer::EngineOptions options;
  options.model = argv[1];
  auto engine = deepinfer::Engine::Create(options);
  if (!engine) return std::fprintf(stderr, "%s\n", engine.error().message().c_str()), 1;

  std::vector<std::pair<const char*, deepinfer::RequestHandle>> answers;
  for (const char* question : {"Tell me a story about a fox and a lamp.", "What is 12 + 30?", "Count from 1 to 5."}) {
    deepinfer::Request request;
    auto prompt = (*engine)->encode_chat(question);
    if (!prompt) return std::fprintf(stderr, "%s\n", prompt.error().message().c_str()), 1;
    request.prompt = *std::move(prompt);
    request.sampling.temperature = 0;
    request.max_tokens = 100;
    auto handle = (*engine)->submit(std::move(request));
    if (!handle) return std::fprintf(stderr, "%s\n", handle.error().message().c_str()), 1;
    answers.emplace_back(question, *std::move(handle));
  }
  for (auto& [question, handle] : answers) {
    std::printf("> %s\n", question);
    while (const auto output = handle.next()) {
      std::fputs(output->text.c_str(), stdout);
      if (output->finish)
        std::printf("\n[%s, %ld tokens]\n\n", finish_reason_name(*output->finish).data(), output->usage.completion_tokens);
    }
  }
}
