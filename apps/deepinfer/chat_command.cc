// deepinfer chat: a conversation in the terminal, with a server or with a model in this process.

#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <iostream>

#include "base/mapped_file.h"
#include "chat_client.h"
#include "commands.h"
#include "engine_flags.h"
#include "flag_values.h"
#include "server/server.h"
#include "terminal.h"

namespace deepinfer::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxToolBytes = 1 << 20;
constexpr int kMaxToolRounds = 32;
constexpr const char* kHelp =
    "/help            this text\n"
    "/reset           forget the conversation\n"
    "/system [TEXT]   set the system text, or take it away; forgets the conversation\n"
    "/think [LEVEL]   on, off, low, high, max or 1 to 100; without LEVEL: on or off in turn\n"
    "/quit            end (or Ctrl-D)\n"
    "Ctrl-C ends an answer that is being written.\n";

struct ChatOptions {
  std::string url = "http://127.0.0.1:8000";
  std::string api_key;
  std::string model_name;
  EngineFlags engine;
  std::string system, tools_file;
  std::string think = "off";
  std::optional<int64_t> max_tokens;
  std::optional<double> temperature;
};

volatile std::sig_atomic_t g_stop = 0;
extern "C" void stop_answer(int) { g_stop = 1; }

/// Without SA_RESTART: at the prompt, Ctrl-C ends the input.
void catch_interrupt() {
  struct sigaction action {};
  action.sa_handler = stop_answer;
  ::sigemptyset(&action.sa_mask);
  ::sigaction(SIGINT, &action, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
}

class Chat {
 public:
  Chat(ChatClient client, std::string model, const ChatOptions& options, Json tools)
      : client_(std::move(client)),
        model_(std::move(model)),
        options_(options),
        tools_(std::move(tools)),
        system_(options.system) {
    reset();
  }

  Status set_thinking(const std::string& level) {
    if (level == "off" || level == "on") {
      thinking_ = level == "on";
      effort_ = nullptr;
      return Status::Ok();
    }
    const auto number = parse_whole(level, 1, 100);
    if (!number && level != "low" && level != "high" && level != "max")
      return Status::InvalidArgument("is \"{}\", must be on, off, low, high, max or from 1 to 100", level);
    thinking_ = true;
    effort_ = number ? Json(*number) : Json(level);
    return Status::Ok();
  }

  /// False: the conversation is over.
  Result<bool> command(const std::string& line) {
    const size_t space = line.find(' ');
    const std::string word = line.substr(0, space);
    const std::string rest = space == std::string::npos ? "" : line.substr(space + 1);
    if (word == "/quit" || word == "/exit") return false;
    if (word == "/help") DI_RETURN_IF_ERROR(write_output(kHelp));
    if (word == "/reset") reset();
    if (word == "/system") {
      system_ = rest;
      reset();
    }
    if (word == "/think") {
      const Status status = set_thinking(rest.empty() ? (thinking_ ? "off" : "on") : rest);
      if (!status.ok()) {
        print_error("/think " + status.message());
      } else if (terminal_) {
        DI_RETURN_IF_ERROR(write_output(fmt::format("thinking is {}\n", thinking_ ? "on" : "off")));
      }
    }
    if (word != "/help" && word != "/reset" && word != "/system" && word != "/think")
      print_error(fmt::format("{}: no such command, see /help", word));
    return true;
  }

  Status say(const std::string& text) {
    const size_t before = messages_.size();
    messages_.push_back({{"role", "user"}, {"content", text}});
    for (int round = 0; round < kMaxToolRounds; ++round) {
      Json answer{{"role", "assistant"}, {"content", ""}};
      const Status status = receive(answer);
      if (!status.ok()) {
        messages_.erase(messages_.begin() + static_cast<std::ptrdiff_t>(before), messages_.end());
        return status;
      }
      const bool calls = answer.contains("tool_calls");
      messages_.push_back(answer);
      if (!calls) return Status::Ok();
      if (!call_tools(answer["tool_calls"])) {
        messages_.erase(messages_.begin() + static_cast<std::ptrdiff_t>(before), messages_.end());
        return Status::Ok();
      }
    }
    return Status::Ok();
  }

 private:
  void reset() {
    messages_ = Json::array();
    if (!system_.empty()) messages_.push_back({{"role", "system"}, {"content", system_}});
  }

  Json request() const {
    Json r{{"model", model_},
           {"messages", messages_},
           {"stream", true},
           {"thinking", {{"type", thinking_ ? "enabled" : "disabled"}}}};
    if (thinking_ && !effort_.is_null()) r["reasoning_effort"] = effort_;
    if (!tools_.empty()) r["tools"] = tools_;
    if (options_.max_tokens.has_value()) r["max_tokens"] = *options_.max_tokens;
    if (options_.temperature.has_value()) r["temperature"] = *options_.temperature;
    return r;
  }

  /// Shows an answer as it comes, and collects it.
  Status receive(Json& answer) {
    g_stop = 0;
    std::string content, reasoning;
    Json calls = Json::array();
    enum class Shown { kNothing, kThinking, kAnswer } shown = Shown::kNothing;
    Status written;
    const auto show = [&](Shown kind, const std::string& text) {
      std::string out;
      if (kind == Shown::kThinking && shown != Shown::kThinking) out += terminal_ ? "\x1b[2m" : "[thinking]\n";
      if (kind == Shown::kAnswer && shown == Shown::kThinking) out += terminal_ ? "\x1b[0m\n\n" : "\n[answer]\n";
      shown = kind;
      if (written.ok()) written = write_output(out + text);
    };
    const Status status = client_.stream(request(), [&](const Json& chunk) {
      if (!chunk.contains("choices") || chunk["choices"].empty()) return true;
      const Json& delta = chunk["choices"][0]["delta"];
      const auto text = [&](const char* key) {
        return delta.contains(key) && delta[key].is_string() ? delta[key].get<std::string>() : std::string();
      };
      if (const std::string piece = text("reasoning_content"); !piece.empty()) {
        reasoning += piece;
        show(Shown::kThinking, piece);
      }
      if (const std::string piece = text("content"); !piece.empty()) {
        content += piece;
        show(Shown::kAnswer, piece);
      }
      if (delta.contains("tool_calls")) add_calls(delta["tool_calls"], calls);
      return g_stop == 0 && written.ok();
    });
    if (written.ok()) written = write_output(shown == Shown::kThinking && terminal_ ? "\x1b[0m\n" : "\n");
    // Ctrl-C breaks off whatever the connection waits for, too: what has come until then is the answer.
    if (g_stop == 0) DI_RETURN_IF_ERROR(status);
    DI_RETURN_IF_ERROR(written);
    answer["content"] = content;
    if (thinking_) answer["reasoning_content"] = reasoning;
    if (!calls.empty() && g_stop == 0) answer["tool_calls"] = calls;
    return Status::Ok();
  }

  static void add_calls(const Json& deltas, Json& calls) {
    for (const Json& delta : deltas) {
      const auto index = delta.value("index", size_t{0});
      if (index >= kMaxToolBytes) continue;
      while (calls.size() <= index)
        calls.push_back({{"id", ""}, {"type", "function"}, {"function", {{"name", ""}, {"arguments", ""}}}});
      Json& call = calls[index];
      if (delta.contains("id")) call["id"] = delta["id"];
      if (!delta.contains("function")) continue;
      const Json& function = delta["function"];
      if (function.contains("name")) call["function"]["name"] = function["name"];
      if (function.contains("arguments"))
        call["function"]["arguments"] =
            call["function"]["arguments"].get<std::string>() + function["arguments"].get<std::string>();
    }
  }

  /// Asks for the result of every call. False: there is no more input.
  bool call_tools(const Json& calls) {
    for (const Json& call : calls) {
      const auto text = fmt::format("{}({})\n{}", call["function"]["name"].get<std::string>(),
                                    call["function"]["arguments"].get<std::string>(), terminal_ ? "result> " : "");
      std::string result;
      if (!write_output(text).ok() || !std::getline(std::cin, result)) return false;
      messages_.push_back({{"role", "tool"}, {"tool_call_id", call["id"]}, {"content", result}});
    }
    return true;
  }

  const ChatClient client_;
  const std::string model_;
  const ChatOptions& options_;
  const Json tools_;
  const bool terminal_ = stdout_is_terminal();
  std::string system_;
  bool thinking_ = false;
  Json effort_;
  Json messages_;
};

/// A list of tools, or an object with "tools"; bare functions are wrapped.
Result<Json> read_tools(const std::string& path) {
  if (path.empty()) return Json::array();
  DI_ASSIGN_OR_RETURN(const std::string text, read_text_file(path, kMaxToolBytes));
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_object() && json.contains("tools")) json = Json(json["tools"]);
  if (!json.is_array()) return Err(Status::InvalidArgument("--tools: {}: must be a JSON list of tools", path));
  Json tools = Json::array();
  for (const Json& tool : json) {
    if (!tool.is_object()) return Err(Status::InvalidArgument("--tools: {}: every tool must be an object", path));
    tools.push_back(tool.contains("function") ? tool : Json{{"type", "function"}, {"function", tool}});
  }
  return tools;
}

/// An engine with a server of its own, for this process only.
struct Local {
  std::unique_ptr<Engine> engine;
  std::unique_ptr<server::Server> server;
};

Result<Local> start_local(const ChatOptions& options) {
  Local local;
  EngineOptions base;
  DI_RETURN_IF_ERROR(base.apply_environment());
  DI_ASSIGN_OR_RETURN(local.engine, Engine::Create(options.engine.to_options(std::move(base))));
  server::Backend backend;
  backend.engine = local.engine.get();
  DI_ASSIGN_OR_RETURN(backend.tokenizer, Tokenizer::Load(options.engine.model + "/tokenizer.json"));
  backend.policy.max_model_len = local.engine->model().max_model_len;
  if (!backend.tokenizer->added_token(kSystemToken).has_value()) backend.policy.version = ModelVersion::kV4;
  server::ServerOptions server;
  server.port = 0;
  server.api_keys = {options.api_key};
  DI_ASSIGN_OR_RETURN(local.server, server::Server::Create(server, std::move(backend),
                                                           std::make_shared<server::EventLog>(server::EventLog::Format::kOff)));
  return local;
}

Result<int> run_chat(ChatOptions options) {
  DI_ASSIGN_OR_RETURN(Json tools, read_tools(options.tools_file));
  Local local;
  if (!options.engine.model.empty()) {
    options.api_key = server::random_hex(16);  // nobody else on this machine gets in
    DI_ASSIGN_OR_RETURN(local, start_local(options));
    options.url = local.server->url();
  }
  DI_ASSIGN_OR_RETURN(ChatClient client, ChatClient::Create(options.url, options.api_key));
  std::string model = options.model_name;
  if (model.empty()) {
    DI_ASSIGN_OR_RETURN(model, client.first_model());
  }
  Chat chat(std::move(client), model, options, std::move(tools));
  if (const Status status = chat.set_thinking(options.think); !status.ok()) return Err(status.with_context("--think"));
  catch_interrupt();
  const bool interactive = stdin_is_terminal();
  if (interactive) DI_RETURN_IF_ERROR(write_output(fmt::format("{} at {}; /help for commands\n", model, options.url)));
  bool failed = false;
  std::string line;
  while (true) {
    if (interactive) DI_RETURN_IF_ERROR(write_output("> "));
    if (!std::getline(std::cin, line)) {
      if (interactive) DI_RETURN_IF_ERROR(write_output("\n"));
      break;
    }
    if (line.empty()) continue;
    if (line.front() == '/') {
      DI_ASSIGN_OR_RETURN(const bool more, chat.command(line));
      if (!more) break;
      continue;
    }
    const Status status = chat.say(line);
    if (!status.ok()) {
      failed = true;
      print_error(status.message());
      if (!interactive) break;
    }
  }
  return failed && !interactive ? 1 : 0;
}

}  // namespace

void add_chat_command(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand("chat", "Talk with a server, or with a model directly");
  auto options = std::make_shared<ChatOptions>();
  ChatOptions& o = *options;
  if (const char* key = std::getenv("DEEPINFER_API_KEY"); key != nullptr) o.api_key = key;
  o.engine.add_to(*command);
  CLI::Option* model = command->get_option("--model")->required(false);
  const char* const group = "Chat";
  command->add_option("--url", o.url, "Of the server (default: http://127.0.0.1:8000)")
      ->type_name("URL")
      ->group(group)
      ->excludes(model);
  command->add_option("--api-key", o.api_key, "Its key (default: $DEEPINFER_API_KEY)")->type_name("KEY")->group(group);
  command->add_option("--model-name", o.model_name, "What to ask for (default: the first model that the server lists)")
      ->type_name("NAME")
      ->group(group);
  command->add_option("--system", o.system, "System text")->type_name("TEXT")->group(group);
  command->add_option("--tools", o.tools_file, "JSON list of functions that the model may call; you type their results")
      ->type_name("FILE")
      ->group(group);
  command->add_option("--think", o.think, "on, off, low, high, max or 1 to 100 (default: off)")->type_name("LEVEL")->group(group);
  add_whole(*command, "--max-tokens", o.max_tokens, 1, int64_t{1} << 30, "Of an answer (default: the server's)")->group(group);
  add_real(*command, "--temperature", o.temperature, 0, 2, "0: greedy (default: the server's)", "T")->group(group);
  command->footer(
      "Lines of standard input are what you say; /help lists commands.\n\nExamples:\n"
      "  deepinfer chat -m models/nano\n"
      "  deepinfer chat --url http://127.0.0.1:8000 --think high --tools tools.json");
  command->callback([options, &chosen] { chosen = [options] { return run_chat(*options); }; });
}

}  // namespace deepinfer::cli
