// One CUDA device as deltatrain::Device: memory, copies and the one stream that all ops of a
// context run on.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/gemm_options.h"
#include "device/context.h"
#include "device/side_copy.h"

namespace deltatrain::backend::cuda {

class GemmLibrary;
class SideCopyLanes;

// cudaMalloc and cudaFree. Takes plain device memory only, never managed memory.
class CudaMemory final : public MemoryResource {
 public:
  explicit CudaMemory(int device_index) : device_index_(device_index) {}
  void* allocate(size_t bytes) override;  // DeviceError names the size and how much was free
  void release(void* data, size_t bytes) noexcept override;

 private:
  int device_index_;
};

struct DeviceOptions {
  int device_index = 0;
  GemmOptions gemm;
};

class CudaDevice final : public Device, public SideCopyingDevice {
 public:
  // DeviceError: no such device, a driver older than this program's CUDA, or a compute capability
  // that this program has no machine code for.
  explicit CudaDevice(const DeviceOptions& options);
  ~CudaDevice() override;
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  DeviceKind kind() const override { return DeviceKind::kCuda; }
  MemoryResource& memory() override { return memory_; }
  void copy_to_device(void* to, const void* from_host, size_t bytes) override;
  void copy_to_host(void* to_host, const void* from, size_t bytes) override;
  void copy_on_device(void* to, const void* from, size_t bytes) override;
  void fill_zero(void* data, size_t bytes) override;
  void synchronize() override;
  int64_t free_memory_bytes() override;
  const char* description() const override { return description_.c_str(); }
  std::unique_ptr<Recording> record(const std::function<void()>& ops) override;
  void mark() override;
  std::vector<double> take_marks() override;
  // DeviceError where there is no pinned memory for it.
  std::unique_ptr<SideCopier> make_side_copier() override;

  // Makes this the calling thread's device; cheap where it is already.
  void make_current() const;
  cudaStream_t stream() const { return stream_; }
  std::string bus_id() const;  // "0000:1B:00.0", of the card in its host
  int compute_capability() const { return compute_capability_; }  // 90 for 9.0
  bool is_recording() const { return is_recording_; }
  int num_multiprocessors() const { return num_multiprocessors_; }
  GemmLibrary& gemm() { return *gemm_; }

  // Blocks of another stream that may hold multiprocessors while ops run (sums over ranks); none unless told. Kernels
  // whose blocks stay for the whole of their work leave room: one that finds no place would begin when all others end.
  int num_blocks_beside_ops() const { return num_blocks_beside_ops_; }
  void expect_blocks_beside_ops(int num_blocks) { num_blocks_beside_ops_ = num_blocks; }

  // After each launch: throws for a launch that failed, and remembers the name, which the text of
  // an error that shows up later (at a wait) repeats.
  void check_launch(const char* kernel_name);

 private:
  friend class GraphRecording;
  void check(cudaError_t status, const char* call) const;

  // Copies to the device pass through pinned blocks, so that the host neither waits for the stream
  // nor has to keep its memory.
  static constexpr int kNumStagingBlocks = 4;
  static constexpr size_t kStagingBytes = size_t{4} << 20;
  struct StagingBlock {
    void* data = nullptr;
    cudaEvent_t free_again = nullptr;
  };

  int device_index_;
  CudaMemory memory_;
  cudaStream_t stream_ = nullptr;
  std::array<StagingBlock, kNumStagingBlocks> staging_;
  int next_staging_ = 0;
  std::unique_ptr<SideCopyLanes> side_copy_;  // made when first asked for
  int compute_capability_ = 0;
  int num_multiprocessors_ = 0;
  int num_blocks_beside_ops_ = 0;
  std::string description_;
  bool is_recording_ = false;
  const char* last_kernel_ = "none";
  std::vector<cudaEvent_t> marks_;  // made as needed, used again
  size_t num_marks_ = 0;
  std::unique_ptr<GemmLibrary> gemm_;
};

// The device of a context that this backend made.
CudaDevice& cuda_device(const Context& context);

// DeviceError unless the program holds machine code for the current device (probe.cu).
cudaError_t probe_machine_code();

}  // namespace deltatrain::backend::cuda
