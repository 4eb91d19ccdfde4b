// .npy: one array as NumPy saves it (format versions 1 to 3), read only.
#pragma once

#include <filesystem>

#include "base/files.h"
#include "formats/safetensors.h"  // StoredTensor

namespace deltatrain::formats {

// Maps the file. Takes little-endian f32, f64, i32, i64, u16 and u8 in C order with at most 5 axes;
// anything else, and a size that disagrees with the header, is a FormatError naming the file.
class NpyFile {
 public:
  explicit NpyFile(const std::filesystem::path& path);
  const StoredTensor& array() const { return array_; }

 private:
  MappedFile file_;
  StoredTensor array_;
};

}  // namespace deltatrain::formats
