#pragma once

#include <memory>
#include <string>

#include "base/thread_pool.h"
#include "model/model.h"

namespace deepinfer::bench {

/// A slice of five layers at true V4.1 dimensions with random weights in the official formats, read through the mapped file as a
/// real checkpoint is. It has every kind of layer: window only with Engram, Full at ratio 2, Full at ratio 1 (candidate source,
/// the decoder's first), Reindex, Reuse. What is smaller than in the release: layers, experts, vocabulary, Engram rows.
struct SliceModel {
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<Backend> backend;
  std::shared_ptr<const Checkpoint> checkpoint;
  std::unique_ptr<Model> model;
};

inline constexpr const char* kSliceLayers = "5 (window+Engram, Full ratio 2, Full ratio 1, Reindex, Reuse)";

/// Writes the checkpoint to `directory` unless it is there already. Ends the program with a message when something fails.
/// `draft_stages`: of a DSpark module at true dimensions, with as many experts as the layers have, at most the release's 128.
SliceModel make_slice_model(const std::string& directory, int64_t experts, int threads, int64_t draft_stages = 0);

}  // namespace deepinfer::bench
