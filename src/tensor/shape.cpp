#include "tensor/shape.h"

#include "base/check.h"

namespace deltatrain {

Shape::Shape(std::initializer_list<int64_t> sizes) {
  for (const int64_t size : sizes) append(size);
}

void Shape::append(int64_t size) {
  DELTATRAIN_CHECK(rank_ < kMaxRank, "more than 5 axes");
  DELTATRAIN_CHECK(size >= 0, "size " + std::to_string(size));
  sizes_[static_cast<size_t>(rank_++)] = size;
}

int64_t Shape::num_elements() const {
  int64_t count = 1;
  for (int axis = 0; axis < rank_; ++axis) count *= (*this)[axis];
  return count;
}

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (int axis = 0; axis < shape.rank(); ++axis) {
    if (axis > 0) text += ", ";
    text += std::to_string(shape[axis]);
  }
  return text + "]";
}

}  // namespace deltatrain
