// Sizes of a tensor, outermost axis first.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

namespace deltatrain {

class Shape {
 public:
  static constexpr int kMaxRank = 5;

  Shape() = default;
  Shape(std::initializer_list<int64_t>
            sizes);  // NOLINT(google-explicit-constructor): {B, T, D} reads best

  int rank() const { return rank_; }
  int64_t operator[](int axis) const { return sizes_[static_cast<size_t>(axis)]; }
  int64_t num_elements() const;
  void append(int64_t size);

  friend bool operator==(const Shape& a, const Shape& b) = default;

 private:
  std::array<int64_t, kMaxRank> sizes_{};
  int rank_ = 0;
};

std::string to_string(const Shape& shape);  // "[2, 3]"

}  // namespace deltatrain
