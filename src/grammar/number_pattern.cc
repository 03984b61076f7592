#include "grammar/number_pattern.h"

#include <algorithm>
#include <map>

#include "grammar/regex.h"

namespace deepinfer::grammar {
namespace {

constexpr size_t kMaxDigits = 400;
constexpr uint64_t kMaxDivisor = 5000;

std::string digits_from(char first) { return first > '9' ? "" : fmt::format("[{}-9]", first); }

/// Whole numbers with a larger (smaller) value, as alternatives.
std::string whole_above(const std::string& value) {
  std::string out = fmt::format("[1-9][0-9]{{{},}}", value.size());
  for (size_t i = 0; i < value.size(); ++i) {
    if (value[i] == '9') continue;
    out += "|" + value.substr(0, i) + digits_from(static_cast<char>(value[i] + 1)) +
           fmt::format("[0-9]{{{}}}", value.size() - i - 1);
  }
  return out;
}

std::string whole_below(const std::string& value) {
  std::string out;
  if (value.size() > 1) out = fmt::format("0|[1-9][0-9]{{0,{}}}", value.size() - 2);
  for (size_t i = 0; i < value.size(); ++i) {
    const char lowest = i == 0 && value.size() > 1 ? '1' : '0';
    if (value[i] <= lowest) continue;
    if (!out.empty()) out += "|";
    out += value.substr(0, i) + fmt::format("[{}-{}]", lowest, static_cast<char>(value[i] - 1)) +
           fmt::format("[0-9]{{{}}}", value.size() - i - 1);
  }
  return out;
}

/// Absolute values at or above (or above) a bound.
std::string magnitude_above(const Decimal& bound, bool exclusive) {
  std::string fraction;
  if (bound.fraction.empty()) {
    fraction = exclusive ? "\\.[0-9]*[1-9][0-9]*" : "(\\.[0-9]+)?";
  } else {
    fraction = "\\.(" + bound.fraction + (exclusive ? "[0-9]*[1-9][0-9]*" : "[0-9]*");
    for (size_t i = 0; i < bound.fraction.size(); ++i) {
      if (bound.fraction[i] == '9') continue;
      fraction += "|" + bound.fraction.substr(0, i) + digits_from(static_cast<char>(bound.fraction[i] + 1)) + "[0-9]*";
    }
    fraction += ")";
  }
  return "(" + whole_above(bound.whole) + ")(\\.[0-9]+)?|" + bound.whole + fraction;
}

std::string magnitude_below(const Decimal& bound, bool exclusive) {
  std::string out;
  const std::string below = whole_below(bound.whole);
  if (!below.empty()) out = "(" + below + ")(\\.[0-9]+)?";
  const auto add = [&](const std::string& alternative) { out += (out.empty() ? "" : "|") + alternative; };
  if (bound.fraction.empty()) {
    if (!exclusive) add(bound.whole + "(\\.0+)?");
    return out;
  }
  std::string fraction;
  for (size_t i = 0; i < bound.fraction.size(); ++i) {
    // Cut off behind i digits (but not right behind the point), or smaller at digit i.
    if (i > 0) fraction += bound.fraction.substr(0, i) + "|";
    if (bound.fraction[i] > '0')
      fraction += bound.fraction.substr(0, i) + fmt::format("[0-{}][0-9]*|", static_cast<char>(bound.fraction[i] - 1));
  }
  if (!exclusive) fraction += bound.fraction + "0*|";
  if (!fraction.empty()) fraction.pop_back();
  add(bound.whole + (fraction.empty() ? "" : "(\\.(" + fraction + "))?"));
  return out;
}

constexpr std::string_view kAnyMagnitude = "(0|[1-9][0-9]*)(\\.[0-9]+)?";

std::string pattern_above(const NumberBounds::Bound& bound) {
  if (!bound.value.negative) return magnitude_above(bound.value, bound.exclusive);
  return fmt::format("{}|-({})", kAnyMagnitude, magnitude_below(bound.value, bound.exclusive));
}

std::string pattern_below(const NumberBounds::Bound& bound) {
  if (bound.value.negative) return fmt::format("-({})", magnitude_above(bound.value, bound.exclusive));
  const std::string positive = magnitude_below(bound.value, bound.exclusive);
  // Below or at zero: a minus sign, and for "below zero" something behind it.
  const std::string minus =
      bound.value.zero() && bound.exclusive ? "-(" + magnitude_above(bound.value, true) + ")" : fmt::format("-{}", kAnyMagnitude);
  return positive.empty() ? minus : minus + "|" + positive;
}

/// divisor * 10^digits as a whole number, or nothing if it is too large.
std::optional<uint64_t> scaled(const Decimal& value, size_t digits, uint64_t limit) {
  std::string text = value.whole + value.fraction + std::string(digits - value.fraction.size(), '0');
  uint64_t out = 0;
  for (const char digit : text) {
    out = out * 10 + static_cast<uint64_t>(digit - '0');
    if (out > limit) return std::nullopt;
  }
  return out;
}

/// Numbers without exponent that are multiples: states are (digits behind the point, remainder of all digits so far).
CharDfa dfa_of_multiples(uint64_t divisor, size_t places, Work& work) {
  CharNfa nfa;
  nfa.start = nfa.add();
  nfa.accept = nfa.add();
  const auto rest = [&](size_t place, uint64_t remainder) {
    for (size_t i = place; i < places; ++i) remainder = remainder * 10 % divisor;
    return remainder;
  };
  // [0]: before the point; [1 + n]: n digits behind it.
  std::vector<std::vector<uint32_t>> state(places + 2, std::vector<uint32_t>(divisor));
  for (auto& row : state) {
    for (uint32_t& id : row) id = nfa.add();
  }
  if (!work.steps(static_cast<int64_t>(divisor * (places + 2)) * 10)) return {};
  nfa.nodes[nfa.start].moves.emplace_back(CodeSet::One('-'), state[0][0]);
  nfa.nodes[nfa.start].empty_moves.push_back(state[0][0]);
  for (uint64_t r = 0; r < divisor; ++r) {
    for (uint32_t digit = 0; digit < 10; ++digit) {
      const uint64_t next = (r * 10 + digit) % divisor;
      nfa.nodes[state[0][r]].moves.emplace_back(CodeSet::One('0' + digit), state[0][next]);
      for (size_t n = 0; n < places; ++n)
        nfa.nodes[state[n + 1][r]].moves.emplace_back(CodeSet::One('0' + digit), state[n + 2][next]);
    }
    nfa.nodes[state[0][r]].moves.emplace_back(CodeSet::One('.'), state[1][r]);
    nfa.nodes[state[places + 1][r]].moves.emplace_back(CodeSet::One('0'), state[places + 1][r]);
    if (rest(0, r) == 0) nfa.nodes[state[0][r]].empty_moves.push_back(nfa.accept);
    for (size_t n = 0; n <= places; ++n) {
      if (rest(n, r) == 0) nfa.nodes[state[n + 1][r]].empty_moves.push_back(nfa.accept);
    }
  }
  return determinize(nfa, work);
}

std::string strip_zeros(std::string digits) {
  digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size()));
  return digits.empty() ? "0" : digits;
}

}  // namespace

std::optional<Decimal> Decimal::From(const Json& number) {
  std::string text = number.dump();
  Decimal out;
  if (text[0] == '-') out.negative = true, text.erase(0, 1);
  int64_t exponent = 0;
  if (const size_t e = text.find_first_of("eE"); e != std::string::npos) {
    exponent = std::strtoll(text.c_str() + e + 1, nullptr, 10);
    text.resize(e);
  }
  const size_t point = text.find('.');
  std::string digits = text;
  int64_t whole = static_cast<int64_t>(text.size());
  if (point != std::string::npos) {
    whole = static_cast<int64_t>(point);
    digits.erase(point, 1);
  }
  whole += exponent;
  if (whole > static_cast<int64_t>(kMaxDigits) || whole < -static_cast<int64_t>(kMaxDigits)) return std::nullopt;
  if (whole <= 0) digits.insert(0, static_cast<size_t>(1 - whole), '0'), whole = 1;
  if (whole > static_cast<int64_t>(digits.size())) digits.append(static_cast<size_t>(whole) - digits.size(), '0');
  out.whole = strip_zeros(digits.substr(0, static_cast<size_t>(whole)));
  out.fraction = digits.substr(static_cast<size_t>(whole));
  out.fraction.erase(out.fraction.find_last_not_of('0') + 1);
  if (out.zero()) out.negative = false;
  return out;
}

int compare(const Decimal& a, const Decimal& b) {
  if (a.negative != b.negative) return a.negative ? -1 : 1;
  const int sign = a.negative ? -1 : 1;
  if (a.whole.size() != b.whole.size()) return a.whole.size() < b.whole.size() ? -sign : sign;
  int order = a.whole.compare(b.whole);
  if (order == 0) order = a.fraction.compare(b.fraction);
  return order < 0 ? -sign : order > 0 ? sign : 0;
}

void NumberBounds::raise_low(const Bound& bound) {
  const int order = low ? compare(bound.value, low->value) : 1;
  if (order > 0 || (order == 0 && bound.exclusive)) low = bound;
}

void NumberBounds::lower_high(const Bound& bound) {
  const int order = high ? compare(bound.value, high->value) : -1;
  if (order < 0 || (order == 0 && bound.exclusive)) high = bound;
}

std::optional<bool> is_multiple(const Decimal& a, const Decimal& b) {
  const size_t places = std::max(a.fraction.size(), b.fraction.size());
  const auto divisor = scaled(b, places, uint64_t{1} << 58);
  if (!divisor || *divisor == 0) return std::nullopt;
  const std::string digits = a.whole + a.fraction + std::string(places - a.fraction.size(), '0');
  uint64_t remainder = 0;
  for (const char digit : digits)
    remainder =
        static_cast<uint64_t>((static_cast<unsigned __int128>(remainder) * 10 + static_cast<uint64_t>(digit - '0')) % *divisor);
  return remainder == 0;
}

Result<CharDfa> dfa_of_numbers(const NumberBounds& bounds, Work& work) {
  const auto of_pattern = [&](const std::string& pattern) -> CharDfa {
    const auto regex = parse_regex(pattern, RegexScope::kWhole, work.limits());
    if (!regex) return work.fail(regex.error()), CharDfa();
    return dfa_of_regex(*regex, work);
  };
  CharDfa out = of_pattern(bounds.integer ? "0|-?[1-9][0-9]*" : "-?(0|[1-9][0-9]*)(\\.[0-9]+)?");
  if (bounds.low) out = intersect(out, of_pattern(pattern_above(*bounds.low)), work);
  if (bounds.high) {
    const std::string below = pattern_below(*bounds.high);
    out = intersect(out, of_pattern(below), work);
  }
  for (const Decimal& value : bounds.excluded) {
    const std::string sign = value.zero() ? "-?" : value.negative ? "-" : "";
    const std::string fraction = value.fraction.empty() ? "(\\.0+)?" : "\\." + value.fraction + "0*";
    out = intersect(out, complement(of_pattern(sign + value.whole + fraction), work), work);
  }
  for (const Decimal& multiple : bounds.multiples) {
    const size_t places = multiple.fraction.size();
    const auto divisor = scaled(multiple, places, kMaxDivisor);
    if (!divisor || *divisor == 0 || places > 20 || *divisor * (places + 2) > 4 * kMaxDivisor) {
      return Err(Status::Unimplemented("multipleOf {}{}{}: only divisors of up to {} (times a power of ten) are supported",
                                       multiple.whole, places > 0 ? "." : "", multiple.fraction, kMaxDivisor));
    }
    out = intersect(out, dfa_of_multiples(*divisor, places, work), work);
  }
  if (!work.ok()) return Err(work.status());
  return out;
}

}  // namespace deepinfer::grammar
