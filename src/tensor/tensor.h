// Tensor: a small, trivially copyable, non-owning view of elements in host or device memory.
// View<T>: the same with the element type in the type, for loops on the host.
//
// The last axis is contiguous. Other axes have strides, so that a column range of a [R, width]
// matrix is a Tensor too (the parts of a merged projection).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <type_traits>

#include "base/dtype.h"
#include "tensor/shape.h"

namespace deltatrain {

class Tensor {
 public:
  Tensor() = default;
  Tensor(void* data, DType dtype, const Shape& shape);  // contiguous

  bool defined() const { return data_ != nullptr; }
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  int rank() const { return shape_.rank(); }
  int64_t size(int axis) const { return shape_[axis]; }
  int64_t stride(int axis) const { return strides_[static_cast<size_t>(axis)]; }  // in elements
  int64_t num_elements() const { return shape_.num_elements(); }
  int64_t num_bytes() const { return num_elements() * dtype_bytes(dtype_); }
  bool is_contiguous() const;

  void* raw() const { return data_; }
  template <class T>
  T* data() const {  // null where no tensor is defined
    if (data_ == nullptr) return nullptr;
    check_dtype(DTypeOf<T>::value);
    return static_cast<T*>(data_);
  }

  // Elements [begin, end) of axis 0.
  Tensor rows(int64_t begin, int64_t end) const;
  // Elements [begin, end) of the last axis; the result is strided.
  Tensor columns(int64_t begin, int64_t end) const;
  // The last axis split in two, [.., a*b] -> [.., a, b]; works on strided tensors.
  Tensor split_last(int64_t a, int64_t b) const;
  // Another shape of the same elements; needs a contiguous tensor.
  Tensor reshape(const Shape& shape) const;

 private:
  void check_dtype(DType wanted) const;

  void* data_ = nullptr;
  DType dtype_ = DType::kF32;
  Shape shape_;
  std::array<int64_t, Shape::kMaxRank> strides_{};
};

std::string describe(const Tensor& tensor);  // "f32 [2, 3]"

template <class T>
class View {
 public:
  View() = default;
  View(T* data, const Shape& shape);
  explicit View(const Tensor& tensor);
  template <class U>
  View(const View<U>& other)  // NOLINT(google-explicit-constructor): View<T> to View<const T>
      : data_(other.data()), shape_(other.shape()), strides_(other.strides()) {}

  T* data() const { return data_; }
  bool defined() const { return data_ != nullptr; }
  const Shape& shape() const { return shape_; }
  const std::array<int64_t, Shape::kMaxRank>& strides() const { return strides_; }
  int64_t size(int axis) const { return shape_[axis]; }

  template <class... Index>
  T& operator()(Index... index) const {
    const int64_t at[] = {static_cast<int64_t>(index)...};
    int64_t offset = 0;
    for (size_t i = 0; i < sizeof...(index); ++i) offset += at[i] * strides_[i];
    return data_[offset];
  }

 private:
  T* data_ = nullptr;
  Shape shape_;
  std::array<int64_t, Shape::kMaxRank> strides_{};
};

template <class T>
View<T>::View(T* data, const Shape& shape) : data_(data), shape_(shape) {
  int64_t stride = 1;
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    strides_[static_cast<size_t>(axis)] = stride;
    stride *= shape[axis];
  }
}

template <class T>
View<T>::View(const Tensor& tensor)
    : data_(tensor.defined() ? tensor.data<std::remove_const_t<T>>() : nullptr),
      shape_(tensor.shape()) {
  for (int axis = 0; axis < tensor.rank(); ++axis)
    strides_[static_cast<size_t>(axis)] = tensor.stride(axis);
}

}  // namespace deltatrain
