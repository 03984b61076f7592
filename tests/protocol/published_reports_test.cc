// Bug reports about other servers (spec/protocol §17): a test for each report that runs the conformance vectors which show it, so
// that none of them can be dropped from the data unnoticed. What vectors cannot show is in published_mistakes_test.cc; report 24
// (constraints) belongs to tests/grammar, 30 (fetching images) to a fetcher, and 31 to tests/tokenizer.

#include <gtest/gtest.h>

#include <algorithm>

#include "protocol/vector_checks.h"

namespace deepinfer {
namespace {

struct Report {
  const char* name;                  ///< its number in the table, and the fault
  std::vector<std::string> vectors;  ///< ids without model version ("@v4") and API ("/chat"); a final '*' is any ending
};

void PrintTo(const Report& report, std::ostream* out) { *out << report.name; }

const Report kReports[] = {
    {"R01_OpenerSplitOverChunks", {"tool-single", "multibyte-prefix-lookalike"}},
    {"R02_CloserInArguments", {"tool-shell-value", "tool-truncated-closer"}},
    {"R03_MarkupInContent", {"tool-single", "tool-text-after-block", "tool-mixed-dialect"}},
    {"R04_UnclosedParameter", {"parameter-without-close"}},
    {"R05_TypesOfValues", {"tool-types", "tool-json-value-kept-verbatim"}},
    {"R06_WrappedArguments", {"tool-types", "angle-at-end", "chat-tool-args-not-json"}},
    {"R07_BlockInUnclosedThinking", {"tool-no-think-end"}},
    {"R08_TruncatedReasoning", {"thinking-never-closed", "thinking-truncated"}},
    {"R09_NamedToolChoice", {"tool-required-stage", "chat-tool-choice-named", "chat-required"}},
    {"R10_ToolChoiceNone", {"chat-tool-choice-none", "msg-tool-choice-none", "chat-tools-none"}},
    {"R11_EffortOfV41", {"chat-effort-*", "chat-user-thinking"}},
    {"R12_EffortOfV4", {"chat-effort-high", "chat-effort-max", "chat-effort-low"}},
    {"R13_ImageTokenInText", {"inject-user-*", "chat-image-token-text"}},
    {"R14_ControlTokensInText", {"inject-user-*", "inject-in-system-and-tool", "eos-literal-in-text"}},
    {"R15_TurnsAtTheEnd", {"chat-trailing-system", "chat-mid-system", "chat-prefix-*", "chat-assistant-last-no-prefix"}},
    {"R16_ResponsesContentTypes", {"rsp-assistant-merge", "rsp-reasoning-then-message"}},
    {"R17_TagsOfTheOtherVersion", {"tool-mixed-dialect", "tool-single"}},
    {"R18_DoubledBars", {"doubled-bar-dialect-not-parsed"}},
    {"R19_BlockOpenerWithoutBracket", {"tool-block-opener-missing-gt", "chat-tool-args-not-json"}},
    {"R20_ParametersWithoutInvoke", {"tool-bare-parameter-without-invoke"}},
    {"R21_NoParserOnThePath", {"tool-parallel", "tool-no-tools-declared"}},
    {"R22_MissingClosers",
     {"second-invoke-without-close", "parameter-without-close", "bad-string-attribute", "tool-missing-invoke-close"}},
    {"R23_TrackerStuck", {"newlines-before-marker-lookalike", "partial-think-end-flushed", "multibyte-prefix-lookalike"}},
    {"R25_ReasoningMissingInHistory", {"chat-multiturn-thinking-reasoning-missing", "msg-tool-history-thinking"}},
    {"R26_JsonSchema", {"chat-json-schema-ignored"}},
    {"R27_ProseTurnedIntoACall", {"plain"}},
    {"R28_CustomTools", {"apply-patch", "apply-patch-not-custom", "rsp-apply-patch"}},
    {"R29_ParameterNames", {"tool-param-name-with-spaces"}},
    {"R32_EndInsideACloser", {"tool-truncated-closer"}},
    {"R33_UsageOnceInStreams", {"chat-no-include-usage", "text"}},
    {"R34_BlocksOfMessages", {"thinking-text", "thinking-no-reasoning"}},
};

class PublishedReports : public ::testing::TestWithParam<Report> {};

bool stands_for(const std::string& wanted, const std::string& id) {
  const std::string base = id.substr(0, id.find_first_of("@/"));
  return wanted.ends_with('*') ? base.starts_with(wanted.substr(0, wanted.size() - 1)) : base == wanted;
}

TEST_P(PublishedReports, Vectors) {
  const std::pair<const char*, void (*)(const Json&)> files[] = {
      {"parse", testing::check_parse},   {"parse_hardening", testing::check_parse_hardening},
      {"render", testing::check_render}, {"settings", testing::check_settings},
      {"stream", testing::check_stream}, {"reject", testing::check_reject}};
  std::vector<std::string> missing = GetParam().vectors;
  for (const auto& [file, check] : files) {
    const Json data = testing::read_vectors(file);
    for (const Json& test : data.at("cases")) {
      const std::string id = test.at("id");
      const auto& wanted = GetParam().vectors;
      const auto found = std::find_if(wanted.begin(), wanted.end(), [&](const auto& w) { return stands_for(w, id); });
      if (found == wanted.end()) continue;
      SCOPED_TRACE(std::string(file) + ": " + id);
      check(test);
      std::erase(missing, *found);
    }
  }
  EXPECT_EQ(missing, std::vector<std::string>());
}

INSTANTIATE_TEST_SUITE_P(Section17, PublishedReports, ::testing::ValuesIn(kReports),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace deepinfer
