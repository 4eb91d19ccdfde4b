// The next token of each row, a block per row. Sets of the most likely tokens are found without sorting: values between
// the least and the largest that are still in question fall into kThreads classes of equal width, whose counts or weights,
// added up from the top, tell in which class the set ends; that class is looked at in the same way until one value is
// left. All sums are of whole numbers, so the order in which threads add them does not matter.
#include <cfloat>

#include "backend/cuda/activations.cuh"
#include "backend/cuda/kernels.h"
#include "backend/cuda/lanes.cuh"
#include "backend/cuda/largest.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/pack.cuh"

namespace deltatrain::backend::cuda {

namespace {

using Sum = unsigned long long;

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kPerThread = 16;  // neighbouring tokens of a tile that a thread looks through at last
constexpr int kTile = kThreads * kPerThread;
static_assert(ops::kMaxChoiceColumns / kTile <= kThreads);

struct ChoiceArguments {
  const void* logits;
  const int32_t* given;
  const double* temperature;
  const double* top_p;
  const double* uniform;
  const int32_t* top_k;
  const int32_t* num_top;
  int32_t* id;
  float* logit;
  float* lse;
  int32_t* top_ids;
  float* top_logits;
  int N, X;
};

// Values that are still in question, and how many tokens have one of them.
struct Bounds {
  float low, high;
  int count;
};

struct Shared {
  uint32_t low[kThreads], high[kThreads];  // sums of classes or tiles
  Sum warp_sums[kWarps];
  float maxima[kWarps], sums[kWarps];
  Largest best[kWarps];
  Bounds bounds[kWarps];
  Sum sum_before;  // of the class, tile or thread that was looked for
  int found;
  int32_t listed_ids[ops::kMaxTopTokens];
  float listed_logits[ops::kMaxTopTokens];
  int num_listed;
};

// Tokens with a logit above `last`, and of those equal to it the ids up to `last_id`.
struct Kept {
  float last = -INFINITY;
  int last_id = INT_MAX;
  __device__ __forceinline__ bool has(int id, float logit) const {
    return logit > last || (logit == last && id <= last_id);
  }
};

// What a token weighs in a draw. Not inlined: it stands in many loops, and is long.
__device__ __noinline__ Sum choice_weight(float logit, float largest, double inverse) {
  return static_cast<Sum>(
      exp((static_cast<double>(logit) - static_cast<double>(largest)) * inverse) * 0x1p40);
}

__device__ __forceinline__ void add_to(Shared& shared, int at, Sum value) {
  const auto low = static_cast<uint32_t>(value);
  auto high = static_cast<uint32_t>(value >> 32);
  const uint32_t before = atomicAdd(&shared.low[at], low);
  if (before + low < before) ++high;
  if (high != 0) atomicAdd(&shared.high[at], high);
}

__device__ __forceinline__ Sum sum_at(const Shared& shared, int at) {
  return (static_cast<Sum>(shared.high[at]) << 32) | shared.low[at];
}

// Sum over the threads up to and with this one.
__device__ __forceinline__ Sum sum_up_to_thread(Shared& shared, Sum value) {
#pragma unroll
  for (int distance = 1; distance < kWarpSize; distance *= 2) {
    const Sum before = __shfl_up_sync(kAllLanes, value, distance, kWarpSize);
    if (lane_id() >= distance) value += before;
  }
  __syncthreads();
  if (lane_id() == kWarpSize - 1) shared.warp_sums[warp_id()] = value;
  __syncthreads();
  for (int warp = 0; warp < warp_id(); ++warp) value += shared.warp_sums[warp];
  return value;
}

// After sum_up_to_thread.
__device__ __forceinline__ Sum sum_of_threads(const Shared& shared) {
  Sum sum = 0;
  for (int warp = 0; warp < kWarps; ++warp) sum += shared.warp_sums[warp];
  return sum;
}

__device__ __forceinline__ void clear_sums(Shared& shared) {
  __syncthreads();
  shared.low[threadIdx.x] = 0;
  shared.high[threadIdx.x] = 0;
  if (threadIdx.x == 0) shared.found = -1;
  __syncthreads();
}

// The row of a block, as its threads go over it.
template <class T, int kVector>
struct Row {
  const T* logits;
  int N;

  // visit(id, logit) for all tokens in [begin, end), multiples of kVector or N, by all threads together.
  template <class Visit>
  __device__ __forceinline__ void for_each(int begin, int end, const Visit& visit) const {
    constexpr int kAhead = 4;  // accesses under way
    constexpr int kStride = kThreads * kVector;
    for (int base = begin + static_cast<int>(threadIdx.x) * kVector; base < end;
         base += kAhead * kStride) {
      Pack<T, kVector> packs[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (base + i * kStride < end) packs[i] = load_pack<T, kVector>(logits + base + i * kStride);
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (base + i * kStride >= end) break;
        float values[kVector];
        packs[i].unpack(values);
#pragma unroll
        for (int e = 0; e < kVector; ++e) visit(base + i * kStride + e, values[e]);
      }
    }
  }
  template <class Visit>
  __device__ __forceinline__ void for_each(const Visit& visit) const {
    for_each(0, N, visit);
  }
};

// The first id whose measures, summed from id 0 on, are more than the target, which target_of makes from the sum of all.
template <class T, int kVector, class Measure, class TargetOf>
__device__ int first_past(const Row<T, kVector>& row, Shared& shared, const Measure& measure,
                          const TargetOf& target_of) {
  clear_sums(shared);
  for (int begin = 0; begin < row.N; begin += kTile) {
    Sum sum = 0;
    row.for_each(begin, min(row.N, begin + kTile),
                 [&](int id, float logit) { sum += measure(id, logit); });
    sum = sum_over_lanes<kWarpSize>(sum);
    if (lane_id() == 0 && sum > 0) add_to(shared, begin / kTile, sum);
  }
  __syncthreads();
  const Sum of_tile = sum_at(shared, static_cast<int>(threadIdx.x));
  const Sum up_to_tile = sum_up_to_thread(shared, of_tile);
  const Sum target = target_of(sum_of_threads(shared));
  if (target < up_to_tile && target >= up_to_tile - of_tile) {
    shared.found = static_cast<int>(threadIdx.x);
    shared.sum_before = up_to_tile - of_tile;
  }
  __syncthreads();
  const int tile = shared.found;
  const Sum before_tile = shared.sum_before;
  const int begin = tile * kTile + static_cast<int>(threadIdx.x) * kPerThread;
  const int end = min(row.N, begin + kPerThread);
  Sum of_thread = 0;
  for (int id = begin; id < end; ++id) of_thread += measure(id, to_float(row.logits[id]));
  Sum passed = before_tile + sum_up_to_thread(shared, of_thread);
  if (target < passed && target >= passed - of_thread) {
    passed -= of_thread;
    int id = begin;
    for (; id < end; ++id) {
      passed += measure(id, to_float(row.logits[id]));
      if (passed > target) break;
    }
    shared.found = id;
  }
  __syncthreads();
  const int found = shared.found;
  __syncthreads();
  return found;
}

template <class T, int kVector, class IsInQuestion>
__device__ Bounds bounds_of(const Row<T, kVector>& row, Shared& shared,
                            const IsInQuestion& is_in_question) {
  Bounds bounds = {INFINITY, -INFINITY, 0};
  row.for_each([&](int id, float logit) {
    if (!is_in_question(id, logit)) return;
    bounds.low = fminf(bounds.low, logit);
    bounds.high = fmaxf(bounds.high, logit);
    ++bounds.count;
  });
  bounds.low = -max_over_lanes<kWarpSize>(-bounds.low);
  bounds.high = max_over_lanes<kWarpSize>(bounds.high);
  bounds.count = sum_over_lanes<kWarpSize>(bounds.count);
  __syncthreads();
  if (lane_id() == 0) shared.bounds[warp_id()] = bounds;
  __syncthreads();
  bounds.count = 0;
  for (const Bounds& of_warp : shared.bounds) {
    bounds.low = fminf(bounds.low, of_warp.low);
    bounds.high = fmaxf(bounds.high, of_warp.high);
    bounds.count += of_warp.count;
  }
  return bounds;
}

// For distances between values; minus infinity as a number below all others.
__device__ __forceinline__ double widened(float value) {
  return isinf(value) ? -2.0 * FLT_MAX : static_cast<double>(value);
}

// The smallest beginning of the order of the tokens in `kept` that holds enough: is_enough(sum of the measures so far, sum
// of all). `kept` itself where all are not enough. The measure of the most likely token is not 0.
template <class T, int kVector, class Measure, class IsEnough>
__device__ Kept first_enough(const Row<T, kVector>& row, Shared& shared, const Kept& kept,
                             const Measure& measure, const IsEnough& is_enough) {
  Sum all = 0;
  Sum above = 0;  // of tokens before those in question
  bool is_first = true;
  Bounds bounds = bounds_of(row, shared, [&](int id, float logit) { return kept.has(id, logit); });
  while (bounds.low < bounds.high) {
    clear_sums(shared);
    const double low = widened(bounds.low);
    const double scale = kThreads / (widened(bounds.high) - low);
    const auto class_of = [&](float logit) {
      return min(kThreads - 1, static_cast<int>((widened(logit) - low) * scale));
    };
    const auto is_in_question = [&](int id, float logit) {
      return logit >= bounds.low && logit <= bounds.high && kept.has(id, logit);
    };
    row.for_each([&](int id, float logit) {
      if (is_in_question(id, logit)) add_to(shared, class_of(logit), measure(logit));
    });
    __syncthreads();
    const int looked_at = kThreads - 1 - static_cast<int>(threadIdx.x);  // from the top
    const Sum of_class = sum_at(shared, looked_at);
    const Sum up_to_class = above + sum_up_to_thread(shared, of_class);
    const Sum before = up_to_class - of_class;
    if (is_first) all = sum_of_threads(shared);
    is_first = false;
    if (of_class > 0 && is_enough(up_to_class, all) && (before == 0 || !is_enough(before, all))) {
      shared.found = looked_at;
      shared.sum_before = before;
    }
    __syncthreads();
    const int found = shared.found;
    if (found < 0) return kept;
    above = shared.sum_before;
    bounds = bounds_of(row, shared, [&](int id, float logit) {
      return is_in_question(id, logit) && class_of(logit) == found;
    });
  }
  const Sum one = measure(bounds.low);
  if (is_first) all = one * static_cast<Sum>(bounds.count);
  const auto suffice = [&](int count) {
    return is_enough(above + one * static_cast<Sum>(count), all);
  };
  if (!suffice(bounds.count)) return kept;
  int few = 0;
  int many = bounds.count;
  while (many - few > 1) {
    const int half = few + (many - few) / 2;
    (suffice(half) ? many : few) = half;
  }
  if (many == bounds.count) return {bounds.low, kept.last == bounds.low ? kept.last_id : INT_MAX};
  const auto is_equal = [&](int id, float logit) -> Sum {
    return logit == bounds.low && kept.has(id, logit) ? 1 : 0;
  };
  return {bounds.low,
          first_past(row, shared, is_equal, [&](Sum) { return static_cast<Sum>(many - 1); })};
}

// The largest logit and log-sum-exp of a row; a value that is not finite where a logit is NaN.
struct RowSums {
  Largest best;
  float lse;
};

template <class T, int kVector>
__device__ RowSums sums_of(const Row<T, kVector>& row, Shared& shared) {
  Largest best = {-INFINITY, 0};
  float maximum = -FLT_MAX;
  float sum = 0;
  row.for_each([&](int id, float logit) {
    best = larger(best, {logit, id});
    if (logit > maximum) {
      sum *= exponential<T>(maximum - logit);
      maximum = logit;
    }
    sum += exponential<T>(logit - maximum);
  });
  best = largest_over_lanes(best);
  const float warp_maximum = max_over_lanes<kWarpSize>(maximum);
  sum = sum_over_lanes<kWarpSize>(sum * exponential<T>(maximum - warp_maximum));
  if (lane_id() == 0) {
    shared.best[warp_id()] = best;
    shared.maxima[warp_id()] = warp_maximum;
    shared.sums[warp_id()] = sum;
  }
  __syncthreads();
  maximum = shared.maxima[0];
  for (int warp = 1; warp < kWarps; ++warp) {
    best = larger(best, shared.best[warp]);
    maximum = fmaxf(maximum, shared.maxima[warp]);
  }
  best = larger(best, shared.best[0]);
  sum = 0;
  for (int warp = 0; warp < kWarps; ++warp)
    sum += shared.sums[warp] * exponential<T>(shared.maxima[warp] - maximum);
  return {best, maximum + logf(sum)};
}

template <class T, int kVector>
__device__ int draw(const Row<T, kVector>& row, Shared& shared, const ChoiceArguments& args, int r,
                    const Largest& best) {
  const double temperature = args.temperature[r];
  if (temperature <= 0) return best.index;
  const double inverse = fmin(1 / temperature, DBL_MAX);
  const auto weight = [&](float logit) { return choice_weight(logit, best.value, inverse); };
  Kept kept;
  if (const int top_k = args.top_k[r]; top_k > 0 && top_k < args.N) {
    kept = first_enough(
        row, shared, kept, [](float) -> Sum { return 1; },
        [&](Sum sum, Sum) { return sum >= static_cast<Sum>(top_k); });
  }
  if (const double top_p = args.top_p[r]; top_p < 1) {
    kept = first_enough(row, shared, kept, weight, [&](Sum sum, Sum all) {
      return static_cast<double>(sum) >= top_p * static_cast<double>(all);
    });
  }
  const double uniform = args.uniform[r];
  return first_past(
      row, shared,
      [&](int id, float logit) -> Sum { return kept.has(id, logit) ? weight(logit) : 0; },
      [&](Sum all) {
        const auto target = static_cast<Sum>(uniform * static_cast<double>(all));
        return target < all ? target : all - 1;
      });
}

// The first num_top tokens of the order.
template <class T, int kVector>
__device__ void list_top(const Row<T, kVector>& row, Shared& shared, const ChoiceArguments& args,
                         int r, int num_top) {
  const Kept kept = first_enough(
      row, shared, Kept(), [](float) -> Sum { return 1; },
      [&](Sum sum, Sum) { return sum >= static_cast<Sum>(num_top); });
  if (threadIdx.x == 0) shared.num_listed = 0;
  __syncthreads();
  row.for_each([&](int id, float logit) {
    if (!kept.has(id, logit)) return;
    const int at = atomicAdd(&shared.num_listed, 1);
    shared.listed_ids[at] = id;
    shared.listed_logits[at] = logit;
  });
  __syncthreads();
  const int thread = static_cast<int>(threadIdx.x);
  if (thread >= num_top) return;
  const int id = shared.listed_ids[thread];
  const float logit = shared.listed_logits[thread];
  int rank = 0;
  for (int i = 0; i < num_top; ++i) {
    const float other = shared.listed_logits[i];
    if (other > logit || (other == logit && shared.listed_ids[i] < id)) ++rank;
  }
  const int64_t at = static_cast<int64_t>(r) * args.X + rank;
  args.top_ids[at] = id;
  args.top_logits[at] = logit;
}

// Grid: one block per row. Bytes: the row, again out of a cache for every pass: once, twice for a draw, three times for each
// round that finds a set, of which there are two or three as a rule.
template <class T, int kVector>
__global__ void __launch_bounds__(kThreads) token_choices_kernel(const ChoiceArguments args) {
  __shared__ Shared shared;
  const int r = static_cast<int>(blockIdx.x);
  const int thread = static_cast<int>(threadIdx.x);
  const Row<T, kVector> row = {
      static_cast<const T*>(args.logits) + static_cast<int64_t>(r) * args.N, args.N};
  const RowSums sums = sums_of(row, shared);
  const bool is_number = isfinite(sums.best.value);
  const int num_top = is_number ? min(args.num_top[r], min(args.X, args.N)) : 0;
  for (int i = thread + num_top; i < args.X; i += kThreads) {
    args.top_ids[static_cast<int64_t>(r) * args.X + i] = -1;
    args.top_logits[static_cast<int64_t>(r) * args.X + i] = 0;
  }
  if (!is_number) {
    if (thread == 0) {
      args.id[r] = -1;
      args.logit[r] = args.lse[r] = NAN;
    }
    return;
  }
  int id = args.given[r];
  if (id < 0) id = draw(row, shared, args, r, sums.best);
  if (thread == 0) {
    args.id[r] = id;
    args.logit[r] = to_float(row.logits[id]);
    args.lse[r] = sums.lse;
  }
  if (num_top > 0) list_top(row, shared, args, r, num_top);
}

}  // namespace

void token_choices(const Context& context, const ops::TokenChoices& args) {
  if (context.arena->is_planning()) return;
  const int64_t R = args.logits_RN.size(0);
  const int64_t N = args.logits_RN.size(1);
  if (R == 0) return;
  ChoiceArguments of_kernel{};
  of_kernel.logits = args.logits_RN.raw();
  of_kernel.given = pointer<const int32_t>(args.given_R);
  of_kernel.temperature = pointer<const double>(args.temperature_R);
  of_kernel.top_p = pointer<const double>(args.top_p_R);
  of_kernel.uniform = pointer<const double>(args.uniform_R);
  of_kernel.top_k = pointer<const int32_t>(args.top_k_R);
  of_kernel.num_top = pointer<const int32_t>(args.num_top_R);
  of_kernel.id = pointer<int32_t>(args.id_R);
  of_kernel.logit = pointer<float>(args.logit_R);
  of_kernel.lse = pointer<float>(args.lse_R);
  of_kernel.top_ids = pointer<int32_t>(args.top_ids_RX);
  of_kernel.top_logits = pointer<float>(args.top_logits_RX);
  of_kernel.N = narrow<int>(N);
  of_kernel.X = narrow<int>(args.top_ids_RX.size(1));
  with_activation_type("token_choices", args.logits_RN.dtype(), [&](auto element) {
    using T = typename decltype(element)::type;
    constexpr int kFull = 16 / static_cast<int>(sizeof(T));
    const bool vectors = N % kFull == 0 && is_aligned(args.logits_RN, 16);
    launch(cuda_device(context), "token_choices_kernel",
           vectors ? token_choices_kernel<T, kFull> : token_choices_kernel<T, 1>, R, kThreads, 0,
           of_kernel);
  });
}

}  // namespace deltatrain::backend::cuda
