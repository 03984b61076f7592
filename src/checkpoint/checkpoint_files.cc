#include "checkpoint/checkpoint_files.h"

#include <simdjson.h>

#include <array>
#include <filesystem>
#include <optional>

#include "checkpoint/safetensors.h"
#include "checkpoint/text_util.h"

namespace deepinfer::internal {
namespace {

namespace dom = simdjson::dom;
namespace fs = std::filesystem;

constexpr int64_t kMaxIndexBytes = int64_t{256} << 20;
constexpr int64_t kMaxShards = 65536;
constexpr size_t kIndexDepth = 8;

bool exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

/// A shard is a plain file in the checkpoint directory: no path of the index may lead out of it.
bool plain_file_name(std::string_view name) {
  if (name.empty() || name.size() > 255 || name.front() == '.') return false;
  for (const char ch : name) {
    const bool fine =
        (ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z') || (ch >= '0' && ch <= '9') || ch == '-' || ch == '_' || ch == '.';
    if (!fine) return false;
  }
  return name.find("..") == std::string_view::npos;
}

/// model.safetensors.index.json: the shards in order of first mention, and the shard of every tensor.
struct Index {
  std::vector<std::string> shards;
  NameMap<size_t> where;
};

Status read_index(const std::string& path, Index* index) {
  DI_ASSIGN_OR_RETURN(const std::string text, read_text_file(path, kMaxIndexBytes));
  dom::parser parser;
  if (parser.allocate(text.size() + 64, kIndexDepth) != simdjson::SUCCESS) {
    return Status::ResourceExhausted("{}: no memory to parse {} bytes", path, text.size());
  }
  const simdjson::padded_string padded(text);
  dom::element document;
  if (const auto error = parser.parse(padded).get(document)) {
    return Status::DataLoss("{}: not valid JSON (nesting limit {}): {}", path, kIndexDepth, simdjson::error_message(error));
  }
  dom::object root, map;
  if (document.get_object().get(root) != simdjson::SUCCESS ||
      root.at_key("weight_map").get_object().get(map) != simdjson::SUCCESS) {
    return Status::DataLoss("{}: weight_map is missing or not an object", path);
  }
  NameMap<size_t> shard_numbers;
  index->where.reserve(map.size());
  for (const dom::key_value_pair field : map) {
    std::string_view shard;
    if (field.value.get_string().get(shard) != simdjson::SUCCESS) {
      return Status::DataLoss("{}: weight_map.{} is not a string", path, printable(field.key));
    }
    if (!plain_file_name(shard)) {
      return Status::InvalidArgument("{}: weight_map.{} is \"{}\", not a plain file name", path, printable(field.key),
                                     printable(shard));
    }
    const auto [at, fresh] = shard_numbers.try_emplace(std::string(shard), index->shards.size());
    if (fresh) {
      if (static_cast<int64_t>(index->shards.size()) == kMaxShards) {
        return Status::OutOfRange("{}: weight_map names more than {} shards", path, kMaxShards);
      }
      index->shards.emplace_back(shard);
    }
    if (!index->where.try_emplace(std::string(field.key), at->second).second) {
      return Status::DataLoss("{}: weight_map.{} is given twice", path, printable(field.key));
    }
  }
  if (index->shards.empty()) return Status::DataLoss("{}: weight_map is empty", path);
  return Status::Ok();
}

/// Adds the tensors of one file. False: stop.
bool add_file(MappedFile file, const Index* index, size_t shard, CheckpointFiles* out, Problems& problems) {
  auto header = parse_safetensors(file.bytes(), file.path());
  if (!header) return problems.add(std::move(header).error());
  const size_t number = out->files.size();
  out->tensors_per_file.push_back(static_cast<int64_t>(header->entries.size()));
  for (SafetensorsEntry& entry : header->entries) {
    if (index != nullptr) {
      const auto listed = index->where.find(entry.name);
      if (listed == index->where.end()) {
        problems.warn(fmt::format("{}: tensor {} is not in {}", file.path(), printable(entry.name), kIndexFile));
      } else if (listed->second != shard) {
        if (!problems.add(Status::DataLoss("{}: tensor {} is here, but weight_map puts it in {}", file.path(),
                                           printable(entry.name), index->shards[listed->second]))) {
          return false;
        }
        continue;
      }
    }
    std::string name = canonical_name(entry.name);
    FoundTensor found;
    found.file = number;
    found.view = {entry.dtype, std::move(entry.shape), file.data() + entry.offset, entry.bytes};
    if (name != entry.name) found.stored_as = entry.name;
    const auto [at, fresh] = out->tensors.try_emplace(std::move(name), std::move(found));
    if (!fresh) {
      const std::string& other = at->second.file == number ? file.path() : out->files[at->second.file].path();
      if (!problems.add(
              Status::DataLoss("{}: tensor {} occurs a second time (also in {})", file.path(), printable(entry.name), other))) {
        return false;
      }
    }
  }
  out->files.push_back(std::move(file));
  return true;
}

}  // namespace

std::string canonical_name(std::string_view stored) {
  if (stored.starts_with("model.")) stored.remove_prefix(6);
  // The tower has its own `mlp`; its names are not DeepSeek's converter's business.
  if (stored.starts_with("vision.") || stored.starts_with("aligner.")) return std::string(stored);
  // Whole components only: `bias_vl` must not lose its tail to the rule for `bias`.
  constexpr std::array<std::array<std::string_view, 2>, 5> kRenames = {{{"self_attn", "attn"},
                                                                        {"mlp", "ffn"},
                                                                        {"weight_scale_inv", "scale"},
                                                                        {"e_score_correction_bias", "bias"},
                                                                        {"e_score_correction_bias_vl", "bias_vl"}}};
  std::string out;
  out.reserve(stored.size());
  for (size_t from = 0;;) {
    const size_t dot = stored.find('.', from);
    std::string_view part = stored.substr(from, dot == std::string_view::npos ? dot : dot - from);
    for (const auto& [old_name, new_name] : kRenames) {
      if (part == old_name) {
        part = new_name;
        break;
      }
    }
    out += part;
    if (dot == std::string_view::npos) return out;
    out += '.';
    from = dot + 1;
  }
}

bool has_weights(const std::string& directory) {
  return exists(directory + "/" + kIndexFile) || exists(directory + "/" + kSingleFile);
}

CheckpointFiles load_files(const std::string& directory, Problems& problems) {
  CheckpointFiles out;
  const std::string index_path = directory + "/" + kIndexFile;
  if (!exists(index_path)) {
    auto file = MappedFile::Open(directory + "/" + kSingleFile);
    if (!file) {
      problems.add(std::move(file).error().with_context(fmt::format("no {} either", kIndexFile)));
      return out;
    }
    out.files.reserve(1);
    add_file(std::move(*file), nullptr, 0, &out, problems);
    return out;
  }
  Index index;
  if (Status status = read_index(index_path, &index); !status.ok()) {
    problems.add(std::move(status));
    return out;
  }
  out.tensors.reserve(index.where.size());
  out.files.reserve(index.shards.size());
  for (size_t shard = 0; shard < index.shards.size(); ++shard) {
    auto file = MappedFile::Open(directory + "/" + index.shards[shard]);
    if (!file) {
      if (!problems.add(std::move(file).error())) return out;
      continue;
    }
    if (!add_file(std::move(*file), &index, shard, &out, problems)) return out;
  }
  return out;
}

void compare_with_catalogue(const std::vector<CatalogueEntry>& catalogue, const CheckpointFiles& files, Problems& problems) {
  size_t matched = 0;
  for (const CatalogueEntry& want : catalogue) {
    const auto at = files.tensors.find(want.name);
    if (at == files.tensors.end()) {
      if (!problems.add(Status::NotFound("tensor {}: missing, the config implies {} [{}]", want.name, dtype_name(want.dtype),
                                         fmt::join(want.shape, ", ")))) {
        return;
      }
      continue;
    }
    ++matched;
    const FoundTensor& got = at->second;
    const std::string& path = files.files[got.file].path();
    if (got.view.dtype != want.dtype) {
      if (!problems.add(Status::InvalidArgument("{}: tensor {}: dtype is {}, it must be {}", path, want.name,
                                                dtype_name(got.view.dtype), dtype_name(want.dtype)))) {
        return;
      }
    }
    if (got.view.shape != want.shape) {
      if (!problems.add(Status::InvalidArgument("{}: tensor {}: shape is [{}], the config implies [{}]", path, want.name,
                                                fmt::join(got.view.shape, ", "), fmt::join(want.shape, ", ")))) {
        return;
      }
    }
  }
  if (matched == files.tensors.size()) return;
  NameMap<bool> wanted;
  wanted.reserve(catalogue.size());
  for (const CatalogueEntry& want : catalogue) wanted.try_emplace(want.name, true);
  for (const auto& [name, found] : files.tensors) {
    if (wanted.find(name) == wanted.end()) {
      problems.warn(fmt::format("{}: tensor {} is not implied by the config and stays unused", files.files[found.file].path(),
                                printable(name)));
    }
  }
}

}  // namespace deepinfer::internal
