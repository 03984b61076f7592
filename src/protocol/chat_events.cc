// Chat Completions: chunks and the final object (spec/protocol §9).

#include "protocol/event_writer.h"

namespace deepinfer {
namespace {

class ChatWriter final : public EventWriter {
 public:
  explicit ChatWriter(WriterContext context) : c_(std::move(context)), choices_(static_cast<size_t>(c_.choices)) {}

  void start(const ResponseUsage&, ServerEvents& out) override {
    for (int64_t i = 0; i < c_.choices; ++i) {
      Json delta{{"role", "assistant"}, {"content", c_.thinking ? Json(nullptr) : Json("")}};
      if (c_.thinking) delta["reasoning_content"] = "";
      chunk(i, std::move(delta), nullptr, nullptr, nullptr, out);
    }
  }

  void prompt_logprobs(std::span<const PositionLogprobs> positions) override {
    if (c_.prompt_logprobs.has_value())
      prompt_logprobs_ = vllm_prompt_logprobs(positions, *c_.prompt_logprobs, c_.tokenizer.get());
  }

  void event(int64_t index, const OutputEvent& event, ServerEvents& out) override {
    Choice& choice = choices_[static_cast<size_t>(index)];
    switch (event.kind) {
      case OutputEvent::Kind::kText: {
        choice.content += event.text;
        Json delta{{"content", event.text}};
        if (c_.thinking) delta["reasoning_content"] = nullptr;
        chunk(index, std::move(delta), logprobs("content", event, choice.content_logprobs), nullptr, nullptr, out);
        break;
      }
      case OutputEvent::Kind::kReasoning: {
        choice.reasoning += event.text;
        chunk(index, Json{{"content", nullptr}, {"reasoning_content", event.text}},
              logprobs("reasoning_content", event, choice.reasoning_logprobs), nullptr, nullptr, out);
        break;
      }
      case OutputEvent::Kind::kToolCall: {
        const size_t n = choice.calls.size();
        choice.calls.push_back({call_id(index, n), event.text, ""});
        call_delta(index,
                   Json{{"index", n},
                        {"id", choice.calls.back().id},
                        {"type", "function"},
                        {"function", Json{{"name", event.text}, {"arguments", ""}}}},
                   out);
        break;
      }
      case OutputEvent::Kind::kToolArguments: {
        if (choice.calls.empty()) break;
        choice.calls.back().arguments += event.text;
        if (event.text.empty()) break;
        call_delta(index, Json{{"index", choice.calls.size() - 1}, {"function", Json{{"arguments", event.text}}}}, out);
        break;
      }
      case OutputEvent::Kind::kFinish:
        break;
    }
  }

  void finish(int64_t index, const OutputEvent& event, bool last, const ResponseUsage& usage, int64_t,
              ServerEvents& out) override {
    Choice& choice = choices_[static_cast<size_t>(index)];
    choice.finish_reason = openai_finish_reason(event.finish);
    Json delta{{"content", ""}};
    if (c_.thinking) delta["reasoning_content"] = nullptr;
    if (last) usage_ = openai_usage(usage, c_.thinking && c_.info.reasoning_usage);
    chunk(index, std::move(delta), nullptr, choice.finish_reason, last ? usage_ : Json(nullptr), out);
    if (last) out.push_back({"", "[DONE]"});
  }

  void fail(const ApiError& error, ServerEvents& out) override { out.push_back({"", error_body(Api::kChat, error)}); }

  std::string body() const override {
    Json choices = Json::array();
    for (size_t i = 0; i < choices_.size(); ++i) {
      const Choice& choice = choices_[i];
      Json message{{"role", "assistant"}, {"content", choice.content}};
      if (c_.thinking) message["reasoning_content"] = choice.reasoning;
      if (!choice.calls.empty()) {
        Json calls = Json::array();
        for (const Call& call : choice.calls) {
          calls.push_back(Json{
              {"id", call.id}, {"type", "function"}, {"function", Json{{"name", call.name}, {"arguments", call.arguments}}}});
        }
        message["tool_calls"] = std::move(calls);
      }
      Json logprobs = nullptr;
      if (c_.logprobs) {
        logprobs = Json{{"content", choice.content_logprobs}};
        if (c_.thinking) logprobs["reasoning_content"] = choice.reasoning_logprobs;
      }
      choices.push_back(Json{{"index", i},
                             {"message", std::move(message)},
                             {"logprobs", std::move(logprobs)},
                             {"finish_reason", choice.finish_reason}});
    }
    Json body = head("chat.completion");
    body["choices"] = std::move(choices);
    body["usage"] = usage_;
    if (c_.prompt_logprobs.has_value()) body["prompt_logprobs"] = prompt_logprobs_;
    return wire_json(body);
  }

 private:
  struct Call {
    std::string id, name, arguments;
  };
  struct Choice {
    std::string content, reasoning;
    std::vector<Call> calls;
    Json content_logprobs = Json::array();
    Json reasoning_logprobs = Json::array();
    Json finish_reason = nullptr;
  };

  Json head(const char* object) const {
    return Json{
        {"id", c_.info.id},
        {"object", object},
        {"created", c_.info.created},
        {"model", c_.model},
        {"system_fingerprint", c_.info.system_fingerprint.has_value() ? Json(*c_.info.system_fingerprint) : Json(nullptr)}};
  }

  /// Unique over the choices; with one choice as the reference numbers them.
  std::string call_id(int64_t index, size_t n) const {
    return index == 0 ? fmt::format("call_{}_{}", c_.info.id, n) : fmt::format("call_{}_{}_{}", c_.info.id, index, n);
  }

  Json logprobs(const char* field, const OutputEvent& event, Json& all) {
    if (!c_.logprobs) return nullptr;
    Json entries = openai_logprobs(event.logprobs, c_.tokenizer.get());
    for (const Json& entry : entries) all.push_back(entry);
    return Json{{field, std::move(entries)}};
  }

  void call_delta(int64_t index, Json call, ServerEvents& out) {
    chunk(index, Json{{"tool_calls", Json::array({std::move(call)})}}, nullptr, nullptr, nullptr, out);
  }

  void chunk(int64_t index, Json delta, Json logprobs, Json finish_reason, Json usage, ServerEvents& out) {
    Json chunk = head("chat.completion.chunk");
    chunk["choices"] = Json::array({Json{{"index", index},
                                         {"delta", std::move(delta)},
                                         {"logprobs", std::move(logprobs)},
                                         {"finish_reason", std::move(finish_reason)}}});
    if (c_.include_usage || !usage.is_null()) chunk["usage"] = std::move(usage);
    out.push_back({"", wire_json(chunk)});
  }

  WriterContext c_;
  std::vector<Choice> choices_;
  Json usage_ = nullptr;
  Json prompt_logprobs_ = Json::array({nullptr});
};

}  // namespace

std::unique_ptr<EventWriter> make_chat_writer(WriterContext context) { return std::make_unique<ChatWriter>(std::move(context)); }

}  // namespace deepinfer
