// Every op of a backend against the reference: fresh random inputs, odd sizes, packed sequences,
// strided tensors and the extremes of gates and decay, forward and every gradient.
//
// A case rounds its inputs to the dtypes of the tested backend and gives the reference exactly
// those numbers. Outputs start as NaN; guard bytes stand before and after every tensor and NaN in
// the gaps of strided ones. Each call runs twice and must give the same bits. Used by the program's
// self test and by the tests alike.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "device/context.h"

namespace deltatrain::verify {

enum class CaseSet : uint8_t {
  kSmall,
  kFull
};  // kSmall: every op and every extreme once, in seconds

// What lies around tensors. kGuarded: guard bytes, and NaN in gaps and in outputs; each call runs
// twice. kExact: nothing. Each tensor is an allocation of exactly its size, gaps and outputs are
// never written by the test, each call runs once and calls with a tensor of more than
// kMaxExactElements elements are left out: for tools that watch every access. Cases may ask to be
// kept in spite of their size (OpTrial::keep_when_exact).
enum class Surroundings : uint8_t { kGuarded, kExact };
inline constexpr int64_t kMaxExactElements = int64_t{1} << 17;

struct OpCaseFilter {
  std::string op;         // only this op ("rms_norm"); "": all
  std::string case_name;  // only cases whose name contains this
  CaseSet set = CaseSet::kSmall;
  Surroundings surroundings = Surroundings::kGuarded;
};

struct OpCaseResult {
  std::string op;         // "rms_norm_backward"
  std::string case_name;  // "R=63 D=33, strided rows"
  std::string tensor;     // "dx_RD", or "" where the whole call failed
  double error = 0;       // relative, over the tensor
  double bound = 0;
  bool passed = false;
  bool supported = true;    // false: the backend refused the case with an UnsupportedError
  int64_t worst_index = 0;  // flat index of the element that is furthest off
  double got = 0;           // there
  double expected = 0;
  std::string note;  // what else is wrong: guard bytes overwritten, an exception, other bits the
                     // second time
};

// One line for people.
std::string describe(const OpCaseResult& result);

// Names that OpCaseFilter::op knows.
std::vector<std::string> op_case_names();

// `reference` is a context of the reference backend in f64.
// `tested.activation_dtype` chooses the dtype. The arenas need room for the
// scratch of one op at a time: kOpCaseArenaBytes are enough for every case.
std::vector<OpCaseResult> run_op_cases(const Context& tested, const Context& reference,
                                       const OpCaseFilter& filter);

inline constexpr int64_t kOpCaseArenaBytes = int64_t{256} << 20;

}  // namespace deltatrain::verify
