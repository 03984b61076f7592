// CUDA's runtime on the host: memory, streams, events and graphs. What is put on a stream runs late: when somebody waits for it,
// or when another call happens to come by, in an order that differs from call to call. What a GPU's driver would refuse, and what
// only works by luck, ends the program:
//  - memory, streams and events of a device that is not the thread's current one (there are two, and only the second will do);
//  - allocations, frees and waits by a thread that records;
//  - copies from or to memory that is not there any more, and of sizes beyond it; memory that is freed is overwritten;
//  - the host's touch of the device's memory, which is there only while something on a stream runs;
//  - with DEEPINFER_EMULATED_GUARDS set, a kernel's step over the end of an allocation by 16 bytes or more (slow with many);
//  - grids and blocks beyond the limits, empty ones, shared memory that was not asked for;
//  - streams that are recorded and not joined, graphs that are destroyed while they run.

#include <cuda_runtime.h>
#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

namespace deepinfer::emulated {
namespace {

constexpr int kDevice = 1;                         // the one of compute capability 9.0
constexpr size_t kTotalBytes = size_t{139} << 30;  // as much as there is of the largest, and nothing until it is touched
constexpr size_t kSharedOfAll = 40 << 10;          // 48 with what kernels declare themselves, whose size is not known here
constexpr size_t kMostShared = 227 << 10;
constexpr int kMostCluster = 8;

[[noreturn]] void refuse(const char* call, const char* why) {
  std::fprintf(stderr, "emulated CUDA: %s: %s\n", call, why);
  std::abort();
}

using Operation = std::function<void()>;

struct Capture {
  std::thread::id thread;
  std::vector<Operation> operations;
  std::map<Stream*, int64_t> issued, joined;  // operations of each stream, and how many of them the first one waits for
};

}  // namespace

struct Stream {
  int device = 0;
  std::deque<Operation> queue;
  int64_t issued = 0, done = 0;
  Capture* capture = nullptr;
};
struct Event {
  int device = 0;
  Stream* stream = nullptr;  // nullptr: never recorded
  int64_t number = 0;
  Capture* capture = nullptr;
};
struct Graph {
  std::vector<Operation> operations;
};
struct Executable {
  std::shared_ptr<std::vector<Operation>> operations;
  std::shared_ptr<std::atomic<int>> under_way = std::make_shared<std::atomic<int>>(0);
};

namespace {

struct Memory {
  size_t bytes = 0;
  bool pinned = false;
};

struct Runtime {
  std::recursive_mutex mutex;
  std::map<uintptr_t, Memory> memory;
  // The device's memory, one address never used twice: an early reuse would hide a late use.
  uint8_t* device = nullptr;
  size_t device_places = 0;
  size_t device_end = 0;
  size_t device_bytes = 0;
  const bool guards = std::getenv("DEEPINFER_EMULATED_GUARDS") != nullptr;
  int running = 0;  // operations, one in the other; the device's memory is there
  std::vector<Stream*> streams;
  std::map<const void*, size_t> shared;  // that kernels may ask for
  std::map<const void*, unsigned> cluster;
  std::map<std::thread::id, Capture*> captures;
  uint64_t random = 0x9e3779b97f4a7c15;
};
Runtime& runtime() {
  static auto* const all = new Runtime;  // outlives every static object
  return *all;
}
thread_local int current_device = 0;

using Lock = std::lock_guard<std::recursive_mutex>;

uint64_t next_random() {
  uint64_t& x = runtime().random;
  x ^= x << 13, x ^= x >> 7, x ^= x << 17;
  return x >> 11;
}

void check_device(const char* call) {
  if (current_device != kDevice) refuse(call, "the thread's current device is another one");
}
void check_not_recording(const char* call) {
  if (runtime().captures.contains(std::this_thread::get_id())) refuse(call, "this thread is recording");
}

constexpr size_t kDevicePlaces = size_t{8} << 40;
constexpr size_t kPage = 4096;

// While it lives, the device's memory is there.
class Running {
 public:
  Running() {
    if (runtime().running++ == 0) protect(PROT_READ | PROT_WRITE);
  }
  ~Running() {
    if (--runtime().running == 0) protect(PROT_NONE);
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

 private:
  static void protect(int how) {
    Runtime& r = runtime();
    if (r.guards) {
      for (const auto& [at, memory] : r.memory) {
        const uintptr_t begin = at / kPage * kPage;
        if (!memory.pinned && ::mprotect(reinterpret_cast<void*>(begin), at + memory.bytes - begin, how) != 0)
          refuse("mprotect", std::strerror(errno));
      }
      return;
    }
    if (r.device_end > 0 && ::mprotect(r.device, r.device_end, how) != 0) refuse("mprotect", std::strerror(errno));
  }
};

void advance(Stream& stream, int64_t number) {
  if (stream.done >= number) return;
  const Running running;
  while (stream.done < number) {
    const Operation operation = std::move(stream.queue.front());
    stream.queue.pop_front();
    operation();
    ++stream.done;
  }
}
void advance_all() {
  for (Stream* stream : runtime().streams) advance(*stream, stream->issued);
}
// Now and then something runs, whoever put it there.
void let_time_pass() {
  Runtime& r = runtime();
  if (r.streams.empty() || next_random() % 8 != 0) return;
  Stream& stream = *r.streams[next_random() % r.streams.size()];
  if (stream.done < stream.issued)
    advance(stream, stream.done + 1 + static_cast<int64_t>(next_random() % static_cast<uint64_t>(stream.issued - stream.done)));
}

void put(const char* call, Stream* stream, Operation operation) {
  if (stream == nullptr) return operation();  // tests of kernels alone
  check_device(call);
  if (stream->device != current_device) refuse(call, "a stream of another device");
  if (Capture* capture = stream->capture; capture != nullptr) {
    if (capture->thread != std::this_thread::get_id()) refuse(call, "the stream is recorded by another thread");
    capture->operations.push_back(std::move(operation));
    ++capture->issued[stream];
    return;
  }
  stream->queue.push_back(std::move(operation));
  ++stream->issued;
  let_time_pass();
}

// The allocation that [data, data + bytes) lies in; nullptr: none does.
const Memory* find(const void* data, size_t bytes) {
  const auto at = reinterpret_cast<uintptr_t>(data);
  auto it = runtime().memory.upper_bound(at);
  if (it == runtime().memory.begin()) return nullptr;
  --it;
  return at + bytes <= it->first + it->second.bytes ? &it->second : nullptr;
}
void check_place(const char* call, const void* data, size_t bytes, bool device) {
  const Memory* memory = find(data, bytes);
  if (device && (memory == nullptr || memory->pinned)) refuse(call, "not a place in the device's memory");
  if (!device && memory != nullptr && !memory->pinned) refuse(call, "the device's memory for the host's");
}

// Zeros of large pieces cost nothing.
void fill(uint8_t* to, int byte, size_t bytes) {
  if (byte == 0 && bytes > size_t{16} << 20) {
    const size_t head = (kPage - reinterpret_cast<uintptr_t>(to) % kPage) % kPage;
    const size_t whole = (bytes - head) / kPage * kPage;
    ::madvise(to + head, whole, MADV_DONTNEED);
    std::memset(to, 0, head);
    std::memset(to + head + whole, 0, bytes - head - whole);
    return;
  }
  std::memset(to, byte, bytes);
}

cudaError_t allocate(void** data, size_t bytes, bool pinned, const char* call) {
  const Lock lock(runtime().mutex);
  check_device(call);
  check_not_recording(call);
  Runtime& r = runtime();
  if (!pinned && r.device_bytes + bytes > kTotalBytes) return cudaErrorMemoryAllocation;
  void* at = nullptr;
  if (pinned) {
    at = ::mmap(nullptr, std::max<size_t>(bytes, 1), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return cudaErrorMemoryAllocation;
  } else {
    if (r.device == nullptr) {
      void* all = MAP_FAILED;
      // Where addresses are scarce, as many as there are.
      for (r.device_places = kDevicePlaces; all == MAP_FAILED && r.device_places > kTotalBytes; r.device_places /= 2)
        all = ::mmap(nullptr, r.device_places, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      r.device_places *= 2;
      if (all == MAP_FAILED) refuse(call, "no addresses for the device's memory");
      r.device = static_cast<uint8_t*>(all);
    }
    const size_t pages = (bytes + kPage - 1) / kPage * kPage;
    at = r.device + r.device_end + (r.guards ? (pages - bytes) / 16 * 16 : 0);
    r.device_end += pages + kPage;
    if (r.device_end > r.device_places) refuse(call, "no addresses left");
    r.memory[reinterpret_cast<uintptr_t>(at)] = {bytes, false};
    const Running running;
    std::memset(at, 0xa5, std::min<size_t>(bytes, 1 << 20));
  }
  r.memory[reinterpret_cast<uintptr_t>(at)] = {bytes, pinned};
  if (!pinned) r.device_bytes += bytes;
  *data = at;
  return cudaSuccess;
}
cudaError_t release(void* data, bool pinned, const char* call) {
  const Lock lock(runtime().mutex);
  check_not_recording(call);
  if (data == nullptr) return cudaSuccess;
  Runtime& r = runtime();
  const auto it = r.memory.find(reinterpret_cast<uintptr_t>(data));
  if (it == r.memory.end() || it->second.pinned != pinned) refuse(call, "not what was allocated");
  advance_all();
  const size_t bytes = it->second.bytes;
  if (!pinned) r.device_bytes -= bytes;
  if (pinned) {
    ::munmap(data, std::max<size_t>(bytes, 1));
  } else {
    const Running running;
    const uintptr_t begin = (reinterpret_cast<uintptr_t>(data) + kPage - 1) / kPage * kPage;
    if (bytes > size_t{1} << 20) ::madvise(reinterpret_cast<void*>(begin), bytes / kPage * kPage - kPage, MADV_DONTNEED);
    std::memset(data, 0xdd, std::min<size_t>(bytes, 1 << 20));
  }
  r.memory.erase(it);
  return cudaSuccess;
}

}  // namespace

void set_attribute(const void* kernel, int attribute, int value) {
  const Lock lock(runtime().mutex);
  if (!runtime().streams.empty()) check_device("cudaFuncSetAttribute");
  if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
    if (static_cast<size_t>(value) > kMostShared) refuse("cudaFuncSetAttribute", "more shared memory than there is");
    runtime().shared[kernel] = static_cast<size_t>(value);
  } else if (attribute == cudaFuncAttributeRequiredClusterWidth) {
    if (value < 1 || value > kMostCluster) refuse("cudaFuncSetAttribute", "more blocks than every device runs side by side");
    runtime().cluster[kernel] = static_cast<unsigned>(value);
  } else if (value != 1) {
    refuse("cudaFuncSetAttribute", "an attribute or a value that is not known");
  }
}

void launch(const cudaLaunchConfig_t& config, const void* kernel, std::function<void()> thread) {
  const Lock lock(runtime().mutex);
  const dim3& grid = config.gridDim;
  const dim3& block = config.blockDim;
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || block.x == 0 || block.y != 1 || block.z != 1)
    refuse("cudaLaunchKernelEx", "an empty grid or block");
  if (grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535 || block.x > 1024)
    refuse("cudaLaunchKernelEx", "a grid or block beyond the limits");
  const auto allowed = runtime().shared.find(kernel);
  if (config.dynamicSmemBytes > (allowed == runtime().shared.end() ? kSharedOfAll : std::max(allowed->second, kSharedOfAll)))
    refuse("cudaLaunchKernelEx", "more shared memory than was asked for");
  const auto known = runtime().cluster.find(kernel);
  const unsigned cluster = known == runtime().cluster.end() ? 1 : known->second;
  if (grid.x % cluster != 0) refuse("cudaLaunchKernelEx", "a part of a cluster");
  put("cudaLaunchKernelEx", config.stream,
      [grid, threads = block.x, shared = config.dynamicSmemBytes, cluster, thread = std::move(thread)] {
        run({grid.x, grid.y, grid.z}, threads, shared, cluster, thread);
      });
}

}  // namespace deepinfer::emulated

using namespace deepinfer::emulated;  // NOLINT(google-build-using-namespace)

const char* cudaGetErrorString(cudaError_t error) { return error == cudaErrorMemoryAllocation ? "out of memory" : "an error"; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) {
  *count = kDevice + 1;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  *properties = {"emulated", device == kDevice ? 9 : 8, 0, 132, kTotalBytes};
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device > kDevice) return cudaErrorInvalidValue;
  current_device = device;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  const Lock lock(runtime().mutex);
  check_device("cudaMemGetInfo");
  *total = kTotalBytes;
  *free = kTotalBytes - runtime().device_bytes;
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** data, size_t bytes) { return allocate(data, bytes, false, "cudaMalloc"); }
cudaError_t cudaFree(void* data) { return release(data, false, "cudaFree"); }
cudaError_t cudaMallocHost(void** data, size_t bytes) { return allocate(data, bytes, true, "cudaMallocHost"); }
cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned /*flags*/) { return allocate(data, bytes, true, "cudaHostAlloc"); }
cudaError_t cudaFreeHost(void* data) { return release(data, true, "cudaFreeHost"); }

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned /*flags*/) {
  const Lock lock(runtime().mutex);
  check_device("cudaStreamCreateWithFlags");
  *stream = new Stream{.device = current_device, .queue = {}};
  runtime().streams.push_back(*stream);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const Lock lock(runtime().mutex);
  advance(*stream, stream->issued);
  std::erase(runtime().streams, stream);
  return cudaSuccess;  // events may still name it
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const Lock lock(runtime().mutex);
  check_not_recording("cudaStreamSynchronize");
  advance(*stream, stream->issued);
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned /*flags*/) {
  const Lock lock(runtime().mutex);
  if (event->stream == nullptr) return cudaSuccess;
  if (event->capture != nullptr) {
    if (event->stream->capture != event->capture) refuse("cudaStreamWaitEvent", "the event is part of a graph");
    if (stream->capture != nullptr && stream->capture != event->capture)
      refuse("cudaStreamWaitEvent", "an event of another graph");
    stream->capture = event->capture;
    event->capture->issued.try_emplace(stream, 0);
    int64_t& joined = event->capture->joined[event->stream];
    joined = std::max(joined, event->number);
    return cudaSuccess;
  }
  if (stream->capture != nullptr) refuse("cudaStreamWaitEvent", "what is recorded waits for what is not");
  put("cudaStreamWaitEvent", stream, [other = event->stream, number = event->number] { advance(*other, number); });
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  const Lock lock(runtime().mutex);
  check_device("cudaStreamBeginCapture");
  if (mode != cudaStreamCaptureModeThreadLocal) refuse("cudaStreamBeginCapture", "other threads must be left alone");
  if (stream->capture != nullptr) refuse("cudaStreamBeginCapture", "the stream is recorded already");
  stream->capture = new Capture{.thread = std::this_thread::get_id(), .operations = {}, .issued = {{stream, 0}}, .joined = {}};
  runtime().captures[std::this_thread::get_id()] = stream->capture;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const Lock lock(runtime().mutex);
  Capture* const capture = stream->capture;
  if (capture == nullptr || capture->thread != std::this_thread::get_id()) refuse("cudaStreamEndCapture", "nothing is recorded");
  for (const auto& [other, issued] : capture->issued) {
    if (other != stream && capture->joined[other] < issued) refuse("cudaStreamEndCapture", "a stream that was not joined");
    other->capture = nullptr;
  }
  runtime().captures.erase(std::this_thread::get_id());
  *graph = new Graph{std::move(capture->operations)};
  return cudaSuccess;  // events may still name the capture
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned /*flags*/) {
  const Lock lock(runtime().mutex);
  check_device("cudaEventCreateWithFlags");
  *event = new Event{.device = current_device};
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const Lock lock(runtime().mutex);
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const Lock lock(runtime().mutex);
  if (event->device != stream->device) refuse("cudaEventRecord", "event and stream are of different devices");
  event->stream = stream;
  event->capture = stream->capture;
  if (stream->capture != nullptr && stream->capture->thread != std::this_thread::get_id())
    refuse("cudaEventRecord", "the stream is recorded by another thread");
  event->number = stream->capture != nullptr ? stream->capture->issued[stream] : stream->issued;
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const Lock lock(runtime().mutex);
  check_not_recording("cudaEventQuery");
  if (event->stream == nullptr || event->stream->done >= event->number) return cudaSuccess;
  if (event->capture != nullptr) refuse("cudaEventQuery", "the event is part of a graph");
  advance(*event->stream, event->stream->done + 1);
  return cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const Lock lock(runtime().mutex);
  check_not_recording("cudaEventSynchronize");
  if (event->stream == nullptr) return cudaSuccess;
  if (event->capture != nullptr) refuse("cudaEventSynchronize", "the event is part of a graph");
  advance(*event->stream, event->number);
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long /*flags*/) {
  const Lock lock(runtime().mutex);
  *executable = new Executable{std::make_shared<std::vector<Operation>>(graph->operations)};
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  const Lock lock(runtime().mutex);
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  const Lock lock(runtime().mutex);
  ++*executable->under_way;
  put("cudaGraphLaunch", stream, [operations = executable->operations, under_way = executable->under_way] {
    for (const Operation& operation : *operations) operation();
    --*under_way;
  });
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  const Lock lock(runtime().mutex);
  if (*executable->under_way != 0) refuse("cudaGraphExecDestroy", "the graph is under way");
  delete executable;
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* to, int byte, size_t bytes, cudaStream_t stream) {
  const Lock lock(runtime().mutex);
  if (stream != nullptr) check_place("cudaMemsetAsync", to, bytes, true);
  put("cudaMemsetAsync", stream, [=] {
    if (stream != nullptr) check_place("cudaMemsetAsync", to, bytes, true);
    fill(static_cast<uint8_t*>(to), byte, bytes);
  });
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return cudaMemcpy2DAsync(to, bytes, from, bytes, bytes, 1, kind, stream);
}
// In no order among themselves: the last one first.
cudaError_t cudaMemcpyBatchAsync(void* const* to, const void* const* from, const size_t* bytes, size_t count,
                                 cudaMemcpyAttributes* attributes, size_t* firsts, size_t attribute_count, cudaStream_t stream) {
  constexpr const char* kCall = "cudaMemcpyBatchAsync";
  if (stream == nullptr || stream->capture != nullptr) refuse(kCall, "the default stream, or one that is recorded");
  if (count == 0 || attribute_count != 1 || firsts[0] != 0) refuse(kCall, "no copies, or some without attributes");
  if (attributes->srcAccessOrder != cudaMemcpySrcAccessOrderStream) refuse(kCall, "sources that are read out of order");
  for (size_t i = count; i-- > 0;) {
    if (bytes[i] == 0) refuse(kCall, "a copy of no bytes");
    const auto kind = [&] {
      const Lock lock(runtime().mutex);
      const Memory* memory = find(to[i], bytes[i]);
      return memory != nullptr && !memory->pinned ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost;
    }();
    cudaMemcpyAsync(to[i], from[i], bytes[i], kind, stream);
  }
  return cudaSuccess;
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                              cudaMemcpyKind kind, cudaStream_t stream) {
  const Lock lock(runtime().mutex);
  constexpr const char* kCall = "cudaMemcpyAsync";
  if (width == 0 || height == 0) return cudaSuccess;
  if (width > to_pitch || width > from_pitch) refuse(kCall, "rows wider than their distance");
  const size_t to_bytes = to_pitch * (height - 1) + width;
  const size_t from_bytes = from_pitch * (height - 1) + width;
  const auto check = [=] {
    if (stream == nullptr) return;
    check_place(kCall, to, to_bytes, kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice);
    check_place(kCall, from, from_bytes, kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice);
  };
  check();
  const auto copy = [=](const uint8_t* source) {
    for (size_t row = 0; row < height; ++row)
      std::memcpy(static_cast<uint8_t*>(to) + row * to_pitch, source + row * from_pitch, width);
  };
  // What is not pinned goes by memory of the driver: read at once, and written before the call returns.
  const bool recorded = stream != nullptr && stream->capture != nullptr;
  if (kind == cudaMemcpyHostToDevice && find(from, from_bytes) == nullptr && stream != nullptr) {
    if (recorded) refuse(kCall, "memory that is not pinned in a graph");
    const auto* first = static_cast<const uint8_t*>(from);
    put(kCall, stream, [=, staged = std::vector<uint8_t>(first, first + from_bytes)] { copy(staged.data()); });
    return cudaSuccess;
  }
  put(kCall, stream, [=] {
    check();
    copy(static_cast<const uint8_t*>(from));
  });
  if (kind == cudaMemcpyDeviceToHost && find(to, to_bytes) == nullptr && stream != nullptr) {
    if (recorded) refuse(kCall, "memory that is not pinned in a graph");
    advance(*stream, stream->issued);
  }
  return cudaSuccess;
}
