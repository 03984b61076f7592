// Model output to the events and the body of each API. First two bytes: the options, the API and how the text is cut; the rest is
// the text. Events and body must be JSON whatever the model says.

#include <algorithm>
#include <cstdint>
#include <string>

#include "output_options.h"
#include "protocol/api.h"
#include "protocol/json_input.h"
#include "tokenizer/utf8.h"

namespace {

using namespace deepinfer;
using fuzz::require;

/// Writing an event as JSON and reading it back costs a hundred times what parsing its text does, so there are few of them.
constexpr size_t kMaxPieces = 24;

void stream(Api api, const ParsingOptions& options, const std::string& text, size_t step) {
  ConvertedRequest request;
  request.api = api;
  request.model = "m";
  request.parsing = options;
  request.conversation.thinking = options.reasoning_initial_stage == ReasoningStage::kStart;
  request.custom_tool_names = {"apply_patch"};
  const auto stream = make_response_stream(request, {.id = "id", .created = 1}, nullptr);
  Output output;
  step = std::max(step, text.size() / kMaxPieces + 1);
  for (size_t i = 0; i < text.size();) {
    size_t end = std::min(text.size(), i + step);
    while (end < text.size() && (static_cast<uint8_t>(text[end]) & 0xC0) == 0x80) ++end;
    output.text = text.substr(i, end - i);
    output.tokens = {5};
    for (const ServerEvent& e : stream->push(output, 2)) require(e.data == "[DONE]" || Json::accept(e.data), "events are JSON");
    i = end;
  }
  output.text.clear();
  output.finish = FinishReason::kStop;
  (void)stream->push(output, 2);
  require(stream->done(), "a finished stream is done");
  require(Json::accept(stream->body()), "a body is JSON");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  std::string text;
  utf8_append_lossy({reinterpret_cast<const char*>(data) + 2, size - 2}, /*last=*/true, text);
  constexpr Api kApis[] = {Api::kChat, Api::kMessages, Api::kResponses};
  stream(kApis[data[1] / 17 % 3], fuzz::parsing_options(data[0]), text, 1 + data[1] % 17);
  return 0;
}
