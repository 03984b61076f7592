#pragma once

#include <optional>
#include <string>

#include "grammar/char_dfa.h"
#include "grammar/json_forms.h"

namespace deepinfer::grammar {

/// A decimal number, exactly: sign, digits before and behind the point (no needless zeros).
struct Decimal {
  bool negative = false;
  std::string whole = "0";
  std::string fraction;

  /// Of a JSON number; nothing where it takes more than 400 digits.
  static std::optional<Decimal> From(const Json& number);
  bool zero() const { return whole == "0" && fraction.empty(); }
};
/// -1, 0, 1.
int compare(const Decimal& a, const Decimal& b);

/// Bounds on a JSON number; with any of them numbers are written without exponent.
struct NumberBounds {
  struct Bound {
    Decimal value;
    bool exclusive = false;
  };
  std::optional<Bound> low;
  std::optional<Bound> high;
  bool integer = false;
  std::vector<Decimal> multiples;
  std::vector<Decimal> excluded;

  void raise_low(const Bound& bound);
  void lower_high(const Bound& bound);
};

/// Spellings of the numbers within bounds. An error names a divisor that is too large.
Result<CharDfa> dfa_of_numbers(const NumberBounds& bounds, Work& work);

/// a is a multiple of b, exactly.
std::optional<bool> is_multiple(const Decimal& a, const Decimal& b);

}  // namespace deepinfer::grammar
