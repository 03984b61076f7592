// The emulated runtime is as strict as a driver, and as late.

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace deepinfer {
namespace {

constexpr size_t kBytes = 4096;

void store(uint8_t* to, int value) { *to = static_cast<uint8_t>(value); }

class EmulatedRuntime : public ::testing::Test {
 protected:
  void SetUp() override {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    cudaSetDevice(1);
    for (cudaStream_t* stream : {&stream_, &other_}) cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&event_, cudaEventDisableTiming);
    cudaMalloc(reinterpret_cast<void**>(&device_), kBytes);
    cudaMallocHost(reinterpret_cast<void**>(&pinned_), kBytes);
  }
  void TearDown() override {
    cudaFree(device_);
    cudaFreeHost(pinned_);
    cudaEventDestroy(event_);
    for (cudaStream_t stream : {stream_, other_}) cudaStreamDestroy(stream);
  }
  void launch(dim3 grid, dim3 block, size_t shared, int value = 1) {
    cudaLaunchConfig_t config;
    config.gridDim = grid, config.blockDim = block, config.dynamicSmemBytes = shared, config.stream = stream_;
    cudaLaunchKernelEx(&config, store, device_, value);
  }
  void record() { cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal); }
  cudaGraphExec_t end() {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    cudaStreamEndCapture(stream_, &graph);
    cudaGraphInstantiate(&executable, graph, 0);
    cudaGraphDestroy(graph);
    return executable;
  }

  cudaStream_t stream_ = nullptr, other_ = nullptr;
  cudaEvent_t event_ = nullptr;
  uint8_t* device_ = nullptr;
  uint8_t* pinned_ = nullptr;
};

TEST_F(EmulatedRuntime, RunsWhatIsWaitedFor) {
  int late = 0;
  for (int i = 0; i < 64; ++i) {
    pinned_[0] = static_cast<uint8_t>(i);
    cudaMemcpyAsync(device_, pinned_, 1, cudaMemcpyHostToDevice, stream_);
    cudaEventRecord(event_, stream_);
    cudaStreamWaitEvent(other_, event_, 0);
    cudaMemcpyAsync(pinned_ + 1, device_, 1, cudaMemcpyDeviceToHost, other_);
    late += pinned_[1] != i ? 1 : 0;
    cudaStreamSynchronize(other_);
    EXPECT_EQ(pinned_[1], i);
  }
  EXPECT_GT(late, 32) << "and not much earlier";
}

TEST_F(EmulatedRuntime, ReplaysWhatWasRecorded) {
  record();
  launch(1, 1, 0, 7);
  cudaEventRecord(event_, stream_);
  cudaStreamWaitEvent(other_, event_, 0);
  cudaMemcpyAsync(device_ + 1, device_, 1, cudaMemcpyDeviceToDevice, other_);
  cudaEventRecord(event_, other_);
  cudaStreamWaitEvent(stream_, event_, 0);
  const cudaGraphExec_t graph = end();
  cudaMemsetAsync(device_, 0, kBytes, stream_);
  for (int i = 0; i < 2; ++i) {
    cudaMemcpyAsync(pinned_, device_, 2, cudaMemcpyDeviceToHost, stream_);
    cudaStreamSynchronize(stream_);
    EXPECT_EQ(pinned_[1], i * 7);
    cudaGraphLaunch(graph, stream_);
  }
  cudaStreamSynchronize(stream_);
  cudaGraphExecDestroy(graph);
}

TEST_F(EmulatedRuntime, RefusesWhatADriverRefuses) {
  EXPECT_DEATH(launch(0, 1, 0), "an empty grid");
  EXPECT_DEATH(launch(dim3(1, 65536), 1, 0), "beyond the limits");
  EXPECT_DEATH(launch(1, 1025, 0), "beyond the limits");
  EXPECT_DEATH(launch(1, 1, 64 << 10), "more shared memory than was asked for");
  EXPECT_DEATH(cudaMemsetAsync(device_, 0, kBytes + 1, stream_), "not a place in the device's memory");
  EXPECT_DEATH(cudaMemcpyAsync(pinned_, device_, 1, cudaMemcpyHostToDevice, stream_), "not a place in the device's memory");
  EXPECT_DEATH(cudaFree(device_ + 1), "not what was allocated");
  EXPECT_DEATH(std::thread([this] { launch(1, 1, 0); }).join(), "current device is another one");
}

TEST_F(EmulatedRuntime, RefusesWaitsAndAllocationsAmongRecordedCalls) {
  void* more = nullptr;
  EXPECT_DEATH((record(), cudaMalloc(&more, 1)), "this thread is recording");
  EXPECT_DEATH((record(), cudaFree(device_)), "this thread is recording");
  EXPECT_DEATH((record(), cudaStreamSynchronize(other_)), "this thread is recording");
  EXPECT_DEATH((record(), cudaEventQuery(event_)), "this thread is recording");
  std::vector<uint8_t> pageable(1);
  EXPECT_DEATH((record(), cudaMemcpyAsync(device_, pageable.data(), 1, cudaMemcpyHostToDevice, stream_)), "not pinned");
  EXPECT_DEATH(
      {
        record();
        cudaEventRecord(event_, stream_);
        cudaStreamWaitEvent(other_, event_, 0);
        cudaMemsetAsync(device_, 0, 1, other_);
        end();
      },
      "not joined");
}

TEST_F(EmulatedRuntime, ShowsWhatOnlyWorksByLuck) {
  EXPECT_DEATH(*static_cast<volatile uint8_t*>(device_) = 1, "") << "the host has no such memory";
  EXPECT_DEATH(
      {
        record();
        launch(1, 1, 0);
        const cudaGraphExec_t graph = end();
        for (int i = 0; i < 100; ++i) cudaGraphLaunch(graph, stream_);
        cudaGraphExecDestroy(graph);
      },
      "the graph is under way");
  EXPECT_DEATH(
      {
        record();
        cudaMemcpyAsync(device_, device_ + 8, 8, cudaMemcpyDeviceToDevice, stream_);
        const cudaGraphExec_t graph = end();
        cudaFree(device_);
        cudaGraphLaunch(graph, stream_);
        cudaStreamSynchronize(stream_);
      },
      "not a place in the device's memory");
}

}  // namespace
}  // namespace deepinfer
