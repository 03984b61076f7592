#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "deepinfer/structured_output.h"
#include "engine/output_constraint.h"
#include "engine/sequence.h"
#include "grammar/grammar_cache.h"
#include "tokenizer/tokenizer.h"

namespace deepinfer {

using FormResult = Result<std::shared_ptr<const CompiledForm>>;

/// Compiles a form that has passed `check_request`. InvalidArgument and Unimplemented name the keyword and its path, or the
/// position; ResourceExhausted names the budget. `vocab_size`: of the model.
FormResult compile_form(const StructuredOutput& output, grammar::GrammarCache& cache, int64_t vocab_size);

/// Compiles the forms of requests on threads of its own, and keeps them by content. A request waits for its form while all
/// others go on: the threads run at low priority, and the queue is bounded. Thread-safe.
class FormCompiler {
 public:
  struct Options {
    int threads = 2;
    int64_t max_queued = 256;                      ///< requests
    int64_t max_queued_bytes = int64_t{64} << 20;  ///< of their forms
    size_t cache_bytes = size_t{256} << 20;
    grammar::CompileLimits limits;
  };
  /// `done` is called on a thread of the compiler. Threads start, and the tokenizer is read, when the first form comes.
  FormCompiler(std::shared_ptr<const Tokenizer> tokenizer, int32_t eos_token_id, int64_t vocab_size, Options options,
               std::function<void(RequestId, FormResult)> done);
  /// Drops what is queued and waits for what is being compiled; its budgets bound that.
  ~FormCompiler();
  FormCompiler(const FormCompiler&) = delete;
  FormCompiler& operator=(const FormCompiler&) = delete;

  /// The form if it is cached.
  std::shared_ptr<const CompiledForm> find(const StructuredOutput& output);
  /// Queues the form of a request that has its id. A request that has gone by its turn is skipped. Unavailable: the queue
  /// is full.
  Status submit(const std::shared_ptr<ActiveRequest>& request);

 private:
  struct Job {
    std::weak_ptr<ActiveRequest> request;
    int64_t bytes = 0;
  };
  void work();
  Status make_cache();

  const std::shared_ptr<const Tokenizer> tokenizer_;
  const int32_t eos_token_id_;
  const int64_t vocab_size_;
  const Options options_;
  const std::function<void(RequestId, FormResult)> done_;
  std::mutex mutex_;
  std::condition_variable news_;
  std::deque<Job> queue_;
  int64_t queued_bytes_ = 0;
  bool stop_ = false;
  std::vector<std::thread> threads_;
  std::mutex cache_mutex_;  ///< while the cache is made
  std::shared_ptr<grammar::GrammarCache> cache_;
};

/// Bytes of a form's texts.
int64_t form_bytes(const StructuredOutput& output);

}  // namespace deepinfer
