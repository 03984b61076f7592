#include "serve/request_body.h"

#include <array>

namespace deepinfer::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<const char*, 64> kWords = {
    "time", "year",  "way",   "day",   "man",   "thing", "world", "life", "hand",  "part",  "child", "eye",   "place",
    "work", "week",  "case",  "point", "home",  "water", "room",  "area", "money", "story", "fact",  "month", "lot",
    "book", "night", "word",  "side",  "kind",  "head",  "house", "end",  "line",  "game",  "law",   "car",   "city",
    "name", "team",  "idea",  "body",  "back",  "face",  "door",  "road", "field", "state", "tree",  "river", "stone",
    "king", "light", "sound", "voice", "paper", "horse", "bird",  "fish", "snow",  "rain",  "wind",  "fire"};

Json messages(std::span<const PlannedRequest> turns, std::span<const std::string> answers) {
  Json out = Json::array();
  for (size_t i = 0; i < turns.size(); ++i) {
    out.push_back(Json{{"role", "user"}, {"content", words_of(turns[i].prompt)}});
    if (i + 1 < turns.size()) out.push_back(Json{{"role", "assistant"}, {"content", answers[i]}});
  }
  return out;
}

/// Everything that was said, as one text.
std::string transcript(std::span<const PlannedRequest> turns, std::span<const std::string> answers) {
  std::string out;
  for (size_t i = 0; i < turns.size(); ++i) {
    out += words_of(turns[i].prompt);
    if (i + 1 < turns.size()) out += answers[i];
  }
  return out;
}

}  // namespace

std::string words_of(std::span<const int32_t> ids) {
  std::string out;
  out.reserve(ids.size() * 6);
  for (const int32_t id : ids) {
    out += ' ';
    out += kWords[static_cast<uint32_t>(id) % kWords.size()];
  }
  return out;
}

std::string request_body(const RequestFormat& format, std::span<const PlannedRequest> turns,
                         std::span<const std::string> answers) {
  const PlannedRequest& request = turns.back();
  Json json;
  json["model"] = format.model;
  if (format.chat) {
    json["messages"] = messages(turns, answers);
  } else {
    json["prompt"] = format.words ? Json(transcript(turns, answers)) : Json(request.prompt);
  }
  json[format.max_completion_tokens ? "max_completion_tokens" : "max_tokens"] = request.output_len;
  json["temperature"] = format.temperature;
  json["seed"] = request.seed & 0x7FFF'FFFF;
  if (format.ignore_eos) json["ignore_eos"] = true;
  json["stream"] = true;
  if (format.include_usage) json["stream_options"] = Json{{"include_usage", true}};
  for (const auto& [name, value] : format.extra.items()) json[name] = value;
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace deepinfer::bench
