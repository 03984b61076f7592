#pragma once

#include <boost/unordered/unordered_flat_map.hpp>
#include <list>
#include <memory>
#include <mutex>
#include <string>

#include "grammar/grammar.h"

namespace deepinfer::grammar {

/// Compiled grammars of one vocabulary by content, least recently used ones dropped beyond a limit of bytes (matchers keep
/// what they use alive). Thread-safe: grammars are compiled outside the lock; two threads that ask for a new one at once may both
/// compile it, and then share one. Errors are not kept.
class GrammarCache {
 public:
  GrammarCache(std::shared_ptr<const TokenVocabulary> vocabulary, size_t limit_bytes, CompileLimits limits = {})
      : vocabulary_(std::move(vocabulary)), limit_bytes_(limit_bytes), limits_(limits) {}

  Result<std::shared_ptr<const CompiledGrammar>> get(const GrammarSpec& spec);
  /// Without compiling: null if it is not there.
  std::shared_ptr<const CompiledGrammar> find(const GrammarSpec& spec);
  size_t size() const;

 private:
  struct Entry {
    std::string key;
    std::shared_ptr<const CompiledGrammar> grammar;
  };
  std::shared_ptr<const CompiledGrammar> find_locked(const std::string& key);
  void drop_old();

  std::shared_ptr<const TokenVocabulary> vocabulary_;
  size_t limit_bytes_;
  CompileLimits limits_;
  mutable std::mutex mutex_;
  std::list<Entry> entries_;  ///< most recently used first
  boost::unordered_flat_map<std::string, std::list<Entry>::iterator> by_key_;
};

}  // namespace deepinfer::grammar
