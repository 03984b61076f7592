#include "flag_sources.h"

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "base/mapped_file.h"

namespace deepinfer::cli {
namespace {

constexpr int64_t kMaxFileBytes = 1 << 20;
constexpr const char* kHook = "--complete-flags";
const std::set<std::string> kNotSettable = {"--config", "--help", "--print-config", kHook};

std::string long_name(const CLI::Option& option) { return option.get_lnames().empty() ? "" : "--" + option.get_lnames().front(); }

std::string variable(const CLI::Option& option) {
  std::string name = "DEEPINFER_" + option.get_lnames().front();
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return c == '-' ? '_' : static_cast<char>(std::toupper(c)); });
  return name;
}

bool settable(const CLI::Option& option) { return !option.get_lnames().empty() && !kNotSettable.contains(long_name(option)); }

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw CLI::ValidationError("--config", path + ": " + what);
}

/// The scalar as it would stand on a command line.
std::string scalar(const std::string& path, const std::string& key, const nlohmann::json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean() || value.is_number()) return value.dump();
  fail(path, key + ": must be a string, a number, true, false, or a list of these");
}

}  // namespace

void FlagSources::add_to(CLI::App& command) {
  // Runs before the callbacks of all flags that are declared after it; the library has no hook at that point.
  CLI::Option* hook =
      command.add_option_function<std::string>(kHook, [this, &command](const std::string&) { complete(command); });
  hook->group("");
  command.preparse_callback([hook](size_t) { hook->add_result("now"); });
  config_ = command.add_option("--config", "File of settings, TOML, INI or JSON: keys are the names of flags")
                ->type_name("FILE")
                ->group("Configuration");
}

void FlagSources::complete(CLI::App& command) {
  const auto options = command.get_options();
  for (CLI::Option* option : options) {
    if (!settable(*option)) continue;
    if (option->count() > 0) {
      sources_[option] = "flag";
      continue;
    }
    const char* const value = std::getenv(variable(*option).c_str());
    if (value == nullptr) continue;
    option->add_result(std::string(value));
    sources_[option] = "environment";
  }
  if (config_->count() > 0) read_file(command, config_->results().front());
}

void FlagSources::read_file(CLI::App& command, const std::string& path) {
  const auto text = read_text_file(path, kMaxFileBytes);
  if (!text) throw CLI::ValidationError("--config", text.error().message());
  const size_t first = text->find_first_not_of(" \t\r\n");
  if (first != std::string::npos && (*text)[first] == '{') {
    const auto json = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false, /*ignore_comments=*/true);
    if (!json.is_object()) fail(path, "not valid JSON");
    for (const auto& [key, value] : json.items()) {
      std::vector<std::string> values;
      if (value.is_array()) {
        for (const auto& item : value) values.push_back(scalar(path, key, item));
      } else {
        values.push_back(scalar(path, key, value));
      }
      set(command, path, key, values);
    }
    return;
  }
  std::istringstream stream(*text);
  for (const CLI::ConfigItem& item : CLI::ConfigTOML().from_config(stream)) {
    if (item.name == "++" || item.name == "--") continue;  // the borders of a section
    if (!item.parents.empty()) fail(path, "sections are not used, there is " + item.fullname());
    set(command, path, item.name, item.inputs);
  }
}

void FlagSources::set(CLI::App& command, const std::string& path, std::string key, const std::vector<std::string>& values) {
  std::replace(key.begin(), key.end(), '_', '-');
  CLI::Option* option = command.get_option_no_throw("--" + key);
  if (option == nullptr || !settable(*option)) fail(path, key + ": there is no such setting");
  if (option->count() > 0) return;
  if (values.empty()) fail(path, key + ": has no value");
  for (const std::string& value : values) option->add_result(value);
  sources_[option] = "file";
}

std::string FlagSources::describe(const CLI::App& command) const {
  std::ostringstream out;
  for (const CLI::Option* option : command.get_options()) {
    if (!settable(*option)) continue;
    const auto source = sources_.find(option);
    std::string value;
    if (source == sources_.end()) {
      // What the help says; flags without it have no value.
      const std::string& text = option->get_description();
      const size_t from = text.rfind("(default: ");
      if (from != std::string::npos) value = text.substr(from + 10, text.rfind(')') - from - 10);
    } else if (long_name(*option) == "--api-key" || long_name(*option) == "--kv-directory") {  // a URL may have a password
      value = "(not shown)";
    } else {
      value = CLI::detail::join(option->results(), ",");
    }
    out << option->get_lnames().front() << '\t' << (value.empty() ? "-" : value) << '\t'
        << (source == sources_.end() ? "default" : source->second) << '\n';
  }
  return out.str();
}

}  // namespace deepinfer::cli
