#pragma once

#include <string>
#include <string_view>

namespace deepinfer {

/// The raw text of a custom tool's call out of the stream of its arguments, {"input": "..."} (spec/protocol §11). Arguments of
/// another form pass through unchanged.
class CustomToolInput {
 public:
  /// What `fragment` adds to the text.
  std::string push(std::string_view fragment);
  /// What was held back.
  std::string finish();

 private:
  void prefix(char c, std::string& out);
  void value(char c, std::string& out);
  void escape(std::string& out);

  enum class State : uint8_t { kPrefix, kValue, kDone, kVerbatim } state_ = State::kPrefix;
  std::string seen_;       ///< the prefix so far
  size_t token_ = 0;       ///< of { "input" : "
  size_t token_byte_ = 0;  ///< within that token
  std::string held_;       ///< an escape that is not complete, or a high surrogate and what follows it
};

}  // namespace deepinfer
