#pragma once

#include <string>
#include <string_view>

#include "base/function_ref.h"

namespace deepinfer::bench {

/// Server-sent events as they come off a socket, cut anywhere: gives the data of each event, its lines joined by '\n'. Comments,
/// names and ids are passed over; lines end with \n or \r\n.
class SseReader {
 public:
  static constexpr size_t kMaxEventBytes = size_t{16} << 20;

  /// False: an event is longer than kMaxEventBytes; what follows is not read.
  [[nodiscard]] bool push(std::string_view bytes, FunctionRef<void(std::string_view data)> on_event);

 private:
  void take_line(std::string_view line, FunctionRef<void(std::string_view data)> on_event);

  std::string line_;  ///< begun
  std::string data_;
  bool has_data_ = false;
};

}  // namespace deepinfer::bench
