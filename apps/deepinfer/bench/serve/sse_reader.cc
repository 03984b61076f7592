#include "serve/sse_reader.h"

namespace deepinfer::bench {

bool SseReader::push(std::string_view bytes, FunctionRef<void(std::string_view data)> on_event) {
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    if (line_.size() + data_.size() + bytes.substr(0, end).size() > kMaxEventBytes) return false;
    if (end == std::string_view::npos) {
      line_ += bytes;
      return true;
    }
    if (line_.empty()) {
      take_line(bytes.substr(0, end), on_event);
    } else {
      line_ += bytes.substr(0, end);
      take_line(line_, on_event);
      line_.clear();
    }
    bytes.remove_prefix(end + 1);
  }
  return true;
}

void SseReader::take_line(std::string_view line, FunctionRef<void(std::string_view data)> on_event) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  if (line.empty()) {
    if (has_data_) on_event(data_);
    data_.clear();
    has_data_ = false;
    return;
  }
  constexpr std::string_view kData = "data:";
  if (!line.starts_with(kData)) return;
  line.remove_prefix(kData.size());
  if (line.starts_with(' ')) line.remove_prefix(1);
  if (has_data_) data_ += '\n';
  data_ += line;
  has_data_ = true;
}

}  // namespace deepinfer::bench
