#include "serve/load_client.h"

#include <sys/resource.h>

#include <algorithm>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <deque>
#include <memory>

#include "serve/http_client.h"

namespace deepinfer::bench {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;

constexpr auto kTick = std::chrono::milliseconds(10);
constexpr int64_t kTicksPerLook = 10;

std::chrono::nanoseconds nanoseconds(double seconds) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(std::min(seconds, 1e8)));
}

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) { return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

class Load {
 public:
  Load(const Endpoint& endpoint, const std::vector<LoadSession>& sessions, const LoadOptions& options)
      : endpoint_(endpoint), sessions_(sessions), options_(options), room_(context_), ticker_(context_) {
    room_.expires_at(Clock::time_point::max());
    for (const LoadSession& session : sessions_) total_ += static_cast<int64_t>(session.turns.size());
  }

  Result<LoadRun> run() {
    DI_ASSIGN_OR_RETURN(
        client_, HttpClient::Create(context_, endpoint_, {.silence = options_.timeout, .whole = options_.request_timeout}));
    const double cpu = cpu_seconds();
    start_ = Clock::now();
    spawn(dispatch());
    spawn(tick());
    context_.run();
    if (failure_) std::rethrow_exception(failure_);
    run_.cpu_seconds = cpu_seconds() - cpu;
    run_.records.assign(std::make_move_iterator(records_.begin()), std::make_move_iterator(records_.end()));
    run_.not_sent = total_ - static_cast<int64_t>(run_.records.size());
    for (const LoadRecord& record : run_.records) run_.seconds = std::max(run_.seconds, record.finished);
    return std::move(run_);
  }

 private:
  void spawn(asio::awaitable<void> work) {
    asio::co_spawn(context_, std::move(work), [this](std::exception_ptr thrown) {
      if (!thrown) return;
      failure_ = std::move(thrown);  // a defect, or no memory: nothing that a server does
      context_.stop();
    });
  }

  double now() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

  /// The end of a stopped run comes before.
  asio::awaitable<void> sleep_until(double seconds) {
    asio::steady_timer timer(context_, start_ + nanoseconds(seconds));
    // Bursts go out together: a timer for each would let answers in between.
    if (timer.expiry() <= Clock::now()) co_return;
    error_code ignored;
    sleeping_.push_back(&timer);
    co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
    sleeping_.erase(std::find(sleeping_.begin(), sleeping_.end(), &timer));
  }

  /// Until one of `limit` places is free; 0: there are any number.
  asio::awaitable<void> wait_for_room(const int64_t& taken, int64_t limit) {
    while (!run_.stopped && limit > 0 && taken >= limit) {
      error_code ignored;
      co_await room_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
    }
  }

  asio::awaitable<void> dispatch() {
    for (size_t i = 0; i < sessions_.size(); ++i) {
      co_await sleep_until(sessions_[i].at);
      co_await wait_for_room(open_, options_.num_clients);
      co_await wait_for_room(in_flight_, options_.max_concurrency);
      if (run_.stopped) break;
      ++open_;
      take_place();
      spawn(converse(static_cast<int64_t>(i)));
    }
    all_sent_ = true;
    if (over()) ticker_.cancel();
  }

  /// Measures how late the loop is, shows progress, and ends a run that is stopped.
  asio::awaitable<void> tick() {
    for (int64_t count = 0; !over(); ++count) {
      error_code ignored;
      ticker_.expires_after(kTick);
      co_await ticker_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
      if (over()) break;
      run_.lag.push_back(std::max(0.0, std::chrono::duration<double>(Clock::now() - ticker_.expiry()).count()));
      if (count % kTicksPerLook != 0) continue;
      if (options_.progress) options_.progress({done_, total_, in_flight_, failed_});
      if (!run_.stopped && options_.stop && options_.stop()) {
        run_.stopped = true;
        room_.cancel();
        for (asio::steady_timer* timer : sleeping_) timer->cancel();
        client_->cancel();
      }
    }
  }
  bool over() const { return (all_sent_ || run_.stopped) && open_ == 0; }

  /// A place among `max_concurrency`; `answer` gives it back.
  void take_place() { run_.peak_in_flight = std::max(run_.peak_in_flight, ++in_flight_); }

  /// A session; it has a place for its first turn.
  asio::awaitable<void> converse(int64_t index) {
    const LoadSession& session = sessions_[static_cast<size_t>(index)];
    std::vector<std::string> answers;
    std::string body;  // of a later turn
    double planned = session.at;
    int64_t context_tokens = 0;
    for (size_t turn = 0; turn < session.turns.size(); ++turn) {
      if (turn > 0) {
        body = options_.next_body(index, answers);  // before its time, so that it is not late
        planned += session.turns[turn].think_time;
        co_await sleep_until(planned);
        co_await wait_for_room(in_flight_, options_.max_concurrency);
        if (run_.stopped) break;
        take_place();
      }
      LoadRecord& record = records_.emplace_back();
      record.session = index;
      record.turn = static_cast<int64_t>(turn);
      record.planned = planned;
      record.input_tokens = context_tokens + session.turns[turn].input_tokens;
      const bool last = turn + 1 == session.turns.size();
      std::string text = co_await answer(turn == 0 ? session.body : body, record, !last);
      if (!record.ok() || run_.stopped) break;
      if (!last) answers.push_back(std::move(text));
      context_tokens = record.input_tokens + record.output_tokens;
      planned = record.finished;
    }
    --open_;
    room_.cancel();
    if (over()) ticker_.cancel();
  }

  asio::awaitable<std::string> answer(const std::string& body, LoadRecord& record, bool keep_text) {
    AnswerReader reader(record, keep_text);
    const auto sink = [&](std::string_view piece) { return reader.push(piece, now()); };
    record.sent = now();
    const HttpReply reply = co_await client_->exchange(endpoint_.path, &body, sink);
    record.finished = now();
    reader.finish(reply);
    ++done_;
    failed_ += record.ok() ? 0 : 1;
    --in_flight_;
    room_.cancel();
    co_return reader.take_text();
  }

  const Endpoint& endpoint_;
  const std::vector<LoadSession>& sessions_;
  const LoadOptions& options_;
  asio::io_context context_{1};
  std::unique_ptr<HttpClient> client_;
  asio::steady_timer room_;  ///< cancelled when there is room, or no need for it any more
  asio::steady_timer ticker_;
  Clock::time_point start_;
  std::vector<asio::steady_timer*> sleeping_;
  std::deque<LoadRecord> records_;  ///< they stay where they are
  std::exception_ptr failure_;
  int64_t total_ = 0, open_ = 0, in_flight_ = 0, done_ = 0, failed_ = 0;
  bool all_sent_ = false;
  LoadRun run_;
};

}  // namespace

Result<LoadRun> run_load(const Endpoint& endpoint, const std::vector<LoadSession>& sessions, const LoadOptions& options) {
  return Load(endpoint, sessions, options).run();
}

}  // namespace deepinfer::bench
