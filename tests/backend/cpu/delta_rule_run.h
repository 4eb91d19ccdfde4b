// The gated delta rule through a backend, with inputs and results as host arrays in double.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/registry.h"
#include "support/arrays.h"

namespace deltatrain::test {

struct DeltaProblem {
  std::vector<int32_t> offsets;
  Array q, k, v, g, beta, d_out;
  std::optional<Array> initial_state, d_final_state;
  double scale = 1;

  int64_t R() const { return q.shape[0]; }
  int64_t num_sequences() const { return static_cast<int64_t>(offsets.size()) - 1; }
};

struct DeltaOptions {
  std::vector<int64_t> lengths;
  int64_t H = 1, G = 1, K = 16, V = 16;
  bool per_channel = false;
  double log_gate = 0.1;  // log gates are -log_gate times |normal|
  bool states = true;     // with initial_state and d_final_state
  uint64_t seed = 1;
};

// Normalised q and k, normal v and gradients, beta in (0, 1).
DeltaProblem make_delta_problem(const DeltaOptions& options);

struct DeltaResult {
  Array o, final_state, dq, dk, dv, dg, dbeta, d_initial_state;
};

// Runs problems on one backend with values of `dtype`.
class DeltaRunner {
 public:
  DeltaRunner(DeviceKind kind, DType dtype);
  // With gradients, forward fills `saved` first.
  DeltaResult run(const DeltaProblem& problem, bool gradients = true);

 private:
  std::unique_ptr<backend::Backend> backend_;
  Arena arena_;
  DType dtype_;
};

// Every result of `got` within `bound` of `want` in ||got - want|| / ||want||, none missing.
void expect_near(const DeltaResult& got, const DeltaResult& want, double bound,
                 const std::string& what);
// The largest error of all.
double worst_error(const DeltaResult& got, const DeltaResult& want);

}  // namespace deltatrain::test
