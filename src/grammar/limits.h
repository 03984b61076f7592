#pragma once

#include <cstdint>
#include <string_view>
#include <utility>

#include "base/status.h"

namespace deepinfer::grammar {

/// What one compilation may cost. Counters of work, not clocks: the same input is accepted or refused on every machine.
struct CompileLimits {
  int64_t source_bytes = int64_t{4} << 20;  ///< text of the grammar
  int64_t depth = 200;                      ///< nesting of the source: JSON, groups, parentheses
  int64_t nodes = int64_t{1} << 21;         ///< nodes of the automaton, about 16 bytes each
  int64_t rules = int64_t{1} << 18;
  int64_t dfa_states = 20000;              ///< of one character automaton (intersections and complements of patterns)
  int64_t alternatives = 256;              ///< combinations of anyOf/oneOf that one schema may multiply to
  int64_t steps = int64_t{1} << 26;        ///< all else that is counted: pieces of work of below a microsecond
  int64_t live_bytes = int64_t{48} << 20;  ///< matcher states and masks that a compiled grammar may cache
};

/// Counts work against limits. The first failure latches: later calls return false, and whoever builds stops soon.
class Work {
 public:
  explicit Work(const CompileLimits& limits) : limits_(limits) {}

  const CompileLimits& limits() const { return limits_; }
  bool ok() const { return status_.ok(); }
  const Status& status() const { return status_; }
  bool fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
    return false;
  }
  bool nodes(int64_t count = 1) { return spend(nodes_, count, limits_.nodes, "nodes"); }
  bool rules(int64_t count = 1) { return spend(rules_, count, limits_.rules, "rules"); }
  bool steps(int64_t count = 1) { return spend(steps_, count, limits_.steps, "steps"); }

 private:
  bool spend(int64_t& spent, int64_t count, int64_t limit, std::string_view what) {
    if (!status_.ok()) return false;
    spent += count;
    if (spent <= limit) return true;
    return fail(Status::ResourceExhausted("the grammar is too large: its compilation takes more than {} {}", limit, what));
  }

  CompileLimits limits_;
  Status status_;
  int64_t nodes_ = 0;
  int64_t rules_ = 0;
  int64_t steps_ = 0;
};

}  // namespace deepinfer::grammar
