#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "grammar/expr.h"
#include "grammar/token_vocabulary.h"

namespace deepinfer::grammar {

constexpr uint32_t kNoNode = 0xFFFFFFFF;

/// One place of the automaton: what must come next there.
struct Node {
  enum class Kind : uint8_t {
    kEnd,     ///< the rule ends: go on where it was called
    kByte,    ///< `byte`, then `next`
    kChars,   ///< a character of class `value`, then `next`; `owner`: the kLoop or kOpen that it is the body of, or kNoNode
    kSplit,   ///< any of `value` targets from index `next` on
    kCall,    ///< rule `value`, then `next`
    kLoop,    ///< loop number `value`; behind it `next`
    kBack,    ///< the body of loop node `next` is complete
    kOpen,    ///< like a kSplit (node `next`) from which any text of class `value` can be read; behind that text comes `owner`
    kAccept,  ///< the root rule is complete
  };
  Kind kind = Kind::kEnd;
  bool live = false;    ///< a complete text can be reached from here
  bool marker = false;  ///< kByte: part of the marker of an added token
  uint8_t byte = 0;
  uint32_t next = kNoNode;
  uint32_t value = 0;
  uint32_t owner = kNoNode;
};

struct Loop {
  uint32_t min = 0;
  uint32_t max = 0;         ///< kUnbounded: no bound
  uint32_t body = kNoNode;  ///< a kChars or a kCall
  /// Counts beyond make no difference.
  uint32_t highest() const { return max == kUnbounded ? min : max; }
};

/// A compiled grammar as a recursive transition network over bytes: one nondeterministic automaton per rule, with calls.
/// Repetitions are counted, not written out. Whatever can't be completed, or spelled with the vocabulary, is marked dead, so that
/// a walk over live nodes never comes to a dead end. No rule calls itself before a byte is read. Immutable.
class Program {
 public:
  /// Errors: no text at all (naming the byte that the vocabulary lacks, if that is why), left recursion, budgets.
  static Result<std::shared_ptr<const Program>> Make(Grammar& grammar, const TokenVocabulary& vocabulary);

  const Node& node(uint32_t id) const { return nodes_[id]; }
  std::span<const uint32_t> targets(const Node& split) const { return {targets_.data() + split.next, split.value}; }
  const Loop& loop(const Node& node) const { return loops_[node.value]; }
  const CharClass& chars(uint32_t index) const { return *classes_[index]; }
  /// Null for a narrow class.
  const ClassTable* table(uint32_t index) const { return tables_[index].get(); }
  uint32_t rule_start(uint32_t rule) const { return starts_[rule]; }
  bool rule_nullable(uint32_t rule) const { return nullable_rules_[rule]; }
  /// Callers come before the rules they may call without reading a byte.
  uint32_t rule_rank(uint32_t rule) const { return ranks_[rule]; }
  size_t rule_count() const { return starts_.size(); }
  uint32_t root() const { return root_; }
  uint32_t accept_node() const { return accept_node_; }
  size_t node_count() const { return nodes_.size(); }
  /// Bytes that no node tells apart share a number.
  const std::array<uint8_t, 256>& byte_class() const { return byte_class_; }
  size_t byte_classes() const { return byte_classes_; }
  size_t bytes() const;

 private:
  friend class ProgramBuilder;

  std::vector<Node> nodes_;
  std::vector<uint32_t> targets_;
  std::vector<Loop> loops_;
  std::vector<std::shared_ptr<const CharClass>> classes_;
  std::vector<std::shared_ptr<const ClassTable>> tables_;
  std::vector<uint32_t> starts_;
  std::vector<bool> nullable_rules_;
  std::vector<uint32_t> ranks_;
  uint32_t root_ = 0;
  uint32_t accept_node_ = 0;
  std::array<uint8_t, 256> byte_class_{};
  size_t byte_classes_ = 1;
};

}  // namespace deepinfer::grammar
