#include "cuda/gpu_slice.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "base/mapped_file.h"
#include "checkpoint/config_fields.h"

namespace deepinfer::bench {
namespace {

constexpr int64_t kOwnPages = 512;
constexpr int64_t kDrawnPages = 61;

template <typename T>
T must(Result<T> r) {
  if (r) return std::move(*r);
  std::fprintf(stderr, "slice: %s\n", r.error().message().c_str());
  std::exit(1);
}
void must(const Status& s) {
  if (s.ok()) return;
  std::fprintf(stderr, "slice: %s\n", s.message().c_str());
  std::exit(1);
}

nlohmann::ordered_json released_json(const std::string& path) {
  std::ifstream file(path);
  auto json = nlohmann::ordered_json::parse(file, nullptr, false);
  if (json.is_discarded()) must(Status::InvalidArgument("{}: no JSON", path));
  return json;
}

// Layers 0 to 7 of the release, its 14, and the decoder's first with what follows, each kind once at least.
std::string slice_config(const std::string& released_path, int64_t experts) {
  auto json = released_json(released_path);
  auto& t = json["text_config"];
  json.erase("vision_config");
  t["num_hidden_layers"] = 16;
  t["compress_ratios"] = {0, 0, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0};
  t["kv_source_layer_ids"] = {2, 6, 8};
  t["index_source_layer_ids"] = {2, 6, 8, 11, 14};
  t["candidate_source_layer_id"] = 8;
  t["engram_layer_ids"] = {1, 6};
  t["dspark_target_layer_ids"] = {13, 14, 15};
  t["n_routed_experts"] = experts;
  t["dspark_n_routed_experts"] = std::min<int64_t>(experts, t["dspark_n_routed_experts"]);
  t["engram_vocab_size"] = 16000;
  // The table has the sum of the first primes from engram_vocab_size on as rows (spec/backbone §5.2).
  ModelConfig primes;
  primes.engram_layer_ids = {1, 6};
  primes.engram_vocab_size = 16000;
  primes.engram_max_ngram_size = t["engram_max_ngram_size"];
  primes.engram_n_heads = t["engram_n_heads"];
  const std::vector<int64_t> all = internal::engram_bucket_primes(primes);
  int64_t rows[2] = {};
  for (size_t i = 0; i < all.size(); ++i) rows[i / (all.size() / 2)] += all[i];
  t["engram_num_embeddings"] = {rows[0], rows[1]};
  return json.dump(2);
}

}  // namespace

std::string layer_kind(const ModelConfig& c, int64_t layer) {
  const int64_t ratio = c.compress_ratio(layer);
  std::string kind = ratio == 0                 ? "window"
                     : c.is_kv_source(layer)    ? "Full ratio " + std::to_string(ratio)
                     : c.is_index_source(layer) ? "Reindex ratio " + std::to_string(ratio)
                                                : "Reuse ratio " + std::to_string(ratio);
  if (c.engram_slot(layer) >= 0) kind += ", Engram";
  return kind;
}

GpuSlice::GpuSlice(MeteredBackend* backend, const std::string& released_path, const std::string& directory, int64_t experts,
                   int64_t page_pool_bytes)
    : backend_(backend) {
  const std::string text = slice_config(released_path, experts);
  const ModelConfig config = must(ModelConfig::Parse(text, "slice"));
  must(write_sparse_checkpoint(config, text, directory));
  Checkpoint::Options options;
  options.verify = VerifyLevel::kHeaders;
  checkpoint_ = must(Checkpoint::Open(directory, options));
  std::vector<int32_t> map(static_cast<size_t>(config.vocab_size));
  for (size_t i = 0; i < map.size(); ++i)
    map[i] = static_cast<int32_t>(static_cast<int64_t>(i) % config.engram_compressed_vocab_size);
  {
    DeviceFill fill(*checkpoint_, &backend->memory());
    // The blocks themselves are uploads too; they are no tensor's.
    backend->set_filler([&](void* to, const void* host, int64_t bytes) { return fill.fill(to, host, bytes); });
    Model::Options model_options;
    model_options.engram_memory = EngramMemory::kHost;
    model_ = must(Model::Create(checkpoint_, map, backend, model_options));
    backend->set_filler({});
    backend->memory().synchronize();
  }
  pool_pages_ = page_pool_bytes / model_->page_layout().page_bytes;
  fill_pages();
  save_a_window();
}

GpuSlice::~GpuSlice() {
  backend_->memory().free(pages_);
  backend_->memory().free(own_pages_);
}

void GpuSlice::fill_pages() {
  const PageLayout& layout = model_->page_layout();
  std::mt19937_64 rng(3);
  std::vector<uint8_t> drawn(static_cast<size_t>(kDrawnPages * layout.page_bytes));
  for (uint8_t& byte : drawn) byte = static_cast<uint8_t>(rng() >> 32);
  for (int64_t p = 0; p < kDrawnPages; ++p) {
    for (const PageLayout::Source& s : layout.sources) {
      // Scales that are numbers: E4M3 from 2^-2 on, E8M0 around 1.
      const int64_t codes = config().head_dim / 2;
      const int64_t index_codes = config().index_head_dim / 2;
      for (int64_t row = 0; row < s.rows_per_page; ++row) {
        uint8_t* main = drawn.data() + p * layout.page_bytes + s.main_offset + row * layout.main_row_bytes;
        for (int64_t i = codes; i < layout.main_row_bytes; ++i) main[i] = static_cast<uint8_t>(0x28 + main[i] % 16);
        uint8_t* index = drawn.data() + p * layout.page_bytes + s.index_offset + row * layout.index_row_bytes;
        for (int64_t i = index_codes; i < layout.index_row_bytes; ++i) index[i] = static_cast<uint8_t>(125 + index[i] % 3);
      }
    }
  }
  DeviceMemory& memory = backend_->memory();
  const auto room = [&](int64_t pages) {
    const int64_t bytes = pages * layout.page_bytes;
    auto* to = static_cast<uint8_t*>(memory.allocate(bytes));
    int64_t done = std::min(bytes, static_cast<int64_t>(drawn.size()));
    memory.upload(to, drawn.data(), done);
    for (; done < bytes; done += std::min(done, bytes - done)) memory.copy(to + done, to, std::min(done, bytes - done));
    return to;
  };
  pages_ = room(pool_pages_);
  own_pages_ = room(kOwnPages);
}

std::vector<int32_t> GpuSlice::tokens(int64_t count) const {
  std::mt19937_64 rng(7);
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (int32_t& id : ids) id = static_cast<int32_t>(rng() % static_cast<uint64_t>(config().vocab_size));
  return ids;
}

void GpuSlice::save_a_window() {
  const int64_t length = 2 * config().sliding_window;
  auto state = model_->new_sequence();
  const std::vector<int32_t> ids = tokens(length);
  const StepSequence sequence{.state = state.get(), .count = length};
  StepBatch batch;
  batch.tokens = ids;
  batch.sequences = {&sequence, 1};
  must(model_->forward(batch));
  const DraftContext context{.state = state.get(), .row = 0, .position = 0, .count = length};
  must(model_->extend_draft({&context, 1}));
  state->save_window(window_);
}

std::vector<std::unique_ptr<SequenceState>> GpuSlice::sequences(int64_t count, int64_t length, int64_t more) {
  std::vector<std::unique_ptr<SequenceState>> out;
  // Every sequence has other tokens and begins elsewhere in the pool.
  const std::vector<int32_t> ids = tokens(length + 3 * count);
  WindowSnapshot window = window_;
  window.length = length;
  const int64_t whole = (length + kPagePositions - 1) / kPagePositions;
  const int64_t own = (more + kPagePositions - 1) / kPagePositions;
  const int64_t page_bytes = model_->page_layout().page_bytes;
  DI_CHECK(count * own <= kOwnPages && length % kPagePositions == 0, "{} sequences of {} with {} more", count, length, more);
  std::vector<uint8_t*> pages(static_cast<size_t>(whole + own));
  for (int64_t s = 0; s < count; ++s) {
    auto state = model_->new_borrowing_sequence();
    for (int64_t p = 0; p < whole; ++p) pages[static_cast<size_t>(p)] = pages_ + (s * whole + p) % pool_pages_ * page_bytes;
    for (int64_t p = 0; p < own; ++p) pages[static_cast<size_t>(whole + p)] = own_pages_ + (s * own + p) * page_bytes;
    state->append_pages(pages);
    const std::span<const int32_t> prefix(ids.data() + 3 * s, static_cast<size_t>(length));
    if (length > 0) must(model_->adopt_prefix(*state, prefix, {}, window));
    out.push_back(std::move(state));
  }
  return out;
}

}  // namespace deepinfer::bench
