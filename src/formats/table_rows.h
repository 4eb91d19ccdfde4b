// Rows of a Parquet file with all their columns, each row as a JSON object. docs/evaluation.md says who reads them.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace deltatrain::formats {

class TableRows {
 public:
  struct Column {
    std::string name;
    std::string type;      // as Arrow prints it
    bool is_read = false;  // false: a type that JSON has no form for; rows go without it
  };
  virtual ~TableRows() = default;
  virtual const std::vector<Column>& columns() const = 0;

  // The next row as one line of JSON without its end, columns in the file's order; false after the last. Texts,
  // numbers, truth values, lists and structs are what they are in JSON, dictionaries their values, nulls and numbers
  // that are not finite null. FormatError names the file where the data are not what it says of them.
  virtual bool next(std::string& row) = 0;
};

// FormatError for a file that is damaged or cut off, UnsupportedError where the program was built without Arrow C++, whose
// module lies beside it.
std::unique_ptr<TableRows> open_parquet_rows(const std::filesystem::path& path);

}  // namespace deltatrain::formats
