// The JSON header of a safetensors file, checked. Internal to the folder.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "tensor/shape.h"

namespace deltatrain::formats::internal {

struct HeaderTensor {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  int64_t begin = 0;  // relative to the data after the header
  int64_t end = 0;
};

struct Header {
  std::vector<HeaderTensor> tensors;  // by begin
  std::map<std::string, std::string> metadata;
};

// `data_bytes` is the length of the data after the header. Throws FormatError starting with
// `where`.
Header parse_header(std::string_view json, int64_t data_bytes, const std::string& where);

}  // namespace deltatrain::formats::internal
