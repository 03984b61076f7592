#pragma once

// The slice of the released model that stands on one GPU: layers of every kind at true dimensions with all their experts, the
// head, and the draft module; and sequences of any length behind random cache rows.

#include <memory>
#include <string>
#include <vector>

#include "cuda/metered_backend.h"
#include "cuda/sparse_checkpoint.h"
#include "model/model.h"

namespace deepinfer::bench {

/// "window", "Full ratio 2, Engram", "Reuse ratio 1", ...: how a layer attends (spec/backbone §3.6).
std::string layer_kind(const ModelConfig& config, int64_t layer);

class GpuSlice {
 public:
  /// `released_path`: config.json of the release; `directory`: for the sparse checkpoint. `experts`: of a layer;
  /// `page_pool_bytes`: random cache rows, which sequences share where they would need more. Ends the program with a message if
  /// something fails.
  GpuSlice(MeteredBackend* backend, const std::string& released_path, const std::string& directory, int64_t experts,
           int64_t page_pool_bytes);
  ~GpuSlice();
  GpuSlice(const GpuSlice&) = delete;
  GpuSlice& operator=(const GpuSlice&) = delete;

  Model& model() { return *model_; }
  const ModelConfig& config() const { return model_->config(); }
  int64_t pool_positions() const { return pool_pages_ * kPagePositions; }

  /// Sequences of `length` positions with whole windows, and room for `more`.
  std::vector<std::unique_ptr<SequenceState>> sequences(int64_t count, int64_t length, int64_t more);
  /// Some ids, the same at every call.
  std::vector<int32_t> tokens(int64_t count) const;

 private:
  void fill_pages();
  void save_a_window();

  MeteredBackend* backend_;
  std::shared_ptr<const Checkpoint> checkpoint_;
  std::unique_ptr<Model> model_;
  uint8_t* pages_ = nullptr;
  uint8_t* own_pages_ = nullptr;  ///< that sequences write
  int64_t pool_pages_ = 0;
  WindowSnapshot window_;
};

}  // namespace deepinfer::bench
