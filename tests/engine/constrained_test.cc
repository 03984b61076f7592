// Structured output through the core, on nano: it keeps its form, and is the same bit for bit whatever runs beside it.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <regex>

#include "engine/core_harness.h"
#include "testing/random.h"

namespace deepinfer::testing {
namespace {

using grammar::ChoiceSpec;
using grammar::JsonObjectSpec;
using grammar::JsonSchemaSpec;
using grammar::RegexSpec;

StructuredOutput form(grammar::GrammarSpec spec) { return {.form = std::move(spec)}; }

/// Ends within some 40 tokens, whatever is drawn.
StructuredOutput short_schema() {
  return form(JsonSchemaSpec{R"({"type": "object", "properties": {"name": {"type": "string", "maxLength": 12},
    "n": {"type": "integer", "minimum": 0, "maximum": 999}, "kind": {"enum": ["fox", "lamp", 3]}},
    "required": ["name", "n", "kind"], "additionalProperties": false})"});
}

Request constrained(StructuredOutput output, int64_t prompt, uint64_t seed, int64_t max_tokens = 120) {
  Request r = make_request(random_prompt(prompt, seed), max_tokens, seed);
  r.ignore_eos = false;
  r.structured_output = std::move(output);
  return r;
}

bool is_valid(const std::string& text) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  return json.is_object() && json.size() == 3 && json["name"].is_string() && json["n"].is_number_integer() && json["n"] >= 0 &&
         json["n"] <= 999 && (json["kind"] == "fox" || json["kind"] == "lamp" || json["kind"] == 3);
}

/// Some company: free and constrained in turns.
void add_company(CoreHarness& h, int count) {
  for (int i = 0; i < count; ++i) {
    const auto seed = static_cast<uint64_t>(500 + i);
    if (i % 2 == 0) {
      h.submit(make_request(random_prompt(20 + 31 * i, seed), 20 + i, seed));
    } else {
      h.submit(constrained(i % 4 == 1 ? short_schema() : form(JsonObjectSpec{}), 15 + i, seed, 30));
    }
  }
}

TEST(Constrained, AnswersKeepTheirForm) {
  CoreHarness h;
  std::vector<RequestId> schemas, words, numbers;
  for (uint64_t seed = 0; seed < 12; ++seed) {
    schemas.push_back(h.submit(constrained(short_schema(), 30, seed)));
    words.push_back(h.submit(constrained(form(ChoiceSpec{{"yes", "no", "perhaps"}}), 10, seed)));
    numbers.push_back(h.submit(constrained(form(RegexSpec{"[0-9]{2,5}(\\.[0-9]{1,3})?"}), 5, seed)));
  }
  h.run();
  const std::regex number("[0-9]{2,5}(\\.[0-9]{1,3})?");
  for (size_t i = 0; i < schemas.size(); ++i) {
    const Answer& json = h.answers(schemas[i])[0];
    EXPECT_EQ(json.finish, FinishReason::kStop);
    EXPECT_TRUE(is_valid(json.text)) << json.text;
    const Answer& word = h.answers(words[i])[0];
    EXPECT_EQ(word.finish, FinishReason::kStop);
    EXPECT_TRUE(word.text == "yes" || word.text == "no" || word.text == "perhaps") << word.text;
    const Answer& digits = h.answers(numbers[i])[0];
    EXPECT_EQ(digits.finish, FinishReason::kStop);
    EXPECT_TRUE(std::regex_match(digits.text, number)) << digits.text;
  }
  EXPECT_GT(h.core().stats().masks.count, 0);
}

TEST(Constrained, SameInAnyCompanyChunkedAndPreempted) {
  for (const uint64_t seed : {1, 2}) {
    const Request request = constrained(short_schema(), 150, seed);
    const Answer want = run_alone(request)[0];
    EXPECT_TRUE(is_valid(want.text)) << want.text;
    for (const bool async : {true, false}) {
      for (const int company : {0, 1, 11}) {
        CoreSetup setup;
        setup.async = async;
        setup.max_num_batched_tokens = company == 1 ? 32 : 256;
        CoreHarness h(setup);
        add_company(h, company);
        const RequestId id = h.submit(request);
        h.run();
        expect_same(h.answers(id)[0], want, fmt::format("seed {}, async {}, {} others", seed, async, company));
      }
      for (int at = 1; at < 24; at += 5) {
        CoreSetup setup;
        setup.async = async;
        CoreHarness h(setup);
        add_company(h, 3);
        const RequestId id = h.submit(request);
        for (int i = 0; i < at; ++i) h.turn();
        for (const SequenceId s : h.core().running_ids()) h.core().preempt(s);
        h.core().check_invariants();
        h.run();
        expect_same(h.answers(id)[0], want, fmt::format("seed {}, async {}, preempted at {}", seed, async, at));
      }
    }
  }
}

TEST(Constrained, ForksHaveTheirOwn) {
  Request request = constrained(short_schema(), 140, 4);
  request.n = 5;
  const std::vector<Answer> want = run_alone(request);
  CoreHarness h;
  add_company(h, 5);
  const RequestId id = h.submit(request);
  h.run();
  std::set<std::string> texts;
  for (size_t i = 0; i < 5; ++i) {
    expect_same(h.answers(id)[i], want[i], fmt::format("choice {}", i));
    EXPECT_TRUE(is_valid(want[i].text)) << want[i].text;
    texts.insert(want[i].text);
  }
  EXPECT_GT(texts.size(), 1u);
}

TEST(Constrained, ThinkingIsFreeUntilItsEnd) {
  const Tokenizer& tokenizer = *nano_model().tokenizer;
  const int32_t end = *tokenizer.added_token("</think>");
  bool thought = false;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    Request request = constrained(short_schema(), 40, seed, 300);
    request.structured_output->start_after = end;
    request.sampling.logit_bias = {{end, 11.0f}};
    request.skip_special_tokens = false;
    CoreHarness h;
    add_company(h, 3);
    const RequestId id = h.submit(request);
    h.run();
    const Answer& got = h.answers(id)[0];
    expect_same(got, run_alone(request)[0], "with thinking");
    ASSERT_EQ(got.finish, FinishReason::kStop) << got.text;
    const size_t at = got.text.find("</think>");
    ASSERT_NE(at, std::string::npos) << got.text;
    thought = thought || at > 0;
    ASSERT_TRUE(is_valid(got.text.substr(at + 8))) << got.text;
  }
  EXPECT_TRUE(thought);
}

TEST(Constrained, IgnoreEosAndMinTokensYieldToTheForm) {
  Request request = constrained(form(RegexSpec{"ok"}), 10, 1);
  request.ignore_eos = true;
  request.sampling.min_tokens = 50;
  CoreHarness h;
  const RequestId id = h.submit(request);
  h.run();
  EXPECT_EQ(h.answers(id)[0].text, "ok");
  EXPECT_EQ(h.answers(id)[0].finish, FinishReason::kStop);
}

TEST(Constrained, TheLengthLimitCutsShort) {
  CoreHarness h;
  const RequestId id = h.submit(constrained(form(RegexSpec{"[0-9]{500}"}), 10, 1, 20));
  h.run();
  const Answer& a = h.answers(id)[0];
  EXPECT_EQ(a.finish, FinishReason::kLength);
  EXPECT_EQ(a.tokens.size(), 20u);
  EXPECT_TRUE(std::regex_match(a.text, std::regex("[0-9]+"))) << a.text;
}

// A request that waits for its form holds nobody up, keeps its place in the order, and can end in every way.
TEST(Constrained, WaitsForItsFormAlone) {
  const Request request = constrained(short_schema(), 30, 2);
  const Answer want = run_alone(request)[0];
  CoreHarness h;
  h.hold_forms = true;
  const RequestId waits = h.submit(request);
  Request late = request;
  late.deadline = 0.5;
  const RequestId expires = h.submit(late);
  const RequestId cancelled = h.submit(request);
  const RequestId refused = h.submit(request);
  EXPECT_FALSE(h.core().busy());
  EXPECT_TRUE(h.core().open());
  EXPECT_EQ(h.core().stats().preparing, 4);
  EXPECT_EQ(h.core().stats().waiting, 4);
  const RequestId free = h.submit(make_request(random_prompt(20, 9), 10, 9));
  h.run();
  EXPECT_EQ(h.answers(free)[0].finish, FinishReason::kLength);
  h.core().end(cancelled, FinishReason::kCancelled);
  h.now += 1;
  h.turn();
  EXPECT_EQ(h.answers(cancelled)[0].finish, FinishReason::kCancelled);
  EXPECT_EQ(h.answers(expires)[0].finish, FinishReason::kDeadline);
  h.core().prepared(cancelled, nano_form(*request.structured_output));  // too late: nothing happens
  h.core().prepared(refused, Err(Status::InvalidArgument("no such form")));
  h.turn();
  EXPECT_EQ(h.answers(refused)[0].finish, FinishReason::kError);
  EXPECT_EQ(h.answers(refused)[0].error.message(), "no such form");
  EXPECT_EQ(h.core().stats().preparing, 1);
  h.core().check_invariants();
  h.core().prepared(waits, nano_form(*request.structured_output));
  EXPECT_EQ(h.core().stats().preparing, 0);
  h.run();
  expect_same(h.answers(waits)[0], want, "after its form came");
}

}  // namespace
}  // namespace deepinfer::testing
