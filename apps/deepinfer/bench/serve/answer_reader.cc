#include "serve/answer_reader.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "terminal.h"

namespace deepinfer::bench {
namespace {

using Json = nlohmann::json;

constexpr size_t kShownErrorBytes = 300;

int64_t integer(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number_integer() ? std::max<int64_t>(0, found->get<int64_t>()) : 0;
}

/// The string of `object` under `key`; null: there is none, or it is empty.
const std::string* text_of(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_string()) return nullptr;
  const auto& text = found->get_ref<const std::string&>();
  return text.empty() ? nullptr : &text;
}

std::string error_text(const Json& error) {
  const std::string* message = error.is_object() ? text_of(error, "message") : nullptr;
  const std::string text = message != nullptr ? *message : error.dump(-1, ' ', false, Json::error_handler_t::replace);
  return cli::one_line(std::string_view(text).substr(0, kShownErrorBytes));
}

/// Whether a choice carries some of the answer, the reasoning or a call; what was said is appended to `said`, unless it is null.
bool read_choice(const Json& choice, std::string* said) {
  bool carries = false;
  const auto take = [&](const std::string* text, bool spoken) {
    if (text == nullptr) return;
    carries = true;
    if (spoken && said != nullptr) *said += *text;
  };
  take(text_of(choice, "text"), true);
  const auto delta = choice.find("delta");
  if (delta == choice.end() || !delta->is_object()) return carries;
  take(text_of(*delta, "content"), true);
  take(text_of(*delta, "reasoning_content"), false);
  take(text_of(*delta, "reasoning"), false);
  const auto calls = delta->find("tool_calls");
  return carries || (calls != delta->end() && calls->is_array() && !calls->empty());
}

}  // namespace

bool AnswerReader::push(std::string_view piece, double time) {
  const bool small = events_.push(piece, [&](std::string_view data) { take_event(data, time); });
  if (!small) record_.error = "an event of more than 16 MiB";
  return record_.ok();
}

void AnswerReader::take_event(std::string_view data, double time) {
  if (!record_.ok()) return;
  if (data == "[DONE]") {
    ended_ = true;
    return;
  }
  const Json json = Json::parse(data, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    record_.error = "an event that is not JSON";
    return;
  }
  if (const auto error = json.find("error"); error != json.end() && !error->is_null()) record_.error = error_text(*error);
  bool carries = false;
  if (const auto choices = json.find("choices"); choices != json.end() && choices->is_array()) {
    for (const Json& choice : *choices) {
      if (choice.is_object() && read_choice(choice, keep_text_ ? &text_ : nullptr)) carries = true;
    }
  }
  if (text_.size() > kMaxTextBytes) record_.error = "an answer of more than 16 MiB, which the next turn would repeat";
  if (const auto usage = json.find("usage"); usage != json.end() && usage->is_object()) {
    record_.counted_by_server = true;
    record_.output_tokens = integer(*usage, "completion_tokens");
    if (const int64_t prompt = integer(*usage, "prompt_tokens"); prompt > 0) record_.input_tokens = prompt;
    if (const auto details = usage->find("prompt_tokens_details"); details != usage->end() && details->is_object())
      record_.cached_tokens = integer(*details, "cached_tokens");
  }
  if (!carries) return;
  if (chunks_++ == 0) {
    record_.first_token = time;
  } else {
    record_.gaps.push_back(static_cast<float>(time - record_.last_token));
  }
  record_.last_token = time;
}

void AnswerReader::finish(const HttpReply& reply) {
  if (!record_.counted_by_server) record_.output_tokens = chunks_;
  if (!record_.ok()) return;
  if (!reply.ok()) {
    record_.error = reply.failure();
  } else if (!ended_) {
    record_.error = "the stream ended without [DONE]";
  } else if (record_.output_tokens == 0) {
    record_.error = "an answer without a token";
  }
}

}  // namespace deepinfer::bench
