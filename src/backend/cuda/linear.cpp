// Linear layers as products of cuBLASLt, but for few rows (linear_rows.h). The library's matrices
// are column by column: a row-major matrix [R, X] is its X x R, so every product is written
// transposed, outputs' rows along n.
#include "backend/cuda/cuda_device.h"
#include "backend/cuda/gemm_library.h"
#include "backend/cuda/kernels.h"
#include "backend/cuda/linear_bias.h"
#include "backend/cuda/linear_rows.h"
#include "backend/cuda/linear_step.h"
#include "base/check.h"

namespace deltatrain::backend::cuda {

namespace {

// Distance of rows in elements; that of a single row is not looked at, but must not be less than
// its width.
int64_t row_pitch(const Tensor& matrix) {
  return matrix.size(0) > 1 ? matrix.stride(0) : matrix.size(1);
}

}  // namespace

void linear_forward(const Context& context, const ops::LinearForward& args) {
  const int64_t R = args.x_RD.size(0);
  const int64_t D = args.x_RD.size(1);
  const int64_t X = args.weight_XD.size(0);
  const DType output = args.y_RX.dtype();
  // The library adds a bias in the type of the output, before the one rounding of the sum.
  const Arena::ScratchScope scope(*context.arena);
  Tensor bias = args.bias_X;
  const bool rounds_bias = bias.defined() && output == DType::kBF16;
  if (rounds_bias) bias = context.arena->scratch(DType::kBF16, {X});
  if (context.arena->is_planning()) return;
  CudaDevice& device = cuda_device(context);
  if (linear_step(device, args) || linear_rows(device, args)) return;
  if (rounds_bias) round_to_bf16(device, args.bias_X.data<float>(), bias.raw(), X);

  GemmProblem problem;
  problem.m = X;
  problem.n = R;
  problem.k = D;
  problem.transpose_a = true;
  problem.lda = row_pitch(args.weight_XD);
  problem.ldb = row_pitch(args.x_RD);
  problem.ldc = row_pitch(args.y_RX);
  problem.input = args.x_RD.dtype();
  problem.output = output;
  problem.bias = bias.defined();
  device.gemm().run(
      problem, {args.weight_XD.raw(), args.x_RD.raw(), args.y_RX.raw(), bias.raw(), args.y_mode});
}

void linear_backward(const Context& context, const ops::LinearBackward& args) {
  const int64_t R = args.dy_RX.size(0);
  const int64_t X = args.dy_RX.size(1);
  const Arena::ScratchScope scope(*context.arena);
  Tensor partial;
  if (args.dbias_X.defined())
    partial = context.arena->scratch(DType::kF32, {num_row_sum_partials(R), X});
  if (context.arena->is_planning()) return;
  CudaDevice& device = cuda_device(context);
  GemmProblem problem;
  problem.input = args.dy_RX.dtype();
  if (args.dx_RD.defined()) {
    problem.m = args.dx_RD.size(1);
    problem.n = R;
    problem.k = X;
    problem.lda = row_pitch(args.weight_XD);
    problem.ldb = row_pitch(args.dy_RX);
    problem.ldc = row_pitch(args.dx_RD);
    problem.output = args.dx_RD.dtype();
    device.gemm().run(
        problem, {args.weight_XD.raw(), args.dy_RX.raw(), args.dx_RD.raw(), nullptr, args.dx_mode});
  }
  if (args.dweight_XD.defined()) {
    problem.m = args.x_RD.size(1);
    problem.n = X;
    problem.k = R;
    problem.transpose_b = true;
    problem.lda = row_pitch(args.x_RD);
    problem.ldb = row_pitch(args.dy_RX);
    problem.ldc = row_pitch(args.dweight_XD);
    problem.output = args.dweight_XD.dtype();
    device.gemm().run(problem, {args.x_RD.raw(), args.dy_RX.raw(), args.dweight_XD.raw(), nullptr,
                                args.dweight_mode});
  }
  if (args.dbias_X.defined())
    sum_rows(device, args.dy_RX, partial, args.dbias_X.data<float>(), args.dweight_mode);
}

}  // namespace deltatrain::backend::cuda
