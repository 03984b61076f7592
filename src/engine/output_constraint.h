#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "grammar/grammar.h"

namespace deepinfer {

/// The form of one request, compiled: what all its answers share. Immutable.
struct CompiledForm {
  std::shared_ptr<const grammar::CompiledGrammar> grammar;
  std::optional<int32_t> start_after;  ///< StructuredOutput::start_after
  std::string prefix;                  ///< the grammar accepts it
  /// Tokens that must not come before the form begins, ascending: those that end an answer or begin a tool call.
  std::vector<int32_t> barred;
  int64_t vocab_size = 0;  ///< of the model; the tokenizer may have fewer
};

/// Where one answer stands in its form (spec/sampling §7). All calls are tentative in that `rollback` takes them back, so the
/// rows of a draft can be tried one after the other. Answers depend on the accepted tokens alone. One thread at a time.
///
/// Masks: bit v%32 of word v/32 is set if token v may come next; `mask_words()` words.
class OutputConstraint {
 public:
  explicit OutputConstraint(std::shared_ptr<const CompiledForm> form);

  size_t mask_words() const { return static_cast<size_t>(form_->vocab_size + 31) / 32; }
  /// Writes the mask of the next token.
  void fill_mask(std::span<uint32_t> mask);
  /// Advances over a token. False, and nothing changes, if it is not allowed; nothing is once the answer has ended.
  bool accept(int32_t token);
  /// Takes back the last `tokens` accepted ones (all of them if there are fewer).
  void rollback(int64_t tokens);

  /// Masks of the rows of one verification: row 0 is behind the accepted tokens, row j behind `drafts[j - 1]`.
  /// `masks`: [drafts.size() + 1, mask_words()], row by row. Returns the number of drafts, from the first on, that are allowed:
  /// drafts[result] is a rejection. Rows behind a draft that is not allowed are not looked at; theirs are all ones. Nothing has
  /// been accepted afterwards.
  int64_t fill_draft_masks(std::span<const int32_t> drafts, std::span<uint32_t> masks);

  /// Whether the form has begun: false until `start_after` was accepted.
  bool started() const { return started_; }
  /// The end has been accepted.
  bool ended() const { return started_ && matcher_.terminated(); }
  /// The one token that can come next, if there is only one: a draft that is accepted whatever is drawn (spec/sampling §6.4).
  std::optional<int32_t> forced_token();
  int64_t accepted_tokens() const { return free_tokens_ + formed_tokens(); }

 private:
  int64_t formed_tokens() const { return matcher_.accepted_tokens() - prefix_steps_; }

  std::shared_ptr<const CompiledForm> form_;
  grammar::GrammarMatcher matcher_;
  int64_t prefix_steps_ = 0;  ///< steps of the matcher that belong to the prefix
  int64_t free_tokens_ = 0;   ///< accepted before the form began; `start_after` is the last of them
  bool started_;
};

/// The one bit of a mask, if it has only one.
std::optional<int32_t> only_token(std::span<const uint32_t> mask);

}  // namespace deepinfer
