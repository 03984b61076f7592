// What a mixed load on nano tells the recorder: phases without gaps that agree with the steps they lie in, and that nothing else
// changes.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <thread>

#include "deepinfer/engine.h"
#include "telemetry/trace_recorder.h"
#include "testing/paths.h"

namespace deepinfer::testing {
namespace {

using telemetry::Category;
using telemetry::Interval;
using telemetry::Phase;
using telemetry::RequestRecord;
using telemetry::Span;
using telemetry::TraceRecorder;

std::unique_ptr<Engine> make_engine(std::shared_ptr<TraceRecorder> trace, bool speculate = false) {
  EngineOptions options;
  options.model = nano_dir();
  options.max_num_seqs = 6;
  options.max_num_batched_tokens = 64;
  options.kv_cache_memory = int64_t{64} << 20;
  if (speculate) options.speculation = SpeculationMode::kFixed;
  options.trace = std::move(trace);
  auto engine = Engine::Create(options);
  if (!engine) throw std::runtime_error(engine.error().message());
  return *std::move(engine);
}

struct Answer {
  std::vector<int32_t> tokens;
  Usage usage;
};

/// Long and short prompts, a shared prefix, a form, several choices; more than there are places. By the engine's number.
std::map<uint64_t, Answer> run_load(Engine& engine) {
  std::string story;
  for (int i = 0; i < 30; ++i) story += "The fox carried the lamp through the quiet wood. ";
  std::vector<RequestHandle> handles;
  for (uint64_t i = 0; i < 12; ++i) {
    Request request;
    request.prompt = *engine.encode_chat(i % 3 == 0 ? fmt::format("{}{}", story, i) : fmt::format("Hello {}.", i));
    request.max_tokens = 4 + static_cast<int64_t>(i);
    request.seed = i;
    request.ignore_eos = true;
    request.n = i == 4 ? 3 : 1;
    if (i == 5) {
      StructuredOutput output;
      output.form = grammar::RegexSpec{"[a-z ]{40}"};
      request.structured_output = std::move(output);
    }
    handles.push_back(*engine.submit(std::move(request)));
  }
  std::map<uint64_t, Answer> answers;
  for (RequestHandle& handle : handles) {
    Answer& a = answers[handle.id()];
    std::map<int64_t, std::vector<int32_t>> choices;
    while (const auto output = handle.next()) {
      auto& tokens = choices[output->index];
      tokens.insert(tokens.end(), output->tokens.begin(), output->tokens.end());
      a.usage = output->usage;
    }
    for (const auto& [index, tokens] : choices) a.tokens.insert(a.tokens.end(), tokens.begin(), tokens.end());
  }
  engine.shutdown();
  return answers;
}

/// Of the request alone, by what the span is.
std::vector<Span> own(const std::vector<Span>& spans, uint64_t request, Category category, bool steps) {
  std::vector<Span> out;
  for (const Span& s : spans) {
    if (s.request == request && s.category == category && (s.step >= 0) == steps) out.push_back(s);
  }
  return out;
}

int64_t arg(const Span& span, std::string_view name) {
  for (const auto& a : span.args) {
    if (a.name != nullptr && name == a.name) return a.value;
  }
  ADD_FAILURE() << span.name << " has no " << name;
  return 0;
}

class TimelineTest : public ::testing::TestWithParam<bool> {};

TEST_P(TimelineTest, PhasesAddUpAndAgreeWithTheSteps) {
  const auto trace = std::make_shared<TraceRecorder>();
  const auto answers = run_load(*make_engine(trace, GetParam()));
  const std::vector<Span> spans = trace->snapshot();
  for (size_t c = 0; c < telemetry::kCategories; ++c) ASSERT_FALSE(trace->wrapped(static_cast<Category>(c)));
  std::map<int64_t, Span> plan, step, forward, publish;  // by step
  for (const Span& s : spans) {
    EXPECT_LE(s.begin, s.end) << s.name;
    const std::string_view name = s.name;
    if (s.category == Category::kEngine) (name == "plan" ? plan : publish)[s.step] = s;
    if (s.category == Category::kDevice && name == "step") step[s.step] = s;
    if (s.category == Category::kDevice && name == "forward") forward[s.step] = s;
  }
  ASSERT_EQ(plan.size(), step.size());
  ASSERT_EQ(publish.size(), step.size());
  for (const auto& [number, s] : step) {
    EXPECT_LE(plan.at(number).begin, s.begin);
    EXPECT_LE(s.end, publish.at(number).end);
    if (number > 0) {
      EXPECT_LE(step.at(number - 1).end, s.begin) << "the device does one thing after the other";
    }
  }
  int forms = 0, hits = 0;
  for (const auto& [id, answer] : answers) {
    const auto found = trace->requests().find(std::to_string(id));
    ASSERT_EQ(found.size(), 1u);
    const RequestRecord& r = found.front();
    // By construction: one after the other, all of the time to the first token.
    int64_t at = r.arrival;
    for (size_t p = 0; p <= static_cast<size_t>(Phase::kPublish); ++p) {
      if (!r.phases[p].known()) continue;
      EXPECT_EQ(r.phases[p].begin, at) << telemetry::phase_name(static_cast<Phase>(p)) << " of " << id;
      at = r.phases[p].end;
    }
    EXPECT_EQ(at, r.first_token);
    for (const Phase p : {Phase::kQueue, Phase::kMatch, Phase::kHandoff, Phase::kPrefill, Phase::kFirstDecode, Phase::kDecode})
      EXPECT_TRUE(r.phase(p).known()) << telemetry::phase_name(p) << " of " << id;
    forms += r.phase(Phase::kCompile).known() ? 1 : 0;
    // And they are where others say that things happened.
    const auto steps = own(spans, id, Category::kRequest, true);
    ASSERT_FALSE(steps.empty());
    EXPECT_EQ(r.phase(Phase::kHandoff).end, step.at(steps.front().step).begin);
    int64_t tokens = 0, first_draw = -1, drafted = 0;
    std::set<int64_t> numbers;
    for (const Span& s : steps) {
      EXPECT_EQ(s.begin, step.at(s.step).begin);
      EXPECT_EQ(s.end, step.at(s.step).end);
      numbers.insert(s.step);
      tokens += arg(s, "tokens");
      drafted += arg(s, "drafts");
      if (first_draw < 0 && arg(s, "tokens") > 0) first_draw = s.step;
    }
    ASSERT_GE(first_draw, 0);
    EXPECT_EQ(r.phase(Phase::kPrefill).end, forward.at(first_draw).end);
    EXPECT_EQ(r.phase(Phase::kFirstDecode).end, step.at(first_draw).end);
    EXPECT_EQ(r.phase(Phase::kMatch).begin, plan.at(steps.front().step).begin);
    EXPECT_EQ(tokens, answer.usage.completion_tokens) << id;
    EXPECT_EQ(drafted, answer.usage.drafted_tokens) << id;
    EXPECT_EQ(r.counts.completion_tokens, answer.usage.completion_tokens);
    EXPECT_EQ(r.counts.cached_tokens, answer.usage.cached_tokens);
    EXPECT_EQ(r.finish, "length");
    hits += answer.usage.cached_tokens > 0 ? 1 : 0;
    EXPECT_FALSE(own(spans, id, Category::kCache, false).empty()) << "no look-up";
  }
  EXPECT_EQ(forms, 1);
  EXPECT_GT(hits, 0) << "the load is to have prefix hits";
}

INSTANTIATE_TEST_SUITE_P(, TimelineTest, ::testing::Bool(),
                         [](const auto& speculation) { return speculation.param ? "speculating" : "plain"; });

// What the tiers cost a request is a part of its time to the first token: looking it up, and waiting for its pages.
TEST(Timeline, TiersHaveTheirPhasesAndSpans) {
  const auto trace = std::make_shared<TraceRecorder>();
  EngineOptions options;
  options.model = nano_dir();
  options.max_num_seqs = 8;
  options.max_num_batched_tokens = 128;
  options.kv_cache_memory = int64_t{64} << 20;
  options.kv_tiers.host_bytes = int64_t{64} << 20;
  options.kv_tiers.cut_over = false;
  options.trace = trace;
  auto made = Engine::Create(options);
  ASSERT_TRUE(made.has_value()) << made.error().message();
  Engine& engine = **made;
  Request request;
  for (int i = 0; i < 700; ++i) request.prompt.push_back(10 + i);
  request.max_tokens = 3;
  uint64_t last = 0;
  Usage usage;
  for (int round = 0; round < 2; ++round) {
    RequestHandle handle = *engine.submit(request);
    last = handle.id();
    while (const auto output = handle.next()) usage = output->usage;
    while (engine.stats().tiers.tiers[0].pages_written < engine.stats().tiers.pages_retained) std::this_thread::yield();
    engine.reset_prefix_cache();
  }
  engine.shutdown();
  ASSERT_EQ(usage.tiers.tokens(), 640);
  const RequestRecord r = trace->requests().find(std::to_string(last)).front();
  int64_t at = r.arrival;
  for (size_t p = 0; p <= static_cast<size_t>(Phase::kPublish); ++p) {
    if (!r.phases[p].known()) continue;
    EXPECT_EQ(r.phases[p].begin, at) << telemetry::phase_name(static_cast<Phase>(p));
    at = r.phases[p].end;
  }
  EXPECT_EQ(at, r.first_token);
  for (const Phase p : {Phase::kLookup, Phase::kQueue, Phase::kMatch, Phase::kLoad, Phase::kHandoff, Phase::kPrefill})
    EXPECT_TRUE(r.phase(p).known()) << telemetry::phase_name(p);
  std::map<std::string, std::vector<Span>> named;
  for (const Span& s : own(trace->snapshot(), last, Category::kCache, false)) named[s.name].push_back(s);
  for (const Span& s : own(trace->snapshot(), last, Category::kCache, true)) named[s.name].push_back(s);
  ASSERT_EQ(named["lookup"].size(), 1u);
  EXPECT_EQ(arg(named["lookup"][0], "hit_pages"), 5);
  ASSERT_EQ(named["pull"].size(), 1u);
  EXPECT_EQ(arg(named["pull"][0], "good_pages"), 5);
  EXPECT_EQ(arg(named["pull"][0], "bytes"), usage.tiers.bytes);
  EXPECT_GE(named["pull"][0].begin, r.phase(Phase::kMatch).begin);
  ASSERT_FALSE(named["load"].empty()) << "a step that came to a group of the pages";
  for (size_t i = 0; i < named["load"].size(); ++i) {
    EXPECT_EQ(arg(named["load"][i], "pages"), 5);
    EXPECT_GE(named["load"][i].begin, r.phase(Phase::kHandoff).end);
  }
}

TEST(Timeline, AnswersAreTheSameAndOperatorsLieInTheirSteps) {
  TraceRecorder::Options options;
  options.ops = true;
  options.memory = int64_t{256} << 20;
  const auto trace = std::make_shared<TraceRecorder>(options);
  const auto engine = make_engine(trace);
  const int64_t layers = engine->model().layers;
  const auto with = run_load(*engine);
  const auto without = run_load(*make_engine(nullptr));
  ASSERT_EQ(with.size(), without.size());
  for (const auto& [id, answer] : with) EXPECT_EQ(answer.tokens, without.at(id).tokens) << id;

  std::vector<Span> steps;
  std::set<std::string_view> names;
  std::set<int64_t> of_layers;
  const auto spans = trace->snapshot();
  ASSERT_FALSE(trace->wrapped(Category::kOp));
  for (const Span& s : spans) {
    if (s.category == Category::kDevice && std::string_view(s.name) == "forward") steps.push_back(s);
  }
  std::sort(steps.begin(), steps.end(), [](const Span& a, const Span& b) { return a.begin < b.begin; });
  int64_t last_end = 0;
  for (const Span& s : spans) {
    if (s.category != Category::kOp) continue;
    EXPECT_GE(s.begin, last_end);
    last_end = s.end;
    const auto in =
        std::upper_bound(steps.begin(), steps.end(), s.begin, [](int64_t t, const Span& step) { return t < step.begin; });
    ASSERT_NE(in, steps.begin());
    EXPECT_LE(s.end, std::prev(in)->end) << s.name << " reaches out of its step";
    names.insert(s.name);
    of_layers.insert(arg(s, "layer"));
    EXPECT_GE(arg(s, "rows"), 0) << s.name;
  }
  EXPECT_EQ(of_layers.size(), static_cast<size_t>(layers) + 1) << "every layer, and what belongs to none";
  for (const char* name : {"embed", "linear_fp8", "rotated_attention", "route", "experts", "hyper_mix", "index_select"})
    EXPECT_TRUE(names.contains(name)) << name;
}

// Every row goes to its experts in every layer it runs.
TEST(Timeline, ExpertsAreCountedByLayer) {
  const auto engine = make_engine(nullptr);
  run_load(*engine);
  const ExpertCounts counts = engine->expert_counts();
  ASSERT_EQ(counts.layers, engine->model().layers);
  ASSERT_GE(static_cast<int64_t>(counts.counts.size()), counts.layers);
  int64_t total = 0;
  for (size_t layer = 0; layer < static_cast<size_t>(counts.layers); ++layer) {
    for (const int64_t n : counts.counts[layer]) total += n;
  }
  const int64_t row_layers = engine->stats().row_layers;
  ASSERT_GT(row_layers, 0);
  EXPECT_EQ(total % row_layers, 0);
  EXPECT_GE(total / row_layers, 1) << "active experts of a row";
}

}  // namespace
}  // namespace deepinfer::testing
