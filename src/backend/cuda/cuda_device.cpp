#include "backend/cuda/cuda_device.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "backend/cuda/cuda_check.h"
#include "backend/cuda/gemm_library.h"
#include "backend/cuda/shared_memory.h"
#include "backend/cuda/side_copy_lanes.h"
#include "base/check.h"

namespace deltatrain::backend::cuda {

namespace {

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string where(int device_index) { return "device cuda:" + std::to_string(device_index); }

// Everything that can be wrong with the machine, before the first call that would fail less
// clearly.
void expect_usable(int device_index) {
  int runtime = 0;
  int driver = 0;
  DELTATRAIN_CUDA_CALL(cudaRuntimeGetVersion(&runtime));
  if (cudaDriverGetVersion(&driver) != cudaSuccess) driver = 0;
  if (driver == 0) {
    throw DeviceError(
        error_text(where(device_index), "driver", "an NVIDIA driver", "none on this machine"));
  }
  // Within one major version an older driver runs newer programs.
  if (driver / 1000 < runtime / 1000) {
    throw DeviceError(
        error_text(where(device_index), "driver",
                   "one for CUDA " + version_text(runtime / 1000 * 1000) + " or newer",
                   "one for CUDA " + version_text(driver)));
  }
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaErrorNoDevice) count = 0;
  if (status != cudaSuccess && status != cudaErrorNoDevice)
    check_cuda(status, "cudaGetDeviceCount");
  cudaGetLastError();
  if (device_index < 0 || device_index >= count) {
    throw DeviceError(error_text(
        where(device_index), "", "a device that exists",
        std::to_string(count) + (count == 1 ? " device" : " devices") + " on this machine"));
  }
}

}  // namespace

void check_cuda(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  cudaGetLastError();
  throw DeviceError(std::string("cuda: ") + call + ": " + cudaGetErrorString(status));
}

int64_t shared_bytes_limit() {
  int device_index = 0;
  int limit = 0;
  if (cudaGetDevice(&device_index) != cudaSuccess ||
      cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device_index) !=
          cudaSuccess) {
    cudaGetLastError();
    return INT64_MAX;
  }
  return limit;
}

void expect_shared_bytes(size_t bytes) {
  int device_index = 0;
  DELTATRAIN_CUDA_CALL(cudaGetDevice(&device_index));
  const int64_t limit = shared_bytes_limit();
  if (static_cast<int64_t>(bytes) <= limit) return;
  throw DeviceError(error_text(where(device_index), "shared memory per block",
                               std::to_string(bytes) + " bytes, for heads of this size",
                               std::to_string(limit)));
}

void* CudaMemory::allocate(size_t bytes) {
  DELTATRAIN_CUDA_CALL(cudaSetDevice(device_index_));
  void* data = nullptr;
  const cudaError_t status = cudaMalloc(&data, std::max<size_t>(bytes, 1));
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    size_t free = 0;
    size_t total = 0;
    DELTATRAIN_CUDA_CALL(cudaMemGetInfo(&free, &total));
    throw DeviceError(error_text(where(device_index_), "memory",
                                 std::to_string(bytes) + " free bytes",
                                 std::to_string(free) + " of " + std::to_string(total)));
  }
  check_cuda(status, "cudaMalloc");
  return data;
}

void CudaMemory::release(void* data, size_t) noexcept {
  // An error here is one of an earlier call, and the destructor that runs has nowhere to report it.
  cudaSetDevice(device_index_);
  cudaFree(data);
}

CudaDevice::CudaDevice(const DeviceOptions& options)
    : device_index_(options.device_index), memory_(options.device_index) {
  expect_usable(device_index_);
  make_current();
  cudaDeviceProp properties{};
  DELTATRAIN_CUDA_CALL(cudaGetDeviceProperties(&properties, device_index_));
  compute_capability_ = properties.major * 10 + properties.minor;
  num_multiprocessors_ = properties.multiProcessorCount;
  const std::string capability =
      std::to_string(properties.major) + "." + std::to_string(properties.minor);
  if (const cudaError_t status = probe_machine_code(); status != cudaSuccess) {
    cudaGetLastError();
    if (status == cudaErrorNoKernelImageForDevice || status == cudaErrorInvalidDeviceFunction ||
        status == cudaErrorUnsupportedPtxVersion) {
      throw DeviceError(
          error_text(where(device_index_), "compute capability",
                     "one of those this program was built for (" DELTATRAIN_CUDA_ARCHITECTURES ")",
                     capability + " (" + properties.name + ")"));
    }
    check_cuda(status, "cudaFuncGetAttributes");
  }
  DELTATRAIN_CUDA_CALL(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  for (StagingBlock& block : staging_) {
    DELTATRAIN_CUDA_CALL(cudaMallocHost(&block.data, kStagingBytes));
    DELTATRAIN_CUDA_CALL(cudaEventCreateWithFlags(&block.free_again, cudaEventDisableTiming));
  }
  int driver = 0;
  DELTATRAIN_CUDA_CALL(cudaDriverGetVersion(&driver));
  description_ = std::string(properties.name) + ", compute capability " + capability + ", " +
                 std::to_string(properties.multiProcessorCount) + " multiprocessors, " +
                 std::to_string(properties.totalGlobalMem >> 20) + " MiB, driver for CUDA " +
                 version_text(driver);
  gemm_ = std::make_unique<GemmLibrary>(
      stream_, std::string(properties.name) + " " + std::to_string(properties.multiProcessorCount),
      options.gemm);
}

CudaDevice::~CudaDevice() {
  cudaSetDevice(device_index_);
  if (stream_ != nullptr) cudaStreamSynchronize(stream_);
  gemm_.reset();
  side_copy_.reset();
  for (StagingBlock& block : staging_) {
    if (block.free_again != nullptr) cudaEventDestroy(block.free_again);
    if (block.data != nullptr) cudaFreeHost(block.data);
  }
  for (cudaEvent_t event : marks_) cudaEventDestroy(event);
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

std::string CudaDevice::bus_id() const {
  std::array<char, 32> text{};
  DELTATRAIN_CUDA_CALL(
      cudaDeviceGetPCIBusId(text.data(), static_cast<int>(text.size()), device_index_));
  return text.data();
}

void CudaDevice::check(cudaError_t status, const char* call) const {
  if (status == cudaSuccess) return;
  cudaGetLastError();
  throw DeviceError(where(device_index_) + ": " + call + ": " + cudaGetErrorString(status) +
                    " (last kernel launched: " + last_kernel_ + ")");
}

void CudaDevice::make_current() const { DELTATRAIN_CUDA_CALL(cudaSetDevice(device_index_)); }

void CudaDevice::check_launch(const char* kernel_name) {
  last_kernel_ = kernel_name;
  check(cudaGetLastError(), "launch");
}

void CudaDevice::copy_to_device(void* to, const void* from_host, size_t bytes) {
  make_current();
  auto* target = static_cast<char*>(to);
  const auto* source = static_cast<const char*>(from_host);
  while (bytes > 0) {
    StagingBlock& block = staging_[static_cast<size_t>(next_staging_)];
    next_staging_ = (next_staging_ + 1) % kNumStagingBlocks;
    check(cudaEventSynchronize(block.free_again), "cudaEventSynchronize");
    const size_t part = std::min(bytes, kStagingBytes);
    std::memcpy(block.data, source, part);
    check(cudaMemcpyAsync(target, block.data, part, cudaMemcpyHostToDevice, stream_),
          "cudaMemcpyAsync");
    check(cudaEventRecord(block.free_again, stream_), "cudaEventRecord");
    source += part;
    target += part;
    bytes -= part;
  }
}

void CudaDevice::copy_to_host(void* to_host, const void* from, size_t bytes) {
  make_current();
  check(cudaMemcpyAsync(to_host, from, bytes, cudaMemcpyDeviceToHost, stream_), "cudaMemcpyAsync");
  check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
}

void CudaDevice::copy_on_device(void* to, const void* from, size_t bytes) {
  make_current();
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_), "cudaMemcpyAsync");
}

void CudaDevice::fill_zero(void* data, size_t bytes) {
  make_current();
  check(cudaMemsetAsync(data, 0, bytes, stream_), "cudaMemsetAsync");
}

void CudaDevice::synchronize() {
  make_current();
  check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
}

// A CUDA graph. The device outlives it.
class GraphRecording final : public Recording {
 public:
  GraphRecording(CudaDevice& device, cudaGraph_t graph) : device_(device) {
    device.check(cudaGraphInstantiate(&executable_, graph, 0), "cudaGraphInstantiate");
  }
  ~GraphRecording() override {
    // An error here is one of an earlier call.
    if (executable_ != nullptr) cudaGraphExecDestroy(executable_);
  }
  void replay() override {
    device_.make_current();
    device_.last_kernel_ = "a recorded step";
    device_.check(cudaGraphLaunch(executable_, device_.stream_), "cudaGraphLaunch");
  }

 private:
  CudaDevice& device_;
  cudaGraphExec_t executable_ = nullptr;
};

std::unique_ptr<Recording> CudaDevice::record(const std::function<void()>& ops) {
  make_current();
  // Ends the capture and the graph also where `ops` throws.
  struct Capture {
    cudaStream_t stream;
    cudaGraph_t graph = nullptr;
    bool open = true;
    cudaError_t end() {
      open = false;
      return cudaStreamEndCapture(stream, &graph);
    }
    ~Capture() {
      if (open && end() != cudaSuccess) cudaGetLastError();
      if (graph != nullptr) cudaGraphDestroy(graph);
    }
  };
  check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal),
        "cudaStreamBeginCapture");
  Capture capture{.stream = stream_};
  struct RecordingFlag {
    bool& flag;
    ~RecordingFlag() { flag = false; }
  };
  const RecordingFlag flag{is_recording_ = true};
  ops();
  check(capture.end(), "cudaStreamEndCapture");
  return std::make_unique<GraphRecording>(*this, capture.graph);
}

void CudaDevice::mark() {
  make_current();
  if (num_marks_ == marks_.size()) {
    cudaEvent_t event = nullptr;
    check(cudaEventCreate(&event), "cudaEventCreate");
    marks_.push_back(event);
  }
  check(cudaEventRecord(marks_[num_marks_], stream_), "cudaEventRecord");
  ++num_marks_;
}

std::vector<double> CudaDevice::take_marks() {
  synchronize();
  std::vector<double> seconds;
  for (size_t i = 0; i < num_marks_; ++i) {
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, marks_.front(), marks_[i]), "cudaEventElapsedTime");
    seconds.push_back(1e-3 * static_cast<double>(milliseconds));
  }
  num_marks_ = 0;
  return seconds;
}

std::unique_ptr<SideCopier> CudaDevice::make_side_copier() {
  make_current();
  if (side_copy_ == nullptr) side_copy_ = std::make_unique<SideCopyLanes>(device_index_);
  return side_copy_->make_copier(stream_);
}

int64_t CudaDevice::free_memory_bytes() {
  make_current();
  size_t free = 0;
  size_t total = 0;
  check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return static_cast<int64_t>(free);
}

CudaDevice& cuda_device(const Context& context) {
  DELTATRAIN_CHECK(context.device != nullptr && context.device->kind() == DeviceKind::kCuda,
                   "not a CUDA context");
  auto& device = static_cast<CudaDevice&>(*context.device);
  device.make_current();
  return device;
}

}  // namespace deltatrain::backend::cuda
