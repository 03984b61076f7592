#include "grammar/grammar_cache.h"

namespace deepinfer::grammar {

std::shared_ptr<const CompiledGrammar> GrammarCache::find_locked(const std::string& key) {
  const auto at = by_key_.find(key);
  if (at == by_key_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, at->second);
  return at->second->grammar;
}

std::shared_ptr<const CompiledGrammar> GrammarCache::find(const GrammarSpec& spec) {
  const std::string key = spec_key(spec);
  const std::lock_guard lock(mutex_);
  return find_locked(key);
}

Result<std::shared_ptr<const CompiledGrammar>> GrammarCache::get(const GrammarSpec& spec) {
  const std::string key = spec_key(spec);
  {
    const std::lock_guard lock(mutex_);
    if (auto found = find_locked(key)) return found;
  }
  DI_ASSIGN_OR_RETURN(auto compiled, compile_grammar(spec, vocabulary_, limits_));
  const std::lock_guard lock(mutex_);
  if (auto found = find_locked(key)) return found;
  entries_.push_front({key, compiled});
  by_key_[key] = entries_.begin();
  drop_old();
  return compiled;
}

void GrammarCache::drop_old() {
  // Grammars grow as they are used: sizes are asked for anew.
  size_t bytes = 0;
  for (auto at = entries_.begin(); at != entries_.end();) {
    bytes += at->grammar->bytes() + at->key.size();
    if (bytes <= limit_bytes_ || at == entries_.begin()) {
      ++at;
      continue;
    }
    by_key_.erase(at->key);
    at = entries_.erase(at);
  }
}

size_t GrammarCache::size() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

}  // namespace deepinfer::grammar
