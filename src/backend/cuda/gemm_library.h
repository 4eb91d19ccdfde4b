// Dense products by cuBLASLt, with algorithms chosen by measurement.
//
// The first time a product is met, up to 32 candidates that the library proposes for it, and as
// many for the next round sizes, are timed on the operands of the call, hot, and the fastest is
// kept: in memory, and in a text file that later runs read. Candidates that add partial sums in a
// type narrower than f32 are never asked for, and the library promises the same bits for the same
// algorithm on the same card; so two runs with one file give the same bits. A search waits for the
// device; any other call only enqueues.
#pragma once

#include <cuda_runtime_api.h>

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/cublas_lt.h"
#include "backend/cuda/gemm_options.h"
#include "base/dtype.h"
#include "ops/context.h"  // GradMode

namespace deltatrain::backend::cuda {

// c = a b (+ c) (+ bias along m), as the library sees matrices: column by column, so that a
// row-major matrix [R, X] is X x R with leading dimension = its row stride.
struct GemmProblem {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  int64_t lda = 0;
  int64_t ldb = 0;
  int64_t ldc = 0;
  bool transpose_a = false;
  bool transpose_b = false;
  DType input = DType::kBF16;   // of a and b: bf16, or f32 (never TF32)
  DType output = DType::kBF16;  // of c
  bool bias = false;            // a vector of m elements in the type of c
  int alignment_a = 16;  // bytes, 2 to 16: what addresses and leading dimensions have in common
  int alignment_b = 16;
  int alignment_c = 16;

  auto operator<=>(const GemmProblem&) const = default;
  std::string name() const;  // "bf16 TN 1024x65536x4096 ..."
};

struct GemmOperands {
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
  const void* bias = nullptr;
  ops::GradMode mode = ops::GradMode::kOverwrite;
};

class GemmLibrary {
 public:
  // `device_name` distinguishes cards in the file. FormatError when the file is not one of this class.
  GemmLibrary(cudaStream_t stream, std::string device_name, const GemmOptions& options);
  ~GemmLibrary();
  GemmLibrary(const GemmLibrary&) = delete;
  GemmLibrary& operator=(const GemmLibrary&) = delete;

  // Alignments of the problem are filled in from the operands.
  void run(GemmProblem problem, const GemmOperands& operands);

  // Takes choices from the text of a file of this class, for problems not met yet. FormatError for
  // any other text.
  void adopt(const std::string& text);

  // What was chosen for a problem met before, for tables: "" where it was not.
  struct Choice {
    int num_candidates = 0;  // 0: read from the file or not searched
    double milliseconds = 0;
    double first_milliseconds = 0;  // of the library's first proposal
  };
  const std::map<std::string, Choice>& choices() const { return choices_; }
  bool uniform_rows() const { return uniform_rows_; }

 private:
  struct Plan;
  Plan& find_plan(const GemmProblem& problem, const GemmOperands& operands);
  void choose_algorithm(Plan& plan, const GemmProblem& problem, const GemmOperands& operands);
  cublasStatus_t propose(const Plan& plan, const GemmProblem& problem,
                         std::vector<cublasLtMatmulHeuristicResult_t>& candidates);
  void propose_as_if_round(const Plan& plan, const GemmProblem& problem,
                           std::vector<cublasLtMatmulHeuristicResult_t>& candidates);
  bool time_candidates(Plan& plan, const GemmProblem& problem, const GemmOperands& operands,
                       int num_candidates, cublasLtMatmulHeuristicResult_t* candidates);
  cublasStatus_t enqueue(const Plan& plan, const GemmOperands& operands, void* c,
                         const cublasLtMatmulAlgo_t& algorithm);
  void take(const std::string& text, const std::string& where);
  void write_file() const;

  // Products smaller than this are not worth a search: launch overhead rules them.
  static constexpr double kSearchFlops = 2e9;
  static constexpr size_t kWorkspaceBytes = size_t{64} << 20;

  cudaStream_t stream_;
  std::string device_name_;
  std::string file_;
  bool search_;
  bool uniform_rows_;
  bool clear_outputs_;
  cublasLtHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
  int64_t version_ = 0;
  std::map<GemmProblem, std::unique_ptr<Plan>> plans_;
  std::map<std::string, Choice> choices_;
  // Lines of the file: key (device, library version, problem) to algorithm in hexadecimal. Those of
  // other devices and versions are kept.
  std::map<std::string, std::string> stored_;
};

}  // namespace deltatrain::backend::cuda
