#include <cmath>

#include "backend/reference/reference_tables.h"
#include "ops/reference/adamw.h"

namespace deltatrain::backend {

namespace {

namespace loops = ops::reference;

template <class T>
using In = View<const T>;
template <class T>
using Out = View<T>;

void sum_of_squares(const Context&, const ops::SumOfSquares& a) {
  with_scalar_of("sum_of_squares", a.gradient_X, [&](auto scalar) {
    using T = decltype(scalar);
    const double before = a.mode == ops::GradMode::kAccumulate ? a.scalars->sum_of_squares : 0;
    a.scalars->sum_of_squares = before + loops::sum_of_squares<T>(In<T>(a.gradient_X));
  });
}

void finish_gradient_norm(const Context&, const ops::FinishGradientNorm& a) {
  loops::finish_gradient_norm(*a.scalars, a.loss_sum);
}

double element(const Tensor& tensor, int64_t i) {
  switch (tensor.dtype()) {
    case DType::kF64:
      return tensor.data<double>()[i];
    case DType::kF32:
      return static_cast<double>(tensor.data<float>()[i]);
    default:
      return static_cast<double>(static_cast<float>(tensor.data<BFloat16>()[i]));
  }
}

void set_element(const Tensor& tensor, int64_t i, double value) {
  switch (tensor.dtype()) {
    case DType::kF64:
      tensor.data<double>()[i] = value;
      break;
    case DType::kF32:
      tensor.data<float>()[i] = static_cast<float>(value);
      break;
    default:
      tensor.data<BFloat16>()[i] = BFloat16(static_cast<float>(value));
  }
}

void adamw(const Context&, const ops::AdamW& a) {
  with_scalar_of("adamw", a.parameter_X, [&](auto scalar) {
    using T = decltype(scalar);
    loops::adamw<T>(Out<T>(a.parameter_X), In<T>(a.gradient_X), Out<T>(a.m_X), Out<T>(a.v_X),
                    In<uint8_t>(a.decays_X), *a.scalars, a.beta1, a.beta2, a.eps, a.weight_decay);
  });
  // A step that is left out changes nothing, the copy included.
  const bool left_out = !std::isfinite(a.scalars->gradient_norm) || a.scalars->skipped != 0;
  if (!a.compute_X.defined() || left_out) return;
  for (int64_t i = 0; i < a.parameter_X.size(0); ++i)
    set_element(a.compute_X, i, element(a.parameter_X, i));
}

void add(const Context&, const ops::Add& a) {
  with_scalar_of("add", a.a_RD, [&](auto scalar) {
    using T = decltype(scalar);
    const In<T> a_RD(a.a_RD), b_RD(a.b_RD);
    const Out<T> y_RD(a.y_RD);
    for (int64_t r = 0; r < y_RD.size(0); ++r) {
      for (int64_t d = 0; d < y_RD.size(1); ++d) y_RD(r, d) = a_RD(r, d) + b_RD(r, d);
    }
  });
}

void convert(const Context&, const ops::Convert& a) {
  for (int64_t i = 0; i < a.x.num_elements(); ++i) set_element(a.y, i, element(a.x, i));
}

void sum_to(const Context&, const ops::SumTo& a) {
  double sum = 0;
  for (int64_t r = 0; r < a.x_R.size(0); ++r) sum += element(a.x_R, r);
  *a.result += sum;
}

void row_argmax(const Context&, const ops::RowArgmax& a) {
  with_scalar_of("row_argmax", a.x_RN, [&](auto scalar) {
    using T = decltype(scalar);
    const In<T> x_RN(a.x_RN);
    for (int64_t r = 0; r < x_RN.size(0); ++r) {
      int64_t best = 0;
      bool has_nan = false;
      for (int64_t n = 0; n < x_RN.size(1); ++n) {
        has_nan = has_nan || std::isnan(x_RN(r, n));
        if (x_RN(r, n) > x_RN(r, best)) best = n;
      }
      const bool is_number = !has_nan && std::isfinite(x_RN(r, best));
      a.index_R.data<int32_t>()[r] = is_number ? static_cast<int32_t>(best) : -1;
    }
  });
}

void checksum(const Context&, const ops::Checksum& a) {
  const auto* words = static_cast<const uint32_t*>(a.x_X.raw());
  for (int64_t i = 0; i < a.x_X.num_bytes() / 4; ++i)
    *a.result += ops::checksum_term(static_cast<uint64_t>(i), words[i]);
}

void copy_rows(const Context&, const ops::CopyRows& a) {
  const int64_t row_elements = a.x_X.rows(0, 1).num_elements();
  for (int64_t r = 0; r < a.from_R.size(0); ++r) {
    const int64_t from = a.from_R.data<int32_t>()[r], to = a.to_R.data<int32_t>()[r];
    const int64_t count = a.counts_R.defined()
                              ? a.counts_R.data<int32_t>()[r] * (row_elements / a.x_X.size(1))
                              : row_elements;
    for (int64_t i = 0; i < count; ++i)
      set_element(a.y_X, to * row_elements + i,
                  from < 0 ? 0.0 : element(a.x_X, from * row_elements + i));
  }
}

}  // namespace

void fill_reference_update_ops(ops::OpTable& table) {
  table.adamw = {sum_of_squares, finish_gradient_norm, adamw};
  table.elementwise = {add, convert, sum_to, row_argmax, checksum, copy_rows};
}

}  // namespace deltatrain::backend
