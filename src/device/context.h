// Everything that an op needs besides its arguments: where it runs, and with which functions.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "tensor/arena.h"
#include "tensor/buffer.h"

namespace deltatrain {

namespace ops {
struct OpTable;
}  // namespace ops

// kReference: the plain loops of ops/reference in f64 or f32.
// kPlan: sizes only, nothing is computed.
enum class DeviceKind : uint8_t { kReference, kCpu, kCuda, kPlan };

// Ops kept by Device::record, to be started again as one. Their addresses and shapes are fixed;
// what lies at the addresses may change.
class Recording {
 public:
  virtual ~Recording() = default;
  virtual void replay() = 0;
};

// What a backend can do with memory and time, besides ops. Copies and fills are ordered with the
// ops of the context; host memory may be reused when a copy function returns.
class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceKind kind() const = 0;
  virtual MemoryResource& memory() = 0;
  virtual void copy_to_device(void* to, const void* from_host, size_t bytes) = 0;
  virtual void copy_to_host(void* to_host, const void* from,
                            size_t bytes) = 0;  // waits for the result
  virtual void copy_on_device(void* to, const void* from, size_t bytes) = 0;
  virtual void fill_zero(void* data, size_t bytes) = 0;
  virtual void synchronize() = 0;
  virtual int64_t free_memory_bytes() = 0;
  virtual const char* description() const = 0;  // for logs: processor or card, threads

  // Calls `ops`, keeping what it queues instead of doing it. `ops` only calls ops that ran before
  // with the same shapes; it neither copies to or from the host nor waits. No op in it writes what
  // another takes as a parameter (weights, gates), and embedding_forward stands between two updates
  // of one state by delta_step: those may be read before the ops ahead are done. Null, with `ops` not
  // called, on devices that keep nothing.
  virtual std::unique_ptr<Recording> record(const std::function<void()>& ops);

  // For profiles: a moment between the ops before the call and those after it, without waiting for
  // either. take_marks() waits, and returns the seconds from the first mark to each since the last
  // call, in order. Times are of the device where it has a clock of its own.
  virtual void mark();
  virtual std::vector<double> take_marks();

 private:
  std::vector<std::chrono::steady_clock::time_point> marks_;
};

// kF32: the residual stream and its gradient are f32 where activations are bf16.
enum class ResidualStream : uint8_t { kActivation, kF32 };

struct Context {
  Device* device = nullptr;
  const ops::OpTable* table = nullptr;
  Arena* arena = nullptr;
  DType activation_dtype = DType::kF32;  // dtype of activations and of matrices in products
  ResidualStream residual_stream = ResidualStream::kActivation;

  // Statistics, gates, states and parameter gradients: f32, or f64 where everything is f64.
  DType statistics_dtype() const {
    return activation_dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  }
  DType stream_dtype() const {
    return residual_stream == ResidualStream::kF32 && activation_dtype == DType::kBF16
               ? DType::kF32
               : activation_dtype;
  }
};

}  // namespace deltatrain
