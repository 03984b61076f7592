#include "engine_rig.h"

#include <cstdio>
#include <cstdlib>
#include <ctime>

#include "engine/request_check.h"

namespace deepinfer::bench {
namespace {

template <typename T>
T must(Result<T> r) {
  if (r) return std::move(*r);
  std::fprintf(stderr, "dspark_bench: %s\n", r.error().message().c_str());
  std::exit(1);
}

double cpu_clock() {
  timespec t{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

}  // namespace

EngineRig::EngineRig(Model* model, ThreadPool* pool, const RigOptions& options)
    : model_(model), options_(options), windows_(0, 0), device_(model, pool, options.max_num_seqs, options.drafts) {
  const ModelConfig& config = model->config();
  KvCacheOptions cache_options;
  cache_options.enable_prefix_caching = false;
  cache_ = must(KvCache::Create(
      must(PagePool::Create(model->page_layout().page_bytes, options.pages * (model->page_layout().page_bytes + 64))),
      cache_options));
  device_.replace_drafts(options.replace_drafts);
  device_.trace_drafts(options.trace_drafts);
  CoreOptions core;
  core.limits = {options.max_num_seqs, std::max<int64_t>(512, 8 * options.max_num_seqs), kPagePositions};
  core.eos_token_id = options.eos_token_id;
  core.vocab_size = config.vocab_size;
  core.geometry = ReplayGeometry::Of(config);
  core.decoder_keep = config.sliding_window + 2 * (config.dspark_block_size + 1);
  core.async = options.async;
  core.snapshots = false;
  if (options.drafts.mode != SpeculationMode::kOff) core.max_drafts = options.drafts.most;
  core_ = std::make_unique<EngineCore>(core, cache_.get(), &windows_, &device_, nullptr, PrefixHasher::Random(), step_clock);
}

EngineRig::~EngineRig() = default;

EngineRig::Round EngineRig::run(const std::vector<Request>& requests) {
  RequestLimits limits;
  limits.vocab_size = model_->config().vocab_size;
  limits.eos_token_id = options_.eos_token_id;
  limits.max_model_len = model_->config().max_position_embeddings;
  limits.max_num_seqs = options_.max_num_seqs;
  limits.total_pages = cache_->total_pages();
  limits.replay = ReplayMode::kExact;
  Round round;
  round.before = core_->stats();
  std::vector<RequestHandle> handles;
  const double start = step_clock();
  const double cpu_start = cpu_clock();
  for (const Request& r : requests) {
    auto active = must(check_request(Request(r), limits));
    active->id = next_++;
    active->stream = std::make_shared<RequestStream>(active->id, 1, [](RequestId) {});
    handles.emplace_back(active->stream);
    core_->submit(std::move(active), step_clock());
    round.sequences.push_back(static_cast<SequenceId>(next_ - 1));  // one sequence a request, numbered alike
  }
  while (core_->busy()) core_->turn(step_clock());
  round.seconds = step_clock() - start;
  round.cpu_seconds = cpu_clock() - cpu_start;
  round.after = core_->stats();
  for (RequestHandle& h : handles) {
    round.answers.emplace_back();
    while (const auto output = h.poll())
      round.answers.back().insert(round.answers.back().end(), output->tokens.begin(), output->tokens.end());
    round.tokens += static_cast<int64_t>(round.answers.back().size());
  }
  return round;
}

}  // namespace deepinfer::bench
