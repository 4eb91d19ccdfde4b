#include "backend/cuda/nccl_collectives.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "backend/cuda/cuda_check.h"
#include "backend/cuda/cuda_device.h"
#include "backend/cuda/nccl_library.h"
#include "base/check.h"

namespace deltatrain::backend::cuda {

namespace {

ncclDataType_t type_of(const Tensor& x) {
  switch (x.dtype()) {
    case DType::kF64:
      return ncclFloat64;
    case DType::kF32:
      return ncclFloat32;
    case DType::kBF16:
      return ncclBfloat16;
    default:
      throw InternalError("collective of " + describe(x));
  }
}

// Each call waits on the device for the ops before it, and its end is an event that later ops wait
// for: the host waits for none of them.
class NcclCollectives final : public dist::Collectives {
 public:
  NcclCollectives(CudaDevice& device, dist::Communicator& ranks, bool nvls);
  ~NcclCollectives() override;

  Ticket all_reduce(const Tensor& x_X) override {
    return start(x_X, [&](ncclComm_t comm) {
      return nccl().all_reduce(x_X.raw(), x_X.raw(), count(x_X), type_of(x_X), ncclSum, comm,
                               stream_);
    });
  }
  // In place, as the library defines it: a rank's part of the sums lies where it lay before.
  Ticket reduce_scatter(const Tensor& x_X) override {
    return start(x_X, [&](ncclComm_t comm) {
      return nccl().reduce_scatter(x_X.raw(), own_part(x_X), part(x_X), type_of(x_X), ncclSum, comm,
                                   stream_);
    });
  }
  Ticket all_gather(const Tensor& x_X) override {
    return start(x_X, [&](ncclComm_t comm) {
      return nccl().all_gather(own_part(x_X), x_X.raw(), part(x_X), type_of(x_X), comm, stream_);
    });
  }
  Ticket broadcast(const Tensor& x_X) override {
    return start(x_X, [&](ncclComm_t comm) {
      return nccl().broadcast(x_X.raw(), x_X.raw(), count(x_X), type_of(x_X), 0, comm, stream_);
    });
  }

  void hurry(bool on) override { hurried_ = on; }
  void wait(Ticket ticket) override;
  void start_times() override;
  dist::CollectiveTimes take_times() override;
  const char* description() const override { return description_.c_str(); }

 private:
  using Pair = std::array<cudaEvent_t, 2>;  // before and after

  static size_t count(const Tensor& x) {
    DELTATRAIN_CHECK(x.is_contiguous(), describe(x));
    return static_cast<size_t>(x.num_elements());
  }
  size_t part(const Tensor& x) const {
    return static_cast<size_t>(divide_exactly(static_cast<int64_t>(count(x)), ranks_.size()));
  }
  void* own_part(const Tensor& x) const {
    return static_cast<char*>(x.raw()) +
           part(x) * static_cast<size_t>(ranks_.rank() * dtype_bytes(x.dtype()));
  }
  void check(ncclResult_t status, const char* call) const {
    if (status == ncclSuccess) return;
    ranks_.check();  // a lost rank is the better reason
    throw CollectiveError(std::string("nccl: ") + call + ": " + nccl().get_error_string(status) +
                          " (" + nccl().get_last_error(nullptr) + ")");
  }
  template <class Call>
  Ticket start(const Tensor& x, Call call);
  static cudaEvent_t new_event(unsigned flags) {
    cudaEvent_t event = nullptr;
    DELTATRAIN_CUDA_CALL(cudaEventCreateWithFlags(&event, flags));
    return event;
  }
  ncclComm_t new_communicator(int most_blocks);
  static double seconds(const std::vector<Pair>& pairs);
  static void release(std::vector<Pair>& pairs);
  void break_off();

  // Calls that may be waited for one by one; older ones count as the oldest of these.
  static constexpr size_t kEvents = 1024;
  // A block holds a multiprocessor while it works. Of GDN-1B's sums and weights on two H200, four move
  // 7.2 GB in 394 ms of a step of 823 ms; as many as the library likes, in 231 ms of 834 ms.
  static constexpr int kBlocksBesideOps = 4;

  CudaDevice& device_;
  dist::Communicator& ranks_;
  std::string description_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t ready_ = nullptr;
  std::vector<cudaEvent_t> done_;
  Ticket started_ = 0;

  std::timed_mutex mutex_;  // of the library's communicators, which the monitor's thread may abort
  // Both in turn on one stream, so that calls keep their order.
  ncclComm_t beside_ops_ = nullptr, waited_for_ = nullptr;
  bool hurried_ = false;

  bool timing_ = false;
  std::vector<Pair> busy_, exposed_;
  int64_t bytes_ = 0;
};

NcclCollectives::NcclCollectives(CudaDevice& device, dist::Communicator& ranks, bool nvls)
    : device_(device), ranks_(ranks) {
  // NVLink multicast holds resources of the fabric that a crash does not give back; the library
  // reads this when a communicator is made.
  if (!nvls) ::setenv("NCCL_NVLS_ENABLE", "0", 1);
  device.make_current();
  int version = 0;
  check(nccl().get_version(&version), "ncclGetVersion");
  ranks.agree("version of NCCL", std::to_string(version));
  description_ = "NCCL " + std::to_string(version / 10000) + "." +
                 std::to_string(version / 100 % 100) + "." + std::to_string(version % 100);
  int least = 0, greatest = 0;
  DELTATRAIN_CUDA_CALL(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  // Ahead of the ops' blocks: what waits for a peer should not also wait for a place.
  DELTATRAIN_CUDA_CALL(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest));
  ready_ = new_event(cudaEventDisableTiming);
  for (size_t i = 0; i < kEvents; ++i) done_.push_back(new_event(cudaEventDisableTiming));

  beside_ops_ = new_communicator(kBlocksBesideOps);
  waited_for_ = new_communicator(0);
  device.expect_blocks_beside_ops(kBlocksBesideOps);
  ranks.on_loss([this] { break_off(); });
}

// Of `most_blocks` at a time; 0: as many as the library likes. Collective.
ncclComm_t NcclCollectives::new_communicator(int most_blocks) {
  ncclUniqueId id{};
  if (ranks_.rank() == 0) check(nccl().get_unique_id(&id), "ncclGetUniqueId");
  const std::string text =
      ranks_.broadcast("NCCL id", std::string(id.internal, sizeof id.internal));
  if (text.size() != sizeof id.internal)
    throw FormatError(error_text("message of rank 0", "NCCL id", std::to_string(sizeof id.internal),
                                 std::to_string(text.size())));
  std::memcpy(id.internal, text.data(), text.size());
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  if (most_blocks > 0) config.maxCTAs = most_blocks;
  const dist::Communicator::Call call(ranks_, "ncclCommInitRank");
  ncclComm_t made = nullptr;
  check(nccl().comm_init_rank_config(&made, ranks_.size(), id, ranks_.rank(), &config),
        "ncclCommInitRankConfig");
  return made;
}

NcclCollectives::~NcclCollectives() {
  ranks_.on_loss({});
  cudaStreamSynchronize(device_.stream());
  {
    const std::lock_guard lock(mutex_);
    const bool is_lost = ranks_.loss().has_value();
    if (!is_lost) cudaStreamSynchronize(stream_);
    for (ncclComm_t* comm : {&beside_ops_, &waited_for_}) {
      if (*comm == nullptr) continue;
      if (is_lost) {
        nccl().comm_abort(*comm);
      } else {
        nccl().comm_destroy(*comm);
      }
      *comm = nullptr;
    }
  }
  release(busy_);
  release(exposed_);
  for (cudaEvent_t event : done_) cudaEventDestroy(event);
  if (ready_ != nullptr) cudaEventDestroy(ready_);
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

// On the monitor's thread: kernels that wait for the lost rank end, and with them the host's waiting.
// Where the library is inside a call of the other thread for too long, the run's last resort acts.
void NcclCollectives::break_off() {
  if (!mutex_.try_lock_for(std::chrono::seconds(2))) return;
  const std::lock_guard lock(mutex_, std::adopt_lock);
  for (ncclComm_t* comm : {&beside_ops_, &waited_for_}) {
    if (*comm != nullptr) nccl().comm_abort(*comm);
    *comm = nullptr;
  }
}

template <class Call>
dist::Collectives::Ticket NcclCollectives::start(const Tensor& x, Call call) {
  ranks_.check();
  ranks_.count_call();
  device_.make_current();
  DELTATRAIN_CUDA_CALL(cudaEventRecord(ready_, device_.stream()));
  DELTATRAIN_CUDA_CALL(cudaStreamWaitEvent(stream_, ready_, 0));
  if (timing_) {
    busy_.push_back({new_event(cudaEventDefault), new_event(cudaEventDefault)});
    bytes_ += x.num_bytes();
    DELTATRAIN_CUDA_CALL(cudaEventRecord(busy_.back()[0], stream_));
  }
  {
    const std::lock_guard lock(mutex_);
    const ncclComm_t comm = hurried_ ? waited_for_ : beside_ops_;
    if (comm == nullptr) ranks_.check();
    check(call(comm), "a collective");
  }
  if (timing_) DELTATRAIN_CUDA_CALL(cudaEventRecord(busy_.back()[1], stream_));
  ++started_;
  DELTATRAIN_CUDA_CALL(cudaEventRecord(done_[static_cast<size_t>(started_) % kEvents], stream_));
  return started_;
}

void NcclCollectives::wait(Ticket ticket) {
  if (ticket == 0) return;
  device_.make_current();
  // The event of a call so long ago has been used again, by a later one.
  const auto oldest = started_ - static_cast<Ticket>(kEvents) + 1;
  const cudaEvent_t event = done_[static_cast<size_t>(std::max(ticket, oldest)) % kEvents];
  if (timing_) {
    exposed_.push_back({new_event(cudaEventDefault), new_event(cudaEventDefault)});
    DELTATRAIN_CUDA_CALL(cudaEventRecord(exposed_.back()[0], device_.stream()));
  }
  DELTATRAIN_CUDA_CALL(cudaStreamWaitEvent(device_.stream(), event, 0));
  if (timing_) DELTATRAIN_CUDA_CALL(cudaEventRecord(exposed_.back()[1], device_.stream()));
}

void NcclCollectives::release(std::vector<Pair>& pairs) {
  for (const Pair& pair : pairs) {
    for (cudaEvent_t event : pair) cudaEventDestroy(event);
  }
  pairs.clear();
}

double NcclCollectives::seconds(const std::vector<Pair>& pairs) {
  double sum = 0;
  for (const Pair& pair : pairs) {
    float milliseconds = 0;
    DELTATRAIN_CUDA_CALL(cudaEventElapsedTime(&milliseconds, pair[0], pair[1]));
    sum += 1e-3 * static_cast<double>(milliseconds);
  }
  return sum;
}

void NcclCollectives::start_times() {
  release(busy_);
  release(exposed_);
  bytes_ = 0;
  timing_ = true;
}

dist::CollectiveTimes NcclCollectives::take_times() {
  device_.make_current();
  timing_ = false;
  DELTATRAIN_CUDA_CALL(cudaStreamSynchronize(stream_));
  device_.synchronize();
  const dist::CollectiveTimes times{seconds(busy_), seconds(exposed_), bytes_};
  release(busy_);
  release(exposed_);
  return times;
}

}  // namespace

std::unique_ptr<dist::Collectives> make_nccl_collectives(CudaDevice& device,
                                                         dist::Communicator& ranks, bool nvls) {
  return std::make_unique<NcclCollectives>(device, ranks, nvls);
}

}  // namespace deltatrain::backend::cuda
