#include "engine/output_constraint.h"

#include <gtest/gtest.h>

#include "engine/form_compiler.h"
#include "sampling/sampler.h"
#include "testing/random.h"

namespace deepinfer {
namespace {

using Mask = std::vector<uint32_t>;

// 256 bytes, then added tokens. The model has more rows than the tokenizer has tokens.
constexpr int32_t kThinkEnd = 256, kMark = 257, kEos = 258;
constexpr int64_t kModelVocab = 300;

grammar::GrammarCache& forms() {
  static grammar::GrammarCache cache = [] {
    std::vector<std::string> tokens;
    for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
    for (const char* text : {"</think>", "｜DSML｜", "<end>"}) tokens.emplace_back(text);
    auto vocabulary = grammar::TokenVocabulary::Make(std::move(tokens), {kThinkEnd, kMark, kEos}, {kEos});
    return grammar::GrammarCache(*vocabulary, size_t{64} << 20);
  }();
  return cache;
}

std::shared_ptr<const CompiledForm> compiled(const StructuredOutput& output) {
  auto form = compile_form(output, forms(), kModelVocab);
  if (!form) throw std::runtime_error(form.error().message());
  return *form;
}

StructuredOutput regex(std::string pattern, std::optional<int32_t> start_after = std::nullopt) {
  return {.form = grammar::RegexSpec{std::move(pattern)}, .start_after = start_after};
}

Mask mask_of(OutputConstraint& constraint) {
  Mask mask(constraint.mask_words());
  constraint.fill_mask(mask);
  return mask;
}

bool allows(const Mask& mask, int32_t id) { return (mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0; }

std::vector<int32_t> bytes(std::string_view text) { return {text.begin(), text.end()}; }

/// Masks of the rows of `drafts`, as a constraint gives them that goes through the drafts one by one.
std::vector<Mask> masks_one_by_one(const std::shared_ptr<const CompiledForm>& form, const std::vector<int32_t>& before,
                                   const std::vector<int32_t>& drafts, int64_t& valid) {
  OutputConstraint c(form);
  for (const int32_t id : before) EXPECT_TRUE(c.accept(id)) << id;
  std::vector<Mask> out{mask_of(c)};
  valid = 0;
  for (const int32_t id : drafts) {
    if (!c.accept(id)) break;
    ++valid;
    out.push_back(mask_of(c));
  }
  while (out.size() <= drafts.size()) out.emplace_back(c.mask_words(), ~0u);
  return out;
}

void expect_rows(const std::shared_ptr<const CompiledForm>& form, const std::vector<int32_t>& before,
                 const std::vector<int32_t>& drafts, int64_t want_valid, const std::string& what) {
  OutputConstraint c(form);
  for (const int32_t id : before) ASSERT_TRUE(c.accept(id)) << what;
  const Mask first = mask_of(c);
  const bool started = c.started();
  Mask got((drafts.size() + 1) * c.mask_words());
  EXPECT_EQ(c.fill_draft_masks(drafts, got), want_valid) << what;
  int64_t valid = 0;
  const std::vector<Mask> want = masks_one_by_one(form, before, drafts, valid);
  EXPECT_EQ(valid, want_valid) << what;
  for (size_t row = 0; row < want.size(); ++row) {
    const auto begin = got.begin() + static_cast<std::ptrdiff_t>(row * c.mask_words());
    EXPECT_EQ(Mask(begin, begin + static_cast<std::ptrdiff_t>(c.mask_words())), want[row]) << what << ", row " << row;
  }
  // Nothing was accepted.
  EXPECT_EQ(mask_of(c), first) << what;
  EXPECT_EQ(c.started(), started) << what;
  EXPECT_EQ(c.accepted_tokens(), static_cast<int64_t>(before.size())) << what;
}

// vLLM 44297, 44993, 36138: the thinking ends inside the draft block, at every row.
TEST(OutputConstraint, ThinkingEndsAtEveryRow) {
  const auto form = compiled(regex("[0-9]{8}x?", kThinkEnd));
  for (const int64_t before : {0, 1, 7}) {
    const std::vector<int32_t> thought(static_cast<size_t>(before), '?');
    for (size_t at = 0; at <= 5; ++at) {  // 5: not in this block
      std::vector<int32_t> drafts;
      for (size_t i = 0; i < 5; ++i) drafts.push_back(i < at ? 'a' : i == at ? kThinkEnd : '7');
      expect_rows(form, thought, drafts, 5, fmt::format("{} before, end at {}", before, at));
      OutputConstraint c(form);
      for (const int32_t id : thought) ASSERT_TRUE(c.accept(id));
      Mask rows(6 * c.mask_words());
      c.fill_draft_masks(drafts, rows);
      for (size_t row = 0; row <= 5; ++row) {
        const Mask mask(rows.begin() + static_cast<std::ptrdiff_t>(row * c.mask_words()),
                        rows.begin() + static_cast<std::ptrdiff_t>((row + 1) * c.mask_words()));
        const bool constrained = row > at;
        EXPECT_EQ(allows(mask, 'a'), !constrained) << "end at " << at << ", row " << row;
        EXPECT_EQ(allows(mask, kThinkEnd), !constrained) << "end at " << at << ", row " << row;
        EXPECT_TRUE(allows(mask, '3')) << "end at " << at << ", row " << row;
        EXPECT_FALSE(allows(mask, kEos)) << "end at " << at << ", row " << row;
      }
    }
  }
}

// What the thinking allows ends with it: a form token before, a thought token after, a second end.
TEST(OutputConstraint, DraftsAreJudgedByTheirOwnRow) {
  const auto form = compiled(regex("[0-9]{8}", kThinkEnd));
  for (size_t at = 0; at < 5; ++at) {
    for (const int32_t wrong : {static_cast<int32_t>('a'), kThinkEnd, kEos}) {
      for (size_t bad = at + 1; bad < 5; ++bad) {
        std::vector<int32_t> drafts;
        for (size_t i = 0; i < 5; ++i) drafts.push_back(i < at ? 'a' : i == at ? kThinkEnd : '7');
        drafts[bad] = wrong;
        expect_rows(form, {}, drafts, static_cast<int64_t>(bad), fmt::format("end at {}, {} at {}", at, wrong, bad));
      }
    }
  }
}

TEST(OutputConstraint, NoDraftOrAnInvalidOneAtEveryRow) {
  const auto form = compiled(regex("abcdefgh"));
  expect_rows(form, bytes("ab"), {}, 0, "no drafts");
  for (size_t bad = 0; bad < 5; ++bad) {
    std::vector<int32_t> drafts = bytes("cdefg");
    drafts[bad] = 'z';
    expect_rows(form, bytes("ab"), drafts, static_cast<int64_t>(bad), fmt::format("wrong at {}", bad));
  }
  for (const int32_t id : {-1, 299, 300, 1 << 30}) expect_rows(form, {}, {'a', id, 'c'}, 1, fmt::format("token {}", id));
}

// vLLM 42619, 48516: the answer ends inside the block. Behind the end every draft is a rejection, and EOS alone is allowed.
TEST(OutputConstraint, EndsAtEveryRow) {
  const auto form = compiled(regex("a{0,5}"));
  for (size_t at = 0; at < 5; ++at) {
    std::vector<int32_t> drafts(5, 'a');
    drafts[at] = kEos;
    expect_rows(form, {}, drafts, static_cast<int64_t>(at) + 1, fmt::format("end at {}", at));
    drafts.assign(5, kEos);
    for (size_t i = 0; i < at; ++i) drafts[i] = 'a';
    expect_rows(form, {}, drafts, static_cast<int64_t>(at) + 1, fmt::format("ends from {} on", at));
  }
  OutputConstraint c(form);
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(c.accept('a'));
  EXPECT_EQ(c.forced_token(), kEos);
  EXPECT_EQ(only_token(mask_of(c)), kEos);
  EXPECT_TRUE(c.accept(kEos));
  EXPECT_TRUE(c.ended());
  EXPECT_FALSE(c.accept(kEos));
  EXPECT_FALSE(c.accept('a'));
  EXPECT_EQ(only_token(mask_of(c)), kEos);
  EXPECT_EQ(c.forced_token(), std::nullopt);
  c.rollback(2);
  EXPECT_FALSE(c.ended());
  EXPECT_TRUE(c.accept('a'));
}

TEST(OutputConstraint, BeforeTheFormNoEndAndNoToolCall) {
  grammar::DsmlSpec tools;
  tools.tools.push_back({"f", "", false});
  const auto form = compiled({.form = tools, .start_after = kThinkEnd});
  OutputConstraint c(form);
  Mask mask = mask_of(c);
  EXPECT_FALSE(allows(mask, kEos));
  EXPECT_FALSE(allows(mask, kMark));
  EXPECT_TRUE(allows(mask, kThinkEnd));
  EXPECT_TRUE(allows(mask, 299));
  EXPECT_FALSE(allows(mask, 300)) << "beyond the model's vocabulary";
  EXPECT_FALSE(c.accept(kMark));
  EXPECT_FALSE(c.accept(kEos));
  EXPECT_TRUE(c.accept(kThinkEnd));
  mask = mask_of(c);
  EXPECT_TRUE(allows(mask, kEos)) << "an answer without text";
  EXPECT_FALSE(allows(mask, 299)) << "the tokenizer has no such token";
  EXPECT_FALSE(c.accept(kMark)) << "behind a <";
  EXPECT_TRUE(c.accept('<'));
  EXPECT_TRUE(c.accept(kMark));
}

TEST(OutputConstraint, ContinuesAPrefix) {
  StructuredOutput output = regex("\\{\"a\": [0-9]+\\}");
  output.prefix = "{\"a\": 1";
  const auto form = compiled(output);
  OutputConstraint c(form);
  EXPECT_EQ(c.accepted_tokens(), 0);
  EXPECT_TRUE(allows(mask_of(c), '}'));
  EXPECT_FALSE(allows(mask_of(c), '{'));
  EXPECT_TRUE(c.accept('2'));
  c.rollback(100);
  EXPECT_EQ(c.accepted_tokens(), 0);
  EXPECT_TRUE(c.accept('}')) << "the prefix is not taken back";
  output.prefix = "[";
  const auto refused = compile_form(output, forms(), kModelVocab);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(refused.error().message().find("prefix"), std::string::npos);
}

// Any sequence of steps forth and back is where its tokens alone lead.
TEST(OutputConstraint, RollbackIsExact) {
  testing::Random random(7);
  for (const bool thinking : {false, true}) {
    const auto form = compiled({.form = grammar::JsonObjectSpec{},
                                .start_after = thinking ? std::optional<int32_t>(kThinkEnd) : std::nullopt,
                                .prefix = {}});
    OutputConstraint walker(form);
    std::vector<int32_t> tokens;
    for (int step = 0; step < 600; ++step) {
      if (random.below(4) == 0) {
        const int64_t back = random.below(7);
        walker.rollback(back);
        tokens.resize(tokens.size() - std::min<size_t>(tokens.size(), static_cast<size_t>(back)));
      } else {
        const Mask mask = mask_of(walker);
        std::vector<int32_t> allowed;
        for (int32_t id = 0; id < kModelVocab; ++id) {
          if (allows(mask, id)) allowed.push_back(id);
        }
        if (walker.ended()) continue;
        const bool close = thinking && !walker.started() && random.below(3) == 0;
        const int32_t id = close ? kThinkEnd : allowed[static_cast<size_t>(random.below(static_cast<int64_t>(allowed.size())))];
        ASSERT_TRUE(walker.accept(id)) << id;
        tokens.push_back(id);
      }
      OutputConstraint fresh(form);
      for (const int32_t id : tokens) ASSERT_TRUE(fresh.accept(id));
      ASSERT_EQ(mask_of(walker), mask_of(fresh)) << "step " << step;
      ASSERT_EQ(walker.started(), fresh.started());
      ASSERT_EQ(walker.ended(), fresh.ended());
      ASSERT_EQ(walker.accepted_tokens(), static_cast<int64_t>(tokens.size()));
    }
  }
}

// Seeded draws are the same with drafts tried, accepted and taken back between them.
TEST(OutputConstraint, DraftsDoNotChangeWhatIsDrawn) {
  const auto form = compiled({.form = grammar::JsonObjectSpec{}, .start_after = kThinkEnd});
  const auto draw = [&](bool drafts) {
    testing::Random logits_of(3), drafts_of(4);
    SamplingParams params;
    params.seed = 11;
    params.stop_token_ids = {kEos};
    Sampler sampler(params, kModelVocab);
    OutputConstraint c(form);
    std::vector<int32_t> out;
    Mask mask(c.mask_words());
    while (out.size() < 200 && !c.ended()) {
      std::vector<float> logits(static_cast<size_t>(kModelVocab));
      for (float& z : logits) z = static_cast<float>(logits_of.below(1000)) / 100;
      if (out.size() > 20) logits[kThinkEnd] = 30;
      if (drafts) {
        std::vector<int32_t> block;
        for (int i = 0; i < 5; ++i) block.push_back(static_cast<int32_t>(drafts_of.below(kModelVocab)));
        if (drafts_of.below(2) == 0) block[static_cast<size_t>(drafts_of.below(5))] = kThinkEnd;
        Mask rows(6 * c.mask_words());
        c.fill_draft_masks(block, rows);
        std::copy_n(rows.begin(), c.mask_words(), mask.begin());
        int64_t taken = 0;
        for (const int32_t id : block) taken += c.accept(id) ? 1 : 0;
        c.rollback(taken);
      } else {
        c.fill_mask(mask);
      }
      const int32_t token = sampler.sample(logits, static_cast<int64_t>(out.size()), mask);
      sampler.add_output(token);
      EXPECT_TRUE(c.accept(token));
      out.push_back(token);
    }
    return out;
  };
  const std::vector<int32_t> plain = draw(false);
  EXPECT_EQ(draw(true), plain);
  EXPECT_NE(std::find(plain.begin(), plain.end(), kThinkEnd), plain.end());
}

TEST(OutputConstraint, OnlyToken) {
  EXPECT_EQ(only_token(Mask{0, 0}), std::nullopt);
  EXPECT_EQ(only_token(Mask{}), std::nullopt);
  EXPECT_EQ(only_token(Mask{0, 1u << 31}), 63);
  EXPECT_EQ(only_token(Mask{1, 1}), std::nullopt);
  EXPECT_EQ(only_token(Mask{0, 5}), std::nullopt);
}

}  // namespace
}  // namespace deepinfer
