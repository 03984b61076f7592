// Attention and the choice of rows.

#include <algorithm>
#include <cmath>

#include "ops/op_inputs.h"

namespace deepinfer::testing {
namespace {

std::vector<uint8_t> packed_window(Random& random, int64_t rows, int64_t dim) {
  const int64_t bytes = dim + dim / 32;
  std::vector<uint8_t> packed(static_cast<size_t>(rows * bytes));
  fill_e4m3(random, packed);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t g = dim; g < bytes; ++g)
      packed[static_cast<size_t>(r * bytes + g)] = static_cast<uint8_t>(random.between(125, 128));
  }
  return packed;
}

struct AttentionDims {
  int64_t heads, dim, window, chosen;
  std::vector<int64_t> counts;
  int64_t pairs = 0;  ///< of dims that are rotated around it
  int64_t skew = 0;   ///< bytes by which rows miss the addresses that their loads would like
};

OpCase attention_case(const AttentionDims& d) {
  const std::string name =
      fmt::format("{}_attention_{}x{}_window{}_chosen{}{}", d.pairs > 0 ? fmt::format("rotated{}", d.pairs) : "sparse", d.heads,
                  d.dim, d.window, d.chosen, d.skew > 0 ? fmt::format("_skew{}", d.skew) : "");
  return {
      name, d.counts, [=]() -> RunRows {
        struct Inputs {
          std::vector<uint8_t> ring, fresh;
          std::unique_ptr<PagedBuffer> cache;
          std::vector<bf16> q;
          std::vector<float> sinks, cos, sin;
          std::vector<std::vector<int32_t>> chosen;
          std::vector<AttentionQuery> queries;
        };
        Random random(30);
        auto in = std::make_shared<Inputs>();
        const int64_t rows = d.counts.back();
        const int64_t capacity = d.window + 5;
        const int64_t start = 3 * capacity + 2;  // the ring has wrapped; windows reach back over its end
        in->ring = packed_window(random, capacity, d.dim);
        in->fresh = packed_window(random, rows, d.dim);
        const int64_t cached = std::max<int64_t>(2 * d.chosen, 200);
        in->cache = std::make_unique<PagedBuffer>(cached, 64, d.dim / 2 + d.dim / 16, 48 + d.skew);
        fill_bytes(random, in->cache->bytes);
        for (int64_t j = 0; j < cached; ++j) {
          for (int64_t g = 0; g < d.dim / 16; ++g)
            in->cache->rows.row(j)[d.dim / 2 + g] = static_cast<uint8_t>(random.between(1, 0x34));
        }
        in->q = activations(random, rows, d.heads * d.dim);
        // Scores of some hundreds are as far as a softmax is compared: beyond, the last place of a score is a per cent of
        // e^score.
        for (bf16& v : in->q) v = to_bf16(std::clamp(to_float(v), -16.0f, 16.0f));
        in->sinks = floats(random, d.heads, 2.0f);
        in->sinks[0] = -40.0f;
        if (d.heads > 1) in->sinks[1] = 60.0f;
        for (int64_t i = 0; i < rows * d.pairs; ++i) {
          const float angle = 3.0f * random.normal();
          in->cos.push_back(std::cos(angle));
          in->sin.push_back(std::sin(angle));
        }
        const WindowRows window{in->ring.data(), capacity, in->fresh.data(), start, d.dim + d.dim / 32};
        const std::vector<int64_t> lengths = {
            d.chosen, 0, 1, d.chosen / 2, std::min<int64_t>(d.chosen, 63), std::min<int64_t>(d.chosen, 64)};
        for (int64_t r = 0; r < rows; ++r) {
          std::vector<int32_t> list;
          const int64_t want = r % 17 == 4 ? 0 : lengths[static_cast<size_t>(r) % lengths.size()];
          for (int64_t j = 0; j < cached && static_cast<int64_t>(list.size()) < want; ++j) {
            if (random.below(cached - j) < want - static_cast<int64_t>(list.size())) list.push_back(static_cast<int32_t>(j));
          }
          in->chosen.push_back(std::move(list));
        }
        for (int64_t r = 0; r < rows; ++r) {
          const int64_t position = start + r;
          const auto& list = in->chosen[static_cast<size_t>(r)];
          in->queries.push_back({.window = window,
                                 .window_first = r % 17 == 4 ? position : std::max(start - d.window + 1, position - d.window + 1),
                                 .window_last = position,
                                 .compressed = in->cache->rows,
                                 .compressed_rows = cached,
                                 .chosen = list.empty() ? nullptr : list.data(),
                                 .chosen_count = static_cast<int64_t>(list.size())});
        }
        return [=](Backend& b, int64_t begin, int64_t count) -> Outputs {
          const int64_t width = d.heads * d.dim;
          std::vector<bf16> out(static_cast<size_t>(count * width));
          std::vector<bf16> q(in->q.begin() + begin * width, in->q.begin() + (begin + count) * width);
          const SparseAttentionArgs args{.q = q.data(),
                                         .sinks = in->sinks.data(),
                                         .out = out.data(),
                                         .queries = {in->queries.data() + begin, static_cast<size_t>(count)},
                                         .heads = d.heads,
                                         .dim = d.dim};
          if (d.pairs > 0) {
            b.rotated_attention(args, q.data(), {in->cos.data() + begin * d.pairs, in->sin.data() + begin * d.pairs, d.pairs});
          } else {
            b.sparse_attention(args);
          }
          return {output_of("o", Compare::kBf16, out, d.heads * d.dim)};
        };
      }};
}

struct IndexDims {
  int64_t heads, dim, topk, blocks, block_size, longest;
  std::vector<int64_t> counts;
  int64_t sequences = 1;  // with rows that follow each other, and keys of their own
  int64_t page_rows = 128;
  int scale = 127;
};

// Products and sums of these inputs are exact in fp32 in every order, so that scores, ties among them and choices are the
// reference's: keys and queries on the FP4 grid with one scale, weights within one binade.
OpCase index_case(const IndexDims& d, IndexSelectArgs::Candidates mode) {
  static const char* kNames[] = {"plain", "build", "restrict"};
  const std::string name = fmt::format("index_select_{}_{}x{}_top{}_of{}{}", kNames[static_cast<int>(mode)], d.heads, d.dim,
                                       d.topk, d.longest, d.sequences > 1 ? fmt::format("_sequences{}", d.sequences) : "");
  return {name, d.counts, [=]() -> RunRows {
            struct Inputs {
              std::vector<std::unique_ptr<PagedBuffer>> keys;  // of a sequence
              std::vector<bf16> q, weights;
              std::vector<int64_t> visible;
              std::vector<uint64_t> pool;
            };
            Random random(31);
            auto in = std::make_shared<Inputs>();
            const int64_t rows = d.counts.back();
            for (int64_t sequence = 0; sequence < d.sequences; ++sequence) {
              auto keys = std::make_unique<PagedBuffer>(d.longest, d.page_rows, d.dim / 2 + d.dim / 32, 16);
              for (int64_t j = 0; j < d.longest; ++j) {
                uint8_t* row = keys->rows.row(j);
                for (int64_t i = 0; i < d.dim / 2; ++i) row[i] = static_cast<uint8_t>(random.bits());
                std::memset(row + d.dim / 2, d.scale, static_cast<size_t>(d.dim / 32));
                // Exact ties: every third key is that of an earlier row, some keys are zero.
                if (j % 3 == 2) std::memcpy(row, keys->rows.row(random.below(j)), static_cast<size_t>(d.dim / 2));
                if (j % 11 == 7) std::memset(row, 0, static_cast<size_t>(d.dim / 2));
              }
              in->keys.push_back(std::move(keys));
            }
            in->q.resize(static_cast<size_t>(rows * d.heads * d.dim));
            for (bf16& v : in->q) v = to_bf16(e2m1_to_float(static_cast<uint8_t>(random.below(16))));
            in->weights.resize(static_cast<size_t>(rows * d.heads));
            for (bf16& w : in->weights)
              w = to_bf16((random.below(2) != 0 ? 1.0f : -1.0f) * (1.0f + static_cast<float>(random.below(128)) / 128) / 64);
            const int64_t words = ((d.longest + d.block_size - 1) / d.block_size + 63) / 64;
            in->pool.assign(static_cast<size_t>(rows * words), 0);
            for (int64_t r = 0; r < rows; ++r) {
              // Short rows see less than topk, or than the pool.
              const int64_t visible = r % 5 == 3   ? random.between(0, d.topk)
                                      : r % 5 == 4 ? random.between(1, d.longest)
                                                   : d.longest - r % 7;
              in->visible.push_back(visible);
              const int64_t blocks = (visible + d.block_size - 1) / d.block_size;
              if (blocks <= d.blocks) continue;
              uint64_t* bits = in->pool.data() + r * words;
              int64_t kept = 1;
              bits[(blocks - 1) / 64] |= uint64_t{1} << ((blocks - 1) % 64);
              while (kept < d.blocks) {
                const int64_t b = random.below(blocks);
                if ((bits[b / 64] >> (b % 64) & 1) == 0) ++kept;
                bits[b / 64] |= uint64_t{1} << (b % 64);
              }
            }
            return [=](Backend& b, int64_t begin, int64_t count) -> Outputs {
              std::vector<int32_t> chosen(static_cast<size_t>(count * d.topk), -1);
              std::vector<IndexQuery> queries;
              for (int64_t r = 0; r < count; ++r) {
                const PagedRows& keys = in->keys[static_cast<size_t>((begin + r) * d.sequences / rows)]->rows;
                queries.push_back({keys, in->visible[static_cast<size_t>(begin + r)], chosen.data() + r * d.topk, -1});
              }
              std::vector<uint64_t> candidates(in->pool.begin() + begin * words, in->pool.begin() + (begin + count) * words);
              b.index_select({.q = in->q.data() + begin * d.heads * d.dim,
                              .weights = in->weights.data() + begin * d.heads,
                              .queries = queries,
                              .heads = d.heads,
                              .dim = d.dim,
                              .topk = d.topk,
                              .mode = mode,
                              .candidate_blocks = d.blocks,
                              .candidate_block_size = d.block_size,
                              .candidates = mode == IndexSelectArgs::Candidates::kNone ? nullptr : candidates.data(),
                              .candidate_words = mode == IndexSelectArgs::Candidates::kNone ? 0 : words});
              std::vector<int64_t> counts;
              for (const IndexQuery& q : queries) counts.push_back(q.chosen_count);
              return {output_of("chosen", Compare::kBits, chosen, d.topk), output_of("chosen_count", Compare::kBits, counts, 1),
                      output_of("candidates", Compare::kBits, candidates, words)};
            };
          }};
}

}  // namespace

std::vector<OpCase> attention_op_cases() {
  const std::vector<int64_t> some = {1, 2, 7, 8, 9, 33};
  std::vector<OpCase> cases = {
      attention_case({8, 64, 32, 32, kManyCounts}),  // nano
      attention_case({4, 32, 8, 6, kManyCounts}),    // micro
      attention_case({1, 32, 1, 0, some}),           // a single key
      attention_case({3, 96, 20, 129, some}),
      attention_case({17, 128, 128, 64, some}),
      attention_case({24, 160, 128, 100, {1, 7, 8, 9, 13}}),
      attention_case({64, 512, 128, 512, {1, 3, 9}}),  // true dimensions: 640 keys
      attention_case({8, 64, 32, 32, some, 8}),        // nano
      attention_case({3, 96, 20, 129, some, 13}),      // begins within eight dims
      attention_case({20, 64, 9, 5, some, 32}),        // all dims
      attention_case({64, 512, 128, 512, {1, 3, 9, 17}, 32}),
  };
  using Mode = IndexSelectArgs::Candidates;
  const std::vector<IndexDims> dims = {
      {4, 64, 32, 16, 8, 300, kManyCounts},   {2, 32, 6, 4, 4, 70, kManyCounts}, {1, 32, 1, 1, 1, 9, some},
      {3, 96, 20, 70, 3, 700, some},          {17, 64, 64, 10, 8, 1100, some},   {32, 128, 512, 70, 8, 1500, {1, 3, 9}},
      {4, 64, 32, 16, 8, 300, {1, 9, 33}, 4},
  };
  for (const IndexDims& d : dims) {
    for (Mode mode : {Mode::kNone, Mode::kBuild, Mode::kRestrict}) cases.push_back(index_case(d, mode));
  }
  return cases;
}

std::vector<OpCase> wide_index_op_cases() {
  std::vector<OpCase> cases;
  for (int64_t dim : {1024, 1056, 4096})
    cases.push_back(index_case({2, dim, 6, 4, 4, 30, {1, 9}}, IndexSelectArgs::Candidates::kNone));
  return cases;
}

std::vector<OpCase> large_attention_op_cases() {
  std::vector<OpCase> cases = {
      attention_case({64, 512, 128, 512, {1, 2, 9, 33}}),
      // What a kernel for many rows has to get right: heads that fill no block, or more than one; windows and lists that end
      // anywhere in a tile; nothing but the row's own key; more keys than it takes.
      attention_case({17, 512, 100, 37, {1, 8, 19}}),
      attention_case({70, 512, 128, 63, {2, 7, 8, 11}}),
      attention_case({3, 512, 256, 384, {1, 9, 17}}),
      attention_case({64, 512, 77, 449, {8, 12}}),
      attention_case({8, 512, 1, 0, {1, 8, 9}}),
      attention_case({8, 512, 128, 513, {1, 9}}),
      attention_case({8, 512, 257, 16, {1, 9}}),
      attention_case({64, 512, 128, 0, {1, 9, 33}}),  // windows alone
      attention_case({70, 512, 100, 0, {1, 9}}),
      attention_case({5, 512, 30, 40, {1, 140}}),   // more rows than an H200 has multiprocessors
      attention_case({2, 512, 90, 140, {9, 270}}),  // and more than twice as many, of one to four tiles
      attention_case({8, 512, 70, 90, {1, 9}, 0, 2}),
      // Not 5 bytes: with those inputs one probability lies 3e-7 from where bf16 rounds the other way, kernels have the value of
      // double precision there, and the reference, whose scores are floats, has not: 57 values of one head are a step away.
      attention_case({8, 512, 70, 90, {1, 9}, 0, 3}),
  };
  using Mode = IndexSelectArgs::Candidates;
  for (Mode mode : {Mode::kNone, Mode::kBuild, Mode::kRestrict}) {
    cases.push_back(index_case({32, 128, 512, 2048, 8, 20000, {1, 3}}, mode));
    cases.push_back(index_case({32, 128, 512, 2048, 8, 140000, {1, 2}}, mode));
    cases.push_back(index_case({32, 128, 512, 140, 8, 2300, {1, 7, 8, 17, 40}}, mode));
    cases.push_back(index_case({32, 128, 512, 140, 8, 1300, {1, 8, 16, 37}, 3}, mode));
    cases.push_back(index_case({32, 128, 512, 140, 8, 1301, {1, 8, 18}, 9, 50}, mode));  // two rows of a sequence
    cases.push_back(index_case({20, 96, 100, 140, 8, 700, {1, 8, 17, 34}, 34}, mode));   // sequences of one
    cases.push_back(index_case({32, 128, 512, 140, 8, 1290, {1, 8, 18}, 18}, mode));
  }
  return cases;
}

}  // namespace deepinfer::testing
