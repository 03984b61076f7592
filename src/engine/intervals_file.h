#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>

#include "base/status.h"
#include "cache/revisit_intervals.h"

namespace deepinfer {

/// The recording of revisit intervals in a file: read when it is there, so that a recording goes on over restarts, and written by
/// a thread of its own, which may take as long as the file system does.
class IntervalsFile {
 public:
  /// What a file says; empty if there is none. Errors name file and field: what is not a recording is not overwritten.
  static Result<IntervalsByClass> Read(const std::string& path);

  /// Writes `recording()` now, every minute, and a last time when it is destroyed. An error, of the first time, names the file;
  /// later ones leave what was written before.
  static Result<std::unique_ptr<IntervalsFile>> Open(std::string path, std::function<RevisitRecording()> recording);
  ~IntervalsFile();
  IntervalsFile(const IntervalsFile&) = delete;
  IntervalsFile& operator=(const IntervalsFile&) = delete;

 private:
  IntervalsFile(std::string path, std::function<RevisitRecording()> recording)
      : path_(std::move(path)), recording_(std::move(recording)) {}
  Status write() const;
  void run(const std::stop_token& stop);

  const std::string path_;
  const std::function<RevisitRecording()> recording_;
  std::mutex mutex_;
  std::condition_variable_any woken_;
  std::jthread thread_;
};

}  // namespace deepinfer
