#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "model/model.h"

namespace deepinfer::testing {

/// A folder that goes with its last user.
struct TempFolder {
  explicit TempFolder(std::string where) : path(std::move(where)) {}
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::string path;
};

/// A model over a random checkpoint in a folder of its own.
struct RandomModel {
  std::shared_ptr<TempFolder> folder;
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<Backend> backend;
  std::shared_ptr<const Checkpoint> checkpoint;
  std::unique_ptr<Model> model;
};

/// tests/data/micro_config.json after `change` of its text_config. `backend`: "reference" or "cpu". The token map is the
/// identity. Throws std::runtime_error with the reason on failure.
RandomModel make_random_model(const std::string& backend, int threads = 2,
                              const std::function<void(nlohmann::json& text)>& change = {}, const Model::Options& options = {});

/// The same checkpoint with another backend.
RandomModel share_checkpoint(const RandomModel& first, const std::string& backend, int threads = 2,
                             const Model::Options& options = {});

}  // namespace deepinfer::testing
