#include "model/rank_exchange.h"

namespace deltatrain {

RankExchange::RankExchange(dist::Collectives* collectives, const layers::Sharding& sharding,
                           const ParallelConfig& config, layers::ParameterStore& parameters)
    : collectives_(collectives),
      sharded_(sharding.is_sharded()),
      overlap_reduce_(config.overlap_grad_reduce),
      overlap_gather_(config.overlap_param_gather),
      parameters_(parameters),
      next_reduce_(parameters.range_cuts().size() - 1),
      weights_(next_reduce_, 0) {}

Tensor RankExchange::range_of(const Tensor& flat, size_t range) const {
  const std::vector<int64_t>& cuts = parameters_.range_cuts();
  return flat.rows(cuts[range], cuts[range + 1]);
}

void RankExchange::needs(int64_t end) {
  if (first_needed_ == 0) first_needed_ = end;
  wait_up_to(end);
}

void RankExchange::wait_up_to(int64_t end) {
  const std::vector<int64_t>& cuts = parameters_.range_cuts();
  for (size_t range = 0; range < weights_.size() && cuts[range] < end; ++range) {
    if (weights_[range] == 0) continue;
    collectives_->wait(weights_[range]);
    weights_[range] = 0;
  }
}

void RankExchange::reduce(size_t range) {
  const Tensor gradient = range_of(parameters_.flat_gradient(), range);
  last_reduce_ =
      sharded_ ? collectives_->reduce_scatter(gradient) : collectives_->all_reduce(gradient);
}

void RankExchange::finished(int64_t begin) {
  if (collectives_ == nullptr || !is_last_ || (!overlap_reduce_ && begin > 0)) return;
  collectives_->hurry(begin == 0);  // behind the last gradients comes the update, which waits
  while (next_reduce_ > 0 && parameters_.range_cuts()[next_reduce_ - 1] >= begin)
    reduce(--next_reduce_);
  if (begin > 0) return;
  const Tensor gradient = parameters_.flat_gradient();
  last_reduce_ = collectives_->all_reduce(
      gradient.rows(parameters_.num_matrix_elements(), parameters_.num_elements()));
}

void RankExchange::sum_losses(const Tensor& loss_sum) {
  if (collectives_ != nullptr && is_last_) last_reduce_ = collectives_->all_reduce(loss_sum);
}

void RankExchange::wait_for_gradients() {
  if (collectives_ != nullptr) collectives_->wait(last_reduce_);
  next_reduce_ = weights_.size();
  is_last_ = false;
  if (collectives_ != nullptr) collectives_->hurry(false);
}

void RankExchange::add_up(const Tensor& sum) {
  if (collectives_ != nullptr) collectives_->wait(collectives_->all_reduce(sum));
}

void RankExchange::updated(size_t segment) {
  if (collectives_ == nullptr || !sharded_ || segment >= weights_.size()) return;
  const Tensor compute = parameters_.flat_compute();
  // The next pass begins with the first of them.
  collectives_->hurry(!overlap_gather_ || parameters_.range_cuts()[segment] < first_needed_);
  weights_[segment] = collectives_->all_gather(
      range_of(compute.defined() ? compute : parameters_.flat_master(), segment));
  collectives_->hurry(false);
  if (!overlap_gather_) wait_up_to(parameters_.range_cuts()[segment + 1]);
}

void RankExchange::wait_for_weights() { wait_up_to(parameters_.num_matrix_elements()); }

void RankExchange::broadcast(const Tensor& flat) {
  if (collectives_ != nullptr) collectives_->wait(collectives_->broadcast(flat));
}

void RankExchange::gather(const Tensor& flat) {
  if (collectives_ == nullptr || !sharded_) return;
  dist::Collectives::Ticket last = 0;
  for (size_t range = 0; range < weights_.size(); ++range)
    last = collectives_->all_gather(range_of(flat, range));
  collectives_->wait(last);
}

}  // namespace deltatrain
