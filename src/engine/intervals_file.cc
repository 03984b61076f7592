#include "engine/intervals_file.h"

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "base/mapped_file.h"

namespace deepinfer {
namespace {

constexpr std::chrono::seconds kWritten{60};

}  // namespace

Result<IntervalsByClass> IntervalsFile::Read(const std::string& path) {
  const auto text = read_text_file(path, kMaxRecordingBytes);
  if (!text) {
    if (text.error().code() == StatusCode::kNotFound) return IntervalsByClass{};
    return Err(text.error().with_context("kv_tiers.intervals"));
  }
  auto recording = parse_recording(*text);
  if (!recording) return Err(recording.error().with_context("kv_tiers.intervals: " + path));
  return std::move(recording->by_class);
}

Result<std::unique_ptr<IntervalsFile>> IntervalsFile::Open(std::string path, std::function<RevisitRecording()> recording) {
  std::unique_ptr<IntervalsFile> file(new IntervalsFile(std::move(path), std::move(recording)));
  if (const Status written = file->write(); !written.ok()) return Err(written.with_context("kv_tiers.intervals"));
  file->thread_ = std::jthread([f = file.get()](const std::stop_token& stop) { f->run(stop); });
  return file;
}

IntervalsFile::~IntervalsFile() {
  if (!thread_.joinable()) return;
  thread_.request_stop();
  thread_.join();
  (void)write();
}

/// A reader sees the last recording or this one.
Status IntervalsFile::write() const {
  const std::string temporary = path_ + ".temporary";
  std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
  out << recording_json(recording_());
  out.close();
  if (out && std::rename(temporary.c_str(), path_.c_str()) == 0) return Status::Ok();
  const Status failed = Status::Unavailable("{}: cannot write: {}", path_, std::strerror(errno));
  ::unlink(temporary.c_str());
  return failed;
}

void IntervalsFile::run(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    woken_.wait_for(lock, stop, kWritten, [] { return false; });
    if (!stop.stop_requested()) (void)write();
  }
}

}  // namespace deepinfer
