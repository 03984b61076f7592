// Model output through the parser. First two bytes: the options and how the text is cut; the rest is the text. Every cut must
// give the same pieces.

#include <cstdint>
#include <string>
#include <vector>

#include "output_options.h"
#include "protocol/custom_tool_input.h"
#include "protocol/output_parser.h"

namespace {

using namespace deepinfer;
using fuzz::require;

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

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  ParsingOptions options = fuzz::parsing_options(data[0]);
  options.parse_json_output = false;  // whose spaces depend on the cuts
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 2, size - 2);
  const size_t step = 1 + data[1] % 17;
  const auto whole = parse(options, bytes, bytes.size() + 1);
  require(parse(options, bytes, 1) == whole, "byte by byte equals the whole");
  require(parse(options, bytes, step) == whole, "pieces equal the whole");

  CustomToolInput once;
  std::string at_once = once.push(bytes);
  at_once += once.finish();
  CustomToolInput input;
  std::string piecewise;
  for (size_t i = 0; i < bytes.size(); i += step) piecewise += input.push(bytes.substr(i, step));
  require(piecewise + input.finish() == at_once, "custom input in pieces equals the whole");
  return 0;
}
