#include "protocol/prompt.h"

namespace deepinfer {

Result<std::vector<int32_t>> encode_prompt(const Tokenizer& tokenizer, std::span<const PromptSegment> segments) {
  std::vector<int32_t> ids;
  std::string run;
  const auto flush = [&] {
    if (run.empty()) return;
    const std::vector<int32_t> encoded = tokenizer.encode(run);
    ids.insert(ids.end(), encoded.begin(), encoded.end());
    run.clear();
  };
  for (const PromptSegment& segment : segments) {
    if (segment.kind == PromptSegment::Kind::kText) {
      run += segment.text;
      continue;
    }
    flush();
    const std::string_view literal = segment.kind == PromptSegment::Kind::kImage ? kImageToken : std::string_view(segment.text);
    const std::optional<int32_t> id = tokenizer.added_token(literal);
    if (!id.has_value()) return Err(Status::NotFound("the tokenizer has no added token \"{}\", which the prompt needs", literal));
    ids.push_back(*id);
  }
  flush();
  return ids;
}

std::string prompt_text(std::span<const PromptSegment> segments) {
  std::string out;
  for (const PromptSegment& s : segments) {
    out += s.kind == PromptSegment::Kind::kImage ? kImagePlaceholder : std::string_view(s.text);
  }
  return out;
}

}  // namespace deepinfer
