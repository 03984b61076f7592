#include "testing/loaded_model.h"

#include <stdexcept>

#include "testing/named_backend.h"

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
  loaded.backend = make_named_backend(backend, loaded.pool.get());
  loaded.tokenizer = unwrap(Tokenizer::Load(directory + "/tokenizer.json"));
  auto checkpoint = unwrap(Checkpoint::Open(directory));
  loaded.model = unwrap(Model::Create(std::move(checkpoint), make_engram_token_map(*loaded.tokenizer).map, loaded.backend.get()));
  return loaded;
}

}  // namespace deepinfer::testing
