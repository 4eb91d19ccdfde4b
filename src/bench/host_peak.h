// What the processor's cores can do at most, measured.
#pragma once

namespace deltatrain::bench {

// f32 multiply-adds per second times two, in TFLOP/s, of a loop that only does fused multiply-adds
// on all threads; the best of several runs.
double measure_fma_peak_tflops(int num_threads);

// Bytes read plus bytes written per second by a copy much
// larger than the caches, in GB/s; the best of several.
double measure_copy_gb_per_s(int num_threads);

}  // namespace deltatrain::bench
