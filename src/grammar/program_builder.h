#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "grammar/program.h"

namespace deepinfer::grammar {

/// Lowers expressions to nodes, from the end of each rule to its start, then finds out what is live (program_check.cc).
class ProgramBuilder {
 public:
  ProgramBuilder(const Grammar& grammar, const TokenVocabulary& vocabulary, Work& work)
      : grammar_(grammar), vocabulary_(vocabulary), work_(work), program_(std::make_shared<Program>()) {}

  Result<std::shared_ptr<const Program>> build();

 private:
  uint32_t add(Node node);
  uint32_t split(const std::vector<uint32_t>& targets);
  uint32_t char_class(const CodeSet& set, Spelling spelling);
  uint32_t lower(ExprId id, uint32_t next);
  uint32_t lower_literal(std::string_view bytes, bool marker, uint32_t next);
  uint32_t lower_repeat(const Expr& expr, uint32_t next);
  uint32_t lower_members(const Expr& expr, uint32_t next);
  uint32_t lower_dfa(const Expr& expr, uint32_t next);

  /// Values of all nodes, the smallest that satisfy `value(node)`; monotone.
  template <typename Value>
  std::vector<bool> solve(Value&& value);
  void find_nullable();
  Status find_live();
  Status rank_rules();
  std::vector<uint32_t> left_calls(uint32_t rule) const;
  void classify_bytes();
  Status nothing_can_be_said() const;

  const Grammar& grammar_;
  const TokenVocabulary& vocabulary_;
  Work& work_;
  std::shared_ptr<Program> program_;
  std::map<std::string, uint32_t> class_numbers_;
  std::vector<std::string> rule_names_;
  std::vector<std::pair<uint32_t, ExprId>> pending_;  ///< rules made for the bodies of counted loops
  ByteSet missing_;                                   ///< bytes that were wanted and can't be spelled
};

}  // namespace deepinfer::grammar
