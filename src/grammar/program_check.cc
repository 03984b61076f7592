// What of a program is live, which rules can be empty, and in which order rules can be entered.

#include <algorithm>
#include <map>

#include "grammar/program_builder.h"

namespace deepinfer::grammar {
namespace {

using Kind = Node::Kind;

}  // namespace

template <typename Value>
std::vector<bool> ProgramBuilder::solve(Value&& value) {
  Program& p = *program_;
  const size_t count = p.nodes_.size();
  const auto each_input = [&](uint32_t id, auto&& visit) {
    const Node& node = p.nodes_[id];
    switch (node.kind) {
      case Kind::kSplit:
        for (const uint32_t target : p.targets(node)) visit(target);
        break;
      case Kind::kCall:
        visit(node.next), visit(p.starts_[node.value]);
        break;
      case Kind::kLoop:
        visit(node.next), visit(p.loops_[node.value].body);
        break;
      case Kind::kByte:
      case Kind::kChars:
      case Kind::kOpen:
        visit(node.next);
        break;
      default:
        break;
    }
  };
  // Users of each node, as lists in one array.
  std::vector<uint32_t> begin(count + 1, 0);
  for (uint32_t id = 0; id < count; ++id) each_input(id, [&](uint32_t input) { ++begin[input + 1]; });
  for (size_t i = 0; i < count; ++i) begin[i + 1] += begin[i];
  std::vector<uint32_t> users(begin[count]);
  std::vector<uint32_t> fill(begin.begin(), begin.end() - 1);
  for (uint32_t id = 0; id < count; ++id) each_input(id, [&](uint32_t input) { users[fill[input]++] = id; });

  std::vector<bool> out(count, false);
  std::vector<uint32_t> todo;
  const auto set = [&](uint32_t id) {
    if (!out[id] && value(p.nodes_[id], out)) out[id] = true, todo.push_back(id);
  };
  for (uint32_t id = 0; id < count; ++id) set(id);
  while (!todo.empty()) {
    const uint32_t id = todo.back();
    todo.pop_back();
    for (uint32_t i = begin[id]; i < begin[id + 1]; ++i) set(users[i]);
  }
  work_.steps(static_cast<int64_t>(users.size() + count) / 16);
  return out;
}

void ProgramBuilder::find_nullable() {
  Program& p = *program_;
  const auto any = [&](const Node& node, const std::vector<bool>& now) {
    const auto targets = p.targets(node);
    return std::any_of(targets.begin(), targets.end(), [&](uint32_t target) { return now[target]; });
  };
  const std::vector<bool> nullable = solve([&](const Node& node, const std::vector<bool>& now) {
    switch (node.kind) {
      case Kind::kEnd:
      case Kind::kBack:
        return true;
      case Kind::kSplit:
        return any(node, now);
      case Kind::kCall:
        return now[node.next] && now[p.starts_[node.value]];
      case Kind::kLoop:
        return now[node.next] && (p.loops_[node.value].min == 0 || now[p.loops_[node.value].body]);
      case Kind::kOpen:
        return static_cast<bool>(now[node.next]);
      default:
        return false;
    }
  });
  for (const uint32_t start : p.starts_) p.nullable_rules_.push_back(nullable[start]);
  // A body that may be empty satisfies any count.
  for (Loop& loop : p.loops_) {
    if (nullable[loop.body]) loop.min = 0;
  }
}

Status ProgramBuilder::find_live() {
  Program& p = *program_;
  const ByteSet& spelled = vocabulary_.spelled_bytes();
  const std::vector<bool> live = solve([&](const Node& node, const std::vector<bool>& now) {
    switch (node.kind) {
      case Kind::kEnd:
      case Kind::kAccept:
      case Kind::kBack:
        return true;
      case Kind::kByte:
        if (!node.marker && !spelled[node.byte]) {
          missing_.set(node.byte);
          return false;
        }
        return static_cast<bool>(now[node.next]);
      case Kind::kChars:
        if (p.classes_[node.value]->live_bytes(0).none()) {
          const CharClass& chars = *p.classes_[node.value];
          for (const char byte : spell(chars.codes().ranges().front().first, chars.spelling()))
            missing_.set(static_cast<uint8_t>(byte));
          missing_ &= ~spelled;
          return false;
        }
        return static_cast<bool>(now[node.next]);
      case Kind::kSplit: {
        const auto targets = p.targets(node);
        return std::any_of(targets.begin(), targets.end(), [&](uint32_t target) { return now[target]; });
      }
      case Kind::kCall:
        return now[node.next] && now[p.starts_[node.value]];
      case Kind::kLoop:
        return now[node.next] && (p.loops_[node.value].min == 0 || now[p.loops_[node.value].body]);
      case Kind::kOpen:
        return static_cast<bool>(now[node.next]);
    }
    return false;
  });
  for (size_t i = 0; i < p.nodes_.size(); ++i) p.nodes_[i].live = live[i];
  if (live[p.starts_[p.root_]]) return {};
  for (size_t byte = 0; byte < 256; ++byte) {
    if (missing_[byte]) {
      return Status::InvalidArgument("the grammar allows no text that the vocabulary can spell: byte 0x{:02x} is no token", byte);
    }
  }
  return Status::InvalidArgument("the grammar allows no text at all");
}

std::vector<uint32_t> ProgramBuilder::left_calls(uint32_t rule) const {
  const Program& p = *program_;
  std::vector<uint32_t> calls;
  std::vector<uint32_t> todo{p.starts_[rule]};
  std::map<uint32_t, bool> seen;
  while (!todo.empty()) {
    const uint32_t id = todo.back();
    todo.pop_back();
    const Node& node = p.nodes_[id];
    if (!node.live || seen[id]) continue;
    seen[id] = true;
    work_.steps();
    switch (node.kind) {
      case Kind::kSplit:
        todo.insert(todo.end(), p.targets(node).begin(), p.targets(node).end());
        break;
      case Kind::kOpen:
        todo.push_back(node.next);
        break;
      case Kind::kLoop:
        todo.push_back(p.loops_[node.value].body);
        if (p.loops_[node.value].min == 0) todo.push_back(node.next);
        break;
      case Kind::kCall:
        calls.push_back(node.value);
        if (p.nullable_rules_[node.value] && p.nodes_[node.next].kind != Kind::kBack) todo.push_back(node.next);
        break;
      default:
        break;
    }
  }
  return calls;
}

Status ProgramBuilder::rank_rules() {
  Program& p = *program_;
  const size_t count = p.starts_.size();
  p.ranks_.assign(count, 0);
  enum class Mark : uint8_t { kNew, kOpen, kDone };
  std::vector<Mark> marks(count, Mark::kNew);
  struct Visit {
    uint32_t rule;
    std::vector<uint32_t> calls;
    size_t next = 0;
  };
  auto rank = static_cast<uint32_t>(count);
  std::vector<Visit> path;
  for (uint32_t first = 0; first < count; ++first) {
    if (marks[first] != Mark::kNew) continue;
    marks[first] = Mark::kOpen;
    path.push_back({first, left_calls(first)});
    while (!path.empty()) {
      if (!work_.ok()) return work_.status();
      Visit& visit = path.back();
      if (visit.next == visit.calls.size()) {
        marks[visit.rule] = Mark::kDone;
        p.ranks_[visit.rule] = --rank;
        path.pop_back();
        continue;
      }
      const uint32_t called = visit.calls[visit.next++];
      if (marks[called] == Mark::kOpen) {
        return Status::InvalidArgument("left recursion: rule \"{}\" can come to itself before anything is read",
                                       rule_names_[called]);
      }
      if (marks[called] == Mark::kDone) continue;
      marks[called] = Mark::kOpen;
      path.push_back({called, left_calls(called)});
    }
  }
  return {};
}

void ProgramBuilder::classify_bytes() {
  Program& p = *program_;
  std::array<uint32_t, 256> number{};
  const auto refine = [&](auto&& key_of) {
    std::map<std::pair<uint32_t, uint32_t>, uint32_t> known;
    for (size_t byte = 0; byte < 256; ++byte) {
      const auto at = known.try_emplace({number[byte], key_of(byte)}, static_cast<uint32_t>(known.size())).first;
      number[byte] = at->second;
    }
    p.byte_classes_ = known.size();
  };
  ByteSet single;
  for (const Node& node : p.nodes_) {
    if (node.kind == Kind::kByte) single.set(node.byte);
  }
  refine([&](size_t byte) { return single[byte] ? static_cast<uint32_t>(byte) + 1 : 0u; });
  for (const auto& chars : p.classes_) {
    for (uint16_t state = 0; state < chars->states() && p.byte_classes_ < 256; ++state) {
      refine([&](size_t byte) { return static_cast<uint32_t>(chars->step(state, static_cast<uint8_t>(byte))); });
    }
  }
  for (size_t byte = 0; byte < 256; ++byte) p.byte_class_[byte] = static_cast<uint8_t>(number[byte]);
}

}  // namespace deepinfer::grammar
