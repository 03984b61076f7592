#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace deepinfer {

/// Turns the tokens of one answer into text and finds stop strings in it. Text that may still become a stop string is held back,
/// never more than the longest stop string less one byte.
class TextOutput {
 public:
  struct Options {
    std::vector<std::string> stop;
    bool include_stop_string = false;
    bool skip_special = true;
  };
  /// `tokenizer` may be null: then there is no text, and no stop string is found.
  TextOutput(std::shared_ptr<const Tokenizer> tokenizer, Options options);

  /// Takes one token; text that is ready is appended to `text`. True: a stop string is complete (`stop()` says which).
  bool push(int32_t token, std::string& text);
  /// The answer has ended otherwise: what was held back is text after all.
  void finish(std::string& text);
  const std::optional<std::string>& stop() const { return found_; }

 private:
  bool scan(std::string& text);

  std::optional<Detokenizer> detokenizer_;
  Options options_;
  size_t longest_ = 0;
  std::string held_;  ///< not given out yet
  std::optional<std::string> found_;
};

}  // namespace deepinfer
