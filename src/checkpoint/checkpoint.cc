#include "checkpoint/checkpoint.h"

#include <cstring>
#include <utility>

#include "checkpoint/checkpoint_files.h"

namespace deepinfer {

struct Checkpoint::Impl {
  std::string directory;
  ModelConfig config;
  internal::CheckpointFiles files;
  std::vector<std::string> warnings;
  /// Copies of tensors that a file holds at an address their element type does not allow.
  std::vector<std::unique_ptr<std::byte[]>> aligned;
  int64_t total_bytes = 0;
};

Checkpoint::Checkpoint(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Checkpoint::~Checkpoint() = default;

const std::string& Checkpoint::directory() const { return impl_->directory; }
const ModelConfig& Checkpoint::config() const { return impl_->config; }
const std::vector<std::string>& Checkpoint::warnings() const { return impl_->warnings; }
int64_t Checkpoint::total_bytes() const { return impl_->total_bytes; }

const TensorView* Checkpoint::find(std::string_view name) const {
  const auto at = impl_->files.tensors.find(name);
  return at == impl_->files.tensors.end() ? nullptr : &at->second.view;
}

Result<std::shared_ptr<const Checkpoint>> Checkpoint::Open(const std::string& directory, const Options& options) {
  auto impl = std::make_unique<Impl>();
  impl->directory = directory;
  DI_ASSIGN_OR_RETURN(impl->config, ModelConfig::Load(directory + "/config.json"));
  const std::vector<CatalogueEntry> catalogue = make_catalogue(impl->config);

  internal::Problems problems(1);
  impl->files = internal::load_files(directory, problems);
  if (!problems.stop()) internal::compare_with_catalogue(catalogue, impl->files, problems);
  if (!problems.stop()) internal::verify_values(catalogue, impl->files, options.verify, options.progress, problems);
  if (problems.stop()) return Err(problems.first());
  impl->warnings = problems.warnings();

  // Only what the config implies can be found: nothing may come to depend on a tensor that was never checked.
  internal::NameMap<internal::FoundTensor> known;
  known.reserve(catalogue.size());
  for (const CatalogueEntry& entry : catalogue) {
    internal::FoundTensor found = std::move(impl->files.tensors.find(entry.name)->second);
    TensorView& view = found.view;
    impl->total_bytes += view.bytes;
    if (reinterpret_cast<uintptr_t>(view.data) % static_cast<uintptr_t>(dtype_bytes(view.dtype)) != 0) {
      auto copy = std::make_unique<std::byte[]>(static_cast<size_t>(view.bytes));
      std::memcpy(copy.get(), view.data, static_cast<size_t>(view.bytes));
      view.data = copy.get();
      impl->aligned.push_back(std::move(copy));
    }
    known.try_emplace(entry.name, std::move(found));
  }
  impl->files.tensors = std::move(known);
  return std::shared_ptr<const Checkpoint>(new Checkpoint(std::move(impl)));
}

}  // namespace deepinfer
