#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "deepinfer/structured_output.h"
#include "grammar/limits.h"
#include "grammar/token_vocabulary.h"

namespace deepinfer::grammar {

class Machine;
class Program;

/// Identifies a spec by content: equal keys, equal grammars.
std::string spec_key(const GrammarSpec& spec);

/// A grammar for a vocabulary. Immutable for its users, who share it between requests and threads; inside it caches matcher
/// states and masks within CompileLimits::live_bytes, behind a mutex.
class CompiledGrammar {
 public:
  ~CompiledGrammar();
  const TokenVocabulary& vocabulary() const { return *vocabulary_; }
  /// Keywords that are not enforced, with their paths (JsonSchemaSpec::strict == false).
  const std::vector<std::string>& ignored() const { return ignored_; }
  /// Memory that this grammar may come to hold, for GrammarCache.
  size_t bytes() const;

 private:
  friend class GrammarMatcher;
  friend Result<std::shared_ptr<const CompiledGrammar>> compile_grammar(const GrammarSpec&,
                                                                        std::shared_ptr<const TokenVocabulary>,
                                                                        const CompileLimits&);
  struct Live;  // a machine and its masks
  CompiledGrammar() = default;
  /// The machine that new work goes to; a full one is replaced, and matchers move over as they are used.
  std::shared_ptr<Live> live() const;

  std::shared_ptr<const TokenVocabulary> vocabulary_;
  std::shared_ptr<const Program> program_;
  std::vector<std::string> ignored_;
  CompileLimits limits_;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<Live> live_;
};

/// Errors (InvalidArgument, Unimplemented) name the keyword and its path, or the position; ResourceExhausted names the budget.
/// Safe to call from any thread; takes milliseconds for usual schemas.
Result<std::shared_ptr<const CompiledGrammar>> compile_grammar(const GrammarSpec& spec,
                                                               std::shared_ptr<const TokenVocabulary> vocabulary,
                                                               const CompileLimits& limits = {});

/// Where one output stands in its grammar. Thread-compatible; matchers of one grammar may run on different threads. What it
/// answers depends on the accepted tokens alone.
class GrammarMatcher {
 public:
  explicit GrammarMatcher(std::shared_ptr<const CompiledGrammar> grammar);

  /// Advances over one token. False, and nothing changes, if the grammar does not allow it. A stop token is allowed where the
  /// output may end, and terminates.
  bool accept(int32_t token);
  /// Advances over plain bytes, for tests and for text that stands in the prompt already; counts as one token.
  bool accept_bytes(std::string_view bytes);
  /// Fills the mask of allowed tokens (bit v%32 of word v/32; words beyond the vocabulary become 0). False: everything is
  /// allowed. After termination stop tokens alone are allowed, though accept refuses them. Never empty for a vocabulary with a
  /// stop token.
  bool fill_mask(std::span<uint32_t> words);
  /// Takes back the last `tokens` accepted ones (all of them if there are fewer).
  void rollback(int64_t tokens);
  int64_t accepted_tokens() const { return static_cast<int64_t>(history_.size()) - 1; }
  /// Whether a stop token is allowed now.
  bool can_stop() const;
  bool terminated() const;
  /// The one token that is allowed, if there is only one.
  std::optional<int32_t> forced_token();
  /// An independent matcher in the same place.
  GrammarMatcher fork() const { return *this; }

  const CompiledGrammar& grammar() const { return *grammar_; }

 private:
  void move_to_current();

  std::shared_ptr<const CompiledGrammar> grammar_;
  std::shared_ptr<CompiledGrammar::Live> live_;
  std::vector<uint32_t> history_;  ///< state behind each accepted token, the start first
};

}  // namespace deepinfer::grammar
