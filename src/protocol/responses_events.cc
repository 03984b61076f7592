// OpenAI Responses: events and the final object (spec/protocol §11).

#include <algorithm>

#include "protocol/custom_tool_input.h"
#include "protocol/event_writer.h"

namespace deepinfer {
namespace {

class ResponsesWriter final : public EventWriter {
 public:
  explicit ResponsesWriter(WriterContext context) : c_(std::move(context)) {}

  void start(const ResponseUsage&, ServerEvents& out) override {
    body_ = Json{{"id", c_.info.id},  {"object", "response"},          {"created_at", c_.info.created},
                 {"model", c_.model}, {"status", "in_progress"},       {"completed_at", nullptr},
                 {"error", nullptr},  {"incomplete_details", nullptr}, {"output", Json::array()},
                 {"usage", nullptr}};
    send("response.created", Json{{"response", body_}}, out);
    send("response.in_progress", Json{{"response", body_}}, out);
  }

  void event(int64_t, const OutputEvent& event, ServerEvents& out) override {
    switch (event.kind) {
      case OutputEvent::Kind::kText: {
        if (open_ != Kind::kMessage) open_message(out);
        text_ += event.text;
        Json logprobs = Json::array();
        if (c_.logprobs) {
          logprobs = openai_logprobs(event.logprobs, c_.tokenizer.get());
          for (const Json& entry : logprobs) logprobs_.push_back(entry);
        }
        send("response.output_text.delta",
             Json{{"content_index", 0},
                  {"delta", event.text},
                  {"item_id", item_["id"]},
                  {"logprobs", std::move(logprobs)},
                  {"output_index", index()}},
             out);
        break;
      }
      case OutputEvent::Kind::kReasoning:
        if (open_ != Kind::kReasoning) open_reasoning(out);
        text_ += event.text;
        send("response.reasoning_text.delta",
             Json{{"content_index", 0}, {"delta", event.text}, {"item_id", item_["id"]}, {"output_index", index()}}, out);
        break;
      case OutputEvent::Kind::kToolCall:
        open_call(event.text, out);
        break;
      case OutputEvent::Kind::kToolArguments:
        arguments(event.text, out);
        break;
      case OutputEvent::Kind::kFinish:
        break;
    }
  }

  void finish(int64_t, const OutputEvent& event, bool, const ResponseUsage& usage, int64_t now, ServerEvents& out) override {
    const bool complete = event.finish != AnswerFinish::kLength && event.finish != AnswerFinish::kContentFilter;
    const char* const status = complete ? "completed" : "incomplete";
    close(status, /*call_follows=*/false, out);
    body_["status"] = status;
    body_["completed_at"] = now;
    if (!complete) {
      body_["incomplete_details"] =
          Json{{"reason", event.finish == AnswerFinish::kLength ? "max_output_tokens" : "content_filter"}};
    }
    const bool reasoning = c_.thinking && c_.info.reasoning_usage;
    body_["usage"] = Json{{"input_tokens", usage.prompt_tokens},
                          {"input_tokens_details", Json{{"cached_tokens", usage.cached_tokens}}},
                          {"output_tokens", usage.completion_tokens},
                          {"output_tokens_details", Json{{"reasoning_tokens", reasoning ? usage.reasoning_tokens : 0}}},
                          {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
    add_cache_usage(usage, body_["usage"]);
    send(complete ? "response.completed" : "response.incomplete", Json{{"response", body_}}, out);
  }

  void fail(const ApiError& error, ServerEvents& out) override {
    send("error",
         Json{{"code", error.code},
              {"message", error.message},
              {"param", error.param.has_value() ? Json(*error.param) : Json(nullptr)}},
         out);
    body_["status"] = "failed";
    body_["error"] = Json{{"code", error.code}, {"message", error.message}};
    send("response.failed", Json{{"response", body_}}, out);
  }

  std::string body() const override { return wire_json(body_); }

 private:
  enum class Kind : uint8_t { kNone, kReasoning, kMessage, kFunction, kCustom };

  void send(const char* type, Json data, ServerEvents& out) {
    Json event{{"type", type}};
    for (auto& [key, value] : data.items()) event[key] = std::move(value);
    event["sequence_number"] = sequence_++;
    out.push_back({type, wire_json(event)});
  }

  size_t index() const { return body_["output"].size(); }

  std::string item_id(const char* kind) const { return fmt::format("{}_{}_{}", kind, c_.info.id, index()); }

  void added(Kind kind, Json item, ServerEvents& out) {
    open_ = kind;
    item_ = std::move(item);
    text_.clear();
    logprobs_ = Json::array();
    send("response.output_item.added", Json{{"item", item_}, {"output_index", index()}}, out);
  }

  Json text_part() const {
    return Json{{"type", "output_text"}, {"annotations", Json::array()}, {"logprobs", logprobs_}, {"text", text_}};
  }
  Json reasoning_part() const { return Json{{"type", "reasoning_text"}, {"text", text_}}; }

  void part(const char* type, Json part, ServerEvents& out) {
    send(type, Json{{"content_index", 0}, {"item_id", item_["id"]}, {"output_index", index()}, {"part", std::move(part)}}, out);
  }

  void open_reasoning(ServerEvents& out) {
    close("completed", false, out);
    added(Kind::kReasoning,
          Json{{"type", "reasoning"},
               {"id", item_id("rs")},
               {"status", "in_progress"},
               {"content", Json::array()},
               {"summary", Json::array()}},
          out);
    part("response.content_part.added", reasoning_part(), out);
  }

  void open_message(ServerEvents& out) {
    close("completed", false, out);
    added(Kind::kMessage,
          Json{{"type", "message"},
               {"id", item_id("msg")},
               {"status", "in_progress"},
               {"role", "assistant"},
               {"phase", "final_answer"},
               {"content", Json::array()}},
          out);
    part("response.content_part.added", text_part(), out);
  }

  void open_call(const std::string& name, ServerEvents& out) {
    close("completed", true, out);
    const std::string call_id = fmt::format("call_{}_{}", c_.info.id, calls_++);
    const auto& custom = c_.custom_tool_names;
    if (std::find(custom.begin(), custom.end(), name) != custom.end()) {
      input_ = {};
      added(Kind::kCustom,
            Json{{"type", "custom_tool_call"},
                 {"id", item_id("ctc")},
                 {"status", "in_progress"},
                 {"call_id", call_id},
                 {"name", name},
                 {"input", ""}},
            out);
      return;
    }
    Json item{{"type", "function_call"}, {"id", item_id("fc")}, {"status", "in_progress"}, {"call_id", call_id}};
    const size_t split = name.find("::");
    if (split == std::string::npos) {
      item["name"] = name;
    } else {
      item["name"] = name.substr(split + 2);
      item["namespace"] = name.substr(0, split);
    }
    item["arguments"] = "";
    added(Kind::kFunction, std::move(item), out);
  }

  void arguments(const std::string& fragment, ServerEvents& out) {
    if (open_ != Kind::kFunction && open_ != Kind::kCustom) return;
    const std::string delta = open_ == Kind::kCustom ? input_.push(fragment) : fragment;
    arguments_delta(delta, out);
  }

  void arguments_delta(const std::string& delta, ServerEvents& out) {
    if (delta.empty()) return;
    text_ += delta;
    send(open_ == Kind::kCustom ? "response.custom_tool_call_input.delta" : "response.function_call_arguments.delta",
         Json{{"delta", delta}, {"item_id", item_["id"]}, {"output_index", index()}}, out);
  }

  void close(const char* status, bool call_follows, ServerEvents& out) {
    if (open_ == Kind::kNone) return;
    switch (open_) {
      case Kind::kReasoning:
        close_text("response.reasoning_text.done", reasoning_part(), out);
        break;
      case Kind::kMessage:
        if (call_follows) item_["phase"] = "commentary";
        close_text("response.output_text.done", text_part(), out);
        break;
      case Kind::kFunction:
        send("response.function_call_arguments.done",
             Json{{"arguments", text_}, {"item_id", item_["id"]}, {"output_index", index()}}, out);
        item_["arguments"] = text_;
        break;
      case Kind::kCustom:
        arguments_delta(input_.finish(), out);
        send("response.custom_tool_call_input.done", Json{{"input", text_}, {"item_id", item_["id"]}, {"output_index", index()}},
             out);
        item_["input"] = text_;
        break;
      case Kind::kNone:
        break;
    }
    item_["status"] = status;
    send("response.output_item.done", Json{{"item", item_}, {"output_index", index()}}, out);
    body_["output"].push_back(std::move(item_));
    item_ = nullptr;
    open_ = Kind::kNone;
  }

  void close_text(const char* done, Json finished, ServerEvents& out) {
    Json data{{"content_index", 0}, {"item_id", item_["id"]}};
    if (open_ == Kind::kMessage) data["logprobs"] = logprobs_;
    data["output_index"] = index();
    data["text"] = text_;
    send(done, std::move(data), out);
    part("response.content_part.done", finished, out);
    item_["content"] = Json::array({std::move(finished)});
  }

  WriterContext c_;
  Json body_ = nullptr;
  Json item_ = nullptr;  ///< the open one
  Kind open_ = Kind::kNone;
  std::string text_;  ///< of the open item: text, arguments or input
  Json logprobs_ = Json::array();
  CustomToolInput input_;
  int64_t calls_ = 0;
  int64_t sequence_ = 0;
};

}  // namespace

std::unique_ptr<EventWriter> make_responses_writer(WriterContext context) {
  return std::make_unique<ResponsesWriter>(std::move(context));
}

}  // namespace deepinfer
