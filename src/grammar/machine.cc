#include "grammar/machine.h"

#include <algorithm>

namespace deepinfer::grammar {
namespace {

using Kind = Node::Kind;

uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15ull;
  return hash ^ hash >> 29;
}

}  // namespace

Machine::Machine(std::shared_ptr<const Program> program)
    : program_(std::move(program)), byte_class_(program_->byte_class()), byte_classes_(program_->byte_classes()) {
  seen_.resize(64);
  states_.push_back({0, 0, false});  // kDeadState
  rows_.push_back(kNoRow);
  const Return bottom{program_->accept_node(), 0, 0};
  intern_frame({&bottom, 1});
  epoch_ = 1;
  accept_ = program_->rule_nullable(program_->root());
  PendingCall& first = calls_.emplace_back();
  first.rank = program_->rule_rank(program_->root());
  first.rule = program_->root();
  first.returns.assign(1, bottom);
  calls_used_ = 1;
  start_ = close_items();
}

bool Machine::see(const Place& item) {
  if (seen_count_ * 2 >= seen_.size()) {
    std::vector<Seen> old = std::move(seen_);
    seen_.assign(old.size() * 2, {});
    for (const Seen& entry : old) {
      if (entry.epoch != epoch_) continue;
      uint64_t slot = mix(mix(entry.item.node, entry.item.count), entry.item.frame) & (seen_.size() - 1);
      while (seen_[slot].epoch == epoch_) slot = (slot + 1) & (seen_.size() - 1);
      seen_[slot] = entry;
    }
  }
  uint64_t slot = mix(mix(item.node, item.count), item.frame) & (seen_.size() - 1);
  for (; seen_[slot].epoch == epoch_; slot = (slot + 1) & (seen_.size() - 1)) {
    if (seen_[slot].item == item) return false;
  }
  seen_[slot] = {item, epoch_};
  ++seen_count_;
  return true;
}

void Machine::push(uint32_t node, uint32_t count, uint32_t frame) {
  const Place item{node, count, frame, 0};
  if (program_->node(node).live && see(item)) items_.push_back(item);
}

void Machine::call(const Node& node, const Place& item) {
  PendingCall* pending = nullptr;
  for (size_t i = 0; i < calls_used_; ++i) {
    if (calls_[i].rule == node.value) pending = &calls_[i];
  }
  if (pending == nullptr) {
    if (calls_used_ == calls_.size()) calls_.emplace_back();
    pending = &calls_[calls_used_++];
    pending->rank = program_->rule_rank(node.value);
    pending->rule = node.value;
    pending->returns.clear();
  }
  const auto add = [&](const Return& to) {
    auto& list = pending->returns;
    if (std::find(list.begin(), list.end(), to) == list.end()) list.push_back(to);
  };
  if (program_->node(node.next).kind == Kind::kEnd) {
    const Frame frame = frames_[item.frame];
    for (uint32_t i = 0; i < frame.count; ++i) add(returns_[frame.begin + i]);
  } else {
    add({node.next, item.count, item.frame});
  }
}

void Machine::visit(const Place& item, bool entered) {
  const Node& node = program_->node(item.node);
  switch (node.kind) {
    case Kind::kByte:
    case Kind::kChars:
      found_.push_back(item);
      break;
    case Kind::kSplit:
      for (const uint32_t target : program_->targets(node)) push(target, 0, item.frame);
      break;
    case Kind::kOpen:
      found_.push_back(item);
      push(node.next, 0, item.frame);
      break;
    case Kind::kCall:
      call(node, item);
      // A rule that reads nothing is stepped over here; its end then returns nowhere (see kEnd).
      if (program_->rule_nullable(node.value) && program_->node(node.next).kind != Kind::kBack) push(node.next, 0, item.frame);
      break;
    case Kind::kLoop: {
      const Loop& loop = program_->loop(node);
      if (item.count >= loop.min) push(node.next, 0, item.frame);
      if (loop.max == kUnbounded || item.count < loop.max) push(loop.body, item.count, item.frame);
      break;
    }
    case Kind::kBack:
      push(node.next, std::min(item.count + 1, program_->loop(program_->node(node.next)).highest()), item.frame);
      break;
    case Kind::kEnd:
      if (entered) break;
      for (uint32_t i = 0; i < frames_[item.frame].count; ++i) {
        const Return to = returns_[frames_[item.frame].begin + i];
        push(to.node, to.count, to.frame);
      }
      break;
    case Kind::kAccept:
      accept_ = true;
      break;
  }
}

StateId Machine::close_items() {
  // What is reached from bytes just read, with returns; then the rules that were called, callers first, so that each rule is
  // entered once with the set of all its callers.
  for (size_t i = 0; i < items_.size(); ++i) visit(Place(items_[i]), false);
  while (calls_used_ > 0) {
    size_t best = 0;
    for (size_t i = 1; i < calls_used_; ++i) {
      if (calls_[i].rank < calls_[best].rank) best = i;
    }
    const uint32_t rule = calls_[best].rule;
    const uint32_t frame = intern_frame(calls_[best].returns);
    std::swap(calls_[best], calls_[--calls_used_]);
    items_.clear();
    push(program_->rule_start(rule), 0, frame);
    for (size_t i = 0; i < items_.size(); ++i) visit(Place(items_[i]), true);
  }
  return intern_state();
}

StateId Machine::compute(StateId state, uint8_t byte) {
  ++epoch_;
  seen_count_ = 0;
  items_.clear();
  found_.clear();
  accept_ = false;
  const State from = states_[state];
  for (uint32_t i = 0; i < from.count; ++i) {
    const Place place = places_[from.begin + i];
    const Node& node = program_->node(place.node);
    if (node.kind == Kind::kByte) {
      if (node.byte == byte) push(node.next, place.count, place.frame);
    } else if (node.kind == Kind::kChars) {
      const uint16_t next = program_->chars(node.value).step(static_cast<uint16_t>(place.inner), byte);
      if (next == CharClass::kDone) {
        push(node.next, place.count, place.frame);
      } else if (next != CharClass::kDead) {
        const Place inner{place.node, place.count, place.frame, next};
        if (see(inner)) found_.push_back(inner);
      }
    }
  }
  const StateId next = items_.empty() && found_.empty() ? kDeadState : close_items();
  if (rows_[state] == kNoRow) {
    rows_[state] = static_cast<uint32_t>(transitions_.size());
    transitions_.resize(transitions_.size() + byte_classes_, kUnknown);
  }
  transitions_[rows_[state] + byte_class_[byte]] = next;
  return next;
}

StateId Machine::intern_state() {
  if (found_.size() > kMaxPlaces) found_.resize(kMaxPlaces);
  uint64_t hash = accept_ ? 1 : 2;
  for (const Place& place : found_) {
    hash = mix(hash, static_cast<uint64_t>(place.node) << 32 | place.count);
    hash = mix(hash, static_cast<uint64_t>(place.frame) << 32 | place.inner);
  }
  for (;; ++hash) {
    const auto [at, added] = state_numbers_.try_emplace(hash, static_cast<StateId>(states_.size()));
    if (!added) {
      const State& known = states_[at->second];
      if (known.accept == accept_ && known.count == found_.size() &&
          std::equal(found_.begin(), found_.end(), places_.begin() + known.begin)) {
        return at->second;
      }
      continue;
    }
    states_.push_back({static_cast<uint32_t>(places_.size()), static_cast<uint32_t>(found_.size()), accept_});
    places_.insert(places_.end(), found_.begin(), found_.end());
    rows_.push_back(kNoRow);
    return at->second;
  }
}

StateId Machine::intern_places(std::span<const Place> places) {
  found_.assign(places.begin(), places.end());
  accept_ = false;
  return found_.empty() ? kDeadState : intern_state();
}

uint32_t Machine::intern_frame(std::span<const Return> returns) {
  uint64_t hash = 3;
  for (const Return& to : returns) hash = mix(mix(hash, static_cast<uint64_t>(to.node) << 32 | to.count), to.frame);
  for (;; ++hash) {
    const auto [at, added] = frame_numbers_.try_emplace(hash, static_cast<uint32_t>(frames_.size()));
    if (!added) {
      const Frame& known = frames_[at->second];
      if (known.count == returns.size() && std::equal(returns.begin(), returns.end(), returns_.begin() + known.begin))
        return at->second;
      continue;
    }
    frames_.push_back({static_cast<uint32_t>(returns_.size()), static_cast<uint32_t>(returns.size())});
    returns_.insert(returns_.end(), returns.begin(), returns.end());
    return at->second;
  }
}

StateId Machine::state_behind(uint32_t node, uint32_t frame) {
  ++epoch_;
  seen_count_ = 0;
  items_.clear();
  found_.clear();
  accept_ = false;
  push(node, 0, frame);
  return close_items();
}

ByteSet Machine::first_bytes(StateId state) const {
  ByteSet out;
  for (const Place& place : places(state)) {
    const Node& node = program_->node(place.node);
    if (node.kind == Kind::kByte) out.set(node.byte);
    if (node.kind == Kind::kChars) out |= program_->chars(node.value).live_bytes(static_cast<uint16_t>(place.inner));
  }
  return out;
}

size_t Machine::bytes() const {
  return states_.capacity() * (sizeof(State) + sizeof(uint32_t)) + own_bytes_.capacity() + places_.capacity() * sizeof(Place) +
         transitions_.capacity() * sizeof(StateId) + frames_.capacity() * sizeof(Frame) + returns_.capacity() * sizeof(Return) +
         (state_numbers_.size() + frame_numbers_.size()) * 24;
}

StateId Machine::import(const Machine& from, StateId state, FrameNames& renamed) {
  if (state == kDeadState) return kDeadState;
  // Frames refer to frames made before them: number the needed ones in ascending order.
  std::vector<uint32_t> needed;
  const auto need = [&](uint32_t frame) {
    if (renamed.try_emplace(frame, 0).second) needed.push_back(frame);
  };
  for (const Place& place : from.places(state)) need(place.frame);
  for (size_t i = 0; i < needed.size(); ++i) {
    const Frame frame = from.frames_[needed[i]];
    for (uint32_t k = 0; k < frame.count; ++k) {
      if (from.returns_[frame.begin + k].node != program_->accept_node()) need(from.returns_[frame.begin + k].frame);
    }
  }
  std::sort(needed.begin(), needed.end());
  std::vector<Return> returns;
  for (const uint32_t id : needed) {
    const Frame frame = from.frames_[id];
    returns.assign(from.returns_.begin() + frame.begin, from.returns_.begin() + frame.begin + frame.count);
    for (Return& to : returns) {
      if (to.node != program_->accept_node()) to.frame = renamed[to.frame];
    }
    renamed[id] = intern_frame(returns);
  }
  found_.assign(from.places(state).begin(), from.places(state).end());
  for (Place& place : found_) place.frame = renamed[place.frame];
  accept_ = from.states_[state].accept;
  return intern_state();
}

}  // namespace deepinfer::grammar
