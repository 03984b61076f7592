// Speculative decoding never changes an answer: tokens, text, log-probs and ends are those of plain decoding, bit for bit,
// whatever is drafted, accepted and taken back (dspark.md §6.1, §9; CASES 15).

#include <gtest/gtest.h>

#include "engine/core_harness.h"
#include "testing/random.h"
#include "testing/sanitizer.h"

namespace deepinfer::testing {
namespace {

using Mode = SpeculationMode;

/// Text that nano can go on with, so that drafts are accepted; every length is another text.
std::vector<int32_t> story_prompt(int64_t length, uint64_t seed) {
  static const std::vector<int32_t> text = [] {
    std::string words;
    for (const char* name : {"Anna", "Ben", "Clara", "Dan", "Emma", "Hugo", "Ida", "Jack", "Kate", "Leo"})
      words +=
          fmt::format("Tell me a story about {} and a lamp. Once upon a time {} found a red kite in the garden. ", name, name);
    return nano_model().tokenizer->encode(words);
  }();
  std::vector<int32_t> prompt = random_prompt(std::max<int64_t>(1, length / 4), seed);
  for (size_t i = 0; static_cast<int64_t>(prompt.size()) < length; ++i) prompt.push_back(text[(i + seed * 7) % text.size()]);
  prompt.resize(static_cast<size_t>(length));
  return prompt;
}

Request greedy(Request request) {
  request.sampling.temperature = 0;
  return request;
}

/// Requests of many kinds, with what plain decoding answers.
struct Kinds {
  std::vector<Request> requests;
  std::vector<std::vector<Answer>> want;

  explicit Kinds(int64_t count, const CoreSetup& like = {}) {
    for (int64_t i = 0; i < count; ++i) {
      const auto seed = static_cast<uint64_t>(100 + i);
      Request r = make_request(story_prompt(5 + (37 * i) % 290, seed), 8 + (13 * i) % 45, seed);
      switch (i % 8) {
        case 0:
        case 1:
          r.sampling.temperature = 0;
          break;
        case 2:
          r.sampling.top_p = 0.8f;
          r.sampling.temperature = 0.7f;
          break;
        case 3:
          r.sampling.repetition_penalty = 1.4f;
          for (int32_t id = 300; id < 4000; id += 4) r.sampling.bad_words.push_back({id});
          r.sampling.frequency_penalty = 0.3f;
          break;
        case 4:
          r.sampling.temperature = 0;
          r.sampling.presence_penalty = 1.5f;
          r.sampling.min_tokens = 10;
          r.ignore_eos = false;
          break;
        case 5:
          r.sampling.top_k = 5;
          r.stop = {"the", "a "};
          break;
        case 6:
          r.sampling.temperature = 0.3f;
          r.ignore_eos = false;
          break;
        default:
          r.n = 3;
          break;
      }
      requests.push_back(r);
    }
    for (const Request& r : requests) want.push_back(run_alone(r, like));
  }

  void expect(CoreHarness& h, const std::vector<RequestId>& ids, const std::string& what) const {
    for (size_t i = 0; i < ids.size(); ++i) {
      for (size_t c = 0; c < want[i].size(); ++c) {
        expect_same(h.answers(ids[i])[c], want[i][c], fmt::format("{}, request {} choice {}", what, i, c));
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }
};

const Kinds& kinds() {
  static const Kinds all(kThreadSanitizer ? 8 : 32);
  return all;
}

CoreSetup speculating(Mode mode = Mode::kFixed, int64_t drafts = -1) {
  CoreSetup setup;
  setup.speculation = mode;
  setup.drafts = drafts;
  setup.max_num_seqs = 48;
  setup.pages = 400;
  return setup;
}

// Fixed lengths and variable ones, batches of 1 to 32, with prompts and plain rows in the same steps.
TEST(CoreSpeculation, LengthsAndBatches) {
  std::vector<std::pair<Mode, int64_t>> settings = {{Mode::kVariable, 5}};
  for (int64_t drafts = kThreadSanitizer ? 5 : 1; drafts <= 5; ++drafts) settings.emplace_back(Mode::kFixed, drafts);
  for (const auto& [mode, drafts] : settings) {
    for (const bool async : {true, false}) {
      if (!async && drafts < 5) continue;
      CoreSetup setup = speculating(mode, drafts);
      setup.async = async;
      CoreHarness h(setup);
      std::vector<RequestId> ids;
      // One alone, then a few, then all that there are.
      for (size_t i = 0; i < std::min<size_t>(drafts < 5 ? 12 : 32, kinds().requests.size()); ++i) {
        ids.push_back(h.submit(kinds().requests[i]));
        if (i == 0) h.run();
        if (i < 8) {
          for (int t = 0; t < 5; ++t) h.turn();
        }
      }
      h.run();
      const std::string what = fmt::format("{} {} async {}", speculation_mode_name(mode), drafts, async);
      ASSERT_NO_FATAL_FAILURE(kinds().expect(h, ids, what));
      const EngineStats stats = h.core().stats();
      EXPECT_GT(stats.accepted_tokens, 0) << what;
      EXPECT_GE(stats.drafted_tokens, stats.accepted_tokens) << what;
      int64_t at = 0;
      for (size_t k = 0; k < stats.accepted_at.size(); ++k) {
        at += stats.accepted_at[k];
        EXPECT_LE(stats.accepted_at[k], stats.drafted_at[k]);
        if (static_cast<int64_t>(k) >= drafts) {
          EXPECT_EQ(stats.drafted_at[k], 0);
        }
      }
      EXPECT_EQ(at, stats.accepted_tokens);
    }
  }
}

// Drafts of a story are accepted often: the draft module sees what it was trained on (dspark.md §8), from the first step behind
// the prompt on.
TEST(CoreSpeculation, DraftsAreWorthSomething) {
  for (const float temperature : {0.0f, 1.0f}) {
    CoreHarness h(speculating());
    Request r = make_request(
        nano_model().tokenizer->encode("Tell me a story about a fox and a lamp. Once upon a time there was a fox."), 80, 1);
    r.sampling.temperature = temperature;
    const RequestId id = h.submit(r);
    h.run();
    const Usage& usage = h.answers(id)[0].usage;
    const EngineStats stats = h.core().stats();
    EXPECT_EQ(usage.drafted_tokens, stats.drafted_tokens);
    EXPECT_EQ(usage.accepted_tokens, stats.accepted_tokens);
    // Every step behind the prompt drafts, but for the last ones, which have no room.
    EXPECT_LE(79 - stats.accepted_tokens - stats.drafts, 1);
    EXPECT_GE(79 - stats.accepted_tokens - stats.drafts, 0);
    const double accepted = static_cast<double>(stats.accepted_tokens) / static_cast<double>(stats.drafts);
    std::printf("temperature %.0f: %.2f drafts accepted of 5\n", static_cast<double>(temperature), accepted);
    EXPECT_GT(accepted, temperature == 0 ? 1.0 : 0.5);
  }
}

// The same request is drafted for in the same way however long the engine has run and whatever else has: draft rings hold nothing
// of those who had them before (dspark.md §11: acceptance that fell to nothing after long soaks).
TEST(CoreSpeculation, AcceptanceDoesNotWearOut) {
  CoreSetup setup = speculating();
  CoreHarness h(setup);
  const Request probe = greedy(make_request(story_prompt(90, 3), 48, 3));  // shorter than a page: never a hit
  std::optional<Usage> first;
  for (size_t round = 0; round < (kThreadSanitizer ? 3 : 12); ++round) {
    std::vector<RequestId> ids = {h.submit(probe)};
    for (size_t i = 0; i < 6; ++i) ids.push_back(h.submit(kinds().requests[(round * 6 + i) % kinds().requests.size()]));
    for (int t = 0; t < 9; ++t) h.turn();
    if (round % 3 == 1) h.core().end(ids.back(), FinishReason::kCancelled);
    h.run();
    const Usage usage = h.answers(ids[0])[0].usage;
    if (!first.has_value()) first = usage;
    EXPECT_GT(usage.accepted_tokens, 0);
    EXPECT_EQ(usage.drafted_tokens, first->drafted_tokens) << round;
    EXPECT_EQ(usage.accepted_tokens, first->accepted_tokens) << round;
  }
}

// A round of drafts that a device draws, one that the host draws, and one in which each draws some are the same drafts: what is
// accepted of an answer does not depend on who goes beside it.
TEST(CoreSpeculation, DraftsAreThoseOfEachAlone) {
  std::vector<Request> requests;
  for (uint64_t i = 0; i < 7; ++i) {
    Request r = make_request(story_prompt(20 + 11 * static_cast<int64_t>(i), i), 30, i);
    if (i % 3 == 0) r.sampling.temperature = 0;
    if (i % 3 == 1) r.sampling.top_p = 0.9f;
    if (i % 2 == 1) r.sampling.repetition_penalty = 1.1f;                     // the host draws
    if (i == 4) r.sampling.stop_token_ids = {77}, r.sampling.min_tokens = 9;  // first the host, then the device
    requests.push_back(r);
  }
  std::vector<Usage> alone;
  for (const Request& r : requests) {
    CoreHarness h(speculating());
    const RequestId id = h.submit(r);
    h.run();
    alone.push_back(h.answers(id)[0].usage);
  }
  CoreHarness h(speculating());
  std::vector<RequestId> ids;
  for (const Request& r : requests) ids.push_back(h.submit(r));
  h.run();
  int64_t accepted = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    const Usage usage = h.answers(ids[i])[0].usage;
    EXPECT_EQ(usage.drafted_tokens, alone[i].drafted_tokens) << i;
    EXPECT_EQ(usage.accepted_tokens, alone[i].accepted_tokens) << i;
    accepted += usage.accepted_tokens;
  }
  EXPECT_GT(accepted, 0);
}

// Whatever is drafted: the true tokens, wrong ones, the end of the text, a random number of true ones and then wrong ones.
TEST(CoreSpeculation, ForcedAcceptance) {
  std::map<uint64_t, const std::vector<int32_t>*> truth;  // of request ids; sequences are numbered as they come
  for (const std::string& pattern : thinned<std::string>({"true", "wrong", "eos", "random", "out of range"}, 3)) {
    Random random(7);
    CoreSetup setup = speculating();
    std::vector<std::pair<int64_t, const Answer*>> known;  // by sequence: prompt length, answer
    setup.replace_drafts = [&](uint64_t sequence, int64_t position, std::span<int32_t> drafts, std::span<float>) {
      const auto& [prompt, answer] = known.at(sequence - 1);
      const auto right = static_cast<size_t>(pattern == "true" ? 64 : pattern == "random" ? random.below(7) : 0);
      for (size_t k = 0; k < drafts.size(); ++k) {
        const auto at = static_cast<size_t>(position - prompt) + k;
        const int32_t true_token = at < answer->tokens.size() ? answer->tokens[at] : 9;
        const int32_t wrong = true_token == 77 ? 78 : 77;
        drafts[k] = k < right                   ? true_token
                    : pattern == "eos"          ? 1
                    : pattern == "out of range" ? (k % 2 == 0 ? -1 : 1 << 30)
                                                : wrong;
      }
    };
    CoreHarness h(setup);
    std::vector<RequestId> ids;
    std::vector<size_t> which;
    for (size_t i = 0; i < kinds().requests.size(); ++i) {
      if (kinds().requests[i].n > 1) continue;
      which.push_back(i);
      known.emplace_back(static_cast<int64_t>(kinds().requests[i].prompt.size()), &kinds().want[i][0]);
    }
    for (const size_t i : which) ids.push_back(h.submit(kinds().requests[i]));
    h.run();
    for (size_t j = 0; j < ids.size(); ++j)
      ASSERT_NO_FATAL_FAILURE(expect_same(h.answers(ids[j])[0], kinds().want[which[j]][0], fmt::format("{} {}", pattern, j)));
    const EngineStats stats = h.core().stats();
    if (pattern == "true") {
      EXPECT_GT(stats.accepted_tokens, stats.drafted_tokens * 95 / 100);  // the rest lies behind stop strings
      EXPECT_GT(stats.accepted_tokens, 3 * stats.drafts) << "most blocks are whole";
    }
    if (pattern == "wrong") {
      EXPECT_EQ(stats.accepted_tokens, 0);
    }
    if (pattern == "random") {
      EXPECT_GT(stats.accepted_tokens, 0);
      EXPECT_LT(stats.accepted_tokens, stats.drafted_tokens);
    }
  }
}

// The end comes inside a block: EOS, a stop token, a stop string, max_tokens, the model's length. Nothing behind it leaks, and a
// prefix of the answer that is cached holds committed rows alone.
TEST(CoreSpeculation, EndsInsideABlock) {
  const Answer base = run_alone(greedy(make_request(story_prompt(120, 3), 60, 3)))[0];
  for (int64_t end = 1; end <= 24; end += kThreadSanitizer ? 11 : 1) {
    for (const std::string& how : thinned<std::string>({"max_tokens", "stop token", "min_tokens"}, 2)) {
      Request r = greedy(make_request(story_prompt(120, 3), 60, 3));
      if (how == "max_tokens") r.max_tokens = end;
      if (how != "max_tokens") r.sampling.stop_token_ids = {base.tokens[static_cast<size_t>(end)]};
      if (how == "min_tokens") r.sampling.min_tokens = end / 2;
      const Answer want = run_alone(r)[0];
      CoreSetup setup = speculating();
      setup.replace_drafts = [&](uint64_t, int64_t position, std::span<int32_t> drafts, std::span<float>) {
        for (size_t k = 0; k < drafts.size(); ++k) {
          const auto at = static_cast<size_t>(position - 120) + k;
          if (at < base.tokens.size()) drafts[k] = base.tokens[at];
        }
      };
      CoreHarness h(setup);
      const RequestId id = h.submit(r);
      h.run();
      ASSERT_NO_FATAL_FAILURE(expect_same(h.answers(id)[0], want, fmt::format("{} at {}", how, end)));
      EXPECT_EQ(h.answers(id)[0].usage.completion_tokens, static_cast<int64_t>(want.tokens.size()));
      // What the cache has of it serves the next turn as if it had never been speculated.
      Request next = greedy(make_request(story_prompt(120, 3), 12, 4));
      next.prompt.insert(next.prompt.end(), want.tokens.begin(), want.tokens.end());
      next.prompt.push_back(55);
      const RequestId second = h.submit(next);
      h.run();
      ASSERT_NO_FATAL_FAILURE(
          expect_same(h.answers(second)[0], run_alone(next)[0], fmt::format("the turn after {} at {}", how, end)));
    }
  }
}

TEST(CoreSpeculation, EndOfTheModel) {
  const int64_t most = nano_model().config().max_position_embeddings;
  Request r = greedy(make_request(story_prompt(most - 9, 5), 9, 5));
  const Answer want = run_alone(r)[0];
  CoreSetup setup = speculating();
  setup.replace_drafts = [&](uint64_t, int64_t position, std::span<int32_t> drafts, std::span<float>) {
    for (size_t k = 0; k < drafts.size(); ++k) {
      const auto at = static_cast<size_t>(position - (most - 9)) + k;
      if (at < want.tokens.size()) drafts[k] = want.tokens[at];
    }
  };
  CoreHarness h(setup);
  const RequestId id = h.submit(r);
  h.run();
  expect_same(h.answers(id)[0], want, "at max_position_embeddings");
}

// Preempted at every turn, the drafts in flight go and the answer stays; both replay modes.
TEST(CoreSpeculation, PreemptAndResume) {
  for (const ReplayMode replay : {ReplayMode::kExact, ReplayMode::kBounded}) {
    CoreSetup like;
    like.replay = replay;
    const Request request = make_request(story_prompt(280, 6), 30, 6);
    const Answer want = run_alone(request, like)[0];
    for (int at = 1; at < 16; at += kThreadSanitizer ? 7 : 1) {
      CoreSetup setup = speculating(at % 2 == 0 ? Mode::kVariable : Mode::kFixed);
      setup.replay = replay;
      setup.async = at % 3 != 0;
      CoreHarness h(setup);
      h.submit(make_request(story_prompt(50, 60), 40, 60));
      const RequestId id = h.submit(request);
      for (int i = 0; i < at; ++i) h.turn();
      for (const SequenceId s : h.core().running_ids()) h.core().preempt(s);
      h.core().check_invariants();
      h.run();
      ASSERT_NO_FATAL_FAILURE(expect_same(h.answers(id)[0], want, fmt::format("preempted at turn {}", at)));
    }
  }
}

// Neighbours are cancelled at every moment; the one that stays is what it would be alone, and no page is lost (the harness
// checks).
TEST(CoreSpeculation, NeighboursAreCancelled) {
  const Request request = make_request(story_prompt(100, 8), 50, 8);
  const Answer want = run_alone(request)[0];
  for (int at = 1; at < 14; at += kThreadSanitizer ? 7 : 1) {
    CoreSetup setup = speculating();
    setup.async = at % 2 == 0;
    CoreHarness h(setup);
    std::vector<RequestId> others;
    for (uint64_t i = 0; i < 3; ++i)
      others.push_back(h.submit(make_request(story_prompt(60 + 30 * static_cast<int64_t>(i), i), 60, i)));
    const RequestId id = h.submit(request);
    for (int i = 0; i < at; ++i) h.turn();
    for (const RequestId other : others) h.core().end(other, FinishReason::kCancelled);
    h.core().check_invariants();
    h.run();
    ASSERT_NO_FATAL_FAILURE(expect_same(h.answers(id)[0], want, fmt::format("cancelled at {}", at)));
  }
}

// Prefix hits behind answers that were speculated, with window snapshots (draft rings in them) and without.
TEST(CoreSpeculation, PrefixHits) {
  for (const bool snapshots : {true, false}) {
    for (const ReplayMode replay : {ReplayMode::kExact, ReplayMode::kBounded}) {
      CoreSetup plain;
      plain.replay = replay;
      if (!snapshots) plain.snapshot_bytes = 0;
      CoreSetup setup = speculating();
      setup.replay = replay;
      setup.snapshot_bytes = plain.snapshot_bytes;
      // Sessions with and without speculation, turn by turn.
      std::vector<Answer> want;
      for (const CoreSetup& s : {plain, setup}) {
        CoreHarness h(s);
        std::vector<int32_t> session = story_prompt(150, 9);
        for (uint64_t turn = 0; turn < (kThreadSanitizer ? 2 : 6); ++turn) {
          const RequestId id = h.submit(make_request(session, 90, turn));
          h.run();
          const Answer& got = h.answers(id)[0];
          if (s.speculation == Mode::kOff) {
            want.push_back(got);
          } else {
            ASSERT_NO_FATAL_FAILURE(expect_same(got, want[turn], fmt::format("turn {}", turn)));
            EXPECT_EQ(got.usage.cached_tokens, want[turn].usage.cached_tokens);
            EXPECT_EQ(got.usage.replayed_tokens, want[turn].usage.replayed_tokens);
          }
          session.insert(session.end(), got.tokens.begin(), got.tokens.end());
          const auto next = story_prompt(40, 60 + turn);
          session.insert(session.end(), next.begin(), next.end());
        }
      }
    }
  }
}

// So few pages that answers push each other out while drafts ask for pages too.
TEST(CoreSpeculation, PagesRunOut) {
  std::vector<Request> requests;
  std::vector<Answer> want;
  for (uint64_t i = 0; i < 6; ++i) {
    requests.push_back(make_request(story_prompt(60 + 12 * static_cast<int64_t>(i), i), 210, i));  // a page each, then three
    want.push_back(run_alone(requests.back())[0]);
  }
  for (const bool async : {true, false}) {
    CoreSetup setup = speculating();
    setup.pages = 9;
    setup.max_num_batched_tokens = 70;
    setup.async = async;
    CoreHarness h(setup);
    std::vector<RequestId> ids;
    for (const Request& r : requests) ids.push_back(h.submit(r));
    h.run();
    EXPECT_GT(h.core().stats().preemptions, 0);
    EXPECT_GT(h.core().stats().accepted_tokens, 100);
    for (size_t i = 0; i < ids.size(); ++i)
      ASSERT_NO_FATAL_FAILURE(expect_same(h.answers(ids[i])[0], want[i], fmt::format("request {}", i)));
  }
}

// Which drafts are verified has no say: budgets that change from step to step.
TEST(CoreSpeculation, ThreadsAndRows) {
  for (const int threads : {1, 3}) {
    for (const int64_t rows : thinned<int64_t>({64, 48, 200})) {
      CoreSetup setup = speculating();
      setup.threads = threads;
      setup.max_num_batched_tokens = rows;
      CoreHarness h(setup);
      std::vector<RequestId> ids;
      for (size_t i = 0; i < std::min<size_t>(16, kinds().requests.size()); ++i) ids.push_back(h.submit(kinds().requests[i]));
      h.run();
      ASSERT_NO_FATAL_FAILURE(kinds().expect(h, ids, fmt::format("{} threads, {} rows", threads, rows)));
    }
  }
}

TEST(CoreSpeculation, PromptLogprobs) {
  Request r = make_request(story_prompt(200, 10), 20, 10);
  r.prompt_logprobs = 2;
  const Answer want = run_alone(r)[0];
  CoreHarness h(speculating());
  h.submit(make_request(story_prompt(90, 11), 40, 11));
  const RequestId id = h.submit(r);
  h.run();
  expect_same(h.answers(id)[0], want, "prompt log-probs");
}

// CASES 16: every kind of form, masked row by row, with drafts that keep it, drafts that break it, and the end inside a block.
TEST(CoreSpeculation, Forms) {
  using namespace grammar;
  const auto form = [](GrammarSpec spec) { return StructuredOutput{.form = std::move(spec), .start_after = {}, .prefix = {}}; };
  const JsonSchemaSpec schema{R"({"type": "object", "properties": {"name": {"type": "string", "maxLength": 12},
    "n": {"type": "integer", "minimum": 0, "maximum": 999}, "kind": {"enum": ["fox", "lamp", 3]}},
    "required": ["name", "n", "kind"], "additionalProperties": false})"};
  const int32_t think_end = *nano_model().tokenizer->added_token("</think>");
  std::vector<Request> requests;
  const auto add = [&](StructuredOutput output, float temperature, int64_t max_tokens = 120) {
    const auto seed = static_cast<uint64_t>(300 + requests.size());
    Request r = make_request(story_prompt(30 + 9 * static_cast<int64_t>(requests.size()), seed), max_tokens, seed);
    r.sampling.temperature = temperature;
    r.ignore_eos = false;
    r.skip_special_tokens = false;
    r.structured_output = std::move(output);
    requests.push_back(std::move(r));
  };
  for (const float temperature : thinned({1.0f, 0.0f})) {
    add(form(schema), temperature);
    add(form(JsonObjectSpec{}), temperature, 40);
    add(form(ChoiceSpec{{"yes", "no", "perhaps"}}), temperature);
    add(form(RegexSpec{"[0-9]{2,5}(\\.[0-9]{1,3})?"}), temperature);
    add(form(EbnfSpec{"root ::= (\"fox\" | \"lamp\") (\", \" root)?"}), temperature, 60);
    for (int i = 0; i < 3; ++i) {  // thinking ends by itself, somewhere in a block
      StructuredOutput thinking = form(schema);
      thinking.start_after = think_end;
      add(thinking, temperature, 200);
      requests.back().sampling.logit_bias = {{think_end, 9.0f + static_cast<float>(i)}};
    }
    add(form(schema), temperature);
    requests.back().sampling.repetition_penalty = 1.2f;
    requests.back().sampling.min_tokens = 30;
    requests.back().sampling.top_p = 0.9f;
  }
  std::vector<Answer> want;
  for (const Request& r : requests) want.push_back(run_alone(r)[0]);
  for (const std::string& drafts : thinned<std::string>({"own", "true", "wrong", "random", "variable"}, 3)) {
    for (const bool async : {true, false}) {
      Random random(5);
      CoreSetup setup = speculating(drafts == "variable" ? Mode::kVariable : Mode::kFixed);
      setup.async = async;
      if (drafts != "own" && drafts != "variable") {
        setup.replace_drafts = [&](uint64_t sequence, int64_t position, std::span<int32_t> tokens, std::span<float>) {
          const Request& r = requests.at(sequence - 1);
          const auto right = drafts == "true" ? int64_t{9} : drafts == "wrong" ? 0 : random.below(6);
          for (size_t k = 0; k < tokens.size(); ++k) {
            const size_t at = static_cast<size_t>(position) - r.prompt.size() + k;
            const auto& truth = want[sequence - 1].tokens;
            // Random ones may well keep the form for a while and then break it.
            if (static_cast<int64_t>(k) < right && at < truth.size())
              tokens[k] = truth[at];
            else
              tokens[k] = static_cast<int32_t>(random.below(3) == 0 ? think_end : random.between(0, 4000));
          }
        };
      }
      CoreHarness h(setup);
      std::vector<RequestId> ids;
      for (const Request& r : requests) ids.push_back(h.submit(r));
      int turn = 0;
      while (h.core().busy()) {
        h.turn();
        if (++turn == 9) {
          for (const SequenceId s : h.core().running_ids()) h.core().preempt(s);
        }
      }
      for (size_t i = 0; i < ids.size(); ++i)
        ASSERT_NO_FATAL_FAILURE(expect_same(h.answers(ids[i])[0], want[i], fmt::format("{} drafts, form {}", drafts, i)));
      if (drafts == "own") {
        EXPECT_GT(2 * h.core().stats().accepted_tokens, h.core().stats().drafts) << "drafts keep to the forms too";
      }
    }
  }
}

}  // namespace
}  // namespace deepinfer::testing
