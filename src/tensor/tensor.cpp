#include "tensor/tensor.h"

#include "base/check.h"

namespace deltatrain {

Tensor::Tensor(void* data, DType dtype, const Shape& shape)
    : data_(data), dtype_(dtype), shape_(shape) {
  int64_t stride = 1;
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    strides_[static_cast<size_t>(axis)] = stride;
    stride *= shape[axis];
  }
}

bool Tensor::is_contiguous() const {
  int64_t stride = 1;
  for (int axis = rank() - 1; axis >= 0; --axis) {
    if (size(axis) != 1 && this->stride(axis) != stride) return false;
    stride *= size(axis);
  }
  return true;
}

Tensor Tensor::rows(int64_t begin, int64_t end) const {
  DELTATRAIN_CHECK(
      rank() >= 1 && 0 <= begin && begin <= end && end <= size(0),
      "rows " + std::to_string(begin) + ".." + std::to_string(end) + " of " + describe(*this));
  Tensor part = *this;
  part.shape_ = Shape{end - begin};
  for (int axis = 1; axis < rank(); ++axis) part.shape_.append(size(axis));
  part.data_ = static_cast<char*>(data_) + begin * stride(0) * dtype_bytes(dtype_);
  return part;
}

Tensor Tensor::columns(int64_t begin, int64_t end) const {
  DELTATRAIN_CHECK(
      rank() >= 1 && 0 <= begin && begin <= end && end <= size(rank() - 1),
      "columns " + std::to_string(begin) + ".." + std::to_string(end) + " of " + describe(*this));
  Tensor part = *this;
  part.shape_ = Shape{};
  for (int axis = 0; axis + 1 < rank(); ++axis) part.shape_.append(size(axis));
  part.shape_.append(end - begin);
  part.data_ = static_cast<char*>(data_) + begin * dtype_bytes(dtype_);
  return part;
}

Tensor Tensor::split_last(int64_t a, int64_t b) const {
  DELTATRAIN_CHECK(rank() >= 1 && rank() < Shape::kMaxRank && size(rank() - 1) == a * b,
                   describe(*this) + " into " + std::to_string(a) + " x " + std::to_string(b));
  Tensor part = *this;
  part.shape_ = Shape{};
  for (int axis = 0; axis + 1 < rank(); ++axis) part.shape_.append(size(axis));
  part.shape_.append(a);
  part.shape_.append(b);
  part.strides_[static_cast<size_t>(rank()) - 1] = b;
  part.strides_[static_cast<size_t>(rank())] = 1;
  return part;
}

Tensor Tensor::reshape(const Shape& shape) const {
  DELTATRAIN_CHECK(is_contiguous() && shape.num_elements() == num_elements(),
                   describe(*this) + " as " + to_string(shape));
  return Tensor(data_, dtype_, shape);
}

void Tensor::check_dtype(DType wanted) const {
  DELTATRAIN_CHECK(dtype_ == wanted, "tensor holds " + describe(*this) + ", read as " +
                                         std::string(dtype_name(wanted)));
}

std::string describe(const Tensor& tensor) {
  if (!tensor.defined()) return "no tensor";
  return std::string(dtype_name(tensor.dtype())) + " " + to_string(tensor.shape());
}

}  // namespace deltatrain
