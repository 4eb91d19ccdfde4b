// Sums and exchanges of device memory over all ranks, beside the ops of the context they belong to.
//
// Each call starts when the ops queued before it have run, goes on beside those queued after it, and
// follows the calls before it. Every rank makes the same calls with the same sizes in the same
// order. Sums are taken in an order that depends on the number of ranks alone, so that the same
// number of ranks gives the same bits, and every rank the same ones.
#pragma once

#include <cstdint>
#include <memory>

#include "device/context.h"
#include "dist/communicator.h"
#include "tensor/tensor.h"

namespace deltatrain::dist {

// What the calls since the last question took.
struct CollectiveTimes {
  double busy_seconds = 0;     // during which at least one was at work
  double exposed_seconds = 0;  // of waiting for them with no op at work
  int64_t bytes = 0;           // of the tensors handed over
};

class Collectives {
 public:
  using Ticket = int64_t;  // 0: nothing to wait for

  virtual ~Collectives() = default;

  // x: contiguous, f32 or f64; replaced by the sum over ranks.
  virtual Ticket all_reduce(const Tensor& x_X) = 0;
  // x: f32 or f64, of as many equal parts as there are ranks. This rank's part is replaced by its
  // sum over ranks; the others are undefined after it.
  virtual Ticket reduce_scatter(const Tensor& x_X) = 0;
  // x: any type, equal parts as above; each part is replaced by the one of the rank that it belongs
  // to.
  virtual Ticket all_gather(const Tensor& x_X) = 0;
  // x: any type; replaced by rank 0's.
  virtual Ticket broadcast(const Tensor& x_X) = 0;

  // Whether ops will soon wait for the calls to come. Those that ops hide take few of the device's
  // units, which the ops beside them would miss; those that are waited for take what they can use.
  // The same on every rank. At first: false.
  virtual void hurry(bool /*on*/) {}

  // Ops queued from here on find this call and those before it done. CollectiveError when a rank is
  // lost, here or where the host waits for the device next.
  virtual void wait(Ticket ticket) = 0;

  // Times are only taken between start_times() and take_times(), which waits for the device.
  virtual void start_times() = 0;
  virtual CollectiveTimes take_times() = 0;

  virtual const char* description() const = 0;  // for logs
};

// Over TCP, of memory that the host can read: a thread sums around a ring of all ranks.
// Collective. `ranks` outlives the result.
std::unique_ptr<Collectives> make_host_collectives(Communicator& ranks);

}  // namespace deltatrain::dist
