#include "testing/random_model.h"

#include <filesystem>
#include <numeric>
#include <stdexcept>

#include "base/mapped_file.h"
#include "checkpoint/random_checkpoint.h"
#include "testing/named_backend.h"
#include "testing/paths.h"

namespace deepinfer::testing {
namespace {

template <typename T>
T unwrap(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message());
  return std::move(*result);
}

void attach_model(RandomModel& m, const std::string& backend, int threads, const Model::Options& options) {
  m.pool = std::make_unique<ThreadPool>(threads);
  m.backend = make_named_backend(backend, m.pool.get());
  std::vector<int32_t> map(static_cast<size_t>(m.checkpoint->config().vocab_size));
  std::iota(map.begin(), map.end(), 0);
  m.model = unwrap(Model::Create(m.checkpoint, std::move(map), m.backend.get(), options));
}

}  // namespace

TempFolder::~TempFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
}

RandomModel make_random_model(const std::string& backend, int threads, const std::function<void(nlohmann::json& text)>& change,
                              const Model::Options& options) {
  const std::string path = source_dir() + "/tests/data/micro_config.json";
  nlohmann::json json = nlohmann::json::parse(unwrap(read_text_file(path, 1 << 20)));
  if (change) change(json["text_config"]);
  const std::string text = json.dump(2);
  const ModelConfig config = unwrap(ModelConfig::Parse(text, path));
  RandomModel m;
  m.folder = std::make_shared<TempFolder>(make_temp_dir("model"));
  if (Status status = write_random_checkpoint(config, text, m.folder->path); !status.ok())
    throw std::runtime_error(status.message());
  m.checkpoint = unwrap(Checkpoint::Open(m.folder->path));
  attach_model(m, backend, threads, options);
  return m;
}

RandomModel share_checkpoint(const RandomModel& first, const std::string& backend, int threads, const Model::Options& options) {
  RandomModel m;
  m.folder = first.folder;
  m.checkpoint = first.checkpoint;
  attach_model(m, backend, threads, options);
  return m;
}

}  // namespace deepinfer::testing
