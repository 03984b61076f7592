#include "replay_lab.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

namespace deepinfer::bench {
namespace {

constexpr int64_t kStepRows = 256;

/// log of the sum of exponentials.
double log_sum(std::span<const float> logits) {
  const float most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float v : logits) sum += std::exp(static_cast<double>(v - most));
  return most + std::log(sum);
}

size_t best(std::span<const float> values) {
  return static_cast<size_t>(std::max_element(values.begin(), values.end()) - values.begin());
}

}  // namespace

void fail(const std::string& message) {
  std::fprintf(stderr, "replay_bench: %s\n", message.c_str());
  std::exit(1);
}

Track::Track(Model& model, int64_t capacity)
    : model_(model),
      stride_((model.page_layout().page_bytes + 63) / 64 * 64),
      memory_((capacity + kPagePositions - 1) / kPagePositions * stride_),
      state_(model.new_borrowing_sequence()) {
  for (int64_t at = 0; at < memory_.size(); at += stride_) pages_.push_back(memory_.data() + at);
  state_->append_pages(pages_);
}

void Track::take_pages(const Track& donor, int64_t hit) {
  const int64_t pages = (hit + kPagePositions - 1) / kPagePositions;
  std::memcpy(memory_.data(), donor.memory_.data(), static_cast<size_t>(pages * stride_));
  state_->reset();
  state_->append_pages(pages_);
}

void Track::adopt(const Track& donor, std::span<const int32_t> tokens, int64_t hit, int64_t from) {
  take_pages(donor, hit);
  if (hit == 0) return;
  const Status status = model_.adopt_prefix(*state_, tokens.first(static_cast<size_t>(hit)), {}, from);
  if (!status.ok()) fail(status.message());
}

void Track::restore(const Track& donor, std::span<const int32_t> tokens, const WindowSnapshot& snapshot) {
  take_pages(donor, snapshot.length);
  const Status status = model_.adopt_prefix(*state_, tokens.first(static_cast<size_t>(snapshot.length)), {}, snapshot);
  if (!status.ok()) fail(status.message());
}

double Cell::mean() const {
  double sum = 0;
  for (const double v : kl_) sum += v;
  return kl_.empty() ? 0 : sum / static_cast<double>(kl_.size());
}

double Cell::percentile(double p) const {
  if (kl_.empty()) return 0;
  std::vector<double> sorted = kl_;
  const auto at = sorted.begin() + static_cast<std::ptrdiff_t>(p * static_cast<double>(sorted.size() - 1));
  std::nth_element(sorted.begin(), at, sorted.end());
  return *at;
}

void Lab::run(Track& track, std::span<const int32_t> tokens, int64_t end, int64_t wanted,
              FunctionRef<void(int64_t, std::span<const float>)> logits, std::span<const int64_t> stops,
              FunctionRef<void(int64_t)> at_stop) {
  const auto vocab = static_cast<size_t>(model_.config().vocab_size);
  size_t stop = 0;
  while (track.state().length() < end) {
    const int64_t first = track.state().length();
    while (stop < stops.size() && stops[stop] <= first) ++stop;
    int64_t rows = std::min(kStepRows, end - first);
    if (stop < stops.size()) rows = std::min(rows, stops[stop] - first);
    std::vector<int32_t> logit_rows;
    for (int64_t i = std::max<int64_t>(0, wanted - first); i < rows; ++i) logit_rows.push_back(static_cast<int32_t>(i));
    const StepSequence sequence{&track.state(), rows};
    StepBatch batch;
    batch.tokens = tokens.subspan(static_cast<size_t>(first), static_cast<size_t>(rows));
    batch.sequences = {&sequence, 1};
    batch.logit_rows = logit_rows;
    const StepOutput out = must(model_.forward(batch));
    row_layers_ += out.encoder_row_layers + out.decoder_row_layers;
    pool_.run(static_cast<int64_t>(logit_rows.size()), [&](int64_t i, int) {
      logits(first + logit_rows[static_cast<size_t>(i)], out.logits.subspan(static_cast<size_t>(i) * vocab, vocab));
    });
    if (stop < stops.size() && stops[stop] == first + rows) at_stop(first + rows);
  }
}

Reference Lab::reference(Track& track, std::vector<int32_t> tokens, std::span<const int64_t> stops,
                         FunctionRef<void(int64_t)> at_stop) {
  Reference out;
  out.tokens = std::move(tokens);
  const auto vocab = static_cast<size_t>(model_.config().vocab_size);
  const size_t total = out.tokens.size();
  out.logprobs.resize(total * vocab);
  const auto keep = [&](int64_t position, std::span<const float> logits) {
    const double sum = log_sum(logits);
    float* to = out.logprobs.data() + static_cast<size_t>(position) * vocab;
    for (size_t i = 0; i < vocab; ++i) to[i] = static_cast<float>(logits[i] - sum);
  };
  run(track, out.tokens, static_cast<int64_t>(total), 0, keep, stops, at_stop);
  for (size_t i = 0; i + 1 < total; ++i) out.nll -= out.logprobs[i * vocab + static_cast<size_t>(out.tokens[i + 1])];
  out.nll /= static_cast<double>(total - 1);
  return out;
}

std::vector<Distance> Lab::compare(Track& track, const Reference& reference, int64_t from, int64_t end) {
  const auto vocab = static_cast<size_t>(model_.config().vocab_size);
  std::vector<Distance> out(static_cast<size_t>(std::max<int64_t>(0, end - from)));
  const auto judge = [&](int64_t position, std::span<const float> logits) {
    const auto exact = std::span(reference.logprobs).subspan(static_cast<size_t>(position) * vocab, vocab);
    const double sum = log_sum(logits);
    double kl = 0;
    for (size_t i = 0; i < vocab; ++i)
      kl += std::exp(static_cast<double>(exact[i])) * (static_cast<double>(exact[i]) - (static_cast<double>(logits[i]) - sum));
    // Rounding of the stored fp32 logarithms can leave a little below zero.
    out[static_cast<size_t>(position - from)] = {position, std::max(kl, 0.0), best(exact) == best(logits),
                                                 static_cast<int32_t>(best(logits))};
  };
  run(track, reference.tokens, end, from, judge);
  return out;
}

WindowSnapshot without_decoder(WindowSnapshot s) {
  const int64_t rows = std::min(s.length - s.encoder_window_start, s.window - 1);
  const int64_t tail = s.length % 2 == 1 ? s.tail_bytes : 0;
  s.data.erase(s.data.begin() + s.first_decoder_layer * rows * s.row_bytes, s.data.end() - tail);
  s.decoder_window_start = s.length;
  return s;
}

std::vector<SuiteText> read_suite(const std::string& path) {
  std::ifstream in(path);
  if (!in) fail(path + ": cannot open");
  std::vector<SuiteText> out;
  for (std::string line; std::getline(in, line);) {
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (!json.is_object()) fail(path + ": not a JSON object a line");
    out.push_back({json.at("skill"), json.at("prompt"), json.at("answer")});
  }
  return out;
}

std::vector<std::vector<int32_t>> make_sessions(const std::vector<SuiteText>& rows, int64_t count, int64_t length,
                                                uint64_t seed) {
  std::vector<size_t> order(rows.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::mt19937_64 random(seed);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random() % i]);
  std::vector<std::vector<int32_t>> out(static_cast<size_t>(count));
  size_t next = 0;
  for (std::vector<int32_t>& text : out) {
    while (static_cast<int64_t>(text.size()) < length) {
      const SuiteText& row = rows[order[next++ % order.size()]];
      // The start token stands once, before everything.
      text.insert(text.end(), row.prompt.begin() + (text.empty() ? 0 : 1), row.prompt.end());
      text.insert(text.end(), row.answer.begin(), row.answer.end());
    }
    text.resize(static_cast<size_t>(length));
  }
  return out;
}

}  // namespace deepinfer::bench
