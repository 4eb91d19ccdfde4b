// Gradients, weights and losses of one training step among several ranks: what is exchanged when,
// beside which ops.
//
//   backward   from the end of the matrices down, a range is summed (all_reduce, or sharded
//              reduce_scatter) as soon as its gradients are complete
//   update     waits for all sums; the norm adds up over ranks where they are scattered
//   forward    sharded, new weights are gathered range by range, and a pass waits for those that it
//              reads next
//
// Calls are the same on all ranks. With one rank there is no such object.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "config/recipe.h"
#include "dist/collectives.h"
#include "layers/parameters.h"
#include "optim/optimizer.h"

namespace deltatrain {

class RankExchange final : public layers::PassListener, public optim::UpdateListener {
 public:
  // All outlive the exchange. Without `collectives` (a plan) nothing is exchanged.
  RankExchange(dist::Collectives* collectives, const layers::Sharding& sharding,
               const ParallelConfig& config, layers::ParameterStore& parameters);

  // Whether the backward passes to come are the step's last.
  void set_last_micro_batch(bool is_last) { is_last_ = is_last; }
  void needs(int64_t end) override;
  void finished(int64_t begin) override;

  // The loss sum, f64 [1] in device memory, is replaced by that over ranks.
  void sum_losses(const Tensor& loss_sum);
  // The ops queued from here on see all sums.
  void wait_for_gradients();
  void add_up(const Tensor& sum) override;
  void updated(size_t segment) override;
  void wait_for_weights();

  // flat: all elements, f32 (f64): made equal to rank 0's.
  void broadcast(const Tensor& flat);
  // flat: of which each rank has its own parts of the matrices; made whole on every rank.
  void gather(const Tensor& flat);

 private:
  Tensor range_of(const Tensor& flat, size_t range) const;
  void reduce(size_t range);
  void wait_up_to(int64_t end);

  dist::Collectives* collectives_;
  bool sharded_;
  bool overlap_reduce_, overlap_gather_;
  layers::ParameterStore& parameters_;
  bool is_last_ = false;
  int64_t first_needed_ = 0;                        // end of what passes read first; 0: none yet
  size_t next_reduce_;                              // ranges from here on have been handed over
  dist::Collectives::Ticket last_reduce_ = 0;       // and the rest, and the loss
  std::vector<dist::Collectives::Ticket> weights_;  // by range; 0: nothing to wait for
};

}  // namespace deltatrain
