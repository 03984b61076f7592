#include "ops/cpu/cpu_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/status.h"
#include "ops/numerics.h"
#include "ops/top_k.h"

namespace deepinfer {
namespace {

using cpu::PackKind;

// A chunk of output rows should carry this much weight: less, and handing it out costs more than it saves.
constexpr int64_t kChunkBytes = 96 << 10;
constexpr int64_t kChunkRows = 64;
// Elements that are worth a second thread in row-wise work.
constexpr int64_t kRowWork = 16 << 10;

}  // namespace

CpuBackend::CpuBackend(ThreadPool* pool, const cpu::CpuKernels& kernels)
    : pool_(pool), kernels_(kernels), rows_(*kernels.rows), local_(static_cast<size_t>(pool->size())) {
  for (Local& local : local_) local.scratch.reserve_discard(kernels.scratch_bytes);
}

std::string CpuBackend::numerics() const { return fmt::format("{} rows {} {}", name(), rows_.target, kCpuNumerics); }

void CpuBackend::for_rows(int64_t rows, int64_t row_work, FunctionRef<void(int64_t, int)> fn) {
  const int64_t grain = std::max<int64_t>(1, kRowWork / std::max<int64_t>(row_work, 1));
  pool_->run_ranges(rows, grain, [&](int64_t begin, int64_t end, int thread) {
    for (int64_t r = begin; r < end; ++r) fn(r, thread);
  });
}

void CpuBackend::for_outputs(int64_t out, int64_t row_bytes, FunctionRef<void(int64_t, int64_t, int)> fn) {
  int64_t grain = (kChunkBytes / std::max<int64_t>(row_bytes, 1) + 3) / 4 * 4;
  grain = std::clamp<int64_t>(grain, 16, std::max(kChunkRows, kChunkBytes / std::max<int64_t>(row_bytes, 1)));
  pool_->run_ranges(out, grain, fn);
}

char* CpuBackend::tile_of(Packed& packed, int64_t group, int64_t row, int64_t* rows, int64_t* at) const {
  const int64_t tile = kernels_.tile_rows(packed.kind);
  const int64_t first = row / tile * tile;
  *rows = std::min(tile, packed.rows - first);
  *at = row - first;
  return packed.data.data() + group * packed.group_bytes + first * kernels_.packed_row_bytes(packed.kind, packed.k);
}

void CpuBackend::pack_rows(Packed& packed, PackKind kind, const bf16* x, int64_t rows, const Columns& columns) {
  const int64_t groups = columns.groups;
  const int64_t k = columns.k;
  packed.kind = kind;
  packed.rows = rows;
  packed.k = k;
  packed.group_bytes = rows * kernels_.packed_row_bytes(kind, k);
  packed.data.reserve_discard(groups * packed.group_bytes);
  for (Local& local : local_) local.row.reserve_discard(k);
  for_rows(groups * rows, k, [&](int64_t i, int thread) {
    const int64_t group = i / rows;
    const int64_t r = i % rows;
    int64_t tile_rows = 0;
    int64_t at = 0;
    char* tile = tile_of(packed, group, r, &tile_rows, &at);
    const bf16* row = x + (r * groups + group) * k;
    if (columns.quantize) {
      bf16* rounded = local_[static_cast<size_t>(thread)].row.data();
      rows_.round_fp8(row, k, rounded);
      row = rounded;
    }
    kernels_.pack(kind, row, k, tile, tile_rows, at);
  });
}

void CpuBackend::embed(std::span<const int32_t> ids, const Bf16Weight& table, int64_t streams, bf16* x) {
  for (size_t r = 0; r < ids.size(); ++r) {
    for (int64_t s = 0; s < streams; ++s) {
      std::copy_n(table.values + ids[r] * table.in, table.in, x + (static_cast<int64_t>(r) * streams + s) * table.in);
    }
  }
}

void CpuBackend::hyper_mix(const HyperMixWeights& w, const bf16* x, int64_t rows, float* pre, float* post, float* comb) {
  const int64_t width = w.n * w.hidden;
  const int64_t outputs = (2 + w.n) * w.n;
  dots_.reserve_discard(rows * outputs);
  // Rows in fours against all outputs, or, with few rows, outputs in small chunks.
  const int64_t row_blocks = (rows + 3) / 4;
  const int64_t grain = rows >= 16 ? outputs : std::max<int64_t>(2, kRowWork / width);
  const int64_t pieces = (outputs + grain - 1) / grain;
  pool_->run(row_blocks * pieces, [&](int64_t chunk, int) {
    const int64_t r = chunk / pieces * 4;
    const int64_t o = chunk % pieces * grain;
    rows_.hyper_dots(w.fn, o, std::min(outputs, o + grain), x + r * width, std::min<int64_t>(4, rows - r), width,
                     dots_.data() + r * outputs, outputs);
  });
  for_rows(rows, width / 2, [&](int64_t r, int) {
    rows_.hyper_coefficients(w, x + r * width, dots_.data() + r * outputs, pre + r * w.n, post + r * w.n, comb + r * w.n * w.n);
  });
}

void CpuBackend::hyper_collapse(const bf16* x, const float* pre, int64_t rows, int64_t n, int64_t hidden, bf16* y) {
  for_rows(rows, hidden,
           [&](int64_t r, int) { rows_.hyper_collapse(x + r * n * hidden, pre + r * n, n, hidden, y + r * hidden); });
}

void CpuBackend::hyper_expand(const bf16* o, const float* post, const float* comb, int64_t rows, int64_t n, int64_t hidden,
                              bf16* x) {
  for_rows(rows, n * hidden, [&](int64_t r, int) {
    rows_.hyper_expand(o + r * hidden, post + r * n, comb + r * n * n, n, hidden, x + r * n * hidden);
  });
}

void CpuBackend::stream_mean(const bf16* x, int64_t rows, int64_t n, int64_t hidden, bf16* y) {
  for_rows(rows, hidden, [&](int64_t r, int) { rows_.stream_mean(x + r * n * hidden, n, hidden, y + r * hidden); });
}

void CpuBackend::rms_norm(const bf16* x, const bf16* w, float eps, int64_t rows, int64_t dim, bf16* y) {
  for_rows(rows, dim, [&](int64_t r, int) { rows_.rms_norm(x + r * dim, w, eps, dim, y + r * dim); });
}

void CpuBackend::linear_fp8(const bf16* x, int64_t rows, std::span<const LinearOutput> outputs) {
  if (rows == 0 || outputs.empty()) return;
  const int64_t k = outputs[0].weight.in;
  pack_rows(packed_, PackKind::kFp8, x, rows, {.k = k, .quantize = true});
  for (const LinearOutput& output : outputs) {
    const Fp8Weight& w = output.weight;
    for_outputs(w.out, w.in, [&](int64_t begin, int64_t end, int thread) {
      AlignedBuffer<float>& y = local_[static_cast<size_t>(thread)].y;
      y.reserve_discard(rows * (end - begin));
      kernels_.multiply_fp8(w, begin, end, packed_.data.data(), rows, scratch(thread), y.data(), end - begin);
      for (int64_t r = 0; r < rows; ++r)
        rows_.to_bf16_row(y.data() + r * (end - begin), end - begin, output.y + r * w.out + begin);
    });
  }
}

void CpuBackend::linear_bf16(const bf16* x, int64_t rows, const Bf16Weight& w, bf16* y) {
  if (rows == 0) return;
  pack_rows(packed_, PackKind::kBf16, x, rows, {.k = w.in});
  for_outputs(w.out, 2 * w.in, [&](int64_t begin, int64_t end, int thread) {
    AlignedBuffer<float>& part = local_[static_cast<size_t>(thread)].y;
    part.reserve_discard(rows * (end - begin));
    kernels_.multiply_bf16(w, begin, end, packed_.data.data(), rows, scratch(thread), part.data(), end - begin);
    for (int64_t r = 0; r < rows; ++r) rows_.to_bf16_row(part.data() + r * (end - begin), end - begin, y + r * w.out + begin);
  });
}

void CpuBackend::linear_bf16_fp32(const bf16* x, int64_t rows, const Bf16Weight& w, float* y) {
  if (rows == 0) return;
  pack_rows(packed_, PackKind::kBf16, x, rows, {.k = w.in});
  for_outputs(w.out, 2 * w.in, [&](int64_t begin, int64_t end, int thread) {
    kernels_.multiply_bf16(w, begin, end, packed_.data.data(), rows, scratch(thread), y + begin, w.out);
  });
}

void CpuBackend::output_lora(const bf16* o, int64_t rows, const Fp8Weight& wo_a, int64_t groups, bf16* y) {
  if (rows == 0) return;
  const int64_t lora = wo_a.out / groups;
  pack_rows(packed_, PackKind::kFp8, o, rows, {.groups = groups, .k = wo_a.in});
  // All groups in one loop: one after the other, threads would wait for each other at the end of each.
  for_outputs(wo_a.out, wo_a.in, [&](int64_t begin, int64_t end, int thread) {
    AlignedBuffer<float>& part = local_[static_cast<size_t>(thread)].y;
    part.reserve_discard(rows * (end - begin));
    for (int64_t first = begin, last = 0; first < end; first = last) {
      const int64_t group = first / lora;
      last = std::min(end, (group + 1) * lora);
      kernels_.multiply_fp8(wo_a, first, last, packed_.data.data() + group * packed_.group_bytes, rows, scratch(thread),
                            part.data(), last - first);
      for (int64_t r = 0; r < rows; ++r) {
        rows_.to_bf16_row(part.data() + r * (last - first), last - first, y + r * wo_a.out + first);
      }
    }
  });
}

void CpuBackend::rope(bf16* x, const RopeRows& rotation, int64_t rows, int64_t heads, int64_t dim, bool inverse) {
  for_rows(rows, heads * rotation.pairs * 4, [&](int64_t r, int) {
    rows_.rope(x + r * heads * dim, rotation.cos + r * rotation.pairs, rotation.sin + r * rotation.pairs, rotation.pairs, heads,
               dim, inverse);
  });
}

void CpuBackend::pack_window(const bf16* x, int64_t rows, int64_t dim, uint8_t* packed) {
  for_rows(rows, 4 * dim, [&](int64_t r, int) { rows_.pack_window(x + r * dim, dim, packed + r * (dim + dim / kScaleGroup)); });
}

void CpuBackend::pack_compressed(const bf16* x, int64_t dim, std::span<uint8_t* const> to) {
  for_rows(static_cast<int64_t>(to.size()), 4 * dim, [&](int64_t r, int) {
    uint8_t* row = to[static_cast<size_t>(r)];
    if (row != nullptr) rows_.pack_compressed(x + r * dim, dim, row);
  });
}

void CpuBackend::pack_index_keys(const bf16* x, int64_t dim, std::span<uint8_t* const> to) {
  for_rows(static_cast<int64_t>(to.size()), 4 * dim, [&](int64_t r, int) {
    uint8_t* row = to[static_cast<size_t>(r)];
    if (row != nullptr) rows_.pack_index_key(x + r * dim, dim, row);
  });
}

void CpuBackend::round_index_queries(bf16* x, int64_t rows, int64_t dim) {
  for_rows(rows, dim, [&](int64_t r, int) { rows_.round_index_query(x + r * dim, dim); });
}

void CpuBackend::scale(bf16* x, int64_t count, float factor) {
  for (int64_t i = 0; i < count; ++i)
    x[i] = to_bf16(to_float(x[i]) * factor);  // a value per index head: less than waking threads
}

void CpuBackend::compress_pool(std::span<const float* const> kv, std::span<const float* const> gate, int64_t dim, bf16* latent) {
  for_rows(static_cast<int64_t>(kv.size() / 2), 4 * dim, [&](int64_t g, int) {
    const auto i = static_cast<size_t>(2 * g);
    rows_.compress_pair(kv[i], kv[i + 1], gate[i], gate[i + 1], dim, latent + g * dim);
  });
}

void CpuBackend::engram_gather(const EngramTable& table, const int64_t* ids, int64_t rows, int64_t columns, bf16* e) {
  for_rows(rows, columns * table.dim, [&](int64_t r, int) {
    for (int64_t i = r * columns; i < (r + 1) * columns; ++i) {
      rows_.engram_row(table.values + ids[i] * table.dim, table.scales + ids[i] * (table.dim / kScaleGroup), table.dim,
                       e + i * table.dim);
    }
  });
}

void CpuBackend::engram_gate(const bf16* kv, const bf16* q_weight, const bf16* k_weight, const uint8_t* image, float eps,
                             int64_t rows, int64_t n, int64_t hidden, bf16* x) {
  for_rows(rows, 2 * n * hidden, [&](int64_t r, int) {
    if (image != nullptr && image[r] != 0) return;
    const bf16* keys = kv + r * (n + 1) * hidden;
    for (int64_t s = 0; s < n; ++s) {
      rows_.engram_gate(keys + s * hidden, keys + n * hidden, q_weight + s * hidden, k_weight + s * hidden, eps, hidden,
                        x + (r * n + s) * hidden);
    }
  });
}

void CpuBackend::markov_logits(const MarkovArgs& args) {
  const int64_t rows = args.rows;
  if (rows == 0) return;
  const Bf16Weight& w = args.head;
  draft_inputs_.reserve_discard(rows * w.in);
  embed({args.previous, static_cast<size_t>(rows)}, args.embed, 1, draft_inputs_.data());
  pack_rows(packed_, PackKind::kBf16, draft_inputs_.data(), rows, {.k = w.in});
  for_outputs(w.out, 2 * w.in, [&](int64_t begin, int64_t end, int thread) {
    kernels_.multiply_bf16(w, begin, end, packed_.data.data(), rows, scratch(thread), args.logits + begin, w.out);
    for (int64_t r = 0; r < rows; ++r) {
      const float* base = args.base + r * args.base_stride;
      float* y = args.logits + r * w.out;
      for (int64_t v = begin; v < end; ++v) y[v] += base[v];
    }
  });
}

void CpuBackend::draft_confidence(const ConfidenceArgs& args) {
  const int64_t rows = args.rows;
  const int64_t rank = args.embed.in;
  const int64_t hidden = args.proj.in - rank;
  draft_inputs_.reserve_discard(rows * args.proj.in);
  for (int64_t r = 0; r < rows; ++r) {
    bf16* row = draft_inputs_.data() + r * args.proj.in;
    std::copy_n(args.x + r * hidden, hidden, row);
    embed({args.previous + r, 1}, args.embed, 1, row + hidden);
  }
  linear_bf16_fp32(draft_inputs_.data(), rows, args.proj, args.confidences);
}

std::unique_ptr<Backend> make_cpu_backend(ThreadPool* pool) {
  const auto wanted = cpu::wanted_kernels();  // programs report an error before they get here
  return std::make_unique<CpuBackend>(pool, wanted ? **wanted : *cpu::cpu_kernels().front());
}

}  // namespace deepinfer
