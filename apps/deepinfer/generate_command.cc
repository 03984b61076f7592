#include <sys/random.h>

#include <charconv>
#include <chrono>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/status.h"
#include "commands.h"
#include "engine_flags.h"
#include "model_engine.h"
#include "performance.h"
#include "protocol/event_writer.h"
#include "protocol/render_v4.h"
#include "terminal.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8.h"
#include "trace_flags.h"

namespace deepinfer::cli {
namespace {

constexpr int64_t kMaxPromptBytes = int64_t{64} << 20;
constexpr int64_t kMaxFormBytes = int64_t{4} << 20;
constexpr int64_t kDefaultMaxTokens = 256;
/// How soon a signal is seen when no token comes.
constexpr std::chrono::milliseconds kSignalInterval{20};

using Clock = std::chrono::steady_clock;

struct GenerateOptions {
  EngineFlags engine;
  std::optional<std::string> prompt;
  std::optional<std::string> prompt_file;
  std::optional<std::string> system;
  std::optional<std::string> effort;
  std::optional<std::string> seed;  ///< as text: the library would saturate what is too large
  int64_t max_tokens = kDefaultMaxTokens;
  SamplingParams sampling;
  bool raw = false;
  bool chat = false;
  bool think = false;
  bool ignore_eos = false;
  std::optional<std::string> json_schema, regex, grammar;  ///< as given: inline text, or @FILE
  std::vector<std::string> choices;
  bool json_object = false;
  bool not_strict = false;
  bool json = false;
  bool no_perf = false;
  TraceFlags trace;
};

Status check_text(const char* name, std::string_view text) {
  const size_t valid = utf8_valid_prefix(text);
  if (valid == text.size()) return Status::Ok();
  return Status::InvalidArgument("{}: invalid UTF-8 at byte {}", name, valid);
}

/// The prompt, before anything is loaded.
Result<std::string> read_prompt(const GenerateOptions& options) {
  std::string text;
  const char* name = "--prompt";
  if (options.prompt.has_value()) {
    text = *options.prompt;
  } else {
    if (!options.prompt_file.has_value() && stdin_is_terminal()) {
      return Err(Status::InvalidArgument("no prompt: give --prompt or --prompt-file, or pipe it to standard input"));
    }
    name = options.prompt_file.has_value() ? "--prompt-file" : "standard input";
    DI_ASSIGN_OR_RETURN(text, read_input(options.prompt_file.value_or("-"), kMaxPromptBytes));
    // Editors and echo end a file with a newline that nobody means.
    if (text.ends_with('\n')) text.pop_back();
    if (text.ends_with('\r')) text.pop_back();
  }
  if (text.empty()) return Err(Status::InvalidArgument("{}: the prompt is empty", name));
  DI_RETURN_IF_ERROR(check_text(name, text));
  return text;
}

Result<uint64_t> choose_seed(const std::optional<std::string>& given) {
  uint64_t seed = 0;
  if (given.has_value()) {
    const auto [end, error] = std::from_chars(given->data(), given->data() + given->size(), seed);
    if (error == std::errc() && end == given->data() + given->size()) return seed;
    return Err(Status::OutOfRange("--seed is \"{}\", must be a whole number from 0 to {}", *given, UINT64_MAX));
  }
  if (::getrandom(&seed, sizeof(seed), 0) == sizeof(seed)) return seed;
  return Err(Status::Internal("no random numbers from the system for the seed: give --seed"));
}

/// Raw: the user is trusted, added tokens that are spelled out count as such, and the start token is added if it is not there.
Result<std::vector<int32_t>> encode_raw(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<int32_t> ids = tokenizer.encode_with_added_tokens(text);
  const std::optional<int32_t> bos = tokenizer.added_token(kBosToken);
  if (!bos.has_value())
    return Err(Status::NotFound("the tokenizer has no added token \"{}\", which the prompt needs", kBosToken));
  if (ids.empty() || ids.front() != *bos) ids.insert(ids.begin(), *bos);
  return ids;
}

Result<std::vector<int32_t>> encode(const GenerateOptions& options, const Tokenizer& tokenizer, const std::string& text) {
  if (options.raw) return encode_raw(tokenizer, text);
  Conversation conversation;
  if (options.system.has_value()) conversation.messages.push_back(Message::System(*options.system));
  conversation.messages.push_back(Message::User(text));
  conversation.thinking = options.think;
  if (options.effort.has_value()) {
    DI_ASSIGN_OR_RETURN(conversation.effort, parse_reasoning_effort(*options.effort));
  }
  return encode_prompt(tokenizer, render_prompt(conversation, ModelVersion::kV4_1).segments);
}

/// A flag's text, or the content of FILE for @FILE.
Result<std::string> text_or_file(const char* flag, const std::string& value) {
  if (!value.starts_with('@')) {
    DI_RETURN_IF_ERROR(check_text(flag, value));
    return value;
  }
  DI_ASSIGN_OR_RETURN(std::string text, read_input(value.substr(1), kMaxFormBytes));
  DI_RETURN_IF_ERROR(check_text(flag, text));
  return text;
}

/// The form that the flags ask for, before anything is loaded.
Result<std::optional<grammar::GrammarSpec>> read_form(const GenerateOptions& o) {
  std::optional<grammar::GrammarSpec> form;
  if (o.json_object) form = grammar::JsonObjectSpec{};
  if (!o.choices.empty()) form = grammar::ChoiceSpec{o.choices};
  if (o.json_schema.has_value()) {
    DI_ASSIGN_OR_RETURN(std::string schema, text_or_file("--json-schema", *o.json_schema));
    form = grammar::JsonSchemaSpec{std::move(schema), !o.not_strict};
  }
  if (o.regex.has_value()) {
    DI_ASSIGN_OR_RETURN(std::string pattern, text_or_file("--regex", *o.regex));
    if (o.regex->starts_with('@') && pattern.ends_with('\n')) pattern.pop_back();
    form = grammar::RegexSpec{std::move(pattern)};
  }
  if (o.grammar.has_value()) {
    DI_ASSIGN_OR_RETURN(std::string text, text_or_file("--grammar", *o.grammar));
    form = grammar::EbnfSpec{std::move(text)};
  }
  return form;
}

/// `context`: tokens of prompt and answer together.
Result<Request> make_request(const GenerateOptions& options, const Engine& engine, int64_t context, const std::string& text,
                             std::optional<grammar::GrammarSpec> form, uint64_t seed) {
  const ModelInfo model = engine.model();
  Request request;
  DI_ASSIGN_OR_RETURN(request.prompt, encode(options, *engine.tokenizer(), text));
  for (const int32_t id : request.prompt) {
    if (id >= model.vocab_size)
      return Err(Status::DataLoss("tokenizer.json: token id {}, vocab_size is {}", id, model.vocab_size));
  }
  const auto prompt_tokens = static_cast<int64_t>(request.prompt.size());
  if (prompt_tokens >= context) {
    return Err(Status::OutOfRange("the prompt has {} tokens, the context holds {} and needs room for one more ({})",
                                  prompt_tokens, context,
                                  context < model.max_model_len ? "--max-model-len" : "max_position_embeddings"));
  }
  request.max_tokens = std::min(options.max_tokens, context - prompt_tokens);
  request.sampling = options.sampling;
  request.seed = seed;
  request.ignore_eos = options.ignore_eos;
  request.skip_special_tokens = !options.raw;
  if (form.has_value()) {
    StructuredOutput output;
    output.form = *std::move(form);
    if (options.think) {
      output.start_after = engine.tokenizer()->added_token(kEndThinkToken);
      if (!output.start_after.has_value())
        return Err(
            Status::NotFound("the tokenizer has no added token \"{}\", behind which the form would begin", kEndThinkToken));
    }
    request.structured_output = std::move(output);
  }
  return request;
}

struct Answer {
  std::string text;
  std::vector<int32_t> tokens;  ///< the stop token included
  Usage usage;
  AnswerTimes times;
  bool interrupted = false;
  Status written;
};

/// When news came, told by the engine's thread: a slow reader of the text does not count.
class NewsClock {
 public:
  explicit NewsClock(Clock::time_point start) : first_(start), last_(start) {}
  void tick() {
    const std::lock_guard lock(mutex_);
    last_ = Clock::now();
    if (!ticked_) first_ = last_;
    ticked_ = true;
  }
  std::pair<Clock::time_point, Clock::time_point> first_and_last() const {
    const std::lock_guard lock(mutex_);
    return {first_, last_};
  }

 private:
  mutable std::mutex mutex_;
  Clock::time_point first_, last_;
  bool ticked_ = false;
};

double seconds_between(Clock::time_point from, Clock::time_point to) { return std::chrono::duration<double>(to - from).count(); }

/// The text as it comes, to standard output if `stream`. A signal or a reader that goes away ends it. The engine is shut down.
Result<Answer> answer(Engine& engine, Request request, bool stream) {
  const ModelInfo model = engine.model();
  const auto prompt_tokens = static_cast<int64_t>(request.prompt.size());
  const bool show_special = !request.skip_special_tokens;
  Answer out;
  bool cancelled = false;
  const auto start = Clock::now();
  const auto clock = std::make_shared<NewsClock>(start);
  DI_ASSIGN_OR_RETURN(RequestHandle handle, engine.submit(std::move(request)));
  handle.set_callback([clock] { clock->tick(); });
  while (!handle.finished()) {
    const std::optional<Output> news = handle.next_for(kSignalInterval);
    if (!cancelled && (interrupted() || !out.written.ok())) {
      cancelled = true;
      handle.cancel();
    }
    if (!news.has_value()) continue;
    out.tokens.insert(out.tokens.end(), news->tokens.begin(), news->tokens.end());
    out.usage = news->usage;
    std::string piece = news->text;
    // The engine's text ends before EOS; what shows special tokens shows that one, too.
    if (show_special && news->finish == FinishReason::kStop) piece += engine.decode({out.tokens.back()}, /*skip_special=*/false);
    out.text += piece;
    if (stream && out.written.ok() && !piece.empty()) out.written = write_output(piece);
    if (!news->finish.has_value()) continue;
    if (*news->finish == FinishReason::kError) return Err(news->error);
    out.interrupted = *news->finish == FinishReason::kCancelled;
    out.times.finish = out.interrupted ? "interrupted" : finish_reason_name(*news->finish);
  }
  for (const std::string& part : handle.unenforced()) print_diagnostic(fmt::format("not enforced: {}\n", part));
  engine.shutdown();  // its threads have ended, so the last tick has come
  const auto [first, last] = clock->first_and_last();
  AnswerTimes& t = out.times;
  t.tokens = static_cast<int64_t>(out.tokens.size());
  // Before the first token nothing but the prompt has run.
  t.prefill_tokens = t.tokens > 0 ? prompt_tokens : std::min(prompt_tokens, engine.stats().row_layers / model.layers);
  t.prefill_seconds = seconds_between(start, first);
  t.decode_steps = std::max<int64_t>(t.tokens - 1, 0);
  t.decode_seconds = seconds_between(first, last);
  const int64_t positions = prompt_tokens + std::max<int64_t>(t.tokens - 1, 0);
  t.cache_bytes = (positions + model.page_tokens - 1) / model.page_tokens * model.page_bytes + model.sequence_bytes;
  return out;
}

std::string to_json(const Answer& answer, uint64_t seed, const Performance& p) {
  const AnswerTimes& run = p.run;
  Json json;
  json["text"] = answer.text;
  json["token_ids"] = answer.tokens;
  json["finish_reason"] = run.finish;
  json["usage"] = openai_usage({.prompt_tokens = answer.usage.prompt_tokens,
                                .cached_tokens = answer.usage.cached_tokens,
                                .completion_tokens = run.tokens,
                                .tiers = answer.usage.tiers},
                               /*reasoning=*/false);
  const auto nullable = [](double value) { return value > 0 ? Json(value) : Json(nullptr); };
  json["timings"] = Json{{"load_ms", p.load.total * 1e3},
                         {"prefill_ms", run.prefill_seconds * 1e3},
                         {"decode_ms", run.decode_seconds * 1e3},
                         {"prefill_tokens_per_second", p.prefill_rate},
                         {"decode_tokens_per_second", nullable(p.decode_rate)},
                         {"weight_bytes_per_second", nullable(p.weight_rate)},
                         {"memory_bytes_per_second", nullable(p.memory_rate)},
                         {"memory_fraction", p.memory_rate > 0 ? Json(p.weight_rate / p.memory_rate) : Json(nullptr)},
                         {"weights_fit_in_cache", p.weights_fit_in_cache}};
  json["memory"] =
      Json{{"peak_resident_bytes", p.peak_resident_bytes}, {"weight_bytes", p.weight_bytes}, {"cache_bytes", run.cache_bytes}};
  json["backend"] = p.backend;
  json["kernels"] = Json::object();
  for (const auto& [operators, kernel] : p.kernels) json["kernels"][operators] = kernel;
  json["threads"] = p.threads;
  json["seed"] = seed;
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// For one prompt: nothing to share but with other processes, and a context that is cut here, so that more than the model's is no
/// error.
Result<EngineOptions> engine_options(const GenerateOptions& options) {
  DI_ASSIGN_OR_RETURN(EngineOptions base, exact_options());
  base.max_num_seqs = 1;
  base.enable_prefix_caching = false;
  base.window_snapshot_memory = 0;
  EngineOptions out = options.engine.to_options(std::move(base));
  out.enable_prefix_caching = out.kv_tiers.any();
  out.max_model_len = 0;
  return out;
}

Result<int> run_generate(const GenerateOptions& options) {
  DI_ASSIGN_OR_RETURN(const std::string prompt, read_prompt(options));
  if (options.system.has_value()) DI_RETURN_IF_ERROR(check_text("--system", *options.system));
  DI_RETURN_IF_ERROR(options.sampling.validate(1));  // the vocabulary is not known yet; token ids come later
  if (options.effort.has_value()) {
    auto effort = parse_reasoning_effort(*options.effort);
    if (!effort) return Err(effort.error().with_context(fmt::format("--reasoning-effort is \"{}\"", *options.effort)));
  }
  DI_ASSIGN_OR_RETURN(std::optional<grammar::GrammarSpec> form, read_form(options));
  DI_ASSIGN_OR_RETURN(const uint64_t seed, choose_seed(options.seed));
  DI_ASSIGN_OR_RETURN(EngineOptions setting, engine_options(options));
  DI_ASSIGN_OR_RETURN(Trace trace, Trace::Start(options.trace));
  setting.trace = trace.recorder();
  DI_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, create_engine(std::move(setting)));
  const ModelInfo model = engine->model();
  const int64_t context = std::min(options.engine.max_model_len.value_or(model.max_model_len), model.max_model_len);
  DI_ASSIGN_OR_RETURN(Request request, make_request(options, *engine, context, prompt, std::move(form), seed));

  catch_signals();
  DI_ASSIGN_OR_RETURN(Answer run, answer(*engine, std::move(request), !options.json));
  DI_RETURN_IF_ERROR(trace.finish());

  if (options.json) {
    run.written = write_output(to_json(run, seed, measure_performance(model, run.times)) + "\n");
  } else {
    if (stdout_is_terminal() && !run.text.ends_with('\n')) run.written = write_output("\n");
    if (!options.no_perf) {
      const std::string lines = format_performance(measure_performance(model, run.times));
      print_diagnostic(fmt::format("\n{}seed      {}\n", lines, seed));
    }
  }
  // A reader that has seen enough (head) is no error.
  if (!run.written.ok() && run.written.code() != StatusCode::kCancelled) return Err(run.written);
  return run.interrupted && interrupted() ? kInterruptedExit : 0;
}

void add_sampling_options(CLI::App& command, GenerateOptions& o) {
  const char* const group = "Sampling";
  command.add_option("-n,--max-tokens", o.max_tokens, "Tokens to generate at most; the context bounds them too (default: 256)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30))
      ->type_name("N")
      ->group(group);
  command.add_option("--temperature", o.sampling.temperature, "0: greedy; up to 100 (default: 1)")->type_name("T")->group(group);
  command.add_option("--top-p", o.sampling.top_p, "Smallest set of tokens with this probability (default: 1, off)")
      ->type_name("P")
      ->group(group);
  command.add_option("--top-k", o.sampling.top_k, "The K most probable tokens (default: 0, off)")->type_name("K")->group(group);
  command.add_option("--min-p", o.sampling.min_p, "Tokens at least this probable, relative to the best (default: 0, off)")
      ->type_name("P")
      ->group(group);
  command.add_option("-s,--seed", o.seed, "Same seed, same text (default: drawn, and printed)")->type_name("S")->group(group);
  command.add_flag("--ignore-eos", o.ignore_eos, "Go on past the end of the answer")->group(group);
}

void add_form_options(CLI::App& command, GenerateOptions& o) {
  CLI::Option* schema = command.add_option("--json-schema", o.json_schema, "JSON that this JSON Schema allows; @FILE reads it")
                            ->type_name("SCHEMA");
  CLI::Option* object = command.add_flag("--json-object", o.json_object, "Any JSON object");
  CLI::Option* regex =
      command.add_option("--regex", o.regex, "Text that this regular expression matches; @FILE reads it")->type_name("PATTERN");
  CLI::Option* grammar =
      command.add_option("--grammar", o.grammar, "Text of this grammar (EBNF as in GBNF); @FILE reads it")->type_name("GRAMMAR");
  CLI::Option* choice = command.add_option("--choice", o.choices, "One of these texts; give it several times")->type_name("TEXT");
  command.add_flag("--no-strict", o.not_strict, "Leave out what of the schema cannot be enforced, instead of refusing it")
      ->needs(schema)
      ->group("Form of the answer");
  const std::vector<CLI::Option*> all = {schema, object, regex, grammar, choice};
  for (CLI::Option* option : all) {
    option->group("Form of the answer");
    for (CLI::Option* other : all) {
      if (other != option) option->excludes(other);
    }
  }
}

}  // namespace

void add_generate_command(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand("generate", "Continue a prompt; the text is streamed to standard output");
  auto options = std::make_shared<GenerateOptions>();
  GenerateOptions& o = *options;
  o.engine.add_to(*command, EngineUse::kPrompt);

  CLI::Option* prompt =
      command->add_option("-p,--prompt", o.prompt, "The prompt (default: from standard input)")->type_name("TEXT");
  CLI::Option* file =
      command->add_option("-f,--prompt-file", o.prompt_file, "A file with the prompt; one newline at its end is dropped")
          ->type_name("FILE");
  file->excludes(prompt);
  CLI::Option* chat = command->add_flag("--chat", o.chat, "The prompt is what a user says (default)");
  CLI::Option* raw = command->add_flag("--raw", o.raw, "The prompt is plain text to continue; special tokens are read and shown")
                         ->excludes(chat);
  CLI::Option* system = command->add_option("--system", o.system, "System text")->type_name("TEXT")->excludes(raw);
  CLI::Option* think = command->add_flag("--think", o.think, "Let the model think before it answers")->excludes(raw);
  CLI::Option* effort = command->add_option("--reasoning-effort", o.effort, "low, medium, high, max or 1 to 100 (default: high)")
                            ->type_name("E")
                            ->needs(think);
  for (CLI::Option* option : {prompt, file, chat, raw, system, think, effort}) option->group("Prompt");

  add_sampling_options(*command, o);
  add_form_options(*command, o);
  command->add_flag("--json", o.json, "One JSON object on standard output at the end, nothing streamed")->group("Output");
  command->add_flag("--no-perf", o.no_perf, "No statistics after the text")->group("Output");
  o.trace.add_to(*command, "--trace-file,--trace");
  command->footer(
      "Ctrl-C ends the text after the current step (exit code 130). Statistics go to standard error.\n"
      "The prompt runs through all layers (--replay exact). A server leaves out decoder layers for most of it (--replay "
      "bounded),\n"
      "which is faster and can change the text.\n\n"
      "Examples:\n"
      "  deepinfer generate -m models/nano -p 'Tell me a story about a fox and a lamp.' --temperature 0\n"
      "  deepinfer generate -m models/nano --think -p 'What is 123 + 456?' --json\n"
      "  deepinfer generate -m models/nano -p 'Is a fox a plant?' --choice yes --choice no\n"
      "  echo 'Once upon a time' | deepinfer generate -m models/nano --raw -n 100 --seed 7");
  command->callback([options, &chosen] { chosen = [options] { return run_generate(*options); }; });
}

}  // namespace deepinfer::cli
