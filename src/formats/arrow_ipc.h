// Arrow IPC files: the stream form that Hugging Face `datasets` saves, and the file form. Columns
// of lists of integers (token rows) and of text are read in place from a memory map; other columns
// are stepped over. docs/formats/arrow.md says what is understood and what is refused by name.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"  // MappedFile

namespace deltatrain::formats {

// Rows of one record batch, each a list of integers of 32 or 64 bits.
class ArrowListColumn {
 public:
  int64_t num_rows() const { return num_rows_; }
  bool is_null(int64_t row) const;
  int64_t length(int64_t row) const { return end(row) - begin(row); }
  // Copies tokens of a row from `first` on. FormatError when one does not fit 32 bits.
  void read(int64_t row, int64_t first, std::span<int32_t> out) const;

 private:
  friend class ArrowFile;
  int64_t begin(int64_t row) const;
  int64_t end(int64_t row) const { return begin(row + 1); }

  int64_t num_rows_ = 0;
  const std::byte* validity_ = nullptr;  // null: no row is null
  const std::byte* offsets_ = nullptr;
  bool wide_offsets_ = false;
  int64_t fixed_length_ = 0;  // > 0: rows of this length, no offsets
  const std::byte* values_ = nullptr;
  bool wide_values_ = false;
  const std::string* where_ = nullptr;
};

// Rows of one record batch, each a text.
class ArrowTextColumn {
 public:
  int64_t num_rows() const { return num_rows_; }
  std::optional<std::string_view> text(int64_t row) const;  // absent: null

 private:
  friend class ArrowFile;
  int64_t num_rows_ = 0;
  const std::byte* validity_ = nullptr;
  const std::byte* offsets_ = nullptr;
  bool wide_offsets_ = false;
  const char* characters_ = nullptr;
};

struct ArrowField {
  std::string name;
  int type = 0;           // code of the Type union
  std::string type_name;  // "utf8", "int32", "list<int32>", ...
  int bits = 0;           // of integers
  int64_t list_size = 0;  // of fixed-size lists
  bool dictionary = false;
  std::vector<ArrowField> children;
};

class ArrowFile {
 public:
  // Maps the file, reads the schema and finds the record batches. FormatError for anything that is
  // not Arrow or is cut off; UnsupportedError for compressed or big-endian data.
  explicit ArrowFile(const std::filesystem::path& path);

  const std::string& path() const { return path_; }
  const std::vector<ArrowField>& fields() const { return fields_; }
  int64_t num_rows() const { return num_rows_; }
  int64_t num_batches() const { return static_cast<int64_t>(batches_.size()); }
  int64_t batch_rows(int64_t batch) const { return batches_[static_cast<size_t>(batch)].num_rows; }
  // The byte of the file at which a batch's metadata lies, and its buffers.
  int64_t batch_begin(int64_t batch) const {
    return batches_[static_cast<size_t>(batch)].metadata.data() - file_.bytes().data();
  }
  std::span<const std::byte> batch_body(int64_t batch) const {
    return batches_[static_cast<size_t>(batch)].body;
  }

  // FormatError when the column is absent or of another type, or the batch's buffers do not hold
  // what its offsets say.
  ArrowListColumn list_column(int64_t batch, const std::string& name) const;
  ArrowTextColumn text_column(int64_t batch, const std::string& name) const;

  // FormatError when the schema has no such column of text; for files whose batches come later.
  void check_text_column(const std::string& name) const;

 private:
  struct Batch {
    std::span<const std::byte> metadata;
    std::span<const std::byte> body;
    int64_t num_rows = 0;
  };
  struct Column;

  Column find_column(int64_t batch, const std::string& name) const;

  std::string path_;
  MappedFile file_;
  std::vector<ArrowField> fields_;
  std::vector<Batch> batches_;
  int64_t num_rows_ = 0;
};

// Writes one column of lists of int32 in the stream form. Complete only after commit().
class ArrowListWriter {
 public:
  // `metadata` is the schema's key "huggingface"; empty: none.
  ArrowListWriter(const std::filesystem::path& path, const std::string& column,
                  const std::string& metadata);
  ~ArrowListWriter();
  ArrowListWriter(const ArrowListWriter&) = delete;
  ArrowListWriter& operator=(const ArrowListWriter&) = delete;

  // A record batch of rows of `row_length` tokens each.
  void write_batch(std::span<const int32_t> tokens, int64_t row_length);

  // Returns the SHA-256 and the size of the file.
  std::pair<std::string, int64_t> commit();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace deltatrain::formats
