#include <algorithm>
#include <bit>

#include "grammar/grammar.h"
#include "grammar/live.h"

namespace deepinfer::grammar {
namespace {

constexpr StateId kTerminated = 0xFFFFFFF0;  // not a state of the machine

}  // namespace

GrammarMatcher::GrammarMatcher(std::shared_ptr<const CompiledGrammar> grammar)
    : grammar_(std::move(grammar)), live_(grammar_->live()) {
  history_.push_back(live_->machine.start());
}

void GrammarMatcher::move_to_current() {
  const auto current = grammar_->live();
  if (current == live_) return;
  const std::shared_ptr<CompiledGrammar::Live> previous = live_;  // whoever lets go of it last must not hold its mutex
  const std::scoped_lock lock(previous->mutex, current->mutex);
  boost::unordered_flat_map<StateId, StateId> moved{{kTerminated, kTerminated}};
  Machine::FrameNames frames;
  for (uint32_t& state : history_) {
    const auto [at, added] = moved.try_emplace(state, 0);
    if (added) at->second = current->machine.import(previous->machine, state, frames);
    state = at->second;
  }
  current->make_room();
  live_ = current;
}

bool GrammarMatcher::accept_bytes(std::string_view bytes) {
  move_to_current();
  if (terminated()) return false;
  const std::lock_guard lock(live_->mutex);
  StateId state = history_.back();
  for (const char byte : bytes) {
    state = live_->machine.step(state, static_cast<uint8_t>(byte));
    if (state == kDeadState) return false;
  }
  history_.push_back(state);
  return true;
}

bool GrammarMatcher::accept(int32_t token) {
  const TokenVocabulary& vocabulary = grammar_->vocabulary();
  if (token < 0 || token >= vocabulary.size() || terminated()) return false;
  if (vocabulary.is_stop(token)) {
    if (!can_stop()) return false;
    history_.push_back(kTerminated);
    return true;
  }
  const std::string_view bytes = vocabulary.bytes(token);
  return !bytes.empty() && accept_bytes(bytes);
}

bool GrammarMatcher::fill_mask(std::span<uint32_t> words) {
  move_to_current();
  const TokenVocabulary& vocabulary = grammar_->vocabulary();
  const size_t used = vocabulary.mask_words();
  DI_CHECK(words.size() >= used, "a mask of {} words for a vocabulary of {} tokens", words.size(), vocabulary.size());
  std::fill(words.begin(), words.end(), 0);
  const bool stop = can_stop();
  bool everything = false;
  if (!terminated()) {
    const std::lock_guard lock(live_->mutex);
    live_->fill(history_.back(), vocabulary, words.first(used));
  }
  if (stop || terminated()) {
    for (const int32_t id : vocabulary.stop_ids()) words[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
  }
  if (stop && words[0] == ~0u) {
    int64_t allowed = 0;
    for (size_t i = 0; i < used; ++i) allowed += std::popcount(words[i]);
    everything = allowed == vocabulary.size();
  }
  return !everything;
}

void GrammarMatcher::rollback(int64_t tokens) {
  const auto keep = std::max<int64_t>(1, static_cast<int64_t>(history_.size()) - std::max<int64_t>(0, tokens));
  history_.resize(static_cast<size_t>(keep));
}

bool GrammarMatcher::can_stop() const {
  if (terminated()) return false;
  const std::lock_guard lock(live_->mutex);
  return live_->machine.accepting(history_.back());
}

bool GrammarMatcher::terminated() const { return history_.back() == kTerminated; }

std::optional<int32_t> GrammarMatcher::forced_token() {
  if (terminated()) return std::nullopt;
  std::vector<uint32_t> mask(grammar_->vocabulary().mask_words());
  fill_mask(mask);
  std::optional<int32_t> only;
  for (size_t i = 0; i < mask.size(); ++i) {
    if (mask[i] == 0) continue;
    if (only.has_value() || std::popcount(mask[i]) != 1) return std::nullopt;
    only = static_cast<int32_t>(i * 32) + std::countr_zero(mask[i]);
  }
  return only;
}

}  // namespace deepinfer::grammar
