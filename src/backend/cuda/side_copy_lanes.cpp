#include "backend/cuda/side_copy_lanes.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <future>

#include "backend/cuda/cuda_check.h"
#include "base/check.h"

namespace deltatrain::backend::cuda {

namespace {

constexpr size_t kNumLanes = 4;
constexpr size_t kNumBlocks = 2;  // of a lane
constexpr size_t kBlockBytes = size_t{4} << 20;

class PinnedBlock {
 public:
  PinnedBlock() { DELTATRAIN_CUDA_CALL(cudaMallocHost(&data_, kBlockBytes)); }
  ~PinnedBlock() { cudaFreeHost(data_); }
  PinnedBlock(const PinnedBlock&) = delete;
  PinnedBlock& operator=(const PinnedBlock&) = delete;
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

class Event {
 public:
  // A thread that waits sleeps: it would take a core from the one that queues the ops.
  Event() {
    DELTATRAIN_CUDA_CALL(
        cudaEventCreateWithFlags(&event_, cudaEventDisableTiming | cudaEventBlockingSync));
  }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(cudaStream_t stream) {
    check_cuda(cudaEventRecord(event_, stream), "cudaEventRecord, of a copy beside the ops");
  }
  void make_wait(cudaStream_t stream) {
    check_cuda(cudaStreamWaitEvent(stream, event_, 0),
               "cudaStreamWaitEvent, of a copy beside the ops");
  }
  void wait() {
    check_cuda(cudaEventSynchronize(event_), "cudaEventSynchronize, of a copy beside the ops");
  }

 private:
  cudaEvent_t event_ = nullptr;
};

class Stream {
 public:
  Stream() { DELTATRAIN_CUDA_CALL(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  // What still runs fills blocks that are about to be freed. An error is one of an earlier call.
  ~Stream() {
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace

class SideCopyLanes::Lane {
 public:
  void follow(Event& event) { event.make_wait(stream_.get()); }

  // Copies pieces `first`, first + kNumLanes, ... of kBlockBytes.
  void copy(size_t first, char* to_host, const char* from, size_t bytes) {
    const auto begin = [first](size_t i) { return (first + i * kNumLanes) * kBlockBytes; };
    const auto fill = [&](size_t i) {
      if (begin(i) >= bytes) return;
      check_cuda(cudaMemcpyAsync(blocks_[i % kNumBlocks].data(), from + begin(i),
                                 std::min(kBlockBytes, bytes - begin(i)), cudaMemcpyDeviceToHost,
                                 stream_.get()),
                 "cudaMemcpyAsync, of a copy beside the ops");
      filled_[i % kNumBlocks].record(stream_.get());
    };
    for (size_t i = 0; i < kNumBlocks; ++i) fill(i);
    for (size_t i = 0; begin(i) < bytes; ++i) {
      filled_[i % kNumBlocks].wait();
      std::memcpy(to_host + begin(i), blocks_[i % kNumBlocks].data(),
                  std::min(kBlockBytes, bytes - begin(i)));
      fill(i + kNumBlocks);
    }
  }

 private:
  std::array<PinnedBlock, kNumBlocks> blocks_;
  std::array<Event, kNumBlocks> filled_;
  Stream stream_;  // ends before the blocks do
};

class SideCopyLanes::Copier final : public SideCopier {
 public:
  explicit Copier(SideCopyLanes& lanes) : lanes_(lanes) {}
  ~Copier() override { lanes_.is_used_ = false; }

  void copy_to_host(void* to_host, const void* from, size_t bytes) override {
    // The destructor of each waits, so that none copies on when another throws.
    std::array<std::future<void>, kNumLanes> running;
    for (size_t i = 0; i < kNumLanes; ++i) {
      running[i] = std::async(std::launch::async, [this, i, to_host, from, bytes] {
        DELTATRAIN_CUDA_CALL(cudaSetDevice(lanes_.device_index_));
        lanes_.lanes_[i]->copy(i, static_cast<char*>(to_host), static_cast<const char*>(from),
                               bytes);
      });
    }
    for (std::future<void>& lane : running) lane.get();
  }

 private:
  SideCopyLanes& lanes_;
};

SideCopyLanes::SideCopyLanes(int device_index) : device_index_(device_index) {
  for (size_t i = 0; i < kNumLanes; ++i) lanes_.push_back(std::make_unique<Lane>());
}

SideCopyLanes::~SideCopyLanes() = default;

std::unique_ptr<SideCopier> SideCopyLanes::make_copier(cudaStream_t ops) {
  DELTATRAIN_CHECK(!is_used_.exchange(true), "two copiers at a time");
  auto copier = std::make_unique<Copier>(*this);
  Event so_far;
  so_far.record(ops);
  for (const auto& lane : lanes_) lane->follow(so_far);
  return copier;
}

}  // namespace deltatrain::backend::cuda
