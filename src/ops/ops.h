#pragma once

// The operator contracts: what a device has to compute, one operator per named step of spec/backbone. Shapes are row-major;
// "rows" are the new tokens of a step. Rounding points are part of the contract (profile R of the spec, §6): where a comment
// says bf16 the value is rounded to nearest even there, everything else is fp32. A row's result depends on that row alone,
// with one order of summation whatever the number of rows, so results are bitwise independent of batch, chunking and threads.
//
// Sizes are checked when the model is built; operators only check invariants.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "base/scalar_types.h"
#include "base/thread_pool.h"
#include "ops/device_memory.h"

namespace deepinfer {

/// Dense FP8 matrix: values [out, in] E4M3, scales [ceil(out/32), in/32] E8M0, one per 32x32 tile.
struct Fp8Weight {
  const uint8_t* values = nullptr;
  const uint8_t* scales = nullptr;
  int64_t out = 0;
  int64_t in = 0;
};

/// Expert FP4 matrix: codes [out, in/2] two E2M1 a byte (low nibble first), scales [out, in/32] E8M0.
struct Fp4Weight {
  const uint8_t* codes = nullptr;
  const uint8_t* scales = nullptr;
  int64_t out = 0;
  int64_t in = 0;
};

struct Bf16Weight {
  const bf16* values = nullptr;  ///< [out, in]
  int64_t out = 0;
  int64_t in = 0;
};

/// One matrix of several that share an input.
struct LinearOutput {
  Fp8Weight weight;
  bf16* y = nullptr;  ///< [rows, weight.out]
};

/// Hyper-connection coefficients of one site (spec §3.2).
struct HyperMixWeights {
  const float* fn = nullptr;     ///< [(2 + n) * n, n * hidden]
  const float* base = nullptr;   ///< [(2 + n) * n]
  const float* scale = nullptr;  ///< [3]: pre, post, comb
  int64_t n = 0;                 ///< streams
  int64_t hidden = 0;
  int64_t sinkhorn_iters = 0;
  float eps = 0;  ///< hc_eps
  float rms_eps = 0;
};

/// Rotation of each row: cos and sin [rows, pairs], pairs adjacent, over the last 2*pairs dims (spec §3.4).
struct RopeRows {
  const float* cos = nullptr;
  const float* sin = nullptr;
  int64_t pairs = 0;
};

/// The two latents of attention's rows: queries' and the window's keys (spec §3.5, §6.2). Both in place.
struct LatentArgs {
  bf16* q = nullptr;             ///< [rows, q_dim]
  const bf16* q_norm = nullptr;  ///< [q_dim]
  int64_t q_dim = 0;
  bf16* kv = nullptr;             ///< [rows, kv_dim]
  const bf16* kv_norm = nullptr;  ///< [kv_dim]
  int64_t kv_dim = 0;
  RopeRows rotation;          ///< of the keys
  uint8_t* packed = nullptr;  ///< out: window rows [rows, kv_dim + kv_dim / 32]
  float eps = 0;
};

/// Rows of a paged cache: row j lies at pages[j / rows_per_page] + offset + (j % rows_per_page) * row_bytes.
struct PagedRows {
  uint8_t* const* pages = nullptr;
  int64_t rows_per_page = 0;
  int64_t offset = 0;
  int64_t row_bytes = 0;

  uint8_t* row(int64_t j) const { return pages[j / rows_per_page] + offset + (j % rows_per_page) * row_bytes; }
};

/// Window rows of one sequence as one step sees them: positions below `start` are in the ring (slot = position % capacity),
/// positions from `start` on are the step's own rows, not yet in the ring (spec §3.13: the write is deferred).
struct WindowRows {
  const uint8_t* ring = nullptr;
  int64_t capacity = 0;
  const uint8_t* fresh = nullptr;
  int64_t start = 0;
  int64_t row_bytes = 0;

  const uint8_t* row(int64_t position) const {
    return position >= start ? fresh + (position - start) * row_bytes : ring + (position % capacity) * row_bytes;
  }
};

/// Keys that one query attends to. In the backbone the last window position is the query's own; in a draft block every query sees
/// the whole block (dspark.md §3.3).
struct AttentionQuery {
  WindowRows window;
  int64_t window_first = 0;         ///< first visible position
  int64_t window_last = 0;          ///< last visible position
  PagedRows compressed;             ///< rows of the KV source; unused when chosen_count is 0
  int64_t compressed_rows = 0;      ///< chosen ones lie below it
  const int32_t* chosen = nullptr;  ///< ascending row numbers
  int64_t chosen_count = 0;
};

/// spec §3.10. Keys are values. Window first, then chosen rows, both ascending.
struct SparseAttentionArgs {
  const bf16* q = nullptr;       ///< [rows, heads, dim]
  const float* sinks = nullptr;  ///< [heads]
  bf16* out = nullptr;           ///< [rows, heads, dim]
  std::span<const AttentionQuery> queries;
  int64_t heads = 0;
  int64_t dim = 0;
};

/// One query of the indexer (spec §3.8, §3.9).
struct IndexQuery {
  PagedRows keys;             ///< packed FP4 index keys of the query's own KV source
  int64_t visible = 0;        ///< rows that the query may use
  int32_t* chosen = nullptr;  ///< out: ascending rows, room for min(topk, visible)
  int64_t chosen_count = 0;   ///< out: min(topk, visible)
};

struct IndexSelectArgs {
  const bf16* q = nullptr;        ///< [rows, heads, dim], on the FP4 grid
  const bf16* weights = nullptr;  ///< [rows, heads], already scaled
  std::span<IndexQuery> queries;
  int64_t heads = 0;
  int64_t dim = 0;
  int64_t topk = 0;
  /// Two-level choice. kBuild: also keep the best blocks of each row in `candidates`; kRestrict: choose inside them only.
  enum class Candidates : uint8_t { kNone, kBuild, kRestrict } mode = Candidates::kNone;
  int64_t candidate_blocks = 0;
  int64_t candidate_block_size = 0;
  uint64_t* candidates = nullptr;  ///< [rows, candidate_words] bit per block
  int64_t candidate_words = 0;
};

/// Router (spec §4, steps 1-4).
struct RouteArgs {
  const bf16* v = nullptr;         ///< [rows, gate.in]
  Bf16Weight gate;                 ///< [experts, hidden]
  const float* bias = nullptr;     ///< [experts], text
  const float* bias_vl = nullptr;  ///< [experts], rows inside an image span
  const uint8_t* image = nullptr;  ///< [rows] 1 inside an image span; nullptr: all text
  int64_t topk = 0;
  bool normalize = true;
  float scale = 1.0f;
  float temperature = 1.0f;
  int32_t* experts = nullptr;  ///< out [rows, topk], best first; equal scores: lower id first
  float* weights = nullptr;    ///< out [rows, topk]
  /// In the backend's memory: [experts] how often each was chosen, to which the choices of the first *counted rows are added.
  /// nullptr: not counted.
  int64_t* counts = nullptr;
  const int32_t* counted = nullptr;
};

struct ExpertWeights {
  Fp4Weight w1, w2, w3;
};

/// Experts (spec §4, steps 5-6).
struct ExpertsArgs {
  const bf16* v = nullptr;           ///< [rows, hidden]
  const int32_t* experts = nullptr;  ///< [rows, topk]
  const float* weights = nullptr;    ///< [rows, topk]
  std::span<const ExpertWeights> routed;
  Fp8Weight shared_w1, shared_w2, shared_w3;
  int64_t topk = 0;
  float swiglu_limit = 0;
  bf16* y = nullptr;  ///< [rows, hidden]
};

struct EngramTable {
  const uint8_t* values = nullptr;  ///< [rows, dim] E4M3
  const uint8_t* scales = nullptr;  ///< [rows, dim / 32] E8M0
  int64_t rows = 0;
  int64_t dim = 0;
};

/// Logits of one draft position of several sequences, and the confidences of their blocks (dspark.md §3.4).
struct MarkovArgs {
  Bf16Weight embed;                   ///< [vocab, rank]
  Bf16Weight head;                    ///< [vocab, rank]
  const int32_t* previous = nullptr;  ///< [rows] the token before the position
  int64_t rows = 0;
  const float* base = nullptr;  ///< row r at base + r * base_stride: logits of the block pass [vocab]
  int64_t base_stride = 0;
  float* logits = nullptr;  ///< out [rows, vocab]
};

struct ConfidenceArgs {
  const bf16* x = nullptr;            ///< [rows, hidden] collapsed stream, not normalised
  Bf16Weight embed;                   ///< [vocab, rank], of the Markov chain
  const int32_t* previous = nullptr;  ///< [rows]
  int64_t rows = 0;
  Bf16Weight proj;               ///< [1, hidden + rank]
  float* confidences = nullptr;  ///< out [rows], before the sigmoid
};

/// A draw from one row of logits: temperature, min-p, top-k, top-p and noise (spec/sampling §2.2, steps 7 to 11).
struct DrawRow {
  int64_t row = 0;
  bool greedy = false;  ///< the rest is not read
  float temperature = 1.0f;
  float min_p = 0.0f;
  int64_t top_k = 0;  ///< <= 0 or >= vocab: off
  float top_p = 1.0f;
  uint64_t seed = 0;
  int64_t position = 0;  ///< of the token that is drawn
  uint32_t choice_index = 0;
  bool certain = false;  ///< never kUndrawnToken: where that would come, top-p is left out
};
/// A device leaves this draw to the host.
inline constexpr int32_t kUndrawnToken = -2;

/// Which kernel some operators get on a backend, for people: both are names.
struct KernelChoice {
  std::string operators;
  std::string kernel;
};

/// A device. Buffers are the caller's, in the backend's memory: what pointers point to lies there. Spans, and the page tables of
/// PagedRows, are the host's and are read before the call returns. A backend keeps scratch of its own that grows to the largest
/// step and stays. Operators run in the order of the calls; a device may run them later. One caller at a time.
class Backend {
 public:
  virtual ~Backend() = default;

  /// "reference", or the kernel set chosen at run time ("cpu/avx512-bf16", "cpu/avx2", ...).
  virtual std::string name() const = 0;
  /// What the bits of results depend on besides weights and inputs: kernel sets, and the version of their numerics (numerics.h).
  /// Of two backends with equal text and toolchain (base/build_info.h) each can go on from the other's pages.
  virtual std::string numerics() const = 0;
  /// Every operator with its kernel. A kernel that was asked for and is not there is an error when the backend is made, so none
  /// of these is a way round.
  virtual std::vector<KernelChoice> kernels() const = 0;
  virtual DeviceMemory& memory() { return host_memory(); }
  /// Before a thread other than the one that made the backend calls it for the first time.
  virtual void enter_thread() {}
  /// What comes now belongs to this layer; -1: to none. Draft stages follow the last layer. For traces: computes nothing.
  virtual void begin_layer(int64_t /*layer*/) {}

  /// Whether `replay` makes a step of a shape that was there before cheaper: then it pays to bring steps to few shapes.
  virtual bool replays() const { return false; }
  /// Runs `calls`: operators, uploads and copies that do not depend on each other's results on the host. A device may call it
  /// more than once for its pointers, sizes and arrays, and record what comes of it, to replay it when a later `calls` differs in
  /// nothing but the content of arrays. No download, no allocation.
  virtual void replay(FunctionRef<void()> calls) { calls(); }
  /// Makes room for what `calls` need of the backend, and runs none of them: what they point to need not be there. A backend on
  /// host memory makes room when it is needed.
  virtual void rehearse(FunctionRef<void()> /*calls*/) {}

  /// Runs `calls`, operators without host arrays among their arguments, possibly beside those called after it. Until `join`
  /// nobody else may use what they write, or write what they read; and one `beside` at a time.
  virtual void beside(FunctionRef<void()> calls) { calls(); }
  /// What is called from here on comes after what `beside` was given.
  virtual void join() {}

  /// Whether `ahead` runs beside other operators: then results that are asked for ahead want buffers of their own.
  virtual bool runs_ahead() const { return false; }
  /// Runs `calls`, gathers of Engram rows, possibly beside everything that is called up to `arrive` with the same place, one of
  /// kAheadPlaces, which follows once for each. Until then nobody else may use what they write, or write what they read.
  virtual void ahead(int /*place*/, FunctionRef<void()> calls) { calls(); }
  /// What is called from here on comes after what `ahead` was given for this place.
  virtual void arrive(int /*place*/) {}
  static constexpr int kAheadPlaces = 8;

  /// x[r, s, :] = table[ids[r]] for every stream s. ids are within the table. spec §3.1 step 2.
  virtual void embed(std::span<const int32_t> ids, const Bf16Weight& table, int64_t streams, bf16* x) = 0;

  /// pre, post [rows, n], comb [rows, n, n] (source stream is the row) from x [rows, n, hidden]. spec §3.2.
  virtual void hyper_mix(const HyperMixWeights& w, const bf16* x, int64_t rows, float* pre, float* post, float* comb) = 0;
  /// y [rows, hidden] = bf16(sum_s pre[s] x[s]).
  virtual void hyper_collapse(const bf16* x, const float* pre, int64_t rows, int64_t n, int64_t hidden, bf16* y) = 0;
  /// x[j] <- bf16(post[j] o + sum_i comb[i][j] x[i]), in place.
  virtual void hyper_expand(const bf16* o, const float* post, const float* comb, int64_t rows, int64_t n, int64_t hidden,
                            bf16* x) = 0;
  /// y [rows, hidden] = bf16(mean over streams): what DSpark taps. dspark.md §3.1.
  virtual void stream_mean(const bf16* x, int64_t rows, int64_t n, int64_t hidden, bf16* y) = 0;

  /// y = bf16(w * (x * rsqrt(mean(x^2) + eps))); y may be x. spec §3.3.
  virtual void rms_norm(const bf16* x, const bf16* w, float eps, int64_t rows, int64_t dim, bf16* y) = 0;

  // Operators made of others, which a backend may do in one go: the same bits, in the same places.
  /// y = rms_norm(hyper_collapse(x, pre)).
  virtual void hyper_collapse_norm(const bf16* x, const float* pre, int64_t rows, int64_t n, int64_t hidden, const bf16* w,
                                   float eps, bf16* y) {
    hyper_collapse(x, pre, rows, n, hidden, y);
    rms_norm(y, w, eps, rows, hidden, y);
  }
  /// hyper_expand, and of the new streams y = hyper_collapse_norm; `pre`: that of the next sublayer.
  virtual void hyper_expand_collapse_norm(const bf16* o, const float* post, const float* comb, const float* pre, int64_t rows,
                                          int64_t n, int64_t hidden, const bf16* w, float eps, bf16* x, bf16* y) {
    hyper_expand(o, post, comb, rows, n, hidden, x);
    hyper_collapse_norm(x, pre, rows, n, hidden, w, eps, y);
  }
  /// rms_norm of both latents; the keys' are then rotated and packed.
  virtual void attention_latents(const LatentArgs& args, int64_t rows) {
    rms_norm(args.q, args.q_norm, args.eps, rows, args.q_dim, args.q);
    rms_norm(args.kv, args.kv_norm, args.eps, rows, args.kv_dim, args.kv);
    rope(args.kv, args.rotation, rows, 1, args.kv_dim, false);
    pack_window(args.kv, rows, args.kv_dim, args.packed);
  }
  /// Attention of queries that are rotated first, and whose outputs are rotated back (spec §3.5, §3.11). `q`: args.q, of which
  /// nobody knows afterwards whether it is rotated.
  virtual void rotated_attention(const SparseAttentionArgs& args, bf16* q, const RopeRows& rotation) {
    const auto rows = static_cast<int64_t>(args.queries.size());
    rope(q, rotation, rows, args.heads, args.dim, false);
    sparse_attention(args);
    rope(args.out, rotation, rows, args.heads, args.dim, true);
  }

  /// y = bf16(W fp8(x)): the input is quantised to E4M3 in groups of 32 once for all outputs. spec §6.1.
  virtual void linear_fp8(const bf16* x, int64_t rows, std::span<const LinearOutput> outputs) = 0;
  /// y [rows, out] = bf16(W x), bf16 inputs.
  virtual void linear_bf16(const bf16* x, int64_t rows, const Bf16Weight& w, bf16* y) = 0;
  /// y [rows, out] = W x in fp32, bf16 inputs (products are exact): compressor of ratio 2, head. spec §3.7, §3.12.
  virtual void linear_bf16_fp32(const bf16* x, int64_t rows, const Bf16Weight& w, float* y) = 0;
  /// y [rows, groups * lora]: group g of wo_a (rows g*lora..) times group g of o [rows, groups * in]; input not quantised,
  /// weights dequantised to bf16 (exact). spec §3.11.
  virtual void output_lora(const bf16* o, int64_t rows, const Fp8Weight& wo_a, int64_t groups, bf16* y) = 0;

  /// Rotates the last 2*pairs dims of x [rows, heads, dim] in place, bf16 result; inverse: the conjugate. spec §3.4.
  virtual void rope(bf16* x, const RopeRows& rotation, int64_t rows, int64_t heads, int64_t dim, bool inverse) = 0;

  /// Packed window rows [rows, dim + dim/32] of x [rows, dim]: E4M3 values, then E8M0 scales. spec §6.2.
  virtual void pack_window(const bf16* x, int64_t rows, int64_t dim, uint8_t* packed) = 0;
  /// Packs row r of x [rows, dim] to to[r], a row of the cache: E2M1 codes, then E4M3 scales per 16. nullptr: the row is left
  /// out. spec §6.3.
  virtual void pack_compressed(const bf16* x, int64_t dim, std::span<uint8_t* const> to) = 0;
  /// The same for index keys: E2M1 codes, then E8M0 scales per 32.
  virtual void pack_index_keys(const bf16* x, int64_t dim, std::span<uint8_t* const> to) = 0;
  /// x [rows, dim] onto the FP4 grid with E8M0 scales per 32, in place (index queries).
  virtual void round_index_queries(bf16* x, int64_t rows, int64_t dim) = 0;

  /// x = bf16(x * factor), in place: the weights of the index heads. spec §3.8.
  virtual void scale(bf16* x, int64_t count, float factor) = 0;

  /// latent [groups, dim] = bf16(softmax over the pair, per channel, of gates, times values). Row 2j of kv and gate is the first
  /// of pair j; kv, gate [2 * groups] pointers to fp32 rows of dim. spec §3.7.
  virtual void compress_pool(std::span<const float* const> kv, std::span<const float* const> gate, int64_t dim, bf16* latent) = 0;

  /// spec §3.8, §3.9: scores rounded as profile R does. Queries that see no more than topk rows take all of them; q and weights
  /// are not read where all do.
  virtual void index_select(const IndexSelectArgs& args) = 0;
  /// spec §3.10.
  virtual void sparse_attention(const SparseAttentionArgs& args) = 0;

  virtual void route(const RouteArgs& args, int64_t rows) = 0;
  /// Once for codes [out, in] and scales of each routed expert's matrix when they have come to the backend's memory, at multiples
  /// of 16: puts them, in place, in the order in which `experts` of this backend reads them. In the host's memory they are used
  /// as a checkpoint has them.
  virtual void arrange_experts(uint8_t* /*codes*/, uint8_t* /*scales*/, int64_t /*out*/, int64_t /*in*/) {}
  virtual void experts(const ExpertsArgs& args, int64_t rows) = 0;
  /// route, then experts, which takes what that chooses.
  virtual void routed_experts(const RouteArgs& routing, const ExpertsArgs& args, int64_t rows) {
    route(routing, rows);
    experts(args, rows);
  }

  /// e [rows, columns * dim] = bf16 values of table rows ids [rows, columns]. spec §5.4 step 1.
  virtual void engram_gather(const EngramTable& table, const int64_t* ids, int64_t rows, int64_t columns, bf16* e) = 0;
  /// x[s] <- bf16(x[s] + g_s value), with kv [rows, (n + 1) * hidden]: n keys, then the value. Rows inside an image span keep x.
  /// spec §5.4 steps 3-6.
  virtual void engram_gate(const bf16* kv, const bf16* q_weight, const bf16* k_weight, const uint8_t* image, float eps,
                           int64_t rows, int64_t n, int64_t hidden, bf16* x) = 0;

  /// logits = base + head embed[previous], fp32 sums. dspark.md §3.4.
  virtual void markov_logits(const MarkovArgs& args) = 0;
  /// proj [x; embed[previous]], fp32. dspark.md §3.4.
  virtual void draft_confidence(const ConfidenceArgs& args) = 0;

  /// Whether `draw` does anything: where logits are the host's, sampling/sampler.h draws.
  virtual bool draws() const { return false; }
  /// tokens[i] is what sampling/sampler.h draws for rows[i] from logits [rows, vocab], to the bit, or kUndrawnToken where top-p
  /// keeps more tokens than a device cares to sort.
  virtual void draw(const float* /*logits*/, int64_t /*vocab*/, std::span<const DrawRow> /*rows*/, int32_t* /*tokens*/) {}

  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

 protected:
  Backend() = default;
};

/// The executable spec: plain loops in the order of the text, rounding where DeepSeek's code rounds.
std::unique_ptr<Backend> make_reference_backend(ThreadPool* pool);
/// The fast one. Kernels are chosen by what the processor has; DEEPINFER_CPU_KERNELS overrides (cpu/kernels.h).
std::unique_ptr<Backend> make_cpu_backend(ThreadPool* pool);

}  // namespace deepinfer
