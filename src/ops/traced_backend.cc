#include "ops/traced_backend.h"

#include "ops/wrapped_backend.h"

namespace deepinfer {
namespace {

class TracedBackend final : public WrappedBackend {
 public:
  TracedBackend(std::unique_ptr<Backend> inner, telemetry::TraceRecorder* recorder)
      : WrappedBackend(std::move(inner)), recorder_(recorder) {}

  void begin_layer(int64_t layer) override {
    layer_ = layer;
    WrappedBackend::begin_layer(layer);
  }

 private:
  void around(const char* name, int64_t rows, FunctionRef<void()> call) override {
    const int64_t begin = telemetry::now_ns();
    call();
    recorder_->record({.name = name,
                       .category = telemetry::Category::kOp,
                       .begin = begin,
                       .end = telemetry::now_ns(),
                       .args = {{{"layer", layer_}, {"rows", rows}}}});
  }

  telemetry::TraceRecorder* const recorder_;
  int64_t layer_ = -1;
};

}  // namespace

std::unique_ptr<Backend> make_traced_backend(std::unique_ptr<Backend> inner, telemetry::TraceRecorder* recorder) {
  return std::make_unique<TracedBackend>(std::move(inner), recorder);
}

}  // namespace deepinfer
