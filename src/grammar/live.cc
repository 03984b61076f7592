#include "grammar/live.h"

#include <algorithm>
#include <bit>

namespace deepinfer::grammar {
namespace {

constexpr int64_t kWorthKeeping = 200;  // trie nodes: cheaper walks are done again
constexpr size_t kFewTokens = 1024;     // of a mask kept as a list

}  // namespace

void CompiledGrammar::Live::fill(StateId state, const TokenVocabulary& vocabulary, std::span<uint32_t> words) {
  const auto known = masks_.find(state);
  if (known != masks_.end()) {
    const Mask& mask = known->second;
    if (!mask.words.empty()) {
      std::copy(mask.words.begin(), mask.words.end(), words.begin());
    } else {
      for (const int32_t token : mask.tokens) words[static_cast<size_t>(token) / 32] |= 1u << (token % 32);
    }
    return;
  }
  if (machine.add_tokens(state, vocabulary, words) < kWorthKeeping) return;
  size_t count = 0;
  for (const uint32_t word : words) count += static_cast<size_t>(std::popcount(word));
  Mask mask;
  if (count <= kFewTokens) {
    for (size_t i = 0; i < words.size(); ++i) {
      for (uint32_t word = words[i]; word != 0; word &= word - 1) {
        mask.tokens.push_back(static_cast<int32_t>(i * 32) + std::countr_zero(word));
      }
    }
  } else {
    mask.words.assign(words.begin(), words.end());
  }
  mask_bytes_ += sizeof(Mask) + 16 + mask.words.size() * 4 + mask.tokens.size() * 4;
  masks_.emplace(state, std::move(mask));
}

std::shared_ptr<CompiledGrammar::Live> CompiledGrammar::live() const {
  const std::lock_guard lock(mutex_);
  bool full = live_ == nullptr;
  if (!full) {
    const std::lock_guard inner(live_->mutex);
    full = live_->full(static_cast<size_t>(limits_.live_bytes));
  }
  if (full) live_ = std::make_shared<Live>(program_);
  return live_;
}

CompiledGrammar::~CompiledGrammar() = default;

size_t CompiledGrammar::bytes() const {
  const std::lock_guard lock(mutex_);
  const std::lock_guard inner(live_->mutex);
  return sizeof(CompiledGrammar) + program_->bytes() + live_->bytes();
}

}  // namespace deepinfer::grammar
