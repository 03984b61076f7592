// Anthropic Messages: events and the final object (spec/protocol §10).

#include <algorithm>

#include "protocol/event_writer.h"

namespace deepinfer {
namespace {

std::string_view stop_reason(AnswerFinish finish) {
  switch (finish) {
    case AnswerFinish::kStopSequence:
      return "stop_sequence";
    case AnswerFinish::kToolCalls:
      return "tool_use";
    case AnswerFinish::kLength:
      return "max_tokens";
    case AnswerFinish::kContentFilter:
      return "refusal";
    case AnswerFinish::kStop:
    case AnswerFinish::kEndOfStream:
      return "end_turn";
  }
  return "end_turn";
}

class MessagesWriter final : public EventWriter {
 public:
  explicit MessagesWriter(WriterContext context) : c_(std::move(context)) {}

  void start(const ResponseUsage& usage, ServerEvents& out) override {
    send(Json{{"type", "message_start"},
              {"message",
               message(Json::array(), nullptr, nullptr,
                       usage_json(
                           {.prompt_tokens = usage.prompt_tokens, .cached_tokens = usage.cached_tokens, .tiers = usage.tiers}))}},
         out);
    if (c_.thinking) open(Kind::kThinking, Json{{"type", "thinking"}, {"thinking", ""}, {"signature", ""}}, out);
  }

  void event(int64_t, const OutputEvent& event, ServerEvents& out) override {
    switch (event.kind) {
      case OutputEvent::Kind::kText:
        need(Kind::kText, Json{{"type", "text"}, {"text", ""}}, out);
        grow("text", event.text);
        delta(Json{{"type", "text_delta"}, {"text", event.text}}, out);
        break;
      case OutputEvent::Kind::kReasoning:
        need(Kind::kThinking, Json{{"type", "thinking"}, {"thinking", ""}, {"signature", ""}}, out);
        grow("thinking", event.text);
        delta(Json{{"type", "thinking_delta"}, {"thinking", event.text}}, out);
        break;
      case OutputEvent::Kind::kToolCall:
        close(out);
        open(Kind::kToolUse,
             Json{{"type", "tool_use"},
                  {"id", fmt::format("toolu_{}_{}", c_.info.id, calls_++)},
                  {"name", event.text},
                  {"input", Json::object()}},
             out);
        break;
      case OutputEvent::Kind::kToolArguments:
        if (open_ != Kind::kToolUse || event.text.empty()) break;
        input_ += event.text;
        delta(Json{{"type", "input_json_delta"}, {"partial_json", event.text}}, out);
        break;
      case OutputEvent::Kind::kFinish:
        break;
    }
  }

  void finish(int64_t, const OutputEvent& event, bool, const ResponseUsage& usage, int64_t, ServerEvents& out) override {
    close(out);
    const Json sequence = event.stop_sequence.has_value() ? Json(*event.stop_sequence) : Json(nullptr);
    body_ = message(content_, stop_reason(event.finish), sequence, usage_json(usage));
    send(Json{{"type", "message_delta"},
              {"delta", Json{{"stop_reason", stop_reason(event.finish)}, {"stop_sequence", sequence}}},
              {"usage", usage_json(usage)}},
         out);
    send(Json{{"type", "message_stop"}}, out);
  }

  void fail(const ApiError& error, ServerEvents& out) override { out.push_back({"error", error_body(Api::kMessages, error)}); }

  std::string body() const override { return wire_json(body_); }

 private:
  enum class Kind : uint8_t { kNone, kThinking, kText, kToolUse };

  Json message(Json content, Json reason, Json sequence, Json usage) const {
    return Json{{"id", c_.info.id},
                {"type", "message"},
                {"role", "assistant"},
                {"model", c_.model},
                {"content", std::move(content)},
                {"stop_reason", std::move(reason)},
                {"stop_sequence", std::move(sequence)},
                {"usage", std::move(usage)}};
  }

  static Json usage_json(const ResponseUsage& usage) {
    Json out{{"input_tokens", std::max<int64_t>(0, usage.prompt_tokens - usage.cached_tokens)},
             {"cache_creation_input_tokens", 0},
             {"cache_read_input_tokens", usage.cached_tokens},
             {"output_tokens", usage.completion_tokens},
             {"service_tier", "standard"}};
    add_cache_usage(usage, out);
    return out;
  }

  static void send(const Json& data, ServerEvents& out) { out.push_back({data["type"].get<std::string>(), wire_json(data)}); }

  size_t index() const { return content_.size() - 1; }

  void grow(const char* field, const std::string& text) { content_.back()[field].get_ref<std::string&>() += text; }

  void delta(Json value, ServerEvents& out) const {
    send(Json{{"type", "content_block_delta"}, {"index", index()}, {"delta", std::move(value)}}, out);
  }

  void need(Kind kind, Json block, ServerEvents& out) {
    if (open_ == kind) return;
    close(out);
    open(kind, std::move(block), out);
  }

  void open(Kind kind, Json block, ServerEvents& out) {
    open_ = kind;
    content_.push_back(block);
    send(Json{{"type", "content_block_start"}, {"index", index()}, {"content_block", std::move(block)}}, out);
    if (index() == 0) send(Json{{"type", "ping"}}, out);
  }

  void close(ServerEvents& out) {
    if (open_ == Kind::kNone) return;
    if (open_ == Kind::kThinking) {
      content_.back()["signature"] = c_.info.id;
      delta(Json{{"type", "signature_delta"}, {"signature", c_.info.id}}, out);
    } else if (open_ == Kind::kToolUse) {
      // Truncated arguments are no JSON: the block then has an empty input, and the stop reason says why.
      auto input = parse_json(input_);
      if (input && input->is_object()) content_.back()["input"] = *std::move(input);
      input_.clear();
    }
    send(Json{{"type", "content_block_stop"}, {"index", index()}}, out);
    open_ = Kind::kNone;
  }

  WriterContext c_;
  Json content_ = Json::array();
  Json body_ = nullptr;
  Kind open_ = Kind::kNone;
  std::string input_;
  int64_t calls_ = 0;
};

}  // namespace

std::unique_ptr<EventWriter> make_messages_writer(WriterContext context) {
  return std::make_unique<MessagesWriter>(std::move(context));
}

}  // namespace deepinfer
