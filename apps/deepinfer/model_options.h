#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "base/status.h"
#include "engine/loaded_model.h"

namespace deepinfer::cli {

/// Flags that every command with a model shares.
struct ModelOptions {
  std::string model;
  std::string backend = "cpu";
  int threads = 0;  ///< 0: as many as the process may use

  void add_to(CLI::App& command);
};

/// Loads the model with a line of progress on a terminal.
Result<LoadedModel> load_model(const ModelOptions& options);

}  // namespace deepinfer::cli
