// Model output. First two bytes: the options and how the text is cut; the rest is the text. Every cut must give the same events,
// and the body must be one that JSON can carry.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "protocol/api.h"
#include "protocol/custom_tool_input.h"
#include "protocol/json_input.h"
#include "protocol/output_parser.h"
#include "tokenizer/utf8.h"

namespace {

using namespace deepinfer;

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "broken: %s\n", what);
  std::abort();
}

/// Neighbours joined, empty fragments dropped.
std::vector<ParsedPiece> parse(const ParsingOptions& options, std::string_view text, size_t step) {
  OutputParser parser(options);
  std::vector<ParsedPiece> pieces;
  for (size_t i = 0; i < text.size(); i += step) parser.push(text.substr(i, step), pieces);
  parser.finish(pieces);
  std::vector<ParsedPiece> out;
  int64_t at = 0;
  for (ParsedPiece& piece : pieces) {
    require(piece.begin >= at && piece.end >= piece.begin && piece.end <= static_cast<int64_t>(text.size()),
            "pieces are in order");
    at = piece.end;
    piece.begin = piece.end = 0;
    if (piece.kind != ParsedPiece::Kind::kToolCall && piece.text.empty()) continue;
    if (!out.empty() && out.back().kind == piece.kind && piece.kind != ParsedPiece::Kind::kToolCall) {
      out.back().text += piece.text;
    } else {
      out.push_back(std::move(piece));
    }
  }
  return out;
}

/// Writing an event as JSON and reading it back costs a hundred times what parsing the text does, so there are few of them.
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
  ParsingOptions options;
  options.parse_tool_calls = (data[0] & 1) != 0;
  options.tool_call_initial_stage = (data[0] & 2) != 0 && options.parse_tool_calls;
  options.reasoning_initial_stage = static_cast<ReasoningStage>(data[0] >> 2 & 3);
  options.hardened = (data[0] & 16) != 0;
  if ((data[0] & 32) != 0) options.stop_sequences = {"END", "ab", "\n\n", "<"};
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 2, size - 2);
  const size_t step = 1 + data[1] % 17;
  const auto whole = parse(options, bytes, bytes.size() + 1);
  require(parse(options, bytes, 1) == whole, "byte by byte equals the whole");
  require(parse(options, bytes, step) == whole, "pieces equal the whole");

  std::string text;
  utf8_append_lossy(bytes, /*last=*/true, text);
  options.parse_json_output = (data[0] & 64) != 0;
  constexpr Api kApis[] = {Api::kChat, Api::kMessages, Api::kResponses};
  stream(kApis[data[1] / 17 % 3], options, text, step);

  CustomToolInput once;
  std::string at_once = once.push(bytes);
  at_once += once.finish();
  CustomToolInput input;
  std::string piecewise;
  for (size_t i = 0; i < bytes.size(); i += step) piecewise += input.push(bytes.substr(i, step));
  require(piecewise + input.finish() == at_once, "custom input in pieces equals the whole");
  return 0;
}
