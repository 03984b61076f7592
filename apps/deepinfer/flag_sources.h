#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <string>

#include "base/status.h"

namespace deepinfer::cli {

/// Gives every flag of a command three more places to come from. In order of precedence: the command line, the environment
/// (DEEPINFER_MAX_NUM_SEQS for --max-num-seqs), a file named by --config, the default. The file is TOML or INI lines
/// `max-num-seqs = 8`, or a JSON object; keys are the names of flags, with '-' or '_'. Remembers where each value came from.
class FlagSources {
 public:
  /// Call before the command's own flags are added, so that these are completed before any of them is read.
  void add_to(CLI::App& command);
  /// "name value source", one line a flag. Secrets are not shown.
  std::string describe(const CLI::App& command) const;

 private:
  void complete(CLI::App& command);
  void read_file(CLI::App& command, const std::string& path);
  void set(CLI::App& command, const std::string& path, std::string key, const std::vector<std::string>& values);

  CLI::Option* config_ = nullptr;
  std::map<const CLI::Option*, std::string> sources_;
};

}  // namespace deepinfer::cli
