#pragma once

// What a checkpoint directory holds and whether it is whole: the library behind `deepinfer inspect`.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "checkpoint/checkpoint.h"

namespace deepinfer {

/// How a layer attends (spec/backbone §3.6).
enum class LayerMode {
  kWindow,   ///< sliding window only
  kFull,     ///< makes global KV and scans all of it
  kReindex,  ///< chooses anew among the rows of an earlier layer
  kReuse,    ///< takes rows and choice of an earlier layer
};
std::string_view layer_mode_name(LayerMode mode);  ///< "SWA", "Full", "Reindex", "Reuse"
LayerMode layer_mode(const ModelConfig& config, int64_t layer);

struct LayerSummary {
  int64_t layer = 0;
  int64_t ratio = 0;
  LayerMode mode = LayerMode::kWindow;
  int64_t kv_source = -1;     ///< -1: none
  int64_t index_source = -1;  ///< -1: none
  bool engram = false;
  bool candidate_source = false;
  bool draft = false;
};

struct GroupSummary {
  std::string group;
  int64_t tensors = 0;
  int64_t bytes = 0;
  int64_t parameters = 0;
};

struct FileSummary {
  std::string name;
  int64_t bytes = 0;
  int64_t tensors = 0;
};

struct Inspection {
  std::string directory;
  ModelConfig config;
  std::vector<LayerSummary> layers;
  std::vector<GroupSummary> groups;  ///< of the plan, largest first
  int64_t tensors = 0;
  int64_t bytes = 0;
  int64_t parameters = 0;  ///< weights; scales do not count, a packed FP4 byte counts twice
  double kv_bytes_per_token = 0;
  int64_t window_bytes = 0;        ///< per sequence, backbone layers (spec §7.2)
  int64_t draft_window_bytes = 0;  ///< per sequence, draft stages
  int64_t tail_bytes = 0;          ///< per sequence, unfinished groups of the compressors
  bool weights_present = false;
  VerifyLevel verify = VerifyLevel::kHeaders;
  std::vector<FileSummary> files;
  std::vector<std::string> problems;  ///< the first few hundred
  int64_t problem_count = 0;
  std::vector<std::string> warnings;
  int64_t warning_count = 0;

  bool sound() const { return weights_present && problem_count == 0; }
};

/// Collects every mismatch between the config and the files. Works with config.json alone: the plan is then filled in and
/// `weights_present` is false. Only a config.json that cannot be read is an error.
Result<Inspection> inspect_checkpoint(const std::string& directory, const Checkpoint::Options& options);
inline Result<Inspection> inspect_checkpoint(const std::string& directory) {
  return inspect_checkpoint(directory, Checkpoint::Options{.verify = VerifyLevel::kHeaders, .progress = {}});
}

/// For people, many lines.
std::string format_inspection(const Inspection& inspection);
/// One JSON object, for programs.
std::string inspection_json(const Inspection& inspection);

/// "headers", "scales" or "full".
Result<VerifyLevel> parse_verify_level(std::string_view name);
std::string_view verify_level_name(VerifyLevel level);

}  // namespace deepinfer
