#pragma once

#include <memory>
#include <stop_token>
#include <string>
#include <thread>

#include "cache/tiers/store_admin.h"
#include "commands.h"

namespace deepinfer::cache {

/// `deepinfer cache`: stat, verify, gc, export and import of a store of KV pages, and the plan of how long to keep them.
void add_cache_command(CLI::App& app, cli::Command& chosen);

// What the commands share.

void add_stat_command(CLI::App& cache, cli::Command& chosen);
void add_verify_command(CLI::App& cache, cli::Command& chosen);
void add_gc_command(CLI::App& cache, cli::Command& chosen);
void add_export_command(CLI::App& cache, cli::Command& chosen);
void add_import_command(CLI::App& cache, cli::Command& chosen);
void add_plan_command(CLI::App& cache, cli::Command& chosen);

/// The folder of the store, which every command takes, and --json.
struct StoreFlags {
  std::string directory;
  bool json = false;

  void add_to(CLI::App& command);
};

/// Ctrl-C as a stop token.
class InterruptStop {
 public:
  InterruptStop();
  std::stop_token token() const { return source_.get_token(); }

 private:
  std::stop_source source_;
  std::jthread watch_;
};

/// What to end with after `status`: exit code 130 if Ctrl-C ended the work, otherwise the error.
Result<int> ended(const Status& status);

}  // namespace deepinfer::cache
