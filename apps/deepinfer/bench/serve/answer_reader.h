#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "serve/http_client.h"
#include "serve/sse_reader.h"

namespace deepinfer::bench {

/// What became of a request. Times are seconds from the start of the run, NaN: never.
struct LoadRecord {
  int64_t session = 0;  ///< that it belongs to
  int64_t turn = 0;     ///< in its session, from 0
  double planned = 0;   ///< of a later turn: when its user has read and thought
  double sent = std::numeric_limits<double>::quiet_NaN();
  double first_token = std::numeric_limits<double>::quiet_NaN();
  double last_token = std::numeric_limits<double>::quiet_NaN();
  double finished = std::numeric_limits<double>::quiet_NaN();
  std::vector<float> gaps;    ///< seconds between the chunks that carried text
  int64_t input_tokens = 0;   ///< the server's count, or what was planned
  int64_t output_tokens = 0;  ///< the server's count, or the number of chunks where it gave none
  bool counted_by_server = false;
  int64_t cached_tokens = 0;
  std::string error;  ///< empty: the answer came whole

  bool ok() const { return error.empty(); }
  double ttft() const { return first_token - sent; }
  double latency() const { return finished - sent; }
  /// Mean time of a token after the first; NaN for fewer than two tokens.
  double tpot() const {
    return output_tokens > 1 ? (last_token - first_token) / static_cast<double>(output_tokens - 1)
                             : std::numeric_limits<double>::quiet_NaN();
  }
};

/// Reads the stream of one answer of Completions or Chat Completions into its record.
class AnswerReader {
 public:
  static constexpr size_t kMaxTextBytes = size_t{16} << 20;

  /// `keep_text`: the next turn of the session says it.
  AnswerReader(LoadRecord& record, bool keep_text) : record_(record), keep_text_(keep_text) {}

  /// A piece of the body that came at `time`; false: it is wrong, which the record says, and the rest is not wanted.
  [[nodiscard]] bool push(std::string_view piece, double time);
  /// After the exchange: what the answer lacks becomes its error.
  void finish(const HttpReply& reply);

  /// What the model said, without its reasoning; moved out.
  std::string take_text() { return std::move(text_); }

 private:
  void take_event(std::string_view data, double time);

  LoadRecord& record_;
  bool keep_text_;
  SseReader events_;
  int64_t chunks_ = 0;  ///< that carried text
  bool ended_ = false;
  std::string text_;
};

}  // namespace deepinfer::bench
