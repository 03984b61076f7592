#include "model/engram_hash.h"

#include <algorithm>
#include <array>
#include <limits>
#include <unordered_set>

namespace deepinfer {
namespace {

__extension__ using Wide = unsigned __int128;

bool is_prime(int64_t n) {
  if (n < 4) return n > 1;
  if (n % 2 == 0) return false;
  for (int64_t f = 3; f * f <= n; f += 2) {
    if (n % f == 0) return false;
  }
  return true;
}

// numpy.random.default_rng(seed): SeedSequence spreads the seed over a pool of four words, PCG64 (XSL-RR 128/64) starts from it.
// The multipliers of a checkpoint are defined by that generator, so it is rebuilt here (spec §5.3).
class NumpyRng {
 public:
  explicit NumpyRng(uint64_t seed) {
    std::vector<uint32_t> entropy;
    do {
      entropy.push_back(static_cast<uint32_t>(seed));
      seed >>= 32;
    } while (seed != 0);
    const std::array<uint32_t, 4> pool = mix_entropy(entropy);
    const std::array<uint32_t, 8> words = generate(pool);
    const auto word64 = [&](size_t i) {
      return static_cast<uint64_t>(words[2 * i]) | static_cast<uint64_t>(words[2 * i + 1]) << 32;
    };
    const Wide state = (static_cast<Wide>(word64(0)) << 64) | word64(1);
    const Wide stream = (static_cast<Wide>(word64(2)) << 64) | word64(3);
    increment_ = (stream << 1) | 1;
    state_ = 0;
    step();
    state_ += state;
    step();
  }

  uint64_t next() {
    step();
    const auto high = static_cast<uint64_t>(state_ >> 64);
    const auto low = static_cast<uint64_t>(state_);
    const auto rotation = static_cast<unsigned>(high >> 58);
    const uint64_t x = high ^ low;
    return (x >> rotation) | (x << ((64 - rotation) & 63));
  }

  // Generator.integers(0, bound): Lemire's method with rejection.
  uint64_t below(uint64_t bound) {
    Wide product = static_cast<Wide>(next()) * bound;
    if (static_cast<uint64_t>(product) < bound) {
      const uint64_t threshold = (0 - bound) % bound;
      while (static_cast<uint64_t>(product) < threshold) product = static_cast<Wide>(next()) * bound;
    }
    return static_cast<uint64_t>(product >> 64);
  }

 private:
  void step() {
    const Wide multiplier = (static_cast<Wide>(2549297995355413924ULL) << 64) | 4865540595714422341ULL;
    state_ = state_ * multiplier + increment_;
  }

  static uint32_t hash_mix(uint32_t value, uint32_t& constant) {
    value ^= constant;
    constant *= 0x931e8875u;
    value *= constant;
    return value ^ (value >> 16);
  }

  static uint32_t mix(uint32_t x, uint32_t y) {
    const uint32_t r = x * 0xca01f9ddu - y * 0x4973f715u;
    return r ^ (r >> 16);
  }

  static std::array<uint32_t, 4> mix_entropy(const std::vector<uint32_t>& entropy) {
    std::array<uint32_t, 4> pool{};
    uint32_t constant = 0x43b0d7e5u;
    for (size_t i = 0; i < pool.size(); ++i) pool[i] = hash_mix(i < entropy.size() ? entropy[i] : 0, constant);
    for (size_t from = 0; from < pool.size(); ++from) {
      for (size_t to = 0; to < pool.size(); ++to) {
        if (from != to) pool[to] = mix(pool[to], hash_mix(pool[from], constant));
      }
    }
    return pool;
  }

  static std::array<uint32_t, 8> generate(const std::array<uint32_t, 4>& pool) {
    std::array<uint32_t, 8> words{};
    uint32_t constant = 0x8b51f9ddu;
    for (size_t i = 0; i < words.size(); ++i) {
      uint32_t value = pool[i % pool.size()] ^ constant;
      constant *= 0x58f38dedu;
      value *= constant;
      words[i] = value ^ (value >> 16);
    }
    return words;
  }

  Wide state_ = 0;
  Wide increment_ = 0;
};

// x % n without a division, of which a prompt's tokens would have some 50 each. `inverse`: (2^64 - 1) / n; with it the quotient
// is too small by two at most.
uint64_t remainder(uint64_t x, uint64_t n, uint64_t inverse) {
  uint64_t rest = x - static_cast<uint64_t>(static_cast<Wide>(x) * inverse >> 64) * n;
  while (rest >= n) rest -= n;
  return rest;
}

}  // namespace

EngramHash::EngramHash(const ModelConfig& config, int32_t pad)
    : orders_(config.engram_max_ngram_size - 1), heads_(config.engram_n_heads), columns_(config.engram_columns()), pad_(pad) {
  std::unordered_set<int64_t> taken;
  const int64_t bound =
      std::max<int64_t>(1, std::numeric_limits<int64_t>::max() / std::max<int64_t>(config.engram_compressed_vocab_size, 1) / 2);
  for (int64_t layer : config.engram_layer_ids) {
    std::vector<int64_t> primes;
    for (int64_t order = 0; order < orders_; ++order) {
      int64_t n = config.engram_vocab_size - 1;  // the search starts again for every order, past what is taken
      for (int64_t head = 0; head < heads_; ++head) {
        do ++n;
        while (taken.contains(n) || !is_prime(n));
        taken.insert(n);
        primes.push_back(n);
      }
    }
    std::vector<int64_t> offsets(primes.size(), 0);
    for (size_t i = 1; i < primes.size(); ++i) offsets[i] = offsets[i - 1] + primes[i - 1];
    std::vector<uint64_t> inverses;
    for (const int64_t prime : primes) inverses.push_back(std::numeric_limits<uint64_t>::max() / static_cast<uint64_t>(prime));
    inverses_.push_back(std::move(inverses));
    primes_.push_back(std::move(primes));
    offsets_.push_back(std::move(offsets));

    NumpyRng rng(static_cast<uint64_t>(10007 * layer));
    std::vector<int64_t> multipliers;
    for (int64_t back = 0; back < config.engram_max_ngram_size; ++back) {
      multipliers.push_back(static_cast<int64_t>(rng.below(static_cast<uint64_t>(bound))) * 2 + 1);
    }
    multipliers_.push_back(std::move(multipliers));
  }
}

void EngramHash::rows(int64_t slot, std::span<const int32_t> history, int64_t* rows) const {
  const auto& primes = primes_[static_cast<size_t>(slot)];
  const auto& inverses = inverses_[static_cast<size_t>(slot)];
  const auto& offsets = offsets_[static_cast<size_t>(slot)];
  const auto& multipliers = multipliers_[static_cast<size_t>(slot)];
  uint64_t rolling = 0;
  bool blocked = false;
  for (int64_t back = 0; back <= orders_; ++back) {
    const int64_t at = static_cast<int64_t>(history.size()) - 1 - back;
    // Once a slot is blocked, all older ones are (spec §5.3).
    blocked = blocked || at < 0 || history[static_cast<size_t>(at)] == kDead;
    const int64_t id = blocked ? pad_ : history[static_cast<size_t>(at)];
    rolling ^= static_cast<uint64_t>(id) * static_cast<uint64_t>(multipliers[static_cast<size_t>(back)]);
    if (back == 0) continue;
    for (int64_t head = 0; head < heads_; ++head) {
      const auto column = static_cast<size_t>((back - 1) * heads_ + head);
      rows[column] =
          static_cast<int64_t>(remainder(rolling, static_cast<uint64_t>(primes[column]), inverses[column])) + offsets[column];
    }
  }
}

}  // namespace deepinfer
