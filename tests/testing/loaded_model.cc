#include "testing/loaded_model.h"

#include <stdexcept>

namespace deepinfer::testing {
namespace {

template <typename T>
T unwrap(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message());
  return std::move(*result);
}

}  // namespace

LoadedModel load_model(const std::string& directory, const std::string& backend, int threads) {
  LoadedModel loaded;
  loaded.pool = std::make_unique<ThreadPool>(threads);
  loaded.backend = backend == "reference" ? make_reference_backend(loaded.pool.get()) : make_cpu_backend(loaded.pool.get());
  loaded.tokenizer = unwrap(Tokenizer::Load(directory + "/tokenizer.json"));
  auto checkpoint = unwrap(Checkpoint::Open(directory));
  loaded.model = unwrap(Model::Create(std::move(checkpoint), make_engram_token_map(*loaded.tokenizer).map, loaded.backend.get()));
  return loaded;
}

}  // namespace deepinfer::testing
