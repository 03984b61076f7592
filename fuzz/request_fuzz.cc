// Bodies of requests. First byte: the format and the options; the rest is the body. Whatever is accepted must render, encode its
// limits and name no field in more than one line.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "protocol/api.h"

namespace {

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "broken: %s\n", what);
  std::abort();
}

void check_error(deepinfer::Api api, const deepinfer::ApiError& error) {
  require(error.status >= 400 && error.status < 600, "an error has a status");
  require(!error.message.empty(), "an error has a message");
  require(error_body(api, error).find('\n') == std::string::npos, "an error body is one line");
}

void conversation(deepinfer::Api api, std::string_view body, const deepinfer::ConversionOptions& options) {
  using namespace deepinfer;
  const auto request = parse_request(api, body, options);
  if (!request) return check_error(api, request.error());
  const Conversation& c = request->conversation;
  require(c.effort.value() >= 1 && c.effort.value() <= 100, "effort is in range");
  require(request->generation.n >= 1 && request->generation.n <= options.max_choices, "n is in range");
  for (const Message& m : c.messages) {
    size_t at = 0;
    for (const PlacedImage& image : m.images) {
      require(image.offset >= at && image.offset <= m.content.size(), "images are in the content, in order");
      at = image.offset;
    }
  }
  for (const ModelVersion version : {ModelVersion::kV4, ModelVersion::kV4_1}) {
    const RenderedPrompt prompt = render_prompt(c, version);
    require(!prompt.segments.empty() && prompt.segments[0].text == kBosToken, "a prompt starts with its start token");
    size_t images = 0;
    for (const PromptSegment& s : prompt.segments) images += s.kind == PromptSegment::Kind::kImage ? 1 : 0;
    require(images == prompt.images.size(), "every image has its place");
    (void)render_checkpoint_prompt(c, version);
  }
  (void)to_engine_request(*request, {1, 2, 3}, GenerationPolicy{});
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace deepinfer;
  if (size == 0) return 0;
  const std::string_view body(reinterpret_cast<const char*>(data) + 1, size - 1);
  const ConversionOptions options = (data[0] & 4) != 0 ? ConversionOptions::Reference() : ConversionOptions{};
  switch (data[0] & 3) {
    case 0:
      conversation(Api::kChat, body, options);
      break;
    case 1:
      conversation(Api::kMessages, body, options);
      break;
    case 2:
      conversation(Api::kResponses, body, options);
      break;
    default: {
      const auto request = parse_completion_request(body, options);
      if (!request) {
        check_error(Api::kCompletions, request.error());
      } else {
        require(!request->prompts.empty(), "a completion has a prompt");
      }
    }
  }
  return 0;
}
