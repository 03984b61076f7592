#include <sys/random.h>

#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>

#include "commands.h"
#include "generation.h"
#include "model_options.h"
#include "performance.h"
#include "protocol/render_v4.h"
#include "terminal.h"
#include "tokenizer/utf8.h"

namespace deepinfer::cli {
namespace {

constexpr int64_t kMaxPromptBytes = int64_t{64} << 20;
constexpr int64_t kDefaultMaxTokens = 256;

struct GenerateOptions {
  ModelOptions model;
  std::optional<std::string> prompt;
  std::optional<std::string> prompt_file;
  std::optional<std::string> system;
  std::optional<std::string> effort;
  std::optional<std::string> seed;  ///< as text: the library would saturate what is too large
  std::optional<int64_t> max_model_len;
  int64_t max_tokens = kDefaultMaxTokens;
  int64_t prefill_chunk = 512;
  SamplingParams sampling;
  bool raw = false;
  bool chat = false;
  bool think = false;
  bool ignore_eos = false;
  bool json = false;
  bool no_perf = false;
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

Result<GenerationRequest> make_request(const GenerateOptions& options, const LoadedModel& loaded, const std::string& text,
                                       uint64_t seed) {
  const ModelConfig& config = loaded.config();
  GenerationRequest request;
  DI_ASSIGN_OR_RETURN(request.prompt, encode(options, *loaded.tokenizer, text));
  for (const int32_t id : request.prompt) {
    if (id >= config.vocab_size)
      return Err(Status::DataLoss("tokenizer.json: token id {}, vocab_size is {}", id, config.vocab_size));
  }
  const auto prompt_tokens = static_cast<int64_t>(request.prompt.size());
  const int64_t context =
      std::min(options.max_model_len.value_or(config.max_position_embeddings), config.max_position_embeddings);
  if (prompt_tokens >= context) {
    return Err(Status::OutOfRange("the prompt has {} tokens, the context holds {} and needs room for one more ({})",
                                  prompt_tokens, context,
                                  context < config.max_position_embeddings ? "--max-model-len" : "max_position_embeddings"));
  }
  request.max_tokens = std::min(options.max_tokens, context - prompt_tokens);
  request.prefill_chunk = options.prefill_chunk;
  request.sampling = options.sampling;
  request.sampling.seed = seed;
  if (!options.ignore_eos) request.sampling.stop_token_ids.push_back(static_cast<int32_t>(config.eos_token_id));
  DI_RETURN_IF_ERROR(request.sampling.validate(config.vocab_size));
  return request;
}

std::string to_json(const std::string& text, const GenerationRequest& request, const Generation& run, const Performance& p) {
  using Json = nlohmann::ordered_json;
  Json json;
  json["text"] = text;
  json["token_ids"] = run.tokens;
  json["finish_reason"] = finish_reason_name(run.finish);
  json["usage"] = Json{{"prompt_tokens", request.prompt.size()},
                       {"completion_tokens", run.tokens.size()},
                       {"total_tokens", request.prompt.size() + run.tokens.size()}};
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
      Json{{"peak_resident_bytes", p.peak_resident_bytes}, {"weight_bytes", p.weight_bytes}, {"cache_bytes", run.state_bytes}};
  json["backend"] = p.backend;
  json["threads"] = p.threads;
  json["seed"] = request.sampling.seed;
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<int> run_generate(const GenerateOptions& options) {
  DI_ASSIGN_OR_RETURN(const std::string prompt, read_prompt(options));
  if (options.system.has_value()) DI_RETURN_IF_ERROR(check_text("--system", *options.system));
  DI_RETURN_IF_ERROR(options.sampling.validate(1));  // the vocabulary is not known yet; token ids come later
  if (options.effort.has_value()) {
    auto effort = parse_reasoning_effort(*options.effort);
    if (!effort) return Err(effort.error().with_context(fmt::format("--reasoning-effort is \"{}\"", *options.effort)));
  }
  DI_ASSIGN_OR_RETURN(const uint64_t seed, choose_seed(options.seed));
  DI_ASSIGN_OR_RETURN(const LoadedModel loaded, load_model(options.model));
  DI_ASSIGN_OR_RETURN(const GenerationRequest request, make_request(options, loaded, prompt, seed));

  catch_signals();
  Detokenizer detokenizer(loaded.tokenizer, /*skip_special=*/!options.raw);
  std::string text;
  Status written;
  const auto emit = [&](const std::string& piece) {
    text += piece;
    if (!options.json && written.ok() && !piece.empty()) written = write_output(piece);
  };
  const auto on_token = [&](int32_t token) {
    emit(detokenizer.push(token));
    return written.ok();
  };
  DI_ASSIGN_OR_RETURN(const Generation run, generate(*loaded.model, request, on_token, [] { return interrupted(); }));
  emit(detokenizer.finish());

  if (options.json) {
    written = write_output(to_json(text, request, run, measure_performance(loaded, run)) + "\n");
  } else {
    if (stdout_is_terminal() && !text.ends_with('\n')) written = write_output("\n");
    if (!options.no_perf) {
      const std::string lines = format_performance(measure_performance(loaded, run));
      fmt::print(stderr, "\n{}seed      {}\n", lines, seed);
    }
  }
  // A reader that has seen enough (head) is no error.
  if (!written.ok() && written.code() != StatusCode::kCancelled) return Err(written);
  return run.finish == FinishReason::kInterrupted && interrupted() ? kInterruptedExit : 0;
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

}  // namespace

void add_generate_command(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand("generate", "Continue a prompt; the text is streamed to standard output");
  auto options = std::make_shared<GenerateOptions>();
  GenerateOptions& o = *options;
  o.model.add_to(*command);
  command->add_option("--prefill-chunk", o.prefill_chunk, "Prompt tokens per step (default: 512)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->type_name("N")
      ->group("Model");
  command->add_option("--max-model-len", o.max_model_len, "A smaller context than the model's")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40))
      ->type_name("N")
      ->group("Model");

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
  command->add_flag("--json", o.json, "One JSON object on standard output at the end, nothing streamed")->group("Output");
  command->add_flag("--no-perf", o.no_perf, "No statistics after the text")->group("Output");
  command->footer(
      "Ctrl-C ends the text after the current step (exit code 130). Statistics go to standard error.\n\n"
      "Examples:\n"
      "  deepinfer generate -m models/nano -p 'Tell me a story about a fox and a lamp.' --temperature 0\n"
      "  deepinfer generate -m models/nano --think -p 'What is 123 + 456?' --json\n"
      "  echo 'Once upon a time' | deepinfer generate -m models/nano --raw -n 100 --seed 7");
  command->callback([options, &chosen] { chosen = [options] { return run_generate(*options); }; });
}

}  // namespace deepinfer::cli
