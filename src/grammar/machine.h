#pragma once

#include <boost/unordered/unordered_flat_map.hpp>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "grammar/program.h"

namespace deepinfer::grammar {

/// Number of an interned state of a Machine. 0 is the dead state.
using StateId = uint32_t;
constexpr StateId kDeadState = 0;

/// Runs a program: the set of all places where the bytes so far can have led, as one interned state, and the states behind each
/// byte as they are asked for (a lazy deterministic automaton whose states carry stacks).
///
/// A stack is a frame: the set of places that called the current rule at the same byte, each with its own frame. Frames are
/// interned by content, so they are shared between states and between matchers, and ambiguity does not multiply them. Calls in
/// tail position reuse the frame of their caller. A state is a function of the bytes read, whatever was asked before.
///
/// Not thread-safe; results are the same whatever the order of calls.
class Machine {
 public:
  explicit Machine(std::shared_ptr<const Program> program);

  StateId start() const { return start_; }
  StateId step(StateId state, uint8_t byte) {
    const uint32_t row = rows_[state];
    if (row != kNoRow) {
      const StateId next = transitions_[row + byte_class_[byte]];
      if (next != kUnknown) return next;
    }
    return compute(state, byte);
  }
  /// Whether the text may end here.
  bool accepting(StateId state) const { return states_[state].accept; }
  /// Whether no byte can follow.
  bool exhausted(StateId state) const { return states_[state].count == 0; }

  /// ORs the tokens that can follow into `mask` and returns how much work it was, about in trie nodes.
  int64_t add_tokens(StateId state, const TokenVocabulary& vocabulary, std::span<uint32_t> mask);

  /// Memory in use.
  size_t bytes() const;
  /// Numbers of another machine's frames in this one.
  using FrameNames = boost::unordered_flat_map<uint32_t, uint32_t>;
  /// The same state in this machine; `from` runs the same program. `known` is kept between the states of one move, which share
  /// most of their stacks.
  StateId import(const Machine& from, StateId state, FrameNames& known);

 private:
  static constexpr uint32_t kNoRow = 0xFFFFFFFF;
  static constexpr StateId kUnknown = 0xFFFFFFFF;
  /// More places than this in one state are dropped, the last found first: the rest still leads to valid texts only.
  static constexpr size_t kMaxPlaces = 1 << 16;

  /// A place to read from: a node, the state inside its character, the count of its loop, the stack.
  struct Place {
    uint32_t node;
    uint32_t count;
    uint32_t frame;
    uint32_t inner;
    bool operator==(const Place&) const = default;
  };
  struct State {
    uint32_t begin;
    uint32_t count;
    bool accept;
  };
  struct Return {
    uint32_t node;
    uint32_t count;
    uint32_t frame;
    bool operator==(const Return&) const = default;
  };
  struct Frame {
    uint32_t begin;
    uint32_t count;
  };
  struct PendingCall {
    uint32_t rank;
    uint32_t rule;
    std::vector<Return> returns;
  };

  StateId compute(StateId state, uint8_t byte);
  /// Everything that can be reached from the items in scratch without reading, as a state.
  StateId close_items();
  void visit(const Place& item, bool entered);
  void push(uint32_t node, uint32_t count, uint32_t frame);
  void call(const Node& node, const Place& item);
  StateId intern_state();
  StateId intern_places(std::span<const Place> places);
  uint32_t intern_frame(std::span<const Return> returns);
  StateId state_behind(uint32_t node, uint32_t frame);
  ByteSet first_bytes(StateId state) const;
  std::span<const Place> places(StateId state) const { return {places_.data() + states_[state].begin, states_[state].count}; }

  // machine_mask.cc
  /// Groups of bytes that lead from the state back to itself, each whole.
  ByteGroups own_bytes(StateId state);
  /// Whether every character beyond ASCII leads from the state back to itself.
  bool owns_other_characters(StateId state);
  int64_t walk(const TokenTrie& trie, StateId state, std::span<uint32_t> mask);
  int64_t add_wide(const ClassTable& table, const CharClass& chars, uint64_t limit, StateId inside, StateId behind,
                   std::span<uint32_t> mask, bool& done);

  std::shared_ptr<const Program> program_;
  std::array<uint8_t, 256> byte_class_;
  size_t byte_classes_;

  std::vector<State> states_;
  std::vector<Place> places_;
  std::vector<uint32_t> rows_;
  std::vector<StateId> transitions_;
  std::vector<Frame> frames_;
  std::vector<Return> returns_;
  boost::unordered_flat_map<uint64_t, StateId> state_numbers_;  ///< by hash; equal hashes probe on
  boost::unordered_flat_map<uint64_t, uint32_t> frame_numbers_;
  StateId start_ = kDeadState;

  // Scratch of one closure.
  std::vector<Place> items_;
  std::vector<Place> found_;
  std::vector<PendingCall> calls_;
  size_t calls_used_ = 0;
  bool accept_ = false;
  struct Seen {
    Place item;
    uint32_t epoch = 0;
  };
  std::vector<Seen> seen_;
  uint32_t epoch_ = 0;
  size_t seen_count_ = 0;
  bool see(const Place& item);
  std::vector<StateId> path_;
  std::vector<ByteGroups> own_bytes_;  ///< by state; kOtherBytes: not known yet
};

}  // namespace deepinfer::grammar
