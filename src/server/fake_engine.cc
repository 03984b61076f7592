#include "server/fake_engine.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <set>
#include <thread>
#include <unordered_map>
#include <unordered_set>

#include "engine/request_check.h"
#include "engine/request_stream.h"
#include "protocol/render_v4.h"
#include "telemetry/expert_load.h"
#include "telemetry/trace_recorder.h"

namespace deepinfer::server {
namespace {

using telemetry::to_ns;
using Clock = std::chrono::steady_clock;

constexpr int64_t kPageTokens = 128;
constexpr int64_t kLayers = 4, kExperts = 8;
constexpr std::string_view kOpenReply = "[[reply]]";
constexpr std::string_view kCloseReply = "[[/reply]]";

class FakeEngine final : public Engine {
 public:
  FakeEngine(std::shared_ptr<const Tokenizer> tokenizer, EngineOptions options, FakeEngineOptions fake)
      : tokenizer_(std::move(tokenizer)), options_(std::move(options)), fake_(std::move(fake)) {
    if (options_.max_model_len == 0) options_.max_model_len = 1'048'576;
    eos_ = tokenizer_->added_token(kEosToken).value_or(1);
    plain_ = tokenizer_->encode_with_added_tokens(fake_.text);
    if (plain_.empty()) plain_.push_back(eos_);
    thoughts_ = tokenizer_->encode_with_added_tokens("The question asks for a story.</think>");
    limits_.vocab_size = tokenizer_->vocab_size();
    limits_.eos_token_id = eos_;
    limits_.max_model_len = options_.max_model_len;
    limits_.max_num_seqs = options_.max_num_seqs;
    limits_.page_positions = kPageTokens;
    limits_.total_pages = fake_.pages;
    cancels_ = std::make_shared<Cancels>();
    stats_.pages_total = stats_.pages_free = fake_.pages;
    thread_ = std::thread([this] { loop(); });
  }
  ~FakeEngine() override { shutdown(Shutdown::kCancel); }

  Result<RequestHandle> submit(Request request) override {
    auto checked = check_request(std::move(request), limits_);
    if (!checked) return Err(checked.error());
    if ((*checked)->request.structured_output.has_value())
      return Err(Status::Unimplemented("structured_output: the fake engine cannot enforce a form"));
    const std::lock_guard lock(cancels_->mutex);
    if (cancels_->closed) return Err(Status::FailedPrecondition("the engine has been shut down"));
    const auto waiting = static_cast<int64_t>(waiting_.size());
    if (waiting >= options_.max_queued_requests) {
      ++stats_.refused;
      return Err(Status::Unavailable("{} requests are queued, max_queued_requests is {}", waiting, options_.max_queued_requests));
    }
    auto active = std::make_unique<Active>();
    active->id = next_id_++;
    active->submitted = Clock::now();
    active->request = std::move((*checked)->request);
    active->length = std::min((*checked)->max_tokens, int64_t{1} << 30);
    active->stream =
        std::make_shared<RequestStream>(active->id, active->request.n, [box = cancels_](RequestId id) { box->cancel(id); });
    RequestHandle handle(active->stream);
    ++stats_.submitted;
    if (options_.trace != nullptr)
      options_.trace->submitted(active->id, to_ns(active->submitted), static_cast<int64_t>(active->request.prompt.size()));
    waiting_.push_back(std::move(active));
    cancels_->news.notify_one();
    return handle;
  }

  void cancel(RequestId id) override { cancels_->cancel(id); }

  EngineStats stats() const override {
    const std::lock_guard lock(cancels_->mutex);
    EngineStats stats = stats_;
    stats.waiting = static_cast<int64_t>(waiting_.size());
    stats.running = static_cast<int64_t>(running_.size());
    return stats;
  }

  ExpertCounts expert_counts() const override { return {.layers = kLayers, .counts = experts_.counts()}; }

  void reset_prefix_cache() override {}  // it has none

  void shutdown(Shutdown how) override {
    {
      const std::lock_guard lock(cancels_->mutex);
      cancels_->closed = true;
      if (how == Shutdown::kCancel) cancels_->all = true;
    }
    cancels_->news.notify_one();
    const std::lock_guard lock(join_mutex_);
    if (thread_.joinable()) thread_.join();
  }

  const EngineOptions& options() const override { return options_; }
  ModelInfo model() const override {
    ModelInfo info;
    info.name = "fake";
    info.vocab_size = tokenizer_->vocab_size();
    info.max_model_len = options_.max_model_len;
    info.page_tokens = kPageTokens;
    info.bos_token_id = tokenizer_->added_token(kBosToken).value_or(0);
    info.eos_token_id = eos_;
    info.backend = "fake";
    return info;
  }
  std::shared_ptr<const Tokenizer> tokenizer() const override { return tokenizer_; }
  std::vector<int32_t> encode(std::string_view text) const override { return tokenizer_->encode(text); }
  Result<std::vector<int32_t>> encode_chat(std::string_view user, bool thinking) const override {
    Conversation conversation;
    conversation.messages.push_back(Message::User(std::string(user)));
    conversation.thinking = thinking;
    return encode_prompt(*tokenizer_, render_prompt(conversation, ModelVersion::kV4_1).segments);
  }
  std::string decode(const std::vector<int32_t>& tokens, bool skip_special) const override {
    return tokenizer_->decode(tokens, skip_special);
  }

 private:
  /// Outlives the engine for handles that are still about; its mutex guards everything.
  struct Cancels {
    std::mutex mutex;
    std::condition_variable news;
    std::vector<RequestId> ids;
    bool closed = false, all = false;
    void cancel(RequestId id) {
      {
        const std::lock_guard lock(mutex);
        ids.push_back(id);
      }
      news.notify_one();
    }
  };
  struct Active {
    RequestId id = 0;
    Request request;
    std::shared_ptr<RequestStream> stream;
    std::vector<int32_t> answer;
    bool ends = true;  ///< with EOS; else it was cut to max_tokens
    int64_t length = 0;
    int64_t made = 0;
    int64_t open = 0;
    std::vector<Detokenizer> text;  ///< by choice
    Clock::time_point submitted, admitted, due;
    std::optional<double> queue_seconds;
  };

  /// What the request will be answered with.
  void write_answer(Active& a) const {
    const auto& prompt = a.request.prompt;
    const std::string text = tokenizer_->decode(prompt);
    const size_t close = text.rfind(kCloseReply);
    const size_t open = close == std::string::npos ? close : text.rfind(kOpenReply, close);
    std::vector<int32_t> full;
    if (open != std::string::npos) {
      full = tokenizer_->encode_with_added_tokens(text.substr(open + kOpenReply.size(), close - open - kOpenReply.size()));
    } else {
      if (tokenizer_->added_token(kThinkToken) == prompt.back()) full = thoughts_;
      for (int64_t i = 0; i < fake_.tokens; ++i) full.push_back(plain_[static_cast<size_t>(i) % plain_.size()]);
    }
    if (a.request.ignore_eos) {
      while (static_cast<int64_t>(full.size()) < std::min(a.length, int64_t{1} << 20))
        full.push_back(plain_[full.size() % plain_.size()]);
    }
    a.ends =
        static_cast<int64_t>(full.size()) <= a.length && !(a.request.ignore_eos && static_cast<int64_t>(full.size()) == a.length);
    full.resize(static_cast<size_t>(std::min<int64_t>(a.length, static_cast<int64_t>(full.size()))));
    a.answer = std::move(full);
    for (int64_t i = 0; i < a.request.n; ++i) a.text.emplace_back(tokenizer_, a.request.skip_special_tokens);
  }

  void fill_usage(const Active& a, Output& output) const {
    output.request = a.id;
    output.usage.prompt_tokens = static_cast<int64_t>(a.request.prompt.size());
    output.usage.completion_tokens = a.made * a.request.n;
    output.usage.queue_seconds = a.queue_seconds;
    output.usage.seed = a.request.sampling.seed;
  }

  PositionLogprobs logprobs(int32_t token, int64_t best) const {
    PositionLogprobs p;
    p.chosen = {token, -0.25F, 1};
    for (int64_t i = 0; i < best; ++i)
      p.top.push_back({static_cast<int32_t>((token + i) % tokenizer_->vocab_size()), -0.25F - static_cast<float>(i), i + 1});
    return p;
  }

  /// One token of every choice. True when it has ended.
  bool step(Active& a) {
    const bool last_token = a.made + 1 >= static_cast<int64_t>(a.answer.size());
    const bool empty = a.answer.empty();
    if (!empty) ++a.made;
    if (!empty) count_experts(a.answer[static_cast<size_t>(a.made - 1)]);
    if (a.made <= 1 && options_.trace != nullptr) trace_first_token(a);
    for (int64_t choice = 0; choice < a.request.n; ++choice) {
      Output output;
      output.index = choice;
      if (!empty) {
        const int32_t token = a.answer[static_cast<size_t>(a.made - 1)];
        output.tokens.push_back(token);
        if (a.request.detokenize) output.text = a.text[static_cast<size_t>(choice)].push(token);
        if (fake_.timestamps) output.text = fmt::format("{}:{} ", a.made - 1, Clock::now().time_since_epoch().count());
        if (a.request.logprobs.has_value()) output.logprobs.push_back(logprobs(token, *a.request.logprobs));
      }
      if (last_token) {
        output.text += a.text[static_cast<size_t>(choice)].finish();
        output.finish = a.ends ? FinishReason::kStop : FinishReason::kLength;
      }
      // As the engine: the text ends before the first stop string.
      for (const std::string& stop : a.request.stop) {
        if (const size_t at = output.text.find(stop); at != std::string::npos) {
          output.text.resize(at);
          output.finish = FinishReason::kStop;
          output.stop_reason = stop;
          break;
        }
      }
      fill_usage(a, output);
      if (a.made <= 1 && a.request.prompt_logprobs.has_value() && choice == 0) {
        for (size_t i = 1; i < a.request.prompt.size(); ++i)
          output.prompt_logprobs.push_back(logprobs(a.request.prompt[i], *a.request.prompt_logprobs));
      }
      const bool ended = output.finish.has_value();
      if (ended) count_end(*output.finish);
      if (ended && a.open == 1 && options_.trace != nullptr) trace_finished(a, *output.finish);
      if (ended) --a.open;
      a.stream->push(std::move(output));
      if (ended && !last_token) {  // stopped by a string: all choices say the same, so all end here
        if (choice == a.request.n - 1) return true;
      }
    }
    return last_token;
  }

  void trace_first_token(const Active& a) const {
    const int64_t now = telemetry::now_ns();
    options_.trace->phase(a.id, telemetry::Phase::kPrefill, to_ns(a.admitted), now);
    options_.trace->first_token(a.id, now, now);
  }

  void trace_finished(const Active& a, FinishReason reason) const {
    options_.trace->finished(
        a.id, telemetry::now_ns(), finish_reason_name(reason),
        {.prompt_tokens = static_cast<int64_t>(a.request.prompt.size()), .completion_tokens = a.made * a.request.n});
  }

  /// As if each token had gone through layers with experts, so that there is something to look at.
  void count_experts(int32_t token) {
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      const auto expert = static_cast<int32_t>((token / (layer + 1)) % kExperts);
      experts_.count(layer, {&expert, 1});
    }
  }

  void end(Active& a, FinishReason reason) {
    if (options_.trace != nullptr) trace_finished(a, reason);
    for (int64_t choice = 0; choice < a.request.n; ++choice) {
      Output output;
      output.index = choice;
      output.finish = reason;
      fill_usage(a, output);
      count_end(reason);
      a.stream->push(std::move(output));
    }
  }

  void count_end(FinishReason reason) {
    const std::lock_guard lock(cancels_->mutex);
    ++stats_.finished[static_cast<size_t>(reason)];
  }

  /// Under the lock: what was cancelled since.
  std::vector<std::unique_ptr<Active>> take_cancelled() {
    std::vector<std::unique_ptr<Active>> out;
    const std::unordered_set<RequestId> ids(cancels_->ids.begin(), cancels_->ids.end());
    const bool all = cancels_->all;
    cancels_->ids.clear();
    if (ids.empty() && !all) return out;
    for (auto& a : waiting_) {
      if (all || ids.contains(a->id)) out.push_back(std::move(a));
    }
    std::erase_if(waiting_, [](const auto& a) { return a == nullptr; });
    for (auto at = running_.begin(); at != running_.end();) {
      if (all || ids.contains(at->first)) {
        due_.erase({at->second->due, at->first});
        out.push_back(std::move(at->second));
        at = running_.erase(at);
      } else {
        ++at;
      }
    }
    return out;
  }

  void loop() {
    const auto interval =
        std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(fake_.rate > 0 ? 1 / fake_.rate : 0));
    const auto delay = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(fake_.first_delay));
    std::vector<Active*> ready;
    while (true) {
      std::vector<std::unique_ptr<Active>> cancelled;
      std::vector<Active*> admitted;
      ready.clear();
      {
        std::unique_lock lock(cancels_->mutex);
        const auto news = [&] {
          const bool idle = running_.empty() && waiting_.empty();
          const bool room = !waiting_.empty() && static_cast<int64_t>(running_.size()) < options_.max_num_seqs;
          return !cancels_->ids.empty() || room || (cancels_->closed && idle) || (cancels_->all && !idle);
        };
        if (!news()) {
          if (due_.empty()) {
            cancels_->news.wait(lock, news);
          } else {
            cancels_->news.wait_until(lock, due_.begin()->first, news);
          }
        }
        cancelled = take_cancelled();
        while (!waiting_.empty() && static_cast<int64_t>(running_.size()) < options_.max_num_seqs) {
          std::unique_ptr<Active> a = std::move(waiting_.front());
          waiting_.pop_front();
          admitted.push_back(a.get());
          stats_.prompt_tokens += static_cast<int64_t>(a->request.prompt.size());
          stats_.prefix_queries += static_cast<int64_t>(a->request.prompt.size());
          const RequestId id = a->id;
          running_.emplace(id, std::move(a));
        }
        if (cancels_->closed && waiting_.empty() && running_.empty() && cancelled.empty()) return;
      }
      const auto now = Clock::now();
      for (const auto& a : cancelled) end(*a, FinishReason::kCancelled);
      for (Active* a : admitted) {
        a->open = a->request.n;
        a->queue_seconds = std::chrono::duration<double>(now - a->submitted).count();
        a->admitted = now;
        if (options_.trace != nullptr) options_.trace->phase(a->id, telemetry::Phase::kQueue, to_ns(a->submitted), to_ns(now));
        write_answer(*a);
        a->due = now + delay + interval;
        due_.insert({a->due, a->id});
      }
      run_due(now, interval);
    }
  }

  void run_due(Clock::time_point now, Clock::duration interval) {
    while (!due_.empty() && due_.begin()->first <= now) {
      const RequestId id = due_.begin()->second;
      due_.erase(due_.begin());
      Active& a = *running_.at(id);
      if (!a.answer.empty()) {
        // Before anybody can see the tokens: who has them all finds them counted.
        const std::lock_guard lock(cancels_->mutex);
        stats_.generation_tokens += a.request.n;
      }
      if (step(a)) {
        const std::lock_guard lock(cancels_->mutex);
        running_.erase(id);
      } else {
        a.due = interval.count() > 0 ? a.due + interval : now + std::chrono::nanoseconds(1);
        due_.insert({a.due, id});
      }
    }
    const std::lock_guard lock(cancels_->mutex);
    ++stats_.steps;
  }

  const std::shared_ptr<const Tokenizer> tokenizer_;
  EngineOptions options_;
  const FakeEngineOptions fake_;
  int32_t eos_ = 1;
  std::vector<int32_t> plain_, thoughts_;
  telemetry::ExpertLoad experts_{std::vector<int64_t>(kLayers, kExperts)};
  RequestLimits limits_;
  std::shared_ptr<Cancels> cancels_;
  std::deque<std::unique_ptr<Active>> waiting_;                     ///< under the lock
  std::unordered_map<RequestId, std::unique_ptr<Active>> running_;  ///< changed by the thread alone, under the lock
  std::set<std::pair<Clock::time_point, RequestId>> due_;           ///< of the thread alone
  EngineStats stats_;                                               ///< under the lock
  RequestId next_id_ = 1;
  std::mutex join_mutex_;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<Engine> make_fake_engine(std::shared_ptr<const Tokenizer> tokenizer, EngineOptions options,
                                         FakeEngineOptions fake) {
  return std::make_unique<FakeEngine>(std::move(tokenizer), std::move(options), std::move(fake));
}

}  // namespace deepinfer::server
