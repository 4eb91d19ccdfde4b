// safetensors: named tensors in one file, or in several with an index. Bytes:
// docs/formats/safetensors.md.
//
// Reading maps the file and copies nothing. Everything that the header claims is checked before it
// is used or anything is allocated for it: its length, the depth and types of its JSON, duplicate
// names, dtypes, overflowing shapes, and that the tensors cover the data exactly, without holes or
// overlaps. Every refusal is a FormatError that names the file and the tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/files.h"
#include "tensor/shape.h"
#include "tensor/tensor.h"

namespace deltatrain::formats {

// A tensor inside a mapped file. The bytes are little-endian and row-major; a file of another
// writer may hold them at any alignment, so read elements through read_tensor or memcpy.
struct StoredTensor {
  DType dtype = DType::kF32;
  Shape shape;
  std::span<const std::byte> bytes;
};

using Metadata = std::map<std::string, std::string>;

class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  const std::map<std::string, StoredTensor>& tensors() const { return tensors_; }
  const Metadata& metadata() const { return metadata_; }
  // Length and JSON, as they stand before the data.
  std::span<const std::byte> header_bytes() const { return header_bytes_; }
  int64_t file_bytes() const { return static_cast<int64_t>(file_.bytes().size()); }
  const StoredTensor* find(const std::string& name) const;  // null when absent
  const StoredTensor& at(const std::string& name) const;    // FormatError when absent

 private:
  MappedFile file_;
  std::span<const std::byte> header_bytes_;
  std::map<std::string, StoredTensor> tensors_;
  Metadata metadata_;
};

// All tensors of a folder under one stem: STEM.safetensors, or the files that
// STEM.safetensors.index.json lists. An index that disagrees with its files is refused: a tensor
// that it lists in a file without it, a tensor of a file that it does not list, a file name with a
// folder in it.
class SafetensorsFolder {
 public:
  // Also takes the path of one .safetensors file.
  explicit SafetensorsFolder(const std::filesystem::path& folder, std::string_view stem = "model");

  struct Entry {
    const SafetensorsFile* file = nullptr;
    const StoredTensor* tensor = nullptr;
  };

  const std::map<std::string, Entry>& tensors() const { return tensors_; }
  const Entry* find(const std::string& name) const;  // null when absent
  const Entry& at(const std::string& name) const;    // FormatError when absent
  const std::vector<std::unique_ptr<SafetensorsFile>>& files() const { return files_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, Entry> tensors_;
};

// Whether `folder` holds STEM.safetensors or its index.
bool has_safetensors(const std::filesystem::path& folder, std::string_view stem = "model");

struct TensorSpec {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;

  int64_t num_bytes() const { return shape.num_elements() * dtype_bytes(dtype); }
};

// Writes one file. The header is known from the start, so tensors may be written in any order and
// in pieces, straight from where they are. The layout is the reference writer's, byte for byte:
// wider dtypes first, then names in byte order, header padded with spaces to 8 bytes.
class SafetensorsWriter {
 public:
  // FormatError for a name given twice.
  SafetensorsWriter(std::filesystem::path path, std::vector<TensorSpec> specs,
                    const Metadata& metadata = {{"format", "pt"}});

  // Bytes [offset, offset + bytes) of a tensor. Every byte has to be written exactly once before
  // commit().
  void write(const std::string& name, int64_t offset, const void* data, int64_t bytes);
  // The whole of a contiguous host tensor whose dtype and shape are those announced.
  void write(const std::string& name, const Tensor& tensor);

  // Makes the file appear under its name, whole and flushed.
  void commit();

  const std::filesystem::path& path() const { return path_; }
  const std::vector<TensorSpec>& specs() const { return specs_; }  // in the order of the file
  int64_t file_bytes() const { return file_bytes_; }
  const std::string& header_bytes() const { return header_bytes_; }  // length and JSON

 private:
  struct Slot {
    int64_t begin = 0;
    int64_t bytes = 0;
    int64_t written = 0;
  };

  std::filesystem::path path_;
  std::vector<TensorSpec> specs_;
  std::map<std::string, Slot> slots_;
  AtomicFileWriter file_;
  std::string header_bytes_;
  int64_t file_bytes_ = 0;
};

constexpr int64_t kDefaultMaxShardBytes = 5'000'000'000;

// Writes STEM.safetensors, or, when the tensors exceed max_shard_bytes together, numbered files and
// STEM.safetensors.index.json. Files are filled in the order of the specs; a tensor larger than the
// limit gets a file of its own. Files appear at commit(), the index last.
class SafetensorsFolderWriter {
 public:
  SafetensorsFolderWriter(std::filesystem::path folder, std::string_view stem,
                          const std::vector<TensorSpec>& specs,
                          int64_t max_shard_bytes = kDefaultMaxShardBytes,
                          const Metadata& metadata = {{"format", "pt"}});

  void write(const std::string& name, int64_t offset, const void* data, int64_t bytes);
  void write(const std::string& name, const Tensor& tensor);
  void commit();

  // The files in order (without the index), and the one that a tensor goes to.
  const std::vector<std::unique_ptr<SafetensorsWriter>>& files() const { return writers_; }
  const std::filesystem::path& file_of(const std::string& name) const;
  // The index's path and text; empty when there is one file.
  std::filesystem::path index_path() const;
  std::string index_text() const;

 private:
  std::filesystem::path folder_;
  std::string stem_;
  std::vector<std::unique_ptr<SafetensorsWriter>> writers_;
  std::map<std::string, SafetensorsWriter*> writer_of_;
};

// Copies a stored tensor into a contiguous host tensor of the same shape, converting between f64,
// f32, bf16 and f16 where the dtypes differ. `where` and `name` go into the ShapeError for anything
// else.
void read_tensor(const StoredTensor& stored, const Tensor& out, const std::string& where,
                 const std::string& name);

// The spelling of dtypes in a header: "F32", "BF16", ...
std::string_view safetensors_dtype_name(DType dtype);

}  // namespace deltatrain::formats
