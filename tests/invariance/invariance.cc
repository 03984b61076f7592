#include "invariance/invariance.h"

#include <stdexcept>

#include "testing/named_backend.h"
#include "testing/paths.h"

namespace deepinfer::testing {
namespace {

// Micro with sizes that are no multiples of anything, other ratios, and the fewest of what can be few.
void odd(nlohmann::json& t) {
  t["num_attention_heads"] = 6;
  t["o_groups"] = 3;
  t["o_lora_rank"] = 32;
  t["hidden_size"] = 96;
  t["moe_intermediate_size"] = 160;
  t["n_routed_experts"] = 5;
  t["num_experts_per_tok"] = 3;
  t["head_dim"] = 64;
  t["sliding_window"] = 5;
  t["compress_ratios"] = {2, 2, 0, 2, 1, 1, 1, 0, 0};
  t["kv_source_layer_ids"] = {0, 3, 4};
  t["index_source_layer_ids"] = {0, 1, 3, 4, 6};
  t["candidate_source_layer_id"] = 4;
  t["candidate_topk_blocks"] = 5;
  t["candidate_block_size"] = 3;
  t["index_topk"] = 7;
  t["index_n_heads"] = 3;
  t["hc_mult"] = 4;
  t["dspark_target_layer_ids"] = {1, 3, 6};
}

// More experts than a byte counts.
void many(nlohmann::json& t) {
  t["n_routed_experts"] = 300;
  t["num_experts_per_tok"] = 6;
}

// All layers are of the decoder.
void early(nlohmann::json& t) {
  t["compress_ratios"] = {1, 1, 1, 1, 0, 1, 1, 0, 0};
  t["kv_source_layer_ids"] = {0};
  t["index_source_layer_ids"] = {0, 2, 5};
  t["candidate_source_layer_id"] = 0;
  t["dspark_target_layer_ids"] = {0, 3};
}

// Engram, taps and candidates on both sides of the last KV source.
void late(nlohmann::json& t) {
  t["engram_layer_ids"] = {1, 5};
  t["kv_source_layer_ids"] = {1, 2};
  t["compress_ratios"] = {0, 2, 2, 2, 2, 0, 2, 0, 0};
  t["index_source_layer_ids"] = {1, 2, 4};
  t["candidate_source_layer_id"] = 4;
  t["dspark_target_layer_ids"] = {1, 2, 6};
}

// No global KV at all.
void plain(nlohmann::json& t) {
  t["compress_ratios"] = {0, 0, 0, 0, 0, 0, 0, 0, 0};
  t["kv_source_layer_ids"] = nlohmann::json::array();
  t["index_source_layer_ids"] = nlohmann::json::array();
  t["candidate_source_layer_id"] = -1;
}

std::function<void(nlohmann::json&)> change_of(const std::string& checkpoint) {
  if (checkpoint == "odd") return odd;
  if (checkpoint == "many") return many;
  if (checkpoint == "early") return early;
  if (checkpoint == "late") return late;
  if (checkpoint == "plain") return plain;
  return {};
}

}  // namespace

Subject::Subject(const Setting& setting, int threads) {
  if (!why_absent(setting.backend).empty()) return;
  const std::string checkpoint = setting.checkpoint;
  if (checkpoint == "nano") {
    nano_ = load_model(nano_dir(), setting.backend, threads);
    model_ = nano_.model.get();
    return;
  }
  random_ = make_random_model(setting.backend, threads, change_of(checkpoint));
  model_ = random_.model.get();
}

std::vector<int32_t> Subject::tokens(int64_t count, uint64_t seed) const {
  Random random(seed);
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (int32_t& id : ids) id = static_cast<int32_t>(random.between(3, config().vocab_size - 20));
  return ids;
}

Track::Track(Subject& subject, bool borrows)
    : pages(subject.model().page_layout().page_bytes, int64_t{1} << 40, &subject.model().backend().memory()),
      state(borrows ? subject.model().new_borrowing_sequence() : subject.model().new_sequence(&pages)),
      subject_(subject) {
  fill_state(0xFF);
}

void Track::fill_state(uint8_t byte) {
  const ModelConfig& c = subject_.config();
  DeviceMemory& memory = subject_.model().backend().memory();
  for (int64_t layer = 0; layer < c.num_hidden_layers; ++layer)
    memory.fill(state->window_ring(layer), byte, state->window_capacity() * c.window_row_bytes());
  for (size_t s = 0; s < subject_.model().page_layout().sources.size(); ++s) {
    memory.fill(state->tail_kv(static_cast<int64_t>(s), 0), byte, state->tail_capacity() * 2 * c.head_dim * 4);
  }
}

void Track::forget_results(int64_t length) {
  tokens.resize(static_cast<size_t>(length));
  logits.resize(static_cast<size_t>(length));
  taps.resize(static_cast<size_t>(length));
}

void Track::truncate(int64_t length) {
  const Status status = state->truncate(length);
  ASSERT_TRUE(status.ok()) << status.message();
  forget_results(length);
  // A decoder start that was set further on holds from here.
  for (auto& [at, position] : decoder_starts) at = std::min(at, length);
}

void Track::restart() {
  state->reset();
  forget_results(0);
  donor = nullptr;
  hit = 0;
  replay_from = 0;
  decoder_starts.clear();
}

void Track::cover(int64_t length) {
  if (!state->borrows_pages() || subject_.model().page_layout().page_bytes == 0) return;
  while (state->page_count() * kPagePositions < length) {
    uint8_t* page = pages.allocate();
    state->append_pages({&page, 1});
  }
}

void Track::take_pages(Track& from, int64_t length, bool share) {
  const PageLayout& layout = subject_.model().page_layout();
  if (layout.page_bytes == 0) return;
  uint8_t* const* theirs = from.state->main_rows(0).pages;
  for (int64_t first = 0; first < length; first += kPagePositions) {
    uint8_t* page = theirs[first / kPagePositions];
    const int64_t positions = std::min(length - first, kPagePositions);
    if (!share || positions < kPagePositions) {
      const uint8_t* old = page;
      page = pages.allocate();
      for (const PageLayout::Source& s : layout.sources) {
        DeviceMemory& memory = subject_.model().backend().memory();
        memory.copy(page + s.main_offset, old + s.main_offset, positions / s.ratio * layout.main_row_bytes);
        memory.copy(page + s.index_offset, old + s.index_offset, positions / s.ratio * layout.index_row_bytes);
      }
    }
    state->append_pages({&page, 1});
  }
}

void Track::adopt(Track& from, int64_t hit_length, int64_t replay) {
  take_pages(from, hit_length, true);
  const std::span<const int32_t> ids = std::span(from.tokens).first(static_cast<size_t>(hit_length));
  const Status status = subject_.model().adopt_prefix(*state, ids, {}, replay);
  ASSERT_TRUE(status.ok()) << status.message();
  forget_results(replay);
  std::copy_n(ids.begin(), replay, tokens.begin());
  donor = &from;
  hit = hit_length;
  replay_from = replay;
}

void Track::restore(Track& from, const WindowSnapshot& snapshot) {
  take_pages(from, snapshot.length, false);
  const std::span<const int32_t> ids = std::span(from.tokens).first(static_cast<size_t>(snapshot.length));
  const Status status = subject_.model().adopt_prefix(*state, ids, {}, snapshot);
  ASSERT_TRUE(status.ok()) << status.message();
  forget_results(snapshot.length);
  std::copy(ids.begin(), ids.end(), tokens.begin());
  donor = from.donor;
  hit = from.hit;
  replay_from = from.replay_from;
  decoder_starts = from.decoder_starts;
}

void Track::fork(Track& other, bool share) {
  take_pages(other, std::max(other.length(), other.state->write_floor()), share);
  const Status status = state->copy_from(*other.state);
  ASSERT_TRUE(status.ok()) << status.message();
  tokens = other.tokens;
  logits = other.logits;
  taps = other.taps;
  donor = other.donor;
  hit = other.hit;
  replay_from = other.replay_from;
  decoder_starts = other.decoder_starts;
}

void Track::set_decoder_start(int64_t position) {
  const Status status = state->set_decoder_start(position);
  ASSERT_TRUE(status.ok()) << status.message();
  decoder_starts.emplace_back(length(), position);
}

void run_step(Subject& subject, const std::vector<Append>& appends, int64_t every) {
  std::vector<int32_t> ids, rows;
  std::vector<StepSequence> sequences;
  for (const Append& a : appends) {
    const auto count = static_cast<int64_t>(a.tokens.size());
    for (int64_t i = 0; i < count; ++i) {
      const int64_t position = a.track->length() + i;
      if ((position % every == 0 || i + 1 == count) && position >= a.track->state->decoder_start())
        rows.push_back(static_cast<int32_t>(static_cast<int64_t>(ids.size()) + i));
    }
    ids.insert(ids.end(), a.tokens.begin(), a.tokens.end());
    sequences.push_back({a.track->state.get(), count});
    a.track->cover(a.track->length() + count);
  }
  StepBatch batch;
  batch.tokens = ids;
  batch.sequences = sequences;
  batch.logit_rows = rows;
  const auto out = subject.model().forward(batch);
  ASSERT_TRUE(out.has_value()) << out.error().message();
  const auto vocab = static_cast<size_t>(subject.config().vocab_size);
  const std::vector<bf16> main_hidden = subject.model().main_hidden();
  const size_t tap = main_hidden.size() / ids.size();
  for (float logit : out->logits) ASSERT_EQ(logit - logit, 0.0f) << "not finite";
  size_t row = 0;
  size_t wanted = 0;
  for (const Append& a : appends) {
    for (int32_t id : a.tokens) {
      a.track->tokens.push_back(id);
      const auto taps = std::span(main_hidden).subspan(row * tap, tap);
      a.track->taps.emplace_back(taps.begin(), taps.end());
      a.track->logits.emplace_back();
      if (wanted < rows.size() && rows[wanted] == static_cast<int32_t>(row)) {
        const auto logits = out->logits.subspan(wanted++ * vocab, vocab);
        a.track->logits.back().assign(logits.begin(), logits.end());
      }
      ++row;
    }
  }
}

std::vector<std::pair<std::string, std::vector<uint8_t>>> snapshot(Subject& subject, SequenceState& state) {
  const ModelConfig& c = subject.config();
  const PageLayout& layout = subject.model().page_layout();
  const int64_t length = state.length();
  std::vector<std::pair<std::string, std::vector<uint8_t>>> parts;
  const auto add = [&](std::vector<uint8_t>& to, const void* from, int64_t bytes) {
    to.resize(to.size() + static_cast<size_t>(bytes));
    subject.model().backend().memory().download(to.data() + to.size() - bytes, from, bytes);
  };
  for (int64_t layer = 0; layer < c.num_hidden_layers; ++layer) {
    std::vector<uint8_t> rows;
    const int64_t start = layer < c.first_decoder_layer() ? state.encoder_window_start() : state.decoder_window_start();
    for (int64_t p = std::max(start, length - c.sliding_window + 1); p < length; ++p) {
      add(rows, state.window_ring(layer) + p % state.window_capacity() * c.window_row_bytes(), c.window_row_bytes());
    }
    parts.emplace_back(fmt::format("window of layer {}", layer), std::move(rows));
  }
  for (size_t s = 0; s < layout.sources.size(); ++s) {
    const auto source = static_cast<int64_t>(s);
    std::vector<uint8_t> main, index, tail;
    for (int64_t j = 0; j < length / layout.sources[s].ratio; ++j) {
      add(main, state.main_rows(source).row(j), layout.main_row_bytes);
      add(index, state.index_rows(source).row(j), layout.index_row_bytes);
    }
    if (layout.sources[s].ratio == 2 && length % 2 == 1) {
      add(tail, state.tail_kv(source, length - 1), c.head_dim * 4);
      add(tail, state.tail_gate(source, length - 1), c.head_dim * 4);
    }
    parts.emplace_back(fmt::format("compressed rows of source {}", s), std::move(main));
    parts.emplace_back(fmt::format("index keys of source {}", s), std::move(index));
    parts.emplace_back(fmt::format("tail of source {}", s), std::move(tail));
  }
  std::vector<uint8_t> history;
  const auto* ids = reinterpret_cast<const uint8_t*>(state.history().data());
  history.assign(ids, ids + state.history().size() * sizeof(int32_t));
  parts.emplace_back("history", std::move(history));
  return parts;
}

namespace {
template <typename T>
bool same_bytes(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}
}  // namespace

bool same_global_rows(Subject& subject, SequenceState& a, SequenceState& b, int64_t length) {
  const PageLayout& layout = subject.model().page_layout();
  for (size_t s = 0; s < layout.sources.size(); ++s) {
    const auto source = static_cast<int64_t>(s);
    for (int64_t j = 0; j < length / layout.sources[s].ratio; ++j) {
      const auto differ = [&](const PagedRows& x, const PagedRows& y) {
        DeviceMemory& memory = subject.model().backend().memory();
        std::vector<uint8_t> p(static_cast<size_t>(x.row_bytes)), q(p.size());
        memory.download(p.data(), x.row(j), x.row_bytes);
        memory.download(q.data(), y.row(j), y.row_bytes);
        return p != q;
      };
      if (differ(a.main_rows(source), b.main_rows(source)) || differ(a.index_rows(source), b.index_rows(source))) return false;
    }
  }
  return true;
}

void expect_equal(Subject& subject, Track& got, Track& want) {
  ASSERT_EQ(got.tokens, want.tokens);
  ASSERT_EQ(got.length(), want.length());
  for (size_t p = 0; p < want.tokens.size(); ++p) {
    ASSERT_TRUE(got.taps[p].empty() || want.taps[p].empty() || same_bytes(got.taps[p], want.taps[p]))
        << "hidden states of position " << p << " of " << want.length();
    if (got.logits[p].empty() || want.logits[p].empty()) continue;
    ASSERT_TRUE(same_bytes(got.logits[p], want.logits[p])) << "logits of position " << p << " of " << want.length();
  }
  const auto a = snapshot(subject, *got.state);
  const auto b = snapshot(subject, *want.state);
  for (size_t i = 0; i < b.size(); ++i)
    ASSERT_TRUE(same_bytes(a[i].second, b[i].second)) << b[i].first << ", length " << want.length();
}

void expect_true(Subject& subject, Track& got, int64_t every) {
  if (got.tokens.empty()) return;
  Track alone(subject, got.donor != nullptr);
  if (got.donor != nullptr) {
    ASSERT_NO_FATAL_FAILURE(alone.adopt(*got.donor, got.hit, got.replay_from));
  }
  const auto run_to = [&](int64_t length) {
    if (length > alone.length())
      run_step(subject, {{&alone, {got.tokens.begin() + alone.length(), got.tokens.begin() + length}}}, every);
  };
  for (auto [at, position] : got.decoder_starts) {
    ASSERT_NO_FATAL_FAILURE(run_to(at));
    ASSERT_NO_FATAL_FAILURE(alone.set_decoder_start(position));
  }
  ASSERT_NO_FATAL_FAILURE(run_to(static_cast<int64_t>(got.tokens.size())));
  expect_equal(subject, got, alone);
}

}  // namespace deepinfer::testing
