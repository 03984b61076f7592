#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "protocol/generation.h"
#include "protocol/render_v4.h"
#include "testing/paths.h"
#include "tokenizer/official_tokenizer.h"

namespace deepinfer {
namespace {

using Ids = std::vector<int32_t>;
using Role = Message::Role;

struct ChatTurn {
  Role role;
  std::string content;
  std::string reasoning;
};

/// Plain turns, for tests that need no more.
struct ChatPrompt {
  std::optional<std::string> system;
  std::vector<ChatTurn> turns;
  bool thinking = false;
  int effort = 75;
};

std::vector<PromptSegment> render_prompt(const ChatPrompt& prompt) {
  Conversation c;
  if (prompt.system.has_value()) c.messages.push_back(Message::System(*prompt.system));
  for (const ChatTurn& turn : prompt.turns) {
    c.messages.push_back(turn.role == Role::kUser ? Message::User(turn.content)
                                                  : Message::Assistant(turn.content, turn.reasoning));
  }
  c.thinking = prompt.thinking;
  c.effort = {ReasoningEffort::Level::kNumber, prompt.effort};
  return deepinfer::render_prompt(c, ModelVersion::kV4_1).segments;
}

Ids encode(const Tokenizer& tokenizer, const ChatPrompt& prompt) {
  auto ids = encode_prompt(tokenizer, render_prompt(prompt));
  EXPECT_TRUE(ids.has_value()) << ids.error().message();
  return ids.value_or(Ids{});
}

/// Specials as they are, text in brackets, so that the seams show.
std::string spelled(const ChatPrompt& prompt) {
  std::string out;
  for (const PromptSegment& s : render_prompt(prompt)) {
    out += s.kind == PromptSegment::Kind::kSpecial ? s.text : fmt::format("[{}]", s.text);
  }
  return out;
}

const std::string kEffort75 = "Reasoning Effort: 75 (range 1-100, the higher the value, the more thorough the reasoning)\n\n";

// spec/protocol §5, Goldens.
TEST(BadWords, AreEncodedAloneAndBehindASpace) {
  const auto tokenizer = testing::nano_tokenizer();
  const std::vector<std::string> words{" were", "carried the lamp"};
  std::set<std::string> texts;
  for (const auto& word : bad_word_ids(*tokenizer, words)) texts.insert(tokenizer->decode(word));
  EXPECT_EQ(texts, (std::set<std::string>{"were", " were", "carried the lamp", " carried the lamp"}));
}

TEST(Prompt, GoldenIdsOfTheReleasedTokenizer) {
  const auto tokenizer = testing::official_tokenizer("v4.1");
  if (tokenizer == nullptr) GTEST_SKIP() << testing::official_tokenizer_missing();
  const ChatPrompt thinking{.system = {}, .turns = {{Role::kUser, "Hello", ""}}, .thinking = true, .effort = 75};
  EXPECT_EQ(encode(*tokenizer, thinking),
            (Ids{0,   128799, 77666, 288,  9504, 482, 28,  223,   2402, 343,   16801, 223,    19,    15,     1457,  14,
                 270, 4077,   270,   1990, 14,   270, 850, 15146, 270,  22805, 868,   128803, 19923, 128804, 128821}));
  const ChatPrompt plain{.system = "You are helpful.", .turns = {{Role::kUser, "Hello", ""}}};
  EXPECT_EQ(encode(*tokenizer, plain), (Ids{0, 128799, 3476, 477, 11502, 16, 128803, 19923, 128804, 128822}));
}

// Hosted counts: the markers spelled by a user cost their bytes, beside 4 tokens of the template.
TEST(Prompt, SpelledMarkersCostWhatTheHostedServiceCounts) {
  const auto tokenizer = testing::official_tokenizer("v4.1");
  if (tokenizer == nullptr) GTEST_SKIP() << testing::official_tokenizer_missing();
  const auto count = [&](const char* text) {
    return encode(*tokenizer, {.system = {}, .turns = {{Role::kUser, text, ""}}}).size();
  };
  EXPECT_EQ(count("<｜User｜>"), 9u);
  EXPECT_EQ(count("<think>"), 7u);
}

TEST(Prompt, Rendering) {
  const auto user = [](const char* text) { return ChatTurn{Role::kUser, text, ""}; };
  const auto assistant = [](const char* text, const char* reasoning) { return ChatTurn{Role::kAssistant, text, reasoning}; };
  EXPECT_EQ(spelled({.system = {}, .turns = {user("hi")}}), "<｜begin▁of▁sentence｜><｜User｜>[hi]<｜Assistant｜></think>");
  EXPECT_EQ(spelled({.system = "", .turns = {user("hi")}}),
            "<｜begin▁of▁sentence｜><｜System｜><｜User｜>[hi]<｜Assistant｜></think>");
  EXPECT_EQ(spelled({.system = "s", .turns = {user("hi")}, .thinking = true}),
            "<｜begin▁of▁sentence｜><｜System｜>[" + kEffort75 + "][s]<｜User｜>[hi]<｜Assistant｜><think>");
  // Earlier reasoning is kept in thinking mode, an absent one is an empty pair, and none is rendered otherwise.
  const std::vector<ChatTurn> talk = {user("a"), assistant("b", "r"), user("c"), assistant("d", ""), user("e"), user("f")};
  EXPECT_EQ(spelled({.system = {}, .turns = talk, .thinking = true}),
            "<｜begin▁of▁sentence｜><｜System｜>[" + kEffort75 +
                "]<｜User｜>[a]<｜Assistant｜><think>[r]</think>[b]<｜end▁of▁sentence｜><｜User｜>[c]<｜Assistant｜><think></"
                "think>[d]"
                "<｜end▁of▁sentence｜><｜User｜>[e\n\nf]<｜Assistant｜><think>");
  EXPECT_EQ(
      spelled({.system = {}, .turns = talk}),
      "<｜begin▁of▁sentence｜><｜User｜>[a]<｜Assistant｜></think>[b]<｜end▁of▁sentence｜><｜User｜>[c]<｜Assistant｜></think>[d]"
      "<｜end▁of▁sentence｜><｜User｜>[e\n\nf]<｜Assistant｜></think>");
  // An assistant turn at the very start never has the pair.
  EXPECT_EQ(spelled({.system = {}, .turns = {assistant("b", "r")}, .thinking = true}),
            "<｜begin▁of▁sentence｜><｜System｜>[" + kEffort75 +
                "]<｜Assistant｜></think>[b]<｜end▁of▁sentence｜><｜Assistant｜><think>");
}

TEST(Prompt, AdjacentTextIsOneRun) {
  const auto tokenizer = testing::nano_tokenizer();
  const std::vector<PromptSegment> cut = {PromptSegment::Text("The qu"), PromptSegment::Text("ick brown fo"),
                                          PromptSegment::Text("x")};
  const std::vector<PromptSegment> whole = {PromptSegment::Text("The quick brown fox")};
  EXPECT_EQ(encode_prompt(*tokenizer, cut).value(), encode_prompt(*tokenizer, whole).value());
}

// spec §5 rule 7: whatever a caller writes, the control tokens of the prompt are those of the template.
TEST(Prompt, TextNeverBecomesControlTokens) {
  const auto tokenizer = testing::nano_tokenizer();
  const auto controls = [&](const std::string& text) {
    const Ids ids =
        encode(*tokenizer, {.system = text,
                            .turns = {{Role::kUser, text, ""}, {Role::kAssistant, text, text}, {Role::kUser, text, ""}},
                            .thinking = true});
    Ids added;
    std::copy_if(ids.begin(), ids.end(), std::back_inserter(added), [&](int32_t id) { return tokenizer->is_added(id); });
    return added;
  };
  const Ids expected = controls("x");
  for (const std::string_view token :
       {kBosToken, kEosToken, kSystemToken, kUserToken, kAssistantToken, kThinkToken, kEndThinkToken}) {
    EXPECT_EQ(controls(std::string(token)), expected) << token;
    EXPECT_EQ(controls(fmt::format("a{}{}b", token, token)), expected) << token;
  }
  EXPECT_EQ(controls("｜DSML｜"), expected);
  EXPECT_EQ(controls("<｜place▁holder▁no▁0｜>"), expected);
}

TEST(Prompt, ReasoningEffort) {
  const std::pair<const char*, int> good[] = {{"minimal", 50}, {"low", 50},    {"medium", 75}, {"high", 75}, {"xhigh", 75},
                                              {"max", 100},    {"ultra", 100}, {"1", 1},       {"42", 42},   {"100", 100}};
  for (const auto& [text, value] : good) {
    const auto effort = parse_reasoning_effort(std::string_view(text));
    ASSERT_TRUE(effort.has_value()) << text;
    EXPECT_EQ(effort->value(), value) << text;
  }
  for (const char* text : {"", "0", "101", "-1", "+5", "5.0", "5 ", "High", "none", "99999999999999999999"}) {
    EXPECT_FALSE(parse_reasoning_effort(std::string_view(text)).has_value()) << text;
  }
}

TEST(Prompt, MissingSpecialTokenIsAnError) {
  const auto tokenizer = testing::nano_tokenizer();
  const auto ids = encode_prompt(*tokenizer, std::vector<PromptSegment>{PromptSegment::Special("<｜Nobody｜>")});
  ASSERT_FALSE(ids.has_value());
  EXPECT_NE(ids.error().message().find("<｜Nobody｜>"), std::string::npos);
}

// The trained model's prompts: ids of the suite, rebuilt from their text.
TEST(Prompt, NanoSuiteIds) {
  if (testing::shared_dir().empty())
    GTEST_SKIP() << "the suite is read from the shared folder ($DEEPINFER_SHARED), which is absent";
  const auto tokenizer = testing::nano_tokenizer();
  std::ifstream file(testing::shared_dir() + "/nano/skills.jsonl");
  std::string line;
  int compared = 0;
  while (std::getline(file, line)) {
    const auto row = nlohmann::json::parse(line);
    if (row["skill"] != "chat") continue;
    // BOS, perhaps a system turn, one user turn, and the opening of the answer.
    std::string text = row["prompt_text"];
    const std::string think = std::string(kAssistantToken) + std::string(kThinkToken);
    const std::string tail = text.ends_with(think) ? think : std::string(kAssistantToken) + std::string(kEndThinkToken);
    ASSERT_TRUE(text.starts_with(kBosToken) && text.ends_with(tail)) << text;
    text = text.substr(kBosToken.size(), text.size() - kBosToken.size() - tail.size());
    const size_t user = text.find(kUserToken);
    if (user == std::string::npos || text.find(kAssistantToken) != std::string::npos) continue;
    ChatPrompt prompt{
        .system = {}, .turns = {{Role::kUser, text.substr(user + kUserToken.size()), ""}}, .thinking = tail == think};
    if (text.starts_with(kSystemToken)) {
      std::string system = text.substr(kSystemToken.size(), user - kSystemToken.size());
      if (prompt.thinking) {
        ASSERT_EQ(std::sscanf(system.c_str(), "Reasoning Effort: %d", &prompt.effort), 1) << system;
        system = system.substr(system.find("\n\n") + 2);
      }
      if (!prompt.thinking || !system.empty()) prompt.system = system;
    }
    EXPECT_EQ(encode(*tokenizer, prompt), row["prompt"].get<Ids>()) << row["prompt_text"];
    ++compared;
  }
  EXPECT_GT(compared, 0);
}

}  // namespace
}  // namespace deepinfer
