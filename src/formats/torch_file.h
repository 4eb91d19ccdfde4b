// Files of torch.save: an object tree with tensors in it. Bytes: docs/formats/megatron.md.
//
// Reads the ZIP form of PyTorch 1.6 and later, and the older form of pickles followed by raw
// storages. The file is mapped; a tensor may be a strided view of a storage that others share.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/files.h"
#include "formats/pickle.h"
#include "formats/zip_archive.h"
#include "tensor/shape.h"

namespace deltatrain::formats {

// A tensor of the tree. Its extent has been checked against its storage.
struct TorchTensor {
  DType dtype = DType::kF32;
  Shape shape;
  std::vector<int64_t> strides;        // in elements
  std::span<const std::byte> storage;  // from the tensor's first element to the storage's end
  std::string key;                     // of the storage
  bool contiguous = false;
};

class TorchFile {
 public:
  // FormatError naming the file for anything that is not such a file, is cut off, or names a class
  // or function off the list (pickle.h).
  explicit TorchFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  const PickleValue& root() const { return tree_->root(); }

  // Whether a value of the tree is a tensor or a Parameter; `name` goes into the FormatError for
  // one that is broken or of a dtype that isn't supported.
  static bool is_tensor(const PickleValue& value);
  TorchTensor tensor(const PickleValue& value, const std::string& name) const;

  // Elements [begin, begin + count) in row-major order. The first read of a storage checks its
  // CRC-32.
  void read(const TorchTensor& tensor, int64_t begin, int64_t count, void* out) const;

  // Whether stream() takes the tensor: contiguous, all of its storage, and at a multiple of its
  // width in the file, as torch.save lays out tensors of their own.
  bool can_stream(const TorchTensor& tensor) const;
  // Passes all bytes of these tensors on, past the page cache (base/read_ahead.h): index of the
  // tensor, first byte, whole elements, each tensor's in order, tensors as they lie in the file.
  // CRC-32s are checked behind the last bytes of each.
  using PieceConsumer =
      std::function<void(size_t tensor, int64_t begin, std::span<const std::byte> piece)>;
  void stream(const std::vector<TorchTensor>& tensors, const PieceConsumer& consume) const;

 private:
  void open_zip();
  void open_legacy();
  void collect_widths(std::map<std::string, int64_t>& widths) const;
  std::span<const std::byte> storage(const std::string& key) const;

  std::filesystem::path path_;
  std::unique_ptr<ZipArchive> zip_;
  std::string zip_root_;
  std::unique_ptr<MappedFile> legacy_;
  std::map<std::string, std::span<const std::byte>> legacy_storages_;
  std::unique_ptr<PickleTree> tree_;
  mutable std::map<std::string, bool> checked_;  // storages whose CRC-32 was found right
};

// Writes a .pt file: the tree first, then the storages in the order of add_storage.
class TorchFileWriter {
 public:
  // Members lie in a folder named as the file without .pt.
  explicit TorchFileWriter(const std::filesystem::path& path);

  // Announces a tensor of the tree, to be written later in this order; returns its storage's key.
  std::string announce(DType dtype, const Shape& shape, PickleWriter& pickle);
  void write_tree(std::string pickle);
  // The next bytes of the tensors announced, in order; begin_tensor starts each.
  void begin_tensor();
  void write(const void* data, int64_t bytes);
  void commit();

 private:
  std::string root_;
  ZipWriter zip_;
  std::vector<int64_t> storage_bytes_;
  size_t next_storage_ = 0;
};

}  // namespace deltatrain::formats
