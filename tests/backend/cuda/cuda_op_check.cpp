// Every op of the CUDA backend against the reference, and its time at the models' shapes, in one program.
//
//   cuda_op_check [--op NAME] [--small] [--no-cases] [--no-huge] [--no-timings] [--gemm-file FILE] [--dry-run]
//
// Prints every case that failed, a summary per op, and a table of times. Exit code 4 where a case failed. --dry-run
// puts the reference in f32 in the place of the CUDA backend: the cases themselves, on a machine without a GPU.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <string>

#include "backend/cuda/large_cases.h"
#include "backend/cuda/many_sequences.h"
#include "backend/cuda/op_timings.h"
#include "backend/factories.h"
#include "base/error.h"
#include "verify/op_cases.h"

namespace {

using namespace deltatrain;  // NOLINT(google-build-using-namespace): a main file

struct Options {
  std::string op;
  std::string gemm_file;
  bool small = false;
  bool cases = true;
  bool huge = true;
  bool timings = true;
  bool dry_run = false;
};

struct Summary {
  int num_cases = 0;
  int num_failed = 0;
  int num_unsupported = 0;
  double worst_share = 0;  // error / bound
};

class Report {
 public:
  void add(const std::string& dtype, const std::vector<verify::OpCaseResult>& results) {
    for (const verify::OpCaseResult& result : results) {
      Summary& summary = summaries_[{dtype, result.op}];
      ++summary.num_cases;
      if (!result.supported) {
        ++summary.num_unsupported;
        continue;
      }
      if (result.bound > 0) summary.worst_share = std::max(summary.worst_share, result.error / result.bound);
      if (result.passed) continue;
      ++summary.num_failed;
      ++num_failed_;
      // A broken op fails everywhere: its first cases tell enough.
      if (summary.num_failed <= 12) std::printf("FAILED %s %s\n", dtype.c_str(), verify::describe(result).c_str());
    }
  }

  void print() const {
    std::printf("%-9s %-28s %8s %8s %12s %s\n", "dtype", "op", "results", "failed", "unsupported", "worst error / bound");
    for (const auto& [key, summary] : summaries_) {
      std::printf("%-9s %-28s %8d %8d %12d %.3f\n", key.first.c_str(), key.second.c_str(), summary.num_cases,
                  summary.num_failed, summary.num_unsupported, summary.worst_share);
    }
    std::printf("%d results failed\n", num_failed_);
  }

  int num_failed() const { return num_failed_; }

 private:
  std::map<std::pair<std::string, std::string>, Summary> summaries_;
  int num_failed_ = 0;
};

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void run_cases(backend::Backend& tested, const Options& options, Report& report) {
  const auto reference = backend::make_reference_backend();
  Arena tested_arena(tested.device().memory(), verify::kOpCaseArenaBytes);
  Arena reference_arena(host_memory(), verify::kOpCaseArenaBytes);
  const Context reference_context = reference->context(reference_arena, DType::kF64);
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    if (options.dry_run && dtype == DType::kBF16) continue;
    const std::string name(dtype_name(dtype));
    const Context context = tested.context(tested_arena, dtype);
    for (const std::string& op : verify::op_case_names()) {
      if (!options.op.empty() && options.op != op) continue;
      if (op == "gated_delta_rule" && tested.table().gated_delta_rule.forward == nullptr) continue;
      const auto begin = std::chrono::steady_clock::now();
      const verify::CaseSet set = options.small ? verify::CaseSet::kSmall : verify::CaseSet::kFull;
      report.add(name, verify::run_op_cases(context, reference_context, {op, "", set}));
      if (!options.small) report.add(name, test::run_long_cases(context, reference_context, op));
      std::printf("cases of %s %s: %.1f s\n", name.c_str(), op.c_str(), seconds_since(begin));
      std::fflush(stdout);
    }
  }
}

int run(const Options& options) {
  backend::BackendOptions backend_options;
  backend_options.gemm_file = options.gemm_file;
  const auto begin = std::chrono::steady_clock::now();
  const auto tested = options.dry_run ? backend::make_reference_backend() : backend::make_cuda_backend(backend_options);
  std::printf("%s (ready after %.2f s)\n", tested->device().description(), seconds_since(begin));
  Report report;
  if (options.cases) run_cases(*tested, options, report);
  if (options.huge && !options.small) {
    if (!options.dry_run) report.add("huge", test::run_huge_cases(*tested, options.op));
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      if (options.dry_run && dtype == DType::kBF16) continue;
      report.add("many " + std::string(dtype_name(dtype)),
                 test::run_many_sequences(*tested, dtype, options.dry_run ? 6 : 8192, options.op));
    }
  }
  if (options.cases || options.huge) report.print();
  std::fflush(stdout);
  if (options.timings && !options.dry_run) test::print_op_timings(*tested, options.op);
  std::printf("total %.1f s\n", seconds_since(begin));
  return static_cast<int>(report.num_failed() == 0 ? ExitCode::kDone : ExitCode::kCheckFailed);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--small") {
      options.small = true;
    } else if (argument == "--no-cases") {
      options.cases = false;
    } else if (argument == "--no-huge") {
      options.huge = false;
    } else if (argument == "--no-timings") {
      options.timings = false;
    } else if (argument == "--dry-run") {
      options.dry_run = true;
    } else if (argument == "--op" && i + 1 < argc) {
      options.op = argv[++i];
    } else if (argument == "--gemm-file" && i + 1 < argc) {
      options.gemm_file = argv[++i];
    } else {
      std::fprintf(stderr, "cuda_op_check: unknown argument \"%s\"\n", argument.c_str());
      return static_cast<int>(ExitCode::kBadInput);
    }
  }
  try {
    return run(options);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(error.code());
  }
}
