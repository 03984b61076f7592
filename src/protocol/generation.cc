#include "protocol/generation.h"

#include <algorithm>

#include "protocol/dsml.h"
#include "protocol/json_input.h"

namespace deepinfer {
namespace {

/// Fills in everything that both kinds of request have. `fixed`: the sampling of thinking mode (§6).
ApiResult<Request> common(const GenerationOptions& g, std::vector<int32_t> prompt, const GenerationPolicy& policy, bool fixed,
                          int64_t default_max_tokens) {
  Request out;
  const auto prompt_tokens = static_cast<int64_t>(prompt.size());
  const int64_t limit = policy.max_model_len;
  const int64_t asked = g.max_tokens.value_or(default_max_tokens);
  if (prompt_tokens >= limit || (g.max_tokens.has_value() && asked > limit - prompt_tokens)) {
    const int64_t completion = g.max_tokens.value_or(1);  // one is the least that there must be room for
    return Fail(ApiError::Invalid(
        "This model's maximum context length is {} tokens. However, you requested {} tokens ({} in the messages, {} "
        "in the completion). Please reduce the length of the messages or completion.",
        limit, prompt_tokens + completion, prompt_tokens, completion));
  }
  if (asked > policy.max_output_tokens && g.max_tokens.has_value()) {
    return Fail(ApiError::Field(g.max_tokens_field, "at most {} tokens can be made, got {}", policy.max_output_tokens, asked));
  }
  out.prompt = std::move(prompt);
  out.max_tokens = std::min({asked, limit - prompt_tokens, policy.max_output_tokens});
  out.n = g.n;
  SamplingParams& s = out.sampling;
  s.temperature = static_cast<float>(fixed ? 1.0 : g.temperature.value_or(1.0));
  s.top_p = static_cast<float>(g.top_p.value_or(1.0));
  if (fixed) s.top_p = policy.version == ModelVersion::kV4 ? 1.0f : std::max(s.top_p, 0.95f);
  s.top_k = g.top_k.value_or(0);
  s.min_p = static_cast<float>(g.min_p.value_or(0));
  if (!fixed) {
    s.repetition_penalty = static_cast<float>(g.repetition_penalty.value_or(1));
    s.presence_penalty = static_cast<float>(g.presence_penalty.value_or(0));
    s.frequency_penalty = static_cast<float>(g.frequency_penalty.value_or(0));
  }
  s.min_tokens = g.min_tokens;
  s.stop_token_ids = g.stop_token_ids;
  s.logit_bias = g.logit_bias;
  s.allowed_token_ids = g.allowed_token_ids;
  if (g.seed.has_value()) out.seed = static_cast<uint64_t>(*g.seed);
  out.logprobs = g.logprobs;
  out.prompt_logprobs = g.prompt_logprobs;
  out.ignore_eos = g.ignore_eos;
  out.priority = g.priority;
  out.cache_salt = g.cache_salt;
  if (g.cache_class.has_value()) out.cache_class = *g.cache_class;
  out.deadline = g.deadline;
  return out;
}

std::string_view format_name(ResponseFormat::Kind kind) {
  switch (kind) {
    case ResponseFormat::Kind::kText:
      return "text";
    case ResponseFormat::Kind::kJsonObject:
      return "json_object";
    case ResponseFormat::Kind::kJsonSchema:
      return "json_schema";
    case ResponseFormat::Kind::kRegex:
      return "regex";
    case ResponseFormat::Kind::kGrammar:
      return "grammar";
    case ResponseFormat::Kind::kChoice:
      return "choice";
  }
  return "unknown";
}

}  // namespace

namespace {

/// The form of a format; none for text.
std::optional<grammar::AnswerSpec> answer_spec(const ResponseFormat& format) {
  const auto space = format.compact ? grammar::JsonSpace::kCompact : grammar::JsonSpace::kFlexible;
  switch (format.kind) {
    case ResponseFormat::Kind::kText:
      return std::nullopt;
    case ResponseFormat::Kind::kJsonObject:
      return grammar::JsonObjectSpec{space};
    case ResponseFormat::Kind::kJsonSchema:
      return grammar::JsonSchemaSpec{format.definition, format.strict, space};
    case ResponseFormat::Kind::kRegex:
      return grammar::RegexSpec{format.definition};
    case ResponseFormat::Kind::kGrammar:
      return grammar::EbnfSpec{format.definition};
    case ResponseFormat::Kind::kChoice:
      return grammar::ChoiceSpec{format.choices};
  }
  return std::nullopt;
}

grammar::GrammarSpec grammar_spec(grammar::AnswerSpec answer) {
  return std::visit([](auto&& spec) { return grammar::GrammarSpec(std::move(spec)); }, std::move(answer));
}

bool enforces_tools(const Conversation& c) {
  return !c.tools.empty() && (c.tool_choice == ToolChoice::kRequired ||
                              std::any_of(c.tools.begin(), c.tools.end(), [](const Tool& tool) { return tool.strict; }));
}

}  // namespace

std::optional<StructuredOutput> make_structured_output(const ConvertedRequest& request, const GenerationPolicy& policy) {
  const Conversation& c = request.conversation;
  const bool required = c.tool_choice == ToolChoice::kRequired && !c.tools.empty();
  std::optional<grammar::AnswerSpec> answer = required ? std::nullopt : answer_spec(c.response_format);
  if (!answer.has_value() && !enforces_tools(c)) return std::nullopt;
  StructuredOutput out;
  if (c.tools.empty()) {
    out.form = grammar_spec(*std::move(answer));
  } else {
    grammar::DsmlSpec calls;
    for (const Tool& tool : c.tools) calls.tools.push_back({tool.name, tool.parameters, tool.strict});
    calls.parallel = c.parallel_tool_calls;
    calls.v4 = policy.version == ModelVersion::kV4;
    calls.dsml_token = kDsmlToken;
    calls.answer = std::move(answer);
    if (required) {
      calls.mode =
          request.parsing.tool_call_initial_stage ? grammar::DsmlSpec::Mode::kInside : grammar::DsmlSpec::Mode::kRequired;
    }
    out.form = std::move(calls);
  }
  const ReasoningStage stage = request.parsing.reasoning_initial_stage;
  if (stage == ReasoningStage::kStart || stage == ReasoningStage::kReasoning) {
    out.start_after = policy.think_end;
  } else if (!c.messages.empty() && c.messages.back().prefix) {
    out.prefix = c.messages.back().content;
  }
  return out;
}

std::optional<StructuredOutput> make_structured_output(const CompletionRequest& request) {
  std::optional<grammar::AnswerSpec> answer = answer_spec(request.response_format);
  if (!answer.has_value()) return std::nullopt;
  StructuredOutput out;
  out.form = grammar_spec(*std::move(answer));
  return out;
}

std::string structured_output_field(const ConvertedRequest& request) {
  const Conversation& c = request.conversation;
  const bool format = c.response_format.kind != ResponseFormat::Kind::kText;
  return format && (c.tool_choice != ToolChoice::kRequired || c.tools.empty()) ? c.response_format.field : "tools";
}

std::vector<std::vector<int32_t>> bad_word_ids(const Tokenizer& tokenizer, std::span<const std::string> words) {
  std::vector<std::vector<int32_t>> out;
  for (const std::string& word : words) {
    const std::string text = word.substr(std::min(word.find_first_not_of(" \t\r\n"), word.size()));
    std::vector<int32_t> alone = tokenizer.encode(text);
    std::vector<int32_t> behind_space = tokenizer.encode(" " + text);
    if (alone.empty()) continue;
    out.push_back(std::move(alone));
    out.push_back(std::move(behind_space));
  }
  return out;
}

void truncate_prompt(const GenerationOptions& generation, const GenerationPolicy& policy, std::vector<int32_t>& prompt) {
  if (!generation.truncate_prompt_tokens.has_value()) return;
  int64_t keep = *generation.truncate_prompt_tokens;
  if (keep < 0) keep = std::max<int64_t>(policy.max_model_len - std::max<int64_t>(generation.max_tokens.value_or(1), 1), 1);
  const auto size = static_cast<int64_t>(prompt.size());
  if (size > keep) prompt.erase(prompt.begin(), prompt.end() - keep);
}

namespace {

/// Refuses what cannot be enforced; JSON objects are asked for in the prompt, and that has to do then.
ApiResult<void> check_format(const ResponseFormat& format, const GenerationPolicy& policy) {
  using Kind = ResponseFormat::Kind;
  if (policy.grammar || format.kind == Kind::kText || format.kind == Kind::kJsonObject) return {};
  return Fail(ApiError::Field(format.field, "{} is not supported by this server", format_name(format.kind)));
}

}  // namespace

ApiResult<Request> to_engine_request(const ConvertedRequest& request, std::vector<int32_t> prompt,
                                     const GenerationPolicy& policy) {
  const Conversation& c = request.conversation;
  DI_API_RETURN_IF_ERROR(check_format(c.response_format, policy));
  const bool fixed = c.thinking && !policy.honour_sampling_in_thinking;
  DI_API_ASSIGN(Request out, common(request.generation, std::move(prompt), policy, fixed,
                                    c.thinking ? policy.default_max_tokens_thinking : policy.default_max_tokens));
  // The release fixes top_p of V4 with tools.
  if (fixed && policy.version == ModelVersion::kV4 && !c.tools.empty()) out.sampling.top_p = 0.95f;
  out.skip_special_tokens = false;
  if (policy.grammar) {
    out.structured_output = make_structured_output(request, policy);
    const ReasoningStage stage = request.parsing.reasoning_initial_stage;
    const bool thinks = stage == ReasoningStage::kStart || stage == ReasoningStage::kReasoning;
    if (out.structured_output.has_value() && thinks && !policy.think_end.has_value())
      return Fail(ApiError::Http(500, "the tokenizer has no </think>, behind which a format would begin"));
  }
  if (!request.generation.cache_class.has_value() && !c.tools.empty()) out.cache_class = "agent";
  return out;
}

ApiResult<Request> to_engine_request(const CompletionRequest& request, std::vector<int32_t> prompt,
                                     const GenerationPolicy& policy) {
  DI_API_RETURN_IF_ERROR(check_format(request.response_format, policy));
  DI_API_ASSIGN(Request out, common(request.generation, std::move(prompt), policy, /*fixed=*/false, /*default_max_tokens=*/16));
  if (request.generation.max_tokens == 0) out.max_tokens = 1;  // the least that the engine makes; the answer leaves it out
  if (policy.grammar) out.structured_output = make_structured_output(request);
  out.stop = request.stop;
  out.include_stop_string = request.include_stop_string;
  if (request.echo && request.generation.logprobs.has_value())
    out.prompt_logprobs = std::max(*request.generation.logprobs, out.prompt_logprobs.value_or(0));
  return out;
}

}  // namespace deepinfer
