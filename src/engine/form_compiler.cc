#include "engine/form_compiler.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>

namespace deepinfer {
namespace {

/// Added to the nice value of the threads: the step loop goes first.
constexpr int kNice = 10;

struct TextBytes {
  int64_t operator()(const grammar::RegexSpec& s) const { return static_cast<int64_t>(s.pattern.size()); }
  int64_t operator()(const grammar::JsonSchemaSpec& s) const { return static_cast<int64_t>(s.schema.size()); }
  int64_t operator()(const grammar::JsonObjectSpec&) const { return 0; }
  int64_t operator()(const grammar::EbnfSpec& s) const { return static_cast<int64_t>(s.text.size()); }
  int64_t operator()(const grammar::ChoiceSpec& s) const {
    size_t bytes = 0;
    for (const std::string& choice : s.choices) bytes += choice.size() + sizeof(std::string);
    return static_cast<int64_t>(bytes);
  }
  int64_t operator()(const grammar::DsmlSpec& s) const {
    size_t bytes = s.dsml_token.size();
    for (const auto& tool : s.tools) bytes += tool.name.size() + tool.parameters.size() + sizeof(tool);
    return static_cast<int64_t>(bytes) + (s.answer.has_value() ? std::visit(*this, *s.answer) : 0);
  }
};

/// The grammar as this request uses it.
FormResult form_of(const StructuredOutput& output, std::shared_ptr<const grammar::CompiledGrammar> grammar, int64_t vocab_size) {
  auto form = std::make_shared<CompiledForm>();
  form->grammar = std::move(grammar);
  form->start_after = output.start_after;
  form->prefix = output.prefix;
  form->vocab_size = vocab_size;
  const grammar::TokenVocabulary& vocabulary = form->grammar->vocabulary();
  form->barred = vocabulary.stop_ids();
  if (const auto* tools = std::get_if<grammar::DsmlSpec>(&output.form)) {
    if (const auto mark = vocabulary.added_token(tools->dsml_token)) form->barred.push_back(*mark);
  }
  std::sort(form->barred.begin(), form->barred.end());
  if (!output.prefix.empty() && !grammar::GrammarMatcher(form->grammar).accept_bytes(output.prefix))
    return Err(Status::InvalidArgument("structured_output.prefix: the form cannot begin with what the prompt holds of it"));
  return form;
}

}  // namespace

int64_t form_bytes(const StructuredOutput& output) {
  return std::visit(TextBytes{}, output.form) + static_cast<int64_t>(output.prefix.size());
}

FormResult compile_form(const StructuredOutput& output, grammar::GrammarCache& cache, int64_t vocab_size) {
  DI_ASSIGN_OR_RETURN(auto grammar, cache.get(output.form));
  // The first mask is the one that takes the most work: better here than in a step.
  std::vector<uint32_t> mask(grammar->vocabulary().mask_words());
  grammar::GrammarMatcher(grammar).fill_mask(mask);
  return form_of(output, std::move(grammar), vocab_size);
}

FormCompiler::FormCompiler(std::shared_ptr<const Tokenizer> tokenizer, int32_t eos_token_id, int64_t vocab_size, Options options,
                           std::function<void(RequestId, FormResult)> done)
    : tokenizer_(std::move(tokenizer)),
      eos_token_id_(eos_token_id),
      vocab_size_(vocab_size),
      options_(options),
      done_(std::move(done)) {}

FormCompiler::~FormCompiler() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  news_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

std::shared_ptr<const CompiledForm> FormCompiler::find(const StructuredOutput& output) {
  std::shared_ptr<grammar::GrammarCache> cache;
  {
    const std::unique_lock lock(cache_mutex_, std::try_to_lock);
    if (lock.owns_lock()) cache = cache_;
  }
  auto grammar = cache == nullptr ? nullptr : cache->find(output.form);
  if (grammar == nullptr) return nullptr;
  // An error is told where errors of forms are told: by the compiler's thread.
  auto form = form_of(output, std::move(grammar), vocab_size_);
  return form ? *std::move(form) : nullptr;
}

Status FormCompiler::submit(const std::shared_ptr<ActiveRequest>& request) {
  const int64_t bytes = form_bytes(*request->request.structured_output);
  {
    const std::lock_guard lock(mutex_);
    if (static_cast<int64_t>(queue_.size()) >= options_.max_queued || queued_bytes_ + bytes > options_.max_queued_bytes) {
      return Status::Unavailable("structured_output: {} formats of {} bytes wait to be compiled, at most {} of {} bytes may",
                                 queue_.size(), queued_bytes_, options_.max_queued, options_.max_queued_bytes);
    }
    if (threads_.empty()) {
      for (int i = 0; i < options_.threads; ++i) threads_.emplace_back([this] { work(); });
    }
    queue_.push_back({request, bytes});
    queued_bytes_ += bytes;
  }
  news_.notify_one();
  return Status::Ok();
}

Status FormCompiler::make_cache() {
  const std::lock_guard lock(cache_mutex_);
  if (cache_ != nullptr) return Status::Ok();
  auto vocabulary = grammar::TokenVocabulary::Make(*tokenizer_, {eos_token_id_});
  if (!vocabulary) return vocabulary.error();
  cache_ = std::make_shared<grammar::GrammarCache>(*std::move(vocabulary), options_.cache_bytes, options_.limits);
  return Status::Ok();
}

void FormCompiler::work() {
  // Of this thread alone, on Linux. No harm if it is refused.
  (void)::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNice);
  while (true) {
    Job job;
    {
      std::unique_lock lock(mutex_);
      news_.wait(lock, [&] { return stop_ || !queue_.empty(); });
      if (stop_) return;
      job = std::move(queue_.front());
      queue_.pop_front();
      queued_bytes_ -= job.bytes;
    }
    RequestId id = 0;
    std::optional<StructuredOutput> output;
    if (const auto request = job.request.lock()) {
      id = request->id;
      output = request->request.structured_output;  // a copy: the request may end while this runs
    }
    if (!output.has_value()) continue;
    const Status made = make_cache();
    done_(id, made.ok() ? compile_form(*output, *cache_, vocab_size_) : FormResult(Err(made)));
  }
}

}  // namespace deepinfer
