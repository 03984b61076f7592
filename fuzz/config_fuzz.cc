// config.json: a config that is accepted must have a plan of bounded size whose lengths do not overflow.

#include <cstdlib>
#include <string_view>

#include "checkpoint/inspect.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto config = deepinfer::ModelConfig::Parse({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!config) {
    if (config.error().message().find('\n') != std::string::npos) std::abort();
    return 0;
  }
  // A large plan is legal but slow to build a million times.
  if ((config->num_hidden_layers + config->num_nextn_predict_layers) * config->n_routed_experts > 4096) return 0;
  int64_t total = 0;
  for (const auto& entry : deepinfer::make_catalogue(*config)) {
    int64_t bytes = deepinfer::dtype_bytes(entry.dtype);
    for (const int64_t n : entry.shape) {
      if (n <= 0 || __builtin_mul_overflow(bytes, n, &bytes)) std::abort();
    }
    if (__builtin_add_overflow(total, bytes, &total)) std::abort();
  }
  for (int64_t l = 0; l < config->num_hidden_layers + config->num_nextn_predict_layers; ++l) {
    if (config->compress_ratio(l) > 0 && (config->kv_source_of(l) < 0 || config->index_source_of(l) < config->kv_source_of(l)))
      std::abort();
  }
  return 0;
}
