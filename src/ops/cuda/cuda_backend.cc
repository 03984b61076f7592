#include "ops/cuda/cuda_backend.h"

#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/fixed_math.h"
#include "ops/cuda/attention.h"
#include "ops/cuda/backend_streams.h"
#include "ops/cuda/cuda_check.h"
#include "ops/cuda/cuda_device.h"
#include "ops/cuda/cuda_memory.h"
#include "ops/cuda/cuda_stream.h"
#include "ops/cuda/experts.h"
#include "ops/cuda/experts_few.h"
#include "ops/cuda/index.h"
#include "ops/cuda/kernel_choices.h"
#include "ops/cuda/products.h"
#include "ops/cuda/products_dealt.h"
#include "ops/cuda/recorder.h"
#include "ops/cuda/route_few.h"
#include "ops/cuda/row_ops.h"
#include "ops/cuda/sample.h"
#include "ops/cuda/staged_layout.h"
#include "ops/cuda/staging.h"
#include "ops/numerics.h"

namespace deepinfer {
namespace {

class CudaBackend final : public Backend, public cuda::StreamOwner {
 public:
  CudaBackend(int device, const CudaFeatures& features)
      : features_(features),
        streams_(device),
        main_(streams_.main, features.overlap),
        side_(streams_.side, features.overlap),
        ahead_(streams_.ahead, features.overlap),
        staging_(&main_),
        recorder_(&main_, &staging_),
        tables_(&staging_),
        memory_(&main_, &staging_, &recorder_) {
    constexpr size_t kArrived = (kArrivedOfRouter + cuda::kMostArrived) * sizeof(int32_t);
    arrived_ = static_cast<int32_t*>(cuda::allocate_device(kArrived));
    main_.fill(arrived_, 0, kArrived);
  }
  ~CudaBackend() override {
    cudaStreamSynchronize(main_);
    cudaStreamSynchronize(side_);
    cudaStreamSynchronize(ahead_);
    cudaFree(arrived_);
  }

  std::string name() const override { return "cuda/sm_90a"; }
  // The device's exp and log1p are the toolkit's.
  std::string numerics() const override { return fmt::format("{} toolkit {} {}", name(), CUDART_VERSION, kCudaNumerics); }
  std::vector<KernelChoice> kernels() const override { return cuda::kernel_choices(features_); }
  DeviceMemory& memory() override { return memory_; }
  cuda::LaunchStream& stream() override { return main_; }
  cuda::Staging& staging() override { return staging_; }
  const cuda::Recorder& recorder() override { return recorder_; }
  void enter_thread() override { DI_CUDA(cudaSetDevice(streams_.device)); }
  bool replays() const override { return true; }
  void replay(FunctionRef<void()> calls) override { recorder_.replay(calls); }
  void rehearse(FunctionRef<void()> calls) override { recorder_.rehearse(calls); }

  void beside(FunctionRef<void()> calls) override {
    if (!features_.beside) return calls();
    DI_CHECK(!joins_, "two at a time beside the others");
    joins_ = true;
    run_on(side_, recorder_.launches("beside"), streams_.done, calls);
  }
  void join() override {
    if (!std::exchange(joins_, false)) return;
    if (!recorder_.launches("join")) return;
    DI_CUDA(cudaStreamWaitEvent(main_, streams_.done, 0));
    main_.order_fully();
  }
  bool runs_ahead() const override { return features_.engram_ahead; }
  void ahead(int place, FunctionRef<void()> calls) override {
    if (!features_.engram_ahead) return calls();
    run_on(ahead_, recorder_.launches("ahead", place), streams_.arrived[place], calls);
  }
  void arrive(int place) override {
    if (!features_.engram_ahead || !recorder_.launches("arrive", place)) return;
    DI_CUDA(cudaStreamWaitEvent(main_, streams_.arrived[place], 0));
    main_.order_fully();
  }

  void embed(std::span<const int32_t> ids, const Bf16Weight& table, int64_t streams, bf16* x) override {
    const int32_t* list = staging_.upload(ids);
    const auto rows = static_cast<int64_t>(ids.size());
    if (!recorder_.launches("embed", rows, table, streams, x)) return;
    cuda::embed(list, rows, table.values, table.in, streams, x, *launches_);
  }

  void hyper_mix(const HyperMixWeights& w, const bf16* x, int64_t rows, float* pre, float* post, float* comb) override {
    auto* scratch = mix_.get<float>(cuda::hyper_mix_scratch(w.n, w.hidden, rows));
    if (!recorder_.launches("hyper_mix", w.fn, w.base, w.scale, w.n, w.hidden, w.sinkhorn_iters, w.eps, w.rms_eps, x, rows,
                            scratch, pre, post, comb)) {
      return;
    }
    cuda::hyper_mix(w, x, rows, scratch, pre, post, comb, *launches_);
  }
  void hyper_collapse(const bf16* x, const float* pre, int64_t rows, int64_t n, int64_t hidden, bf16* y) override {
    if (!recorder_.launches("hyper_collapse", x, pre, rows, n, hidden, y)) return;
    cuda::hyper_collapse(x, pre, rows, n, hidden, y, *launches_);
  }
  void hyper_expand(const bf16* o, const float* post, const float* comb, int64_t rows, int64_t n, int64_t hidden,
                    bf16* x) override {
    if (!recorder_.launches("hyper_expand", o, post, comb, rows, n, hidden, x)) return;
    cuda::hyper_expand(o, post, comb, rows, n, hidden, x, *launches_);
  }
  void stream_mean(const bf16* x, int64_t rows, int64_t n, int64_t hidden, bf16* y) override {
    if (!recorder_.launches("stream_mean", x, rows, n, hidden, y)) return;
    cuda::stream_mean(x, rows, n, hidden, y, *launches_);
  }

  void rms_norm(const bf16* x, const bf16* w, float eps, int64_t rows, int64_t dim, bf16* y) override {
    if (!recorder_.launches("rms_norm", x, w, eps, rows, dim, y)) return;
    cuda::rms_norm(x, w, eps, rows, dim, y, *launches_);
  }

  void hyper_collapse_norm(const bf16* x, const float* pre, int64_t rows, int64_t n, int64_t hidden, const bf16* w, float eps,
                           bf16* y) override {
    if (!features_.fused) return Backend::hyper_collapse_norm(x, pre, rows, n, hidden, w, eps, y);
    if (!recorder_.launches("hyper_collapse_norm", x, pre, rows, n, hidden, w, eps, y)) return;
    cuda::hyper_collapse_norm(x, pre, rows, n, hidden, w, eps, y, *launches_);
  }
  void hyper_expand_collapse_norm(const bf16* o, const float* post, const float* comb, const float* pre, int64_t rows, int64_t n,
                                  int64_t hidden, const bf16* w, float eps, bf16* x, bf16* y) override {
    if (!features_.fused || n != 4) return Backend::hyper_expand_collapse_norm(o, post, comb, pre, rows, n, hidden, w, eps, x, y);
    if (!recorder_.launches("hyper_expand_collapse_norm", o, post, comb, pre, rows, hidden, w, eps, x, y)) return;
    cuda::hyper_expand_collapse_norm(o, post, comb, pre, rows, hidden, w, eps, x, y, *launches_);
  }
  void attention_latents(const LatentArgs& args, int64_t rows) override {
    if (!features_.fused) return Backend::attention_latents(args, rows);
    if (!recorder_.launches("attention_latents", args.q, args.q_norm, args.q_dim, args.kv, args.kv_norm, args.kv_dim,
                            args.rotation.cos, args.rotation.sin, args.rotation.pairs, args.packed, args.eps, rows)) {
      return;
    }
    cuda::attention_latents(args, rows, *launches_);
  }

  void linear_fp8(const bf16* x, int64_t rows, std::span<const LinearOutput> outputs) override {
    if (rows == 0 || outputs.empty()) return;
    const int64_t in = outputs[0].weight.in;
    while (!outputs.empty()) {
      cuda::ProductArgs args;
      args.x = x;
      args.rows = rows;
      args.x_stride = in;
      args.staged = features_.staged;
      args.widened = features_.widened;
      const size_t count = std::min<size_t>(outputs.size(), cuda::ProductArgs::kMostOutputs);
      for (const LinearOutput& output : outputs.first(count)) {
        DI_CHECK(output.weight.in == in, "inputs of {} and {} columns", output.weight.in, in);
        args.outputs[args.output_count++] = {cuda::view(output.weight), output.y};
      }
      bf16* scratch = quantized_.get<bf16>(cuda::fp8_scratch(rows, 1, in));
      args.room = widened_.get<bf16>(cuda::widened_weights(args));
      float* parts = split_room(args);
      if (launches("linear_fp8", args, outputs.first(count), scratch, parts)) {
        // Of one output: nothing before it is under way when what reads it begins.
        args.alone = args.output_count == 1 && launches_ == &main_;
        if (takes_dealt(args)) {
          cuda::multiply_fp8_dealt(args, true, *launches_);
          if (args.alone) written_alone_ = {outputs[0].y, main_.launched()};
        } else if (takes_streamed(args, cuda::WeightFormat::kFp8)) {
          cuda::multiply_fp8_quantized_streamed(args, *launches_);
          if (args.alone) written_alone_ = {outputs[0].y, main_.launched()};
        } else if (takes_split(args)) {
          cuda::multiply_fp8_quantized_split(args, scratch, parts, *launches_);
        } else if (takes_few(args)) {
          cuda::multiply_fp8_quantized_few(args, scratch, *launches_);
        } else {
          cuda::multiply_fp8_quantized(args, scratch, *launches_);
        }
      }
      outputs = outputs.subspan(count);
    }
  }
  void linear_bf16(const bf16* x, int64_t rows, const Bf16Weight& w, bf16* y) override { multiply_bf16(x, rows, w, y, false); }
  void linear_bf16_fp32(const bf16* x, int64_t rows, const Bf16Weight& w, float* y) override {
    multiply_bf16(x, rows, w, y, true);
  }
  void output_lora(const bf16* o, int64_t rows, const Fp8Weight& wo_a, int64_t groups, bf16* y) override {
    cuda::ProductArgs args;
    args.x = o;
    args.rows = rows;
    args.x_stride = groups * wo_a.in;
    args.x_group = wo_a.in;
    args.groups = groups;
    args.staged = features_.staged;
    args.widened = features_.widened;
    args.outputs[args.output_count++] = {cuda::view(wo_a), y};
    bf16* scratch = quantized_.get<bf16>(cuda::fp8_scratch(rows, groups, wo_a.in));
    args.room = widened_.get<bf16>(cuda::widened_weights(args));
    float* parts = split_room(args);
    const LinearOutput output{wo_a, y};
    if (!launches("output_lora", args, {&output, 1}, scratch, parts)) return;
    if (takes_dealt(args)) return cuda::multiply_fp8_dealt(args, false, *launches_);
    if (takes_split(args)) return cuda::multiply_fp8_split(args, parts, *launches_);
    if (takes_few(args)) return cuda::multiply_fp8_few(args, *launches_);
    cuda::multiply_fp8(args, scratch, *launches_);
  }

  void rope(bf16* x, const RopeRows& rotation, int64_t rows, int64_t heads, int64_t dim, bool inverse) override {
    if (!recorder_.launches("rope", x, rotation.cos, rotation.sin, rotation.pairs, rows, heads, dim, inverse)) return;
    cuda::rope(x, rotation, rows, heads, dim, inverse, *launches_);
  }

  void pack_window(const bf16* x, int64_t rows, int64_t dim, uint8_t* packed) override {
    if (!recorder_.launches("pack_window", x, rows, dim, packed)) return;
    cuda::pack_window(x, rows, dim, packed, *launches_);
  }
  void pack_compressed(const bf16* x, int64_t dim, std::span<uint8_t* const> to) override {
    uint8_t* const* list = staging_.upload(to);
    if (!recorder_.launches("pack_compressed", x, dim, to.size())) return;
    cuda::pack_compressed(x, static_cast<int64_t>(to.size()), dim, list, *launches_);
  }
  void pack_index_keys(const bf16* x, int64_t dim, std::span<uint8_t* const> to) override {
    uint8_t* const* list = staging_.upload(to);
    if (!recorder_.launches("pack_index_keys", x, dim, to.size())) return;
    cuda::pack_index_keys(x, static_cast<int64_t>(to.size()), dim, list, *launches_);
  }
  void round_index_queries(bf16* x, int64_t rows, int64_t dim) override {
    if (!recorder_.launches("round_index_queries", x, rows, dim)) return;
    cuda::round_index_queries(x, rows, dim, *launches_);
  }

  void scale(bf16* x, int64_t count, float factor) override {
    if (!recorder_.launches("scale", x, count, factor)) return;
    cuda::scale(x, count, factor, *launches_);
  }

  void compress_pool(std::span<const float* const> kv, std::span<const float* const> gate, int64_t dim, bf16* latent) override {
    if (kv.empty()) return;
    const float* const* values = staging_.upload(kv);
    const float* const* gates = staging_.upload(gate);
    if (!recorder_.launches("compress_pool", kv.size(), dim, latent)) return;
    cuda::compress_pool(values, gates, static_cast<int64_t>(kv.size() / 2), dim, latent, *launches_);
  }

  void index_select(const IndexSelectArgs& args) override {
    if (args.queries.empty()) return;
    const auto rows = static_cast<int64_t>(args.queries.size());
    const bool builds = args.mode == IndexSelectArgs::Candidates::kBuild;
    index_rows_.clear();
    for (IndexQuery& query : args.queries) {
      const bool scored = query.visible > args.topk;
      const bool restricted = scored && args.mode != IndexSelectArgs::Candidates::kNone &&
                              (query.visible + args.candidate_block_size - 1) / args.candidate_block_size > args.candidate_blocks;
      index_rows_.push_back({query.keys, query.visible, query.chosen, scored, restricted});
      query.chosen_count = std::min(args.topk, query.visible);
    }
    share_tables(index_rows_, [](cuda::IndexRow& row) { return std::pair(&row.keys, row.scored ? row.visible : 0); });
    const bool few = features_.few_rows && rows <= cuda::kFewRows;
    const cuda::IndexWays ways = cuda::index_ways(args, features_.wide_index, few);
    const cuda::IndexSizes sizes = cuda::index_sizes(args, ways);
    const cuda::IndexRow* list = staging_.upload(std::span<const cuda::IndexRow>(index_rows_));
    // Ranks of a long prompt against a long context would take gigabytes: piece by piece.
    const int64_t most = std::clamp<int64_t>(kMostRanks / std::max<int64_t>(sizes.row_stride, 1), 1, rows);
    cuda::IndexScratch scratch;
    scratch.rank = ranks_.get<uint16_t>(most * sizes.row_stride);
    if (builds) scratch.block_rank = block_ranks_.get<uint16_t>(most * sizes.block_stride);
    scratch.eights = levels_.get<uint16_t>(most * (sizes.row_stride / 8 + sizes.row_stride / 64));
    scratch.groups = scratch.eights + most * sizes.row_stride / 8;
    // Room for lists whether this step has them or not: a rehearsal of as many rows stands for those that do.
    const bool restricts = args.mode == IndexSelectArgs::Candidates::kRestrict;
    scratch.listed = lists_.get<int32_t>(rows * (1 + (restricts ? args.candidate_blocks : 0)));
    scratch.list = scratch.listed + most;
    scratch.histogram = histogram_.get<uint32_t>(2 * rows * 256);
    scratch.counts = counts_.get<uint32_t>(2 * (rows + kMostRanks / cuda::kChoicePiece + most));
    if (!recorder_.launches("index_select", args.q, args.weights, rows, args.heads, args.dim, args.topk, args.mode,
                            args.candidate_blocks, args.candidate_block_size, args.candidates, args.candidate_words,
                            sizes.longest, scratch.rank, scratch.block_rank, scratch.eights, scratch.listed, scratch.histogram,
                            scratch.counts, ways.wide, ways.listed)) {
      return;
    }
    for (int64_t first = 0; first < rows; first += most) {
      IndexSelectArgs piece = args;
      piece.q += first * args.heads * args.dim;
      piece.weights += first * args.heads;
      if (args.candidates != nullptr) piece.candidates += first * args.candidate_words;
      piece.queries = args.queries.subspan(static_cast<size_t>(first), static_cast<size_t>(std::min(most, rows - first)));
      cuda::select_rows(piece, list + first, sizes, scratch, ways, *launches_);
    }
  }

  void sparse_attention(const SparseAttentionArgs& args) override { attend(args, {}); }
  void rotated_attention(const SparseAttentionArgs& args, bf16* q, const RopeRows& rotation) override {
    if (!has_few(args)) return Backend::rotated_attention(args, q, rotation);
    attend(args, rotation);
  }

  // `rotation`: none unless has_few.
  void attend(const SparseAttentionArgs& args, const RopeRows& rotation) {
    if (args.queries.empty()) return;
    attention_rows_.assign(args.queries.begin(), args.queries.end());
    int64_t longest = 0;
    for (const AttentionQuery& q : attention_rows_)
      longest = std::max(longest, q.window_last - q.window_first + 1 + q.chosen_count);
    longest = (longest + kKeyStep - 1) / kKeyStep * kKeyStep;
    // Which rows were chosen is known on the device alone, so the whole table goes there.
    share_tables(attention_rows_,
                 [](AttentionQuery& q) { return std::pair(&q.compressed, q.chosen_count > 0 ? q.compressed_rows : int64_t{0}); });
    const int64_t pairs = std::min(cuda::kAttentionRows, static_cast<int64_t>(args.queries.size())) * args.heads;
    const int64_t keys = cuda::padded_keys(longest);
    const cuda::AttentionScratch scratch{scores_.get<float>(pairs * keys), weights_.get<bf16>(pairs * keys),
                                         totals_.get<float>(pairs)};
    const AttentionQuery* list = staging_.upload(std::span<const AttentionQuery>(attention_rows_));
    const bool wide =
        features_.wide_attention && args.queries.size() >= cuda::kWideAttentionRows && cuda::takes_wide_attention(args);
    if (!recorder_.launches("sparse_attention", args.q, args.sinks, args.out, args.queries.size(), args.heads, args.dim, longest,
                            scratch.scores, scratch.weights, scratch.totals, wide, rotation.cos, rotation.sin, rotation.pairs)) {
      return;
    }
    if (has_few(args)) {
      // What else it reads was there before the queries.
      const bool early = launches_ == &main_ && args.q == written_alone_.data && main_.launched() == written_alone_.launched;
      return cuda::sparse_attention_few(args, list, longest, rotation, scratch.scores, *launches_, early);
    }
    if (wide) return cuda::sparse_attention_wide(args, list, *launches_);
    cuda::sparse_attention(args, list, longest, scratch, *launches_);
  }

  void route(const RouteArgs& args, int64_t rows) override {
    float* logits = logits_.get<float>(cuda::route_scratch(rows, args.gate.out, args.gate.in));
    const int64_t parts = multiply_gate(args.v, rows, args.gate, logits);
    if (!recorder_.launches("route", args.bias, args.bias_vl, args.image, args.topk, args.normalize, args.scale, args.temperature,
                            args.experts, args.weights, rows, logits, args.counts, args.counted)) {
      return;
    }
    cuda::choose_experts(args, rows, logits, parts, *launches_);
  }

  void arrange_experts(uint8_t* codes, uint8_t* scales, int64_t out, int64_t in) override {
    if (features_.arranged)
      cuda::arrange_panels(codes, scales, out, in, pair_output_.get<uint8_t>(out * in / 2 + out * (in / kScaleGroup)),
                           *launches_);
  }
  void experts(const ExpertsArgs& args, int64_t rows) override {
    if (rows == 0) return;
    const cuda::ExpertPlan plan = plan_of(args, rows);
    const ExpertWeights* routed = tables_.get(args.routed.data(), static_cast<int64_t>(args.routed.size()));
    const cuda::FewScratch few = few_scratch(args, rows, plan);
    if (launches_experts(args, routed, rows, plan, few)) cuda::run_experts(args, routed, rows, plan, few, false, *launches_);
  }
  void routed_experts(const RouteArgs& routing, const ExpertsArgs& args, int64_t rows) override {
    if (rows == 0) return;
    const cuda::ExpertPlan plan = plan_of(args, rows);
    float* logits = logits_.get<float>(cuda::route_scratch(rows, routing.gate.out, routing.gate.in));
    if (!takes_few(bf16_product(routing.v, rows, routing.gate, logits, true)) ||
        !cuda::takes_few_routed(routing, args, rows, plan)) {
      return Backend::routed_experts(routing, args, rows);
    }
    const ExpertWeights* routed = tables_.get(args.routed.data(), static_cast<int64_t>(args.routed.size()));
    bool launched = recorder_.launches("routed", routing.v, routing.gate, routing.bias, routing.bias_vl, routing.image,
                                       routing.normalize, routing.scale, routing.temperature, routing.experts, routing.weights,
                                       rows, logits, routing.counts, routing.counted);
    const cuda::FewScratch few = few_scratch(args, rows, plan);
    launched = launches_experts(args, routed, rows, plan, few) && launched;
    if (!launched) return;
    cuda::route_few(routing, rows, plan, few.parts != nullptr, logits, arrived_, *launches_);
    cuda::run_experts(args, routed, rows, plan, few, true, *launches_);
  }

  // Scratch of a step's experts, cut as it is cut.
  cuda::ExpertPlan plan_of(const ExpertsArgs& args, int64_t rows) {
    const int64_t hidden = args.shared_w1.in;
    const cuda::ExpertShape shape = {static_cast<int64_t>(args.routed.size()), args.topk, hidden, args.shared_w1.out};
    const bool panels = features_.panels && features_.arranged && cuda::takes_panels(args);
    cuda::ExpertPlan plan{cuda::expert_sizes(shape, rows, features_.staged, features_.streamed, panels)};
    plan.arranged = features_.arranged;
    plan.shared_first = features_.overlap || plan.staged || plan.streamed;
    plan.fetch_bytes = features_.overlap ? kSharedFetch : 0;
    plan.shared_apart = features_.widened && cuda::widened_shared(args, rows, plan).pays;
    if (plan.shared_apart) plan.widened = widened_.get<bf16>(cuda::widened_shared_weights(args));
    const cuda::ExpertSizes room =
        recorder_.rehearses() ? cuda::most_expert_sizes(shape, rows, features_.staged, features_.streamed, panels) : plan;
    plan.token = pair_token_.get<int32_t>(room.pairs);
    plan.weight = pair_weight_.get<float>(room.pairs);
    plan.pair_of = pair_of_.get<int32_t>(room.pairs);
    plan.tiles = tiles_.get<cuda::ExpertPlan::Tile>(room.tile_count);
    plan.input = quantized_.get<bf16>(room.input_values);
    plan.hidden = pair_hidden_.get<bf16>(room.hidden_values);
    plan.output = pair_output_.get<bf16>(room.output_values);
    return plan;
  }
  // Of hidden values by experts_few.cu, if that takes them.
  cuda::FewScratch few_scratch(const ExpertsArgs& args, int64_t rows, const cuda::ExpertPlan& plan) {
    if (!features_.few_rows || !features_.arranged) return {};
    if (recorder_.rehearses()) hidden_parts_.get<float>(cuda::few_hidden_parts(args, std::min(rows, cuda::kMostFewExperts)));
    if (!cuda::pays_few_hidden(args, plan) || !cuda::takes_few_hidden(args, rows, plan)) return {};
    return {hidden_parts_.get<float>(cuda::few_hidden_parts(args, rows)), arrived_ + kArrivedOfRouter};
  }
  bool launches_experts(const ExpertsArgs& args, const ExpertWeights* routed, int64_t rows, const cuda::ExpertPlan& plan,
                        const cuda::FewScratch& few) {
    return recorder_.launches("experts", args.v, args.experts, args.weights, args.routed.size(), args.shared_w1, args.shared_w2,
                              args.shared_w3, args.topk, args.swiglu_limit, args.y, routed, rows, plan.token, plan.weight,
                              plan.pair_of, plan.tiles, plan.input, plan.hidden, plan.output, plan.widened, few.parts);
  }

  void engram_gather(const EngramTable& table, const int64_t* ids, int64_t rows, int64_t columns, bf16* e) override {
    if (!recorder_.launches("engram_gather", table.values, table.scales, table.dim, ids, rows, columns, e)) return;
    cuda::engram_gather(table, ids, rows, columns, e, *launches_);
  }
  void engram_gate(const bf16* kv, const bf16* q_weight, const bf16* k_weight, const uint8_t* image, float eps, int64_t rows,
                   int64_t n, int64_t hidden, bf16* x) override {
    if (!recorder_.launches("engram_gate", kv, q_weight, k_weight, image, eps, rows, n, hidden, x)) return;
    cuda::engram_gate(kv, q_weight, k_weight, image, eps, rows, n, hidden, x, *launches_);
  }
  void markov_logits(const MarkovArgs& args) override {
    const int64_t rows = args.rows;
    if (rows == 0) return;
    bf16* inputs = draft_inputs_.get<bf16>(rows * args.head.in);
    if (recorder_.launches("embed", args.previous, rows, args.embed, 1, inputs))
      cuda::embed(args.previous, rows, args.embed.values, args.embed.in, 1, inputs, *launches_);
    multiply_bf16(inputs, rows, args.head, args.logits, true);
    if (!recorder_.launches("add_rows", args.base, args.base_stride, rows, args.head.out, args.logits)) return;
    cuda::add_rows(args.base, args.base_stride, rows, args.head.out, args.logits, *launches_);
  }
  void draft_confidence(const ConfidenceArgs& args) override {
    const int64_t rows = args.rows;
    if (rows == 0) return;
    bf16* inputs = draft_inputs_.get<bf16>(rows * args.proj.in);
    if (recorder_.launches("append_embedding", args.x, args.proj.in, args.previous, args.embed, rows, inputs)) {
      cuda::append_embedding(args.x, args.proj.in - args.embed.in, args.previous, args.embed.values, args.embed.in, rows, inputs,
                             *launches_);
    }
    multiply_bf16(inputs, rows, args.proj, args.confidences, true);
  }

  bool draws() const override { return true; }
  void draw(const float* logits, int64_t vocab, std::span<const DrawRow> rows, int32_t* tokens) override {
    sample_rows_.clear();
    for (const DrawRow& row : rows) {
      sample_rows_.push_back({.logits = logits + row.row * vocab,
                              .log_min_p = row.min_p > 0 ? fixed_log(static_cast<double>(row.min_p)) : 0.0,
                              .temperature = row.temperature,
                              .top_p = row.top_p,
                              .top_k = row.top_k,
                              .seed = row.seed,
                              .position = row.position,
                              .choice_index = row.choice_index,
                              .greedy = row.greedy,
                              .min_p = row.min_p > 0,
                              .certain = row.certain});
    }
    const cuda::SampleRow* list = staging_.upload(std::span<const cuda::SampleRow>(sample_rows_));
    const auto count = static_cast<int64_t>(rows.size());
    auto* found = draw_found_.get<cuda::DrawFound>(count * cuda::kDrawShares);
    if (!recorder_.launches("draw", rows.size(), vocab, tokens, found)) return;
    cuda::sample_rows(list, count, vocab, found, tokens, *launches_);
  }

 private:
  /// What operators launch goes to another stream, behind what is on the main one now; `end` is recorded behind it.
  void run_on(cuda::LaunchStream& stream, bool launched, cudaEvent_t end, FunctionRef<void()> calls) {
    DI_CHECK(launches_ == &main_, "beside what is beside others");
    if (launched) {
      DI_CUDA(cudaEventRecord(streams_.forked, main_));
      DI_CUDA(cudaStreamWaitEvent(stream, streams_.forked, 0));
      stream.order_fully();
    }
    launches_ = &stream;
    calls();
    launches_ = &main_;
    if (launched) DI_CUDA(cudaEventRecord(end, stream));
  }

  bool has_few(const SparseAttentionArgs& args) const {
    return features_.few_rows && static_cast<int64_t>(args.queries.size()) <= cuda::kFewQueries;
  }
  bool takes_few(const cuda::ProductArgs& args) const { return features_.few_rows && cuda::takes_few_products(args); }
  bool takes_dealt(const cuda::ProductArgs& args) const { return features_.few_rows && cuda::takes_dealt_products(args); }
  bool takes_streamed(const cuda::ProductArgs& args, cuda::WeightFormat format) const {
    return features_.few_rows && cuda::takes_streamed_products(args, format);
  }
  bool takes_split(const cuda::ProductArgs& args) const { return features_.split && cuda::takes_split_products(args); }
  float* split_room(const cuda::ProductArgs& args) {
    return features_.split ? split_parts_.get<float>(cuda::split_parts(args)) : nullptr;
  }
  cuda::ProductArgs bf16_product(const bf16* x, int64_t rows, const Bf16Weight& w, void* y, bool fp32) {
    cuda::ProductArgs args;
    args.x = x;
    args.rows = rows;
    args.x_stride = w.in;
    args.fp32 = fp32;
    args.staged = features_.staged;
    args.outputs[args.output_count++] = {cuda::view(w), y};
    args.room = widened_.get<bf16>(cuda::ordered_bf16_room(args));
    return args;
  }
  void multiply_bf16(const bf16* x, int64_t rows, const Bf16Weight& w, void* y, bool fp32) {
    const cuda::ProductArgs args = bf16_product(x, rows, w, y, fp32);
    if (!recorder_.launches("linear_bf16", x, rows, w, y, fp32, args.room)) return;
    if (takes_streamed(args, cuda::WeightFormat::kBf16)) return cuda::multiply_bf16_streamed(args, *launches_);
    if (takes_few(args)) return cuda::multiply_bf16_few(args, false, *launches_);
    cuda::multiply_bf16(args, *launches_);
  }
  // Into how many parts whose sum they are (cuda::choose_experts).
  int64_t multiply_gate(const bf16* x, int64_t rows, const Bf16Weight& w, float* logits) {
    const cuda::ProductArgs args = bf16_product(x, rows, w, logits, true);
    if (!takes_few(args)) {
      multiply_bf16(x, rows, w, logits, true);
      return 1;
    }
    if (recorder_.launches("linear_bf16", x, rows, w, logits, true)) cuda::multiply_bf16_few(args, true, *launches_);
    return cuda::segment_count(w.in);
  }

  bool launches(const char* what, const cuda::ProductArgs& args, std::span<const LinearOutput> outputs, const bf16* scratch,
                const float* parts) {
    bool all = true;
    for (const LinearOutput& output : outputs)
      all = recorder_.launches(what, args.x, args.rows, args.x_stride, args.groups, output.weight, output.y, scratch, parts,
                               args.room) &&
            all;
    return all;
  }

  // The cache with a device copy of the table of its first `rows` rows.
  PagedRows on_device(const PagedRows& cache, int64_t rows) {
    PagedRows copy = cache;
    copy.pages = tables_.get(cache.pages, (rows + cache.rows_per_page - 1) / std::max<int64_t>(cache.rows_per_page, 1));
    return copy;
  }

  // Replaces the host tables of all rows; rows of one sequence, which follow each other, share one look.
  template <typename Rows, typename TableOf>
  void share_tables(Rows& rows, TableOf table_of) {
    for (size_t begin = 0; begin < rows.size();) {
      auto [first, most] = table_of(rows[begin]);
      const PagedRows cache = *first;
      size_t end = begin + 1;
      for (; end < rows.size(); ++end) {
        auto [other, count] = table_of(rows[end]);
        if (other->pages != cache.pages || other->rows_per_page != cache.rows_per_page) break;
        most = std::max(most, count);
      }
      uint8_t* const* pages = most > 0 ? on_device(cache, most).pages : nullptr;
      for (; begin < end; ++begin) table_of(rows[begin]).first->pages = pages;
    }
  }

  static constexpr int64_t kArrivedOfRouter = 32;
  /// What a block asks for ahead of each of the shared expert's weights.
  static constexpr int64_t kSharedFetch = int64_t{64} << 10;
  /// Keys of the longest query are rounded up to this: steps whose contexts still grow come in fewer shapes.
  static constexpr int64_t kKeyStep = 64;
  /// Ranks of index rows that are held at a time, 2 bytes each.
  static constexpr int64_t kMostRanks = int64_t{1} << 28;

  CudaFeatures features_;
  cuda::BackendStreams streams_;
  cuda::LaunchStream main_, side_, ahead_;
  cuda::LaunchStream* launches_ = &main_;  ///< where operators go
  bool joins_ = false;                     ///< something is beside
  /// The last that a kernel of the main stream wrote that took its turn alone, and LaunchStream::launched behind it.
  struct {
    const void* data = nullptr;
    int64_t launched = -1;
  } written_alone_;
  cuda::Staging staging_;
  cuda::Recorder recorder_;
  cuda::TableCache tables_;
  cuda::CudaMemory memory_;
  cuda::Scratch mix_, quantized_, widened_, split_parts_, logits_, draft_inputs_, draw_found_;
  cuda::Scratch scores_, weights_, totals_;
  cuda::Scratch ranks_, block_ranks_, levels_, lists_, histogram_, counts_;
  cuda::Scratch pair_token_, pair_weight_, pair_of_, tiles_, pair_hidden_, pair_output_, hidden_parts_;
  int32_t* arrived_ = nullptr;  ///< of route_few, and behind it those of few_scratch
  std::vector<cuda::IndexRow> index_rows_;
  std::vector<AttentionQuery> attention_rows_;
  std::vector<cuda::SampleRow> sample_rows_;
};

}  // namespace

Result<std::unique_ptr<Backend>> make_cuda_backend(int device, const CudaFeatures& features) {
  const auto devices = cuda_devices();
  if (!devices) return Err(devices.error());
  if (std::none_of(devices->begin(), devices->end(), [&](const CudaDevice& d) { return d.index == device; })) {
    return Err(Status::NotFound("CUDA: device {} is not one of compute capability 9.0", device));
  }
  return std::make_unique<CudaBackend>(device, features);
}

}  // namespace deepinfer
