// The text column of a table in a file, read group by group: record batches of Arrow IPC files, row
// groups of Parquet files. docs/prepare.md says what is understood.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace deltatrain::formats {

// Rows that are stored together.
struct RowGroup {
  int64_t first_row = 0;
  int64_t num_rows = 0;
  int64_t begin = 0;  // byte of the file at which its data starts; below the file's size
  int64_t bytes = 0;  // of the file, that reading its text takes
};

class TextColumn {
 public:
  virtual ~TextColumn() = default;
  virtual int64_t num_groups() const = 0;
  virtual RowGroup group(int64_t index) const = 0;

  // Starts to read a group. Text is checked to be what the type says, not to be UTF-8.
  virtual void select(int64_t index) = 0;

  // Some of the next rows of the group, absent where null, valid until the next call; false at its
  // end. FormatError names file and row group where the data are not what the file says of them.
  virtual bool next(std::vector<std::optional<std::string_view>>& rows) = 0;
};

// FormatError for a file that is damaged or cut off, or whose column is absent or not text.
std::unique_ptr<TextColumn> open_arrow_text(const std::filesystem::path& path,
                                            const std::string& column);

// The column may be within structs: a.b. UnsupportedError where the program was built without Arrow
// C++, whose module lies beside it.
std::unique_ptr<TextColumn> open_parquet_text(const std::filesystem::path& path,
                                              const std::string& column);
bool reads_parquet();

}  // namespace deltatrain::formats
