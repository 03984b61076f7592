#include "tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <limits>

namespace deepinfer {

Bpe::Bpe(const TokenizerFile& file) : byte_ids_(file.byte_ids) {
  static_assert(TokenizerFile::kMaxVocabulary <= 1 << kIdBits && TokenizerFile::kMaxMerges <= 1 << kRankBits);
  const size_t pair_slots = std::bit_ceil(std::max<size_t>(file.merges.size() * 2, 16));
  pairs_.assign(pair_slots, kEmpty);
  pair_mask_ = pair_slots - 1;
  filter_.assign((size_t{1} << (64 - kFilterShift)) / 64, 0);
  pair_shift_ = 64 - std::countr_zero(pair_slots);
  merged_.reserve(file.merges.size());
  for (const TokenizerFile::Merge& m : file.merges) {
    insert_pair(m.left, m.right, static_cast<int32_t>(merged_.size()));
    merged_.push_back(m.merged);
  }
  byte_pair_ranks_.resize(256 * 256);
  for (size_t a = 0; a < 256; ++a) {
    for (size_t b = 0; b < 256; ++b) byte_pair_ranks_[a << 8 | b] = rank(byte_ids_[a], byte_ids_[b]);
  }

  begins_.reserve(file.tokens.size() + 1);
  begins_.push_back(0);
  for (const std::string& token : file.tokens) {
    arena_.insert(arena_.end(), token.begin(), token.end());
    begins_.push_back(static_cast<uint32_t>(arena_.size()));
  }
  const size_t word_slots = std::bit_ceil(std::max<size_t>(file.tokens.size() * 2, 16));
  words_.assign(word_slots, kEmpty);
  word_mask_ = word_slots - 1;
  std::vector<int32_t> merged_ids;
  for (size_t id = 0; id < file.tokens.size(); ++id) {
    const std::string& token = file.tokens[id];
    if (token.empty() || file.kinds[id] != TokenizerFile::Kind::kOrdinary) continue;
    merged_ids.clear();
    merge(token, merged_ids);
    if (merged_ids.size() == 1 && merged_ids[0] == static_cast<int32_t>(id)) insert_word(static_cast<int32_t>(id));
  }
}

void Bpe::insert_pair(int32_t left, int32_t right, int32_t rank) {
  const uint64_t key = static_cast<uint64_t>(left) << kIdBits | static_cast<uint64_t>(right);
  const uint64_t h = key * kMix;
  filter_[h >> kFilterShift >> 6] |= uint64_t{1} << (h >> kFilterShift & 63);
  uint64_t slot = h >> pair_shift_;
  while (pairs_[slot] != kEmpty) slot = (slot + 1) & pair_mask_;
  pairs_[slot] = key << kRankBits | static_cast<uint64_t>(rank);
}

uint64_t Bpe::hash(std::string_view text) {
  const char* p = text.data();
  size_t n = text.size();
  uint64_t h = n * kMix;
  const auto mix = [&h](uint64_t word) {
    h = (h ^ word) * 0xD6E8FEB86659FD93u;
    h ^= h >> 32;
  };
  for (; n >= 8; p += 8, n -= 8) {
    uint64_t word;
    std::memcpy(&word, p, 8);
    mix(word);
  }
  if (n >= 4) {
    uint32_t low, high;
    std::memcpy(&low, p, 4);
    std::memcpy(&high, p + n - 4, 4);
    mix(static_cast<uint64_t>(high) << 32 | low);
  } else if (n > 0) {
    const auto byte = [p](size_t i) { return static_cast<uint64_t>(static_cast<uint8_t>(p[i])); };
    mix(byte(0) | byte(n / 2) << 8 | byte(n - 1) << 16);
  }
  return h * kMix;
}

void Bpe::insert_word(int32_t id) {
  const std::string_view text = bytes_of(id);
  const uint64_t h = hash(text);
  uint64_t slot = h & word_mask_;
  while (words_[slot] != kEmpty) slot = (slot + 1) & word_mask_;
  words_[slot] = (h >> 32) << 32 | static_cast<uint32_t>(id);
  longest_word_ = std::max(longest_word_, text.size());
}

int32_t Bpe::find_word(std::string_view text) const {
  const uint64_t h = hash(text);
  for (uint64_t slot = h & word_mask_;; slot = (slot + 1) & word_mask_) {
    const uint64_t entry = words_[slot];
    if (entry == kEmpty) return -1;
    if (entry >> 32 != h >> 32) continue;
    const auto id = static_cast<int32_t>(entry & 0xFFFFFFFFu);
    if (bytes_of(id) == text) return id;
  }
}

void Bpe::encode(std::string_view piece, std::vector<int32_t>& out) const {
  if (piece.size() == 1) {
    out.push_back(byte_ids_[static_cast<uint8_t>(piece[0])]);
    return;
  }
  if (piece.size() <= longest_word_) {
    if (const int32_t id = find_word(piece); id >= 0) {
      out.push_back(id);
      return;
    }
  }
  merge(piece, out);
}

void Bpe::merge(std::string_view piece, std::vector<int32_t>& out) const {
  const auto* bytes = reinterpret_cast<const uint8_t*>(piece.data());
  if (piece.size() <= kSmallPiece) {
    merge_small(bytes, piece.size(), out);
  } else {
    merge_large(bytes, piece.size(), out);
  }
}

void Bpe::merge_small(const uint8_t* bytes, size_t n, std::vector<int32_t>& out) const {
  // A place holds rank and position in one integer, so that one (vectorised) minimum finds the pair to merge, leftmost first.
  // The minimum of every block of places is kept: a merge changes three places, hence rarely more than two blocks.
  constexpr int kPositionBits = 7;
  constexpr int32_t kNone = std::numeric_limits<int32_t>::max();
  constexpr size_t kBlock = 16;
  constexpr size_t kBlocks = kSmallPiece / kBlock;
  static_assert(kSmallPiece == 1 << kPositionBits && kRankBits + kPositionBits < 31);
  if (n == 0) return;
  alignas(32) int32_t places[kSmallPiece];
  alignas(32) int32_t lowest[kBlocks];
  int32_t ids[kSmallPiece];
  uint8_t next[kSmallPiece], previous[kSmallPiece];
  const auto place = [](int32_t r, size_t i) { return r < 0 ? kNone : r << kPositionBits | static_cast<int32_t>(i); };
  const auto minimum = [](const int32_t* values, size_t count) {
    int32_t best[4] = {kNone, kNone, kNone, kNone};
    for (size_t i = 0; i < count; i += 4) {
      for (size_t lane = 0; lane < 4; ++lane) best[lane] = std::min(best[lane], values[i + lane]);
    }
    return std::min(std::min(best[0], best[1]), std::min(best[2], best[3]));
  };
  for (size_t i = 0; i < n; ++i) {
    ids[i] = byte_ids_[bytes[i]];
    next[i] = static_cast<uint8_t>(i + 1);
    previous[i] = static_cast<uint8_t>(i == 0 ? 0 : i - 1);
    if (i + 1 < n) places[i] = place(byte_pair_ranks_[static_cast<size_t>(bytes[i]) << 8 | bytes[i + 1]], i);
  }
  const size_t blocks = (n + kBlock - 1) / kBlock;
  std::fill(places + n - 1, places + blocks * kBlock, kNone);
  std::fill_n(lowest, kBlocks, kNone);
  for (size_t b = 0; b < blocks; ++b) lowest[b] = minimum(places + b * kBlock, kBlock);
  for (;;) {
    const int32_t pair = minimum(lowest, kBlocks);
    if (pair == kNone) break;
    const size_t i = static_cast<size_t>(pair) & (kSmallPiece - 1);
    const size_t gone = next[i];
    const size_t after = next[gone];
    ids[i] = merged_[static_cast<size_t>(pair >> kPositionBits)];
    next[i] = static_cast<uint8_t>(after);
    places[gone] = kNone;
    places[i] = kNone;
    if (after < n) {
      previous[after] = static_cast<uint8_t>(i);
      places[i] = place(rank(ids[i], ids[after]), i);
    }
    size_t before = i;
    if (i > 0) {
      before = previous[i];
      places[before] = place(rank(ids[before], ids[i]), before);
    }
    const auto refresh = [&](size_t block) { lowest[block] = minimum(places + block * kBlock, kBlock); };
    refresh(i / kBlock);
    if (gone / kBlock != i / kBlock) refresh(gone / kBlock);
    if (before / kBlock != i / kBlock) refresh(before / kBlock);
  }
  for (size_t i = 0; i < n; i = next[i]) out.push_back(ids[i]);
}

void Bpe::merge_large(const uint8_t* bytes, size_t n, std::vector<int32_t>& out) const {
  // A heap of (rank, position); entries that a merge made obsolete are recognised when they come up: the rank now at their
  // position differs. An equal rank is the same pair, so a second entry for it does no harm.
  constexpr int kPositionBits = 43;
  static_assert(kRankBits + kPositionBits <= 63);
  constexpr size_t kEnd = std::numeric_limits<size_t>::max();
  struct Symbol {
    int32_t id;
    int32_t rank;  // of the pair with the next symbol
    size_t next;
    size_t previous;
  };
  std::vector<Symbol> symbols(n);
  std::vector<uint64_t> heap;
  heap.reserve(n);
  const auto entry = [](int32_t r, size_t i) { return static_cast<uint64_t>(r) << kPositionBits | i; };
  for (size_t i = 0; i < n; ++i) {
    const int32_t r = i + 1 < n ? byte_pair_ranks_[static_cast<size_t>(bytes[i]) << 8 | bytes[i + 1]] : kNoRank;
    symbols[i] = {byte_ids_[bytes[i]], r, i + 1 < n ? i + 1 : kEnd, i == 0 ? kEnd : i - 1};
    if (r >= 0) heap.push_back(entry(r, i));
  }
  const std::greater<uint64_t> later;
  std::make_heap(heap.begin(), heap.end(), later);
  const auto update = [&](size_t i) {
    Symbol& s = symbols[i];
    s.rank = s.next == kEnd ? kNoRank : rank(s.id, symbols[s.next].id);
    if (s.rank < 0) return;
    heap.push_back(entry(s.rank, i));
    std::push_heap(heap.begin(), heap.end(), later);
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const uint64_t top = heap.back();
    heap.pop_back();
    const size_t i = top & ((uint64_t{1} << kPositionBits) - 1);
    Symbol& s = symbols[i];
    if (s.rank != static_cast<int32_t>(top >> kPositionBits)) continue;
    Symbol& gone = symbols[s.next];
    gone.rank = kNoRank;
    s.id = merged_[static_cast<size_t>(s.rank)];
    s.next = gone.next;
    if (s.next != kEnd) symbols[s.next].previous = i;
    update(i);
    if (s.previous != kEnd) update(s.previous);
  }
  for (size_t i = 0; i != kEnd; i = symbols[i].next) out.push_back(symbols[i].id);
}

}  // namespace deepinfer
