#pragma once

#include <memory>
#include <string>

#include "model/model.h"
#include "tokenizer/tokenizer.h"

namespace deepinfer::testing {

/// A checkpoint directory with a backend: what most model tests start from.
struct LoadedModel {
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<Backend> backend;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::unique_ptr<Model> model;
};

/// backend: as make_named_backend. Throws std::runtime_error with the reason on failure.
LoadedModel load_model(const std::string& directory, const std::string& backend, int threads = 2);

}  // namespace deepinfer::testing
