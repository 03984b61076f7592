#pragma once

#include <algorithm>
#include <mutex>
#include <vector>

#include "grammar/grammar.h"
#include "grammar/machine.h"

namespace deepinfer::grammar {

/// What the matchers of one grammar share: the machine with the states met so far, and masks of states that took work. Every
/// use holds `mutex`.
struct CompiledGrammar::Live {
  explicit Live(std::shared_ptr<const Program> program) : machine(std::move(program)) {}

  std::mutex mutex;
  Machine machine;

  /// Writes the tokens that can follow a state into a mask of zeros.
  void fill(StateId state, const TokenVocabulary& vocabulary, std::span<uint32_t> words);
  size_t bytes() const { return machine.bytes() + mask_bytes_; }
  /// Room for what a matcher brought along: one with a long history must not move at every call.
  void make_room() { limit_ = std::max(limit_, 2 * bytes()); }
  bool full(size_t limit) const { return bytes() > std::max(limit, limit_); }

 private:
  /// A mask, as words or, where few bits are set, as tokens.
  struct Mask {
    std::vector<uint32_t> words;
    std::vector<int32_t> tokens;
  };
  boost::unordered_flat_map<StateId, Mask> masks_;
  size_t mask_bytes_ = 0;
  size_t limit_ = 0;
};

}  // namespace deepinfer::grammar
