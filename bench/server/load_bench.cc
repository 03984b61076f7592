// The server under load, on the fake engine: streams at a rate, short requests beside nginx, and a soak with clients that leave.
// The client is one thread; it shares the machine with the server.

#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <random>

#include "base/json_line.h"
#include "load_client.h"
#include "nginx_child.h"
#include "server_child.h"

namespace deepinfer::bench {
namespace {

struct Flags {
  int64_t streams = 1000;
  double rate = 20;
  double seconds = 10;
  int64_t concurrency = 32;
  double soak = 0;
  double soak_rate = 300;
  int threads = 2;
  std::string tokenizer = DEEPINFER_SOURCE_DIR "/models/nano/tokenizer.json";
};

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double own_cpu() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) { return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

std::string post(const std::string& body) {
  return fmt::format(
      "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{}",
      body.size(), body);
}

std::string chat(bool stream, int64_t max_tokens) {
  return post(fmt::format(R"({{"model":"fake","messages":[{{"role":"user","content":"hi"}}],"stream":{},"max_tokens":{}}})",
                          stream, max_tokens));
}

double percentile(std::vector<float>& values, double p) {
  if (values.empty()) return 0;
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(p * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

/// Calls `on_news(index)` for clients with something to read, until it says that it is over.
class Poller {
 public:
  Poller() : fd_(::epoll_create1(EPOLL_CLOEXEC)) {}
  ~Poller() { ::close(fd_); }
  Poller(const Poller&) = delete;
  void add(int fd, size_t index) {
    epoll_event event{.events = EPOLLIN, .data = {.u64 = index}};
    ::epoll_ctl(fd_, EPOLL_CTL_ADD, fd, &event);
  }
  template <typename OnNews>
  void wait(int milliseconds, OnNews on_news) {
    epoll_event events[256];
    const int count = ::epoll_wait(fd_, events, 256, milliseconds);
    for (int i = 0; i < count; ++i) on_news(static_cast<size_t>(events[i].data.u64));
  }

 private:
  int fd_;
};

bool run_streams(const Flags& flags) {
  const auto tokens = static_cast<int64_t>(flags.rate * flags.seconds);
  auto server =
      ServerChild::Start({.tokenizer = flags.tokenizer, .rate = flags.rate, .tokens = tokens, .threads = flags.threads});
  if (!server) return fmt::print(stderr, "{}\n", server.error().message()), false;
  std::vector<LoadClient> clients(static_cast<size_t>(flags.streams));
  Poller poller;
  const std::string request = chat(true, tokens + 1);
  std::vector<float> latencies;
  latencies.reserve(static_cast<size_t>(flags.streams * tokens));
  const double cpu = server->cpu_seconds(), client_cpu = own_cpu(), start = now();
  for (size_t i = 0; i < clients.size(); ++i) {
    if (!clients[i].connect(server->port()) || !clients[i].send(request)) return fmt::print(stderr, "cannot connect\n"), false;
    poller.add(clients[i].fd(), i);
  }
  int64_t open = flags.streams, lost = 0, reordered = 0, broken = 0;
  while (open > 0 && now() - start < flags.seconds * 3 + 30) {
    poller.wait(100, [&](size_t i) {
      const auto state = clients[i].read(&latencies);
      if (state == LoadClient::State::kOpen) return;
      --open;
      broken += state == LoadClient::State::kBroken || clients[i].status() != 200 ? 1 : 0;
      lost += tokens - clients[i].tokens();
      reordered += clients[i].ordered() ? 0 : 1;
      clients[i].close();
    });
  }
  const double seconds = now() - start;
  const double used = server->cpu_seconds() - cpu;
  const BenchConditions conditions = {{"streams", std::to_string(flags.streams)},
                                      {"rate", fmt::format("{}", flags.rate)},
                                      {"tokens", std::to_string(tokens)},
                                      {"server_threads", std::to_string(flags.threads)},
                                      {"lost", std::to_string(lost)},
                                      {"reordered", std::to_string(reordered)},
                                      {"broken", std::to_string(broken + open)},
                                      {"client_cpu", fmt::format("{:.3f}", (own_cpu() - client_cpu) / seconds)}};
  const double ideal = static_cast<double>(flags.streams) * flags.rate;
  print_bench_line(stdout, "server_stream_tokens", static_cast<double>(latencies.size()) / seconds, "tokens/s", ideal,
                   conditions);
  for (const auto& [name, p] : {std::pair{"p50", 0.5}, std::pair{"p99", 0.99}, std::pair{"max", 1.0}})
    print_bench_line(stdout, fmt::format("server_added_latency_{}", name), percentile(latencies, p) * 1e6, "us", std::nullopt,
                     conditions);
  print_bench_line(stdout, "server_cpu", used / seconds, "cores", std::nullopt, conditions);
  print_bench_line(stdout, "server_resident", static_cast<double>(server->resident_bytes()) / (1 << 20), "MiB", std::nullopt,
                   conditions);
  return lost == 0 && reordered == 0 && broken + open == 0;
}

/// Requests a second of `concurrency` connections that ask again and again.
double request_rate(const Flags& flags, int port, const std::string& request, std::vector<float>& latencies, int64_t& failed) {
  std::vector<LoadClient> clients(static_cast<size_t>(flags.concurrency));
  std::vector<double> sent(clients.size());
  Poller poller;
  const double start = now();
  for (size_t i = 0; i < clients.size(); ++i) {
    sent[i] = now();
    if (!clients[i].connect(port) || !clients[i].send(request)) ++failed;
    poller.add(clients[i].fd(), i);
  }
  int64_t done = 0;
  while (now() - start < flags.seconds) {
    poller.wait(100, [&](size_t i) {
      const auto state = clients[i].read(nullptr);
      if (state == LoadClient::State::kOpen) return;
      if (state == LoadClient::State::kBroken || clients[i].status() != 200) {
        ++failed;
        return;
      }
      ++done;
      latencies.push_back(static_cast<float>(now() - sent[i]));
      sent[i] = now();
      clients[i].send(request);
    });
  }
  return static_cast<double>(done) / (now() - start);
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

/// The size of the answer to `request`.
int64_t answer_bytes(int port, const std::string& request) {
  LoadClient client;
  if (!client.connect(port) || !client.send(request)) return 0;
  for (int i = 0; i < 1000; ++i) {
    const auto state = client.read(nullptr);
    if (state == LoadClient::State::kDone) return client.length();
    if (state == LoadClient::State::kBroken) return 0;
    ::usleep(1000);
  }
  return 0;
}

/// Short requests, `GET /health` of the same server, and nginx with a static body of the size of an answer, in turns.
bool run_requests(Flags flags) {
  auto server = ServerChild::Start({.tokenizer = flags.tokenizer, .rate = 0, .tokens = 1, .threads = flags.threads});
  if (!server) return fmt::print(stderr, "{}\n", server.error().message()), false;
  const std::string request = chat(false, 4);
  const int64_t bytes = answer_bytes(server->port(), request);
  auto nginx = NginxChild::Start("/v1/chat/completions", std::string(static_cast<size_t>(bytes), 'x'), flags.threads);
  if (!nginx) fmt::print(stderr, "no comparison with nginx: {}\n", nginx.error().message());
  constexpr int kRounds = 5;
  flags.seconds /= kRounds;
  std::vector<float> ignored, latencies;
  std::vector<double> ours, healths, statics;
  int64_t failed = 0;
  double cpu = 0;
  for (int round = 0; round < kRounds; ++round) {
    healths.push_back(request_rate(flags, server->port(), "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", ignored, failed));
    const double before = server->cpu_seconds();
    ours.push_back(request_rate(flags, server->port(), request, latencies, failed));
    cpu += server->cpu_seconds() - before;
    if (nginx) statics.push_back(request_rate(flags, nginx->port(), request, ignored, failed));
  }
  const BenchConditions conditions = {{"connections", std::to_string(flags.concurrency)},
                                      {"server_threads", std::to_string(flags.threads)},
                                      {"rounds", std::to_string(kRounds)},
                                      {"answer_bytes", std::to_string(bytes)},
                                      {"failed", std::to_string(failed)},
                                      {"server_cpu", fmt::format("{:.3f}", cpu / flags.seconds / kRounds)}};
  const auto with = [&](const std::string& ceiling) {
    BenchConditions all = conditions;
    all.emplace_back("ceiling", ceiling);
    return all;
  };
  print_bench_line(stdout, "server_short_requests", median(ours), "requests/s", median(healths),
                   with("GET /health in the same run, in turns"));
  print_bench_line(stdout, "server_short_request_p99", percentile(latencies, 0.99) * 1e3, "ms", std::nullopt, conditions);
  if (nginx) {
    print_bench_line(stdout, "server_short_requests_to_nginx", median(ours), "requests/s", median(statics),
                     with(nginx->version() + ", a static body of the same size, in turns"));
    print_bench_line(stdout, "server_health_to_nginx", median(healths), "requests/s", median(statics),
                     with(nginx->version() + ", a static body of the same size, in turns"));
  }
  return failed == 0;
}

/// A request of a client that may leave: mostly short, sometimes long, sometimes broken off in the middle.
std::string soak_request(std::mt19937& random) {
  const bool stream = random() % 2 == 0;
  const size_t length = random() % 64 == 0 ? 200'000 : 10 + random() % 2000;
  std::string words;
  while (words.size() < length) words += "fox lamp ";
  std::string request = post(fmt::format(
      R"({{"model":"fake","messages":[{{"role":"user","content":"{}"}}],"stream":{},"max_tokens":100}})", words, stream));
  if (random() % 8 == 0) request.resize(random() % request.size());
  return request;
}

/// Clients that leave at any time; memory and descriptors must stay where they are. A line for every sample.
bool run_soak(const Flags& flags) {
  auto server = ServerChild::Start({.tokenizer = flags.tokenizer, .rate = 100, .tokens = 50, .threads = flags.threads});
  if (!server) return fmt::print(stderr, "{}\n", server.error().message()), false;
  std::mt19937 random(1);
  std::vector<LoadClient> clients(200);
  for (int i = 0; i < 8; ++i) {  // what the server opens once, whatever comes
    LoadClient client;
    if (client.connect(server->port())) client.send(chat(false, 100));
    ::usleep(20'000);
  }
  ::usleep(500'000);
  const int64_t descriptors = server->descriptors();
  constexpr int kSamples = 40;
  const double start = now();
  int64_t requests = 0, left = 0;
  int samples = 0;
  std::vector<double> resident;
  const auto mib = [&] { return static_cast<double>(server->resident_bytes()) / (1 << 20); };
  while (now() - start < flags.soak) {
    LoadClient& client = clients[random() % clients.size()];
    if (client.fd() >= 0 && client.read(nullptr) == LoadClient::State::kOpen) ++left;
    client.close();
    if (!client.connect(server->port())) return fmt::print(stderr, "cannot connect\n"), false;
    client.send(soak_request(random));  // a long one may not go out whole: one more that breaks off
    ++requests;
    const double ahead = static_cast<double>(requests) / flags.soak_rate - (now() - start);
    if (ahead > 0) ::usleep(static_cast<useconds_t>(ahead * 1e6));
    if (now() - start < (samples + 1) * flags.soak / kSamples) continue;
    ++samples;
    resident.push_back(mib());
    print_bench_line(stdout, "server_soak_resident", resident.back(), "MiB", std::nullopt,
                     {{"second", fmt::format("{:.0f}", now() - start)},
                      {"requests", std::to_string(requests)},
                      {"descriptors", std::to_string(server->descriptors())}});
    std::fflush(stdout);
  }
  for (LoadClient& client : clients) client.close();
  for (int i = 0; i < 1000 && server->descriptors() > descriptors; ++i) ::usleep(20'000);
  // The first quarter fills buffers and heaps; growth is from the second to the last.
  const auto quarter = [&](size_t q) {
    const auto first = resident.begin() + static_cast<std::ptrdiff_t>(q * resident.size() / 4);
    return median({first, resident.begin() + static_cast<std::ptrdiff_t>((q + 1) * resident.size() / 4)});
  };
  const BenchConditions conditions = {{"seconds", fmt::format("{}", flags.soak)},
                                      {"requests", std::to_string(requests)},
                                      {"left_early", std::to_string(left)},
                                      {"server_threads", std::to_string(flags.threads)},
                                      {"descriptors_before", std::to_string(descriptors)},
                                      {"descriptors_after", std::to_string(server->descriptors())},
                                      {"resident_after", fmt::format("{:.1f}", mib())}};
  print_bench_line(stdout, "server_soak_growth", quarter(3) - quarter(1), "MiB", std::nullopt, conditions);
  return server->descriptors() <= descriptors;
}

int run(int argc, char** argv) {
  Flags flags;
  CLI::App app("The server under load");
  app.add_option("--streams", flags.streams, "Concurrent streams; 0: none");
  app.add_option("--rate", flags.rate, "Tokens a second of each");
  app.add_option("--seconds", flags.seconds, "Of each part");
  app.add_option("--concurrency", flags.concurrency, "Connections of the short requests; 0: none");
  app.add_option("--soak", flags.soak, "Seconds of clients that leave; 0: none");
  app.add_option("--soak-rate", flags.soak_rate, "Requests a second of these");
  app.add_option("--server-threads", flags.threads, "Threads of the server for connections");
  app.add_option("--tokenizer", flags.tokenizer, "tokenizer.json");
  CLI11_PARSE(app, argc, argv);
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  bool fine = true;
  if (flags.streams > 0) fine = run_streams(flags) && fine;
  if (flags.concurrency > 0) fine = run_requests(flags) && fine;
  if (flags.soak > 0) fine = run_soak(flags) && fine;
  return fine ? 0 : 1;
}

}  // namespace
}  // namespace deepinfer::bench

int main(int argc, char** argv) { return deepinfer::bench::run(argc, argv); }
