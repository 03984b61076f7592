#include "protocol/json_input.h"

#include <cmath>
#include <limits>
#include <unordered_map>

namespace deepinfer {
namespace {

/// Builds a value under limits. Keys of large objects are found by hash, which ordered_json itself does not do.
class LimitedBuilder : public nlohmann::json_sax<Json> {
 public:
  explicit LimitedBuilder(const JsonLimits& limits) : limits_(limits) {}

  Json take() { return std::move(root_); }
  const std::string& error() const { return error_; }

  bool null() override { return add(nullptr) != nullptr; }
  bool boolean(bool value) override { return add(value) != nullptr; }
  bool number_integer(number_integer_t value) override { return add(value) != nullptr; }
  bool number_unsigned(number_unsigned_t value) override { return add(value) != nullptr; }
  bool number_float(number_float_t value, const string_t&) override { return add(value) != nullptr; }
  bool string(string_t& value) override { return add(std::move(value)) != nullptr; }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(Json::object()); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& key) override {
    Level& level = levels_.back();
    // By position: operator[] of the map is by key.
    auto& members = level.value->get_ref<Json::object_t&>();
    size_t at = members.size();
    if (members.size() < kHashedFrom) {
      for (size_t i = 0; i < members.size(); ++i) {
        if (members.begin()[i].first == key) at = i;
      }
    } else {
      if (level.index.empty()) {
        for (size_t i = 0; i < members.size(); ++i) level.index.emplace(members.begin()[i].first, i);
      }
      at = level.index.emplace(key, members.size()).first->second;
    }
    if (at == members.size()) {
      members.emplace_back(std::move(key), Json());
    } else {
      members.begin()[at].second = Json();
    }
    level.member = at;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& problem) override {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error ...": keep what people can use.
    std::string_view what = problem.what();
    if (const size_t colon = what.find(": "); colon != std::string_view::npos) what.remove_prefix(colon + 2);
    std::string shown;
    for (const char c : what.substr(0, 160)) shown += c >= 0x20 && c < 0x7F ? c : '?';
    error_ = fmt::format("the body is not valid JSON: byte {}: {}", position, shown);
    return false;
  }

 private:
  static constexpr size_t kHashedFrom = 16;
  struct Level {
    Json* value;
    size_t member = 0;
    std::unordered_map<std::string, size_t> index;
  };

  Json* add(Json value) {
    if (++count_ > limits_.max_values) {
      error_ = fmt::format("the body has more than {} JSON values", limits_.max_values);
      return nullptr;
    }
    if (levels_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Level& level = levels_.back();
    if (level.value->is_array()) {
      auto& elements = level.value->get_ref<Json::array_t&>();
      elements.push_back(std::move(value));
      return &elements.back();
    }
    Json& member = level.value->get_ref<Json::object_t&>().begin()[level.member].second;
    member = std::move(value);
    return &member;
  }

  bool open(Json value) {
    if (static_cast<int64_t>(levels_.size()) >= limits_.max_depth) {
      error_ = fmt::format("the body is nested more than {} levels deep", limits_.max_depth);
      return false;
    }
    // Growing a container moves only its finished elements: the open one is always the last.
    Json* const added = add(std::move(value));
    if (added == nullptr) return false;
    levels_.push_back({added, 0, {}});
    return true;
  }

  bool close() {
    levels_.pop_back();
    return true;
  }

  const JsonLimits& limits_;
  Json root_;
  std::vector<Level> levels_;
  int64_t count_ = 0;
  std::string error_;
};

void append_double(double value, std::string& out) {
  if (!std::isfinite(value)) {
    out += "null";
    return;
  }
  const double magnitude = std::abs(value);
  if (value == 0 || (magnitude >= 1e-4 && magnitude < 1e16)) {
    // Shortest digits that read back as the same number, written without an exponent.
    std::string digits = fmt::format("{}", value);
    if (digits.find('e') != std::string::npos) {
      for (int precision = 0; precision <= 20; ++precision) {
        digits = fmt::format("{:.{}f}", value, precision);
        if (std::strtod(digits.c_str(), nullptr) == value) break;
      }
    }
    out += digits;
    if (digits.find('.') == std::string::npos) out += ".0";
    return;
  }
  // fmt writes "1e-05" and "1e+16"; the plus sign goes.
  std::string digits = fmt::format("{}", value);
  if (digits.find('e') == std::string::npos) digits = fmt::format("{:e}", value);
  const size_t plus = digits.find("e+");
  if (plus != std::string::npos) digits.erase(plus + 1, 1);
  out += digits;
}

}  // namespace

ApiResult<Json> parse_json(std::string_view text, const JsonLimits& limits) {
  if (static_cast<int64_t>(text.size()) > limits.max_bytes) {
    ApiError error = ApiError::Http(413, fmt::format("the body has {} bytes, the limit is {}", text.size(), limits.max_bytes));
    return Fail(std::move(error));
  }
  // The lexer takes a zero byte for the end of its input.
  if (text.find('\0') != std::string_view::npos) return Fail(ApiError::Invalid("the body is not valid JSON: it has a zero byte"));
  LimitedBuilder builder(limits);
  if (!Json::sax_parse(text.begin(), text.end(), &builder)) {
    return Fail(ApiError::Invalid("{}", builder.error().empty() ? "the body is not valid JSON" : builder.error()));
  }
  return builder.take();
}

std::string_view json_type(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::object:
      return "an object";
    case Json::value_t::array:
      return "an array";
    case Json::value_t::string:
      return "a string";
    case Json::value_t::boolean:
      return "a boolean";
    default:
      return "a number";
  }
}

std::string json_excerpt(const Json& value) {
  if (value.is_structured()) return std::string(json_type(value));
  std::string text = wire_json(value);
  if (text.size() > 64) {
    size_t cut = 60;
    while (cut > 0 && (static_cast<uint8_t>(text[cut]) & 0xC0) == 0x80) --cut;
    text = text.substr(0, cut) + "...";
  }
  return text;
}

ApiError wrong_type(std::string_view path, std::string_view expected, const Json& got) {
  if (got.is_structured() || got.is_null()) return ApiError::Field(path, "expected {}, got {}", expected, json_type(got));
  return ApiError::Field(path, "expected {}, got {} {}", expected, json_type(got), json_excerpt(got));
}

ApiResult<ObjectInput> ObjectInput::Of(const Json& value, std::string path) {
  if (!value.is_object()) return Fail(wrong_type(path.empty() ? "the request" : path, "an object", value));
  return ObjectInput(value, std::move(path));
}

std::string ObjectInput::at(std::string_view key) const {
  return path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
}

const Json* ObjectInput::find(std::string_view key) const {
  for (const auto& [name, value] : value_->get_ref<const Json::object_t&>()) {
    if (name == key) return value.is_null() ? nullptr : &value;
  }
  return nullptr;
}

ApiResult<std::optional<std::string>> ObjectInput::string(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::optional<std::string>();
  if (!value->is_string()) return Fail(wrong_type(at(key), "a string", *value));
  return value->get<std::string>();
}

ApiResult<std::string> ObjectInput::required_string(std::string_view key) const {
  DI_API_ASSIGN(std::optional<std::string> value, string(key));
  if (!value.has_value()) return Fail(ApiError::Field(at(key), "a string is required"));
  return *std::move(value);
}

ApiResult<std::optional<bool>> ObjectInput::boolean(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::optional<bool>();
  if (!value->is_boolean()) return Fail(wrong_type(at(key), "true or false", *value));
  return value->get<bool>();
}

ApiResult<std::optional<int64_t>> ObjectInput::integer(std::string_view key, int64_t low, int64_t high) const {
  const Json* value = find(key);
  if (value == nullptr) return std::optional<int64_t>();
  if (!value->is_number()) return Fail(wrong_type(at(key), "a whole number", *value));
  const bool fits = value->is_number_integer() &&
                    (!value->is_number_unsigned() || value->get<uint64_t>() <= uint64_t{std::numeric_limits<int64_t>::max()});
  const int64_t number = fits ? value->get<int64_t>() : 0;
  if (!fits || number < low || number > high) {
    return Fail(ApiError::Field(at(key), "expected a whole number from {} to {}, got {}", low, high, json_excerpt(*value)));
  }
  return number;
}

ApiResult<std::optional<double>> ObjectInput::number(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::optional<double>();
  if (!value->is_number()) return Fail(wrong_type(at(key), "a number", *value));
  return value->get<double>();
}

ApiResult<std::optional<double>> ObjectInput::number(std::string_view key, double low, double high) const {
  DI_API_ASSIGN(const std::optional<double> value, number(key));
  if (value.has_value() && !(*value >= low && *value <= high)) {
    return Fail(ApiError::Field(at(key), "expected a number from {} to {}, got {}", low, high, json_excerpt(*find(key))));
  }
  return value;
}

ApiResult<const Json*> ObjectInput::array(std::string_view key, int64_t limit) const {
  const Json* value = find(key);
  if (value == nullptr) return value;
  if (!value->is_array()) return Fail(wrong_type(at(key), "an array", *value));
  if (static_cast<int64_t>(value->size()) > limit)
    return Fail(ApiError::Field(at(key), "at most {} elements are allowed, got {}", limit, value->size()));
  return value;
}

ApiResult<std::optional<ObjectInput>> ObjectInput::object(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::optional<ObjectInput>();
  DI_API_ASSIGN(ObjectInput object, Of(*value, at(key)));
  return std::optional<ObjectInput>(std::move(object));
}

void append_json_escaped(std::string_view text, std::string& out) {
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\f':
        out += "\\f";
        break;
      case '\r':
        out += "\\r";
        break;
      default:
        if (static_cast<uint8_t>(c) < 0x20) {
          out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
        } else {
          out += c;
        }
    }
  }
}

void append_prompt_json(const Json& value, std::string& out) {
  switch (value.type()) {
    case Json::value_t::object: {
      out += '{';
      bool first = true;
      for (const auto& [key, member] : value.get_ref<const Json::object_t&>()) {
        if (!first) out += ", ";
        first = false;
        out += '"';
        append_json_escaped(key, out);
        out += "\": ";
        append_prompt_json(member, out);
      }
      out += '}';
      break;
    }
    case Json::value_t::array: {
      out += '[';
      bool first = true;
      for (const Json& element : value) {
        if (!first) out += ", ";
        first = false;
        append_prompt_json(element, out);
      }
      out += ']';
      break;
    }
    case Json::value_t::string:
      out += '"';
      append_json_escaped(value.get_ref<const std::string&>(), out);
      out += '"';
      break;
    case Json::value_t::boolean:
      out += value.get<bool>() ? "true" : "false";
      break;
    case Json::value_t::number_integer:
      out += fmt::format("{}", value.get<int64_t>());
      break;
    case Json::value_t::number_unsigned:
      out += fmt::format("{}", value.get<uint64_t>());
      break;
    case Json::value_t::number_float:
      append_double(value.get<double>(), out);
      break;
    default:
      out += "null";
  }
}

std::string prompt_json(const Json& value) {
  std::string out;
  append_prompt_json(value, out);
  return out;
}

std::string wire_json(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

}  // namespace deepinfer
