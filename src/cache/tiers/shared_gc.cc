#include "cache/tiers/shared_gc.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <condition_variable>
#include <filesystem>
#include <limits>
#include <mutex>

#include "cache/tiers/eviction_plan.h"
#include "cache/tiers/shared_walk.h"

namespace deepinfer {
namespace {

/// mtime of a file; negative: it isn't there.
double modified(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 ? static_cast<double>(status.st_mtim.tv_sec) : -1;
}

/// One collection.
class Collector {
 public:
  Collector(const SharedLayout& layout, const SharedGcOptions& options, std::string_view keep_generation, double now,
            std::stop_token stop, const SharedEvictionListener& evicted)
      : layout_(layout),
        options_(options),
        keep_(keep_generation),
        now_(now),
        stop_(std::move(stop)),
        evicted_(evicted),
        plan_(options.capacity_bytes, options.retention, now) {}

  Result<StoreCollection> run() {
    DI_RETURN_IF_ERROR(compare_clocks());
    Status incomplete;
    const auto note = [&](Status status) {
      if (!status.ok() && incomplete.ok()) incomplete = std::move(status);
    };
    DI_ASSIGN_OR_RETURN(const std::vector<std::string> generations, list_generations(layout_));
    std::vector<std::string> living;
    for (const std::string& name : generations) {
      if (bury(name)) {
        ++done_.generations;
      } else {
        living.push_back(name);
      }
    }
    note(empty_trash());
    for (const std::string& name : living) note(walk(name, &Collector::sweep));
    if (incomplete.ok() && plan_.decide()) {
      for (const std::string& name : living) note(walk(name, &Collector::evict));
    }
    if (!incomplete.ok()) return Err(std::move(incomplete));
    return done_;
  }

 private:
  Status walk(const std::string& name, Status (Collector::*visit)(const SharedFile&)) {
    DI_ASSIGN_OR_RETURN(generation_, parse_fingerprint(name));
    return walk_generation(
        layout_.generations() + "/" + name, [&](const SharedFile& file) { return (this->*visit)(file); }, stop_);
  }

  Status compare_clocks() {
    DI_ASSIGN_OR_RETURN(file_time_, file_system_time(layout_.root(), names_));
    if (std::abs(now_ - file_time_) > options_.max_clock_skew_seconds) {
      return Status::FailedPrecondition(
          "shared store {}: no garbage collected: this clock is {:.0f} s away from the file system's, the limit is {:.0f} s",
          layout_.root(), now_ - file_time_, options_.max_clock_skew_seconds);
    }
    return Status::Ok();
  }

  double idle_seconds(const std::string& generation) const {
    double stamp = modified(generation + "/" + std::string(kLastOpenName));
    // Whoever made the folder may not have come to the stamp yet.
    if (stamp < 0) stamp = modified(generation);
    return stamp < 0 ? 0 : file_time_ - stamp;
  }

  /// Takes a dead generation away from where engines look for it. One that opens it right now finds it gone and makes it anew.
  bool bury(const std::string& name) {
    const std::string path = layout_.generations() + "/" + name;
    if (name == keep_ || idle_seconds(path) <= options_.generation_seconds) return false;
    if (::mkdir(layout_.trash().c_str(), 0700) != 0 && errno != EEXIST) return false;
    const std::string grave = layout_.trash() + "/" + name + "." + names_.next();
    if (::rename(path.c_str(), grave.c_str()) != 0) return false;
    if (idle_seconds(grave) > options_.generation_seconds) return true;
    // Somebody opened it between the look and the rename. If he has made it anew, these pages are only missed.
    return ::rename(grave.c_str(), path.c_str()) != 0;
  }

  Status empty_trash() {
    std::error_code error;
    std::filesystem::directory_iterator grave(layout_.trash(), error);  // the end if there is no trash
    for (; !error && grave != std::filesystem::directory_iterator(); grave.increment(error)) {
      DI_RETURN_IF_ERROR(walk_generation(
          grave->path(),
          [this](const SharedFile& file) {
            if (::unlinkat(file.folder, file.name, 0) == 0) (file.temporary ? done_.temporary : done_.expired).add(file.bytes());
            return Status::Ok();
          },
          stop_));
      std::filesystem::remove_all(grave->path(), error);
      if (error) return Status::Unavailable("shared store: {}: remove: {}", grave->path().string(), error.message());
    }
    return Status::Ok();
  }

  Status remove(const SharedFile& file, StoreUsage& counted) const {
    if (::unlinkat(file.folder, file.name, 0) == 0) {
      counted.add(file.bytes());
    } else if (errno != ENOENT) {  // somebody else was faster
      return file_failed(file.path(), "remove", errno);
    }
    return Status::Ok();
  }

  Status sweep(const SharedFile& file) {
    if (file.temporary) {
      // ctime, as mtime is set to the expiry before the page gets its name.
      const double age = file_time_ - static_cast<double>(file.status.st_ctim.tv_sec);
      return age > options_.temporary_seconds ? remove(file, done_.temporary) : Status::Ok();
    }
    if (!file.page) return Status::Ok();  // none of ours
    PageTime time = to_page_time(file.status.st_mtim);
    if (time.expiry <= now_) return remove(file, done_.expired);
    const double skew = std::isfinite(options_.max_clock_skew_seconds) ? options_.max_clock_skew_seconds : 0;
    if (time.expiry > now_ + options_.retention.longest_ttl() + skew) {
      // The clock of whoever wrote it ran ahead; it would outlive all others.
      time.expiry = now_ + options_.retention.ttl(time.cache_class);
      const timespec times[2] = {{.tv_sec = 0, .tv_nsec = UTIME_OMIT}, to_file_time(time)};
      (void)::utimensat(file.folder, file.name, times, AT_SYMLINK_NOFOLLOW);
    }
    done_.kept.add(file.bytes());
    plan_.add(time.cache_class, time.expiry, file.bytes());
    return Status::Ok();
  }

  Status evict(const SharedFile& file) {
    if (!file.page) return Status::Ok();
    const PageTime time = to_page_time(file.status.st_mtim);
    if (!plan_.evicts(time.cache_class, time.expiry, file.bytes())) return Status::Ok();
    const int64_t before = done_.evicted.pages;
    DI_RETURN_IF_ERROR(remove(file, done_.evicted));
    if (done_.evicted.pages > before) {
      if (evicted_) evicted_(generation_, file.page->key);
      --done_.kept.pages;
      done_.kept.bytes -= file.bytes();
    }
    return Status::Ok();
  }

  const SharedLayout& layout_;
  const SharedGcOptions& options_;
  const std::string keep_;
  const double now_;
  const std::stop_token stop_;
  const SharedEvictionListener& evicted_;
  KvFingerprint generation_{};  ///< being walked
  double file_time_ = 0;
  UniqueNames names_;
  EvictionPlan plan_;
  StoreCollection done_;
};

}  // namespace

Status SharedGcOptions::validate() const {
  if (capacity_bytes < 0) return Status::OutOfRange("capacity_bytes: {}, must be at least 0", capacity_bytes);
  // Written so that a NaN is refused.
  if (!(generation_seconds > 0)) return Status::OutOfRange("generation_seconds: {}, must be above 0", generation_seconds);
  if (!(temporary_seconds >= 0)) return Status::OutOfRange("temporary_seconds: {}, must be at least 0", temporary_seconds);
  if (!(max_clock_skew_seconds >= 0))
    return Status::OutOfRange("max_clock_skew_seconds: {}, must be at least 0", max_clock_skew_seconds);
  return retention.validate();
}

Result<StoreCollection> collect_shared_garbage(const SharedLayout& layout, const SharedGcOptions& options,
                                               std::string_view keep_generation, double now, std::stop_token stop,
                                               const SharedEvictionListener& evicted) {
  return Collector(layout, options, keep_generation, now, std::move(stop), evicted).run();
}

struct SharedGcTimer::State {
  SharedLayout layout;
  SharedGcOptions options;
  std::string keep_generation;
  double interval = 0;
  SharedEvictionListener evicted;
  std::stop_source stop;
  std::mutex mutex;
  std::condition_variable changed;
  bool stopped = false;
  bool hurried = false;

  explicit State(SharedLayout l) : layout(std::move(l)) {}
};

SharedGcTimer::SharedGcTimer(SharedLayout layout, const SharedGcOptions& options, std::string keep_generation,
                             double interval_seconds, SharedEvictionListener evicted)
    : state_(std::make_shared<State>(std::move(layout))), thread_(1) {
  state_->options = options;
  state_->keep_generation = std::move(keep_generation);
  state_->interval = interval_seconds;
  state_->evicted = std::move(evicted);
  thread_.post([state = state_] { run(state); });
}

SharedGcTimer::~SharedGcTimer() {
  state_->stop.request_stop();
  const std::lock_guard lock(state_->mutex);
  state_->stopped = true;
  state_->changed.notify_all();
}

void SharedGcTimer::hurry() {
  const std::lock_guard lock(state_->mutex);
  state_->hurried = true;
  state_->changed.notify_all();
}

void SharedGcTimer::run(const std::shared_ptr<State>& state) {
  constexpr double kShortestSeconds = 60;  ///< between two collections of this process, however full the disk is
  double last = -std::numeric_limits<double>::infinity();
  for (;;) {
    bool due = false;
    {
      std::unique_lock lock(state->mutex);
      const auto wake = [&] { return state->stopped || (state->hurried && steady_seconds() >= last + kShortestSeconds); };
      // A hurry that came too soon is looked at again within a minute.
      state->changed.wait_for(lock, std::chrono::duration<double>(std::min(state->interval / 8, kShortestSeconds)), wake);
      if (state->stopped) return;
      due = wake();
      if (due) state->hurried = false;
    }
    // A stamp from the future is some clock's mistake.
    if (const double stamp = modified(state->layout.last_gc()); !due) {
      due = std::abs(wall_seconds() - stamp) >= state->interval;
    }
    if (!due) continue;
    last = steady_seconds();
    // Others see that somebody does it. Should two do so at once, they are only slower.
    const int file = ::open(state->layout.last_gc().c_str(), O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
    if (file < 0) continue;  // not mounted, or read-only
    (void)::futimens(file, nullptr);
    ::close(file);
    (void)collect_shared_garbage(state->layout, state->options, state->keep_generation, wall_seconds(), state->stop.get_token(),
                                 state->evicted);
  }
}

}  // namespace deepinfer
