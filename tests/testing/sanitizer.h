#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

namespace deepinfer::testing {

/// ThreadSanitizer makes a step about a hundred times slower. What it looks for shows in a few cases as well as in a thousand, so
/// sweeps over the real model are thinned out under it; every other build runs them whole.
#if defined(__SANITIZE_THREAD__)
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif

/// `cases`; under ThreadSanitizer the first and then every `keep`th.
template <class T>
std::vector<T> thinned(std::initializer_list<T> cases, size_t keep = 4) {
  std::vector<T> out;
  size_t i = 0;
  for (const T& c : cases) {
    if (!kThreadSanitizer || i % keep == 0) out.push_back(c);
    ++i;
  }
  return out;
}

/// `count`; under ThreadSanitizer a tenth of it, rounded up.
constexpr int64_t thinned(int64_t count) { return kThreadSanitizer ? (count + 9) / 10 : count; }

}  // namespace deepinfer::testing
