#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "sampling/sampler.h"

namespace deepinfer {
namespace {

constexpr int64_t kVocab = 100;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

struct Case {
  const char* field;
  std::function<void(SamplingParams&)> change;
};

TEST(SamplingParams, DefaultsAndLimitsAreValid) {
  EXPECT_TRUE(SamplingParams{}.validate(kVocab).ok());
  const Case cases[] = {
      {"temperature", [](auto& p) { p.temperature = 0.0f; }},
      {"temperature", [](auto& p) { p.temperature = 100.0f; }},
      {"top_p", [](auto& p) { p.top_p = std::numeric_limits<float>::denorm_min(); }},
      {"top_k", [](auto& p) { p.top_k = std::numeric_limits<int64_t>::max(); }},
      {"top_k", [](auto& p) { p.top_k = std::numeric_limits<int64_t>::min(); }},
      {"min_p", [](auto& p) { p.min_p = 1.0f; }},
      {"repetition_penalty", [](auto& p) { p.repetition_penalty = 100.0f; }},
      {"presence_penalty", [](auto& p) { p.presence_penalty = -2.0f; }},
      {"frequency_penalty", [](auto& p) { p.frequency_penalty = 2.0f; }},
      {"choice_index", [](auto& p) { p.choice_index = kMaxChoiceIndex; }},
      {"min_tokens", [](auto& p) { p.min_tokens = kMaxMinTokens; }},
      {"stop_token_ids", [](auto& p) { p.stop_token_ids.assign(128, 99); }},
      {"logit_bias",
       [](auto& p) {
         p.logit_bias.assign(1024, {99, -100.0f});
       }},
      {"allowed_token_ids", [](auto& p) { p.allowed_token_ids.assign(1024, 0); }},
      {"bad_words", [](auto& p) { p.bad_words.assign(1024, std::vector<int32_t>(64, 99)); }},
  };
  for (const Case& c : cases) {
    SamplingParams params;
    c.change(params);
    const Status status = params.validate(kVocab);
    EXPECT_TRUE(status.ok()) << c.field << ": " << status.message();
  }
}

TEST(SamplingParams, EveryFieldIsChecked) {
  const Case cases[] = {
      {"temperature is nan", [](auto& p) { p.temperature = kNan; }},
      {"temperature is -1, must be from 0 to 100", [](auto& p) { p.temperature = -1.0f; }},
      {"temperature is 100.5", [](auto& p) { p.temperature = 100.5f; }},
      {"temperature is inf", [](auto& p) { p.temperature = kInf; }},
      {"top_p is nan", [](auto& p) { p.top_p = kNan; }},
      {"top_p is 0, must be above 0 and at most 1", [](auto& p) { p.top_p = 0.0f; }},
      {"top_p is -0.5", [](auto& p) { p.top_p = -0.5f; }},
      {"top_p is 1.5", [](auto& p) { p.top_p = 1.5f; }},
      {"min_p is nan", [](auto& p) { p.min_p = kNan; }},
      {"min_p is -0.5", [](auto& p) { p.min_p = -0.5f; }},
      {"min_p is 1.5", [](auto& p) { p.min_p = 1.5f; }},
      {"repetition_penalty is nan", [](auto& p) { p.repetition_penalty = kNan; }},
      {"repetition_penalty is 0", [](auto& p) { p.repetition_penalty = 0.0f; }},
      {"repetition_penalty is -1", [](auto& p) { p.repetition_penalty = -1.0f; }},
      {"repetition_penalty is 101", [](auto& p) { p.repetition_penalty = 101.0f; }},
      {"presence_penalty is nan", [](auto& p) { p.presence_penalty = kNan; }},
      {"presence_penalty is -2.5", [](auto& p) { p.presence_penalty = -2.5f; }},
      {"presence_penalty is 2.5", [](auto& p) { p.presence_penalty = 2.5f; }},
      {"frequency_penalty is nan", [](auto& p) { p.frequency_penalty = kNan; }},
      {"frequency_penalty is -2.5", [](auto& p) { p.frequency_penalty = -2.5f; }},
      {"frequency_penalty is 2.5", [](auto& p) { p.frequency_penalty = 2.5f; }},
      {"choice_index is 16777216, must be from 0 to 16777215", [](auto& p) { p.choice_index = 1u << 24; }},
      {"min_tokens is -1", [](auto& p) { p.min_tokens = -1; }},
      {"min_tokens is 2147483648", [](auto& p) { p.min_tokens = 1ll << 31; }},
      {"stop_token_ids has 129 entries, at most 128 are allowed", [](auto& p) { p.stop_token_ids.assign(129, 0); }},
      {"stop_token_ids has token id -1",
       [](auto& p) {
         p.stop_token_ids = {0, -1};
       }},
      {"stop_token_ids has token id 100, must be from 0 to 99", [](auto& p) { p.stop_token_ids = {100}; }},
      {"logit_bias has 1025 entries",
       [](auto& p) {
         p.logit_bias.assign(1025, {0, 0.0f});
       }},
      {"logit_bias has token id -1",
       [](auto& p) {
         p.logit_bias = {{-1, 0.0f}};
       }},
      {"logit_bias has token id 100",
       [](auto& p) {
         p.logit_bias = {{100, 0.0f}};
       }},
      {"logit_bias of token id 5 is nan",
       [](auto& p) {
         p.logit_bias = {{5, kNan}};
       }},
      {"logit_bias of token id 5 is -101",
       [](auto& p) {
         p.logit_bias = {{5, -101.0f}};
       }},
      {"logit_bias of token id 5 is inf",
       [](auto& p) {
         p.logit_bias = {{5, kInf}};
       }},
      {"allowed_token_ids has 1025 entries", [](auto& p) { p.allowed_token_ids.assign(1025, 0); }},
      {"bad_words has 1025 entries", [](auto& p) { p.bad_words.assign(1025, {1}); }},
      {"bad_words has one of 0 tokens, must be from 1 to 64", [](auto& p) { p.bad_words = {{}}; }},
      {"bad_words has one of 65 tokens", [](auto& p) { p.bad_words = {std::vector<int32_t>(65, 1)}; }},
      {"bad_words has token id 100",
       [](auto& p) {
         p.bad_words = {{1, 100}};
       }},
      {"allowed_token_ids has token id -7", [](auto& p) { p.allowed_token_ids = {-7}; }},
      {"allowed_token_ids has token id 100", [](auto& p) { p.allowed_token_ids = {100}; }},
  };
  for (const Case& c : cases) {
    SamplingParams params;
    c.change(params);
    const Status status = params.validate(kVocab);
    EXPECT_EQ(status.code(), StatusCode::kOutOfRange) << c.field;
    EXPECT_EQ(status.message().rfind(c.field, 0), 0u) << status.message();
    EXPECT_EQ(status.message().find('\n'), std::string::npos);
  }
}

}  // namespace
}  // namespace deepinfer
