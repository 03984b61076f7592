// Completions: chunks and the final object. The engine's text is the answer: nothing in it is parsed.

#include <fmt/format.h>

#include <algorithm>

#include "protocol/conversation_stream.h"
#include "protocol/event_writer.h"
#include "tokenizer/utf8.h"

namespace deepinfer {
namespace {

class CompletionStream final : public ResponseStream {
 public:
  CompletionStream(const CompletionRequest& request, ResponseInfo info, std::shared_ptr<const Tokenizer> tokenizer,
                   std::vector<std::vector<int32_t>> prompt_ids)
      : info_(std::move(info)),
        model_(request.model),
        tokenizer_(std::move(tokenizer)),
        n_(std::max<int64_t>(request.generation.n, 1)),
        echo_(request.echo),
        prompt_only_(request.generation.max_tokens == 0),
        logprobs_(request.generation.logprobs),
        asked_prompt_logprobs_(request.generation.prompt_logprobs),
        include_usage_(request.include_usage),
        prompt_ids_(std::move(prompt_ids)),
        prompt_logprobs_(request.prompts.size()),
        prompt_usage_(request.prompts.size()) {
    choices_.resize(request.prompts.size() * static_cast<size_t>(n_));
    open_ = static_cast<int64_t>(choices_.size());
    const bool truncated = request.generation.truncate_prompt_tokens.has_value();
    for (size_t i = 0; i < request.prompts.size(); ++i) {
      const auto* text = truncated && i < prompt_ids_.size() ? nullptr : std::get_if<std::string>(&request.prompts[i]);
      const auto* ids = std::get_if<std::vector<int32_t>>(&request.prompts[i]);
      prompt_texts_.push_back(text != nullptr ? *text : decoded(i < prompt_ids_.size() ? prompt_ids_[i] : *ids));
      begins_unseen_.push_back(text != nullptr);
    }
  }

  ServerEvents push(const Output& output, int64_t, int64_t prompt) override {
    ServerEvents out;
    const int64_t index = prompt * n_ + output.index;
    if (failed_.has_value() || prompt < 0 || prompt >= static_cast<int64_t>(prompt_usage_.size()) || output.index < 0 ||
        output.index >= n_ || finished(index)) {
      return out;
    }
    if (const auto error = engine_failure(output)) return fail(*error);
    prompt_usage_[static_cast<size_t>(prompt)] = output.usage;
    Choice& choice = choices_[static_cast<size_t>(index)];
    if (!prompt_only_) completion_tokens_ += static_cast<int64_t>(output.tokens.size());
    std::string text;
    Json logprobs = logprobs_.has_value() ? empty_logprobs() : Json(nullptr);
    // The engine tells them once, before any other news of this prompt; every choice shows them.
    if (!output.prompt_logprobs.empty()) prompt_logprobs_[static_cast<size_t>(prompt)] = output.prompt_logprobs;
    if (echo_ && !choice.started) echo_prompt(static_cast<size_t>(prompt), choice, text, logprobs);
    choice.started = true;
    if (!prompt_only_) text += output.text;
    if (logprobs_.has_value() && !prompt_only_) add_logprobs(output.tokens, output.logprobs, choice, logprobs);
    choice.text += text;
    Json finish = nullptr;
    if (output.finish.has_value()) {
      finish = output.finish == FinishReason::kLength || prompt_only_ ? "length" : "stop";
      choice.finish = finish;
      --open_;
    }
    const bool last = open_ == 0;
    if (text.empty() && finish.is_null()) return out;
    Json chunk = head();
    chunk["choices"] = Json::array({Json{
        {"index", index}, {"text", std::move(text)}, {"logprobs", std::move(logprobs)}, {"finish_reason", std::move(finish)}}});
    if (last) {
      chunk["usage"] = usage();
    } else if (include_usage_) {
      chunk["usage"] = nullptr;
    }
    out.push_back({"", wire_json(chunk)});
    if (last) out.push_back({"", "[DONE]"});
    return out;
  }

  ServerEvents fail(const ApiError& error) override {
    if (done()) return {};
    failed_ = error;
    return {{"", error_body(Api::kCompletions, error)}};
  }

  bool done() const override { return failed_.has_value() || open_ == 0; }
  bool finished(int64_t index) const override {
    return failed_.has_value() || index < 0 || index >= static_cast<int64_t>(choices_.size()) ||
           !choices_[static_cast<size_t>(index)].finish.is_null();
  }
  const std::optional<ApiError>& failed() const override { return failed_; }

  std::string body() const override {
    Json body = head();
    Json choices = Json::array();
    for (size_t i = 0; i < choices_.size(); ++i) {
      choices.push_back(Json{{"index", i},
                             {"text", choices_[i].text},
                             {"logprobs", logprobs_.has_value() ? choices_[i].logprobs : Json(nullptr)},
                             {"finish_reason", choices_[i].finish}});
      if (!asked_prompt_logprobs_.has_value()) continue;
      choices.back()["prompt_logprobs"] =
          vllm_prompt_logprobs(prompt_logprobs_[i / static_cast<size_t>(n_)], *asked_prompt_logprobs_, tokenizer_.get());
    }
    body["choices"] = std::move(choices);
    body["usage"] = usage();
    return wire_json(body);
  }

 private:
  struct Choice {
    std::string text;
    Json logprobs = empty_logprobs();
    Json finish = nullptr;
    bool started = false;
    int64_t offset = 0;  ///< of the next token, in characters
  };

  static Json empty_logprobs() {
    return Json{{"tokens", Json::array()},
                {"token_logprobs", Json::array()},
                {"top_logprobs", Json::array()},
                {"text_offset", Json::array()}};
  }

  std::string decoded(const std::vector<int32_t>& ids) const {
    return tokenizer_ != nullptr ? tokenizer_->decode(ids) : std::string();
  }

  Json head() const {
    return Json{{"id", info_.id},
                {"object", "text_completion"},
                {"created", info_.created},
                {"model", model_},
                {"system_fingerprint", info_.system_fingerprint.has_value() ? Json(*info_.system_fingerprint) : Json(nullptr)}};
  }

  Json usage() const {
    ResponseUsage total{.completion_tokens = completion_tokens_};
    for (const Usage& prompt : prompt_usage_) {
      total.prompt_tokens += prompt.prompt_tokens;
      total.cached_tokens += prompt.cached_tokens;
      add_tiers(prompt.tiers, total.tiers);
    }
    return openai_usage(total, /*reasoning=*/false);
  }

  void echo_prompt(size_t prompt, Choice& choice, std::string& text, Json& logprobs) {
    text = prompt_texts_[prompt];
    if (!logprobs_.has_value() || prompt >= prompt_ids_.size()) return;
    const std::vector<int32_t>& ids = prompt_ids_[prompt];
    if (ids.empty()) return;
    const std::vector<PositionLogprobs>& known = prompt_logprobs_[prompt];
    // Nothing comes before the first token that could predict it.
    add_one(ids[0], nullptr, choice, logprobs);
    if (begins_unseen_[prompt]) choice.offset = 0;
    if (known.size() + 1 == ids.size()) add_logprobs({ids.begin() + 1, ids.end()}, known, choice, logprobs);
  }

  void add_logprobs(const std::vector<int32_t>& ids, const std::vector<PositionLogprobs>& positions, Choice& choice, Json& out) {
    for (size_t i = 0; i < ids.size() && i < positions.size(); ++i) add_one(ids[i], &positions[i], choice, out);
  }

  /// Its text, or its bytes as OpenAI spells those of tokens that are no whole characters: two such tokens are told apart.
  std::string token_name(int32_t id) const {
    const std::string_view bytes = tokenizer_ != nullptr ? tokenizer_->token_bytes(id) : std::string_view();
    if (utf8_valid_prefix(bytes) == bytes.size()) return std::string(bytes);
    std::string name = "bytes:";
    for (const char c : bytes) name += fmt::format("\\x{:02x}", static_cast<uint8_t>(c));
    return name;
  }

  void add_one(int32_t id, const PositionLogprobs* position, Choice& choice, Json& out) {
    const std::string text = token_name(id);
    Json top = nullptr;
    if (position != nullptr) {
      top = Json::object();
      // The best come first, and keep their place should a later one have the same name.
      const size_t count = std::min(position->top.size(), static_cast<size_t>(*logprobs_));
      for (const TokenLogprob& t : std::span(position->top).first(count))
        top.emplace(token_name(t.token), finite_logprob(t.logprob));
    }
    for (Json* target : {&out, &choice.logprobs}) {
      (*target)["tokens"].push_back(text);
      (*target)["token_logprobs"].push_back(position != nullptr ? Json(finite_logprob(position->chosen.logprob)) : Json(nullptr));
      (*target)["top_logprobs"].push_back(top);
      (*target)["text_offset"].push_back(choice.offset);
    }
    const std::string_view bytes = tokenizer_ != nullptr ? tokenizer_->token_bytes(id) : std::string_view();
    // Characters that have begun, so that those of several tokens count once.
    choice.offset += std::count_if(bytes.begin(), bytes.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; });
  }

  ResponseInfo info_;
  std::string model_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  int64_t n_;
  bool echo_;
  bool prompt_only_;  ///< what is generated is not shown
  std::optional<int64_t> logprobs_;
  std::optional<int64_t> asked_prompt_logprobs_;
  bool include_usage_;
  std::vector<std::vector<int32_t>> prompt_ids_;
  std::vector<std::string> prompt_texts_;
  std::vector<bool>
      begins_unseen_;  ///< by prompt: text, so that its first token is the begin of the sequence, which no text shows
  std::vector<std::vector<PositionLogprobs>> prompt_logprobs_;
  std::vector<Usage> prompt_usage_;
  std::vector<Choice> choices_;
  int64_t completion_tokens_ = 0;
  int64_t open_ = 0;
  std::optional<ApiError> failed_;
};

}  // namespace

std::unique_ptr<ResponseStream> make_completion_stream(const CompletionRequest& request, ResponseInfo info,
                                                       std::shared_ptr<const Tokenizer> tokenizer,
                                                       std::vector<std::vector<int32_t>> prompt_ids) {
  return std::make_unique<CompletionStream>(request, std::move(info), std::move(tokenizer), std::move(prompt_ids));
}

}  // namespace deepinfer
