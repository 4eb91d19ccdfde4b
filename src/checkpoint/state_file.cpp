#include "checkpoint/state_file.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/hash.h"

namespace deltatrain::checkpoint::internal {

namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::string_view kFormat = "deltatrain checkpoint";
constexpr int64_t kVersion = 1;
constexpr int kMaxDepth = 64;
// The text between the checksummed part and the digits, and the text after them.
constexpr std::string_view kBeforeChecksum = ",\n \"checksum\": \"";
constexpr std::string_view kAfterChecksum = "\"\n}\n";

constexpr DType kDTypes[] = {DType::kF64, DType::kF32, DType::kBF16, DType::kF16,
                             DType::kI64, DType::kI32, DType::kU16,  DType::kU8};

std::optional<uint64_t> parse_hex64(const std::string& text) {
  if (text.size() != 16 || text.find_first_not_of("0123456789abcdef") != std::string::npos) {
    return std::nullopt;
  }
  return std::stoull(text, nullptr, 16);
}

ordered_json group_to_json(const TensorGroup& group);

ordered_json files_to_json(const std::vector<FileRecord>& files) {
  ordered_json list = ordered_json::array();
  for (const FileRecord& file : files) {
    list.push_back(
        {{"name", file.name}, {"bytes", file.bytes}, {"checksum", hex64(file.checksum)}});
  }
  return list;
}

ordered_json group_to_json(const TensorGroup& group) {
  ordered_json tensors = ordered_json::array();
  for (const TensorRecord& tensor : group.tensors) {
    ordered_json shape = ordered_json::array();
    for (int axis = 0; axis < tensor.shape.rank(); ++axis) shape.push_back(tensor.shape[axis]);
    tensors.push_back({{"name", tensor.name},
                       {"dtype", dtype_name(tensor.dtype)},
                       {"shape", shape},
                       {"file", tensor.file.string()},
                       {"checksum", hex64(tensor.checksum)}});
  }
  return {{"files", files_to_json(group.files)}, {"tensors", tensors}};
}

// Reads members of one object, naming the path to them in errors.
class Reader {
 public:
  Reader(const json& value, std::string path, const std::string& where)
      : value_(value), path_(std::move(path)), where_(where) {}

  Reader member(const std::string& key) const {
    const std::string path = path_.empty() ? key : path_ + "." + key;
    if (!value_.is_object() || !value_.contains(key)) {
      throw FormatError(error_text(where_, path, "this key", "none"));
    }
    return {value_[key], path, where_};
  }

  std::vector<Reader> elements() const {
    if (!value_.is_array()) fail("an array");
    std::vector<Reader> result;
    for (size_t i = 0; i < value_.size(); ++i) {
      result.emplace_back(value_[i], path_ + "[" + std::to_string(i) + "]", where_);
    }
    return result;
  }

  int64_t count() const {
    if (!value_.is_number_unsigned() || value_.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
      fail("a whole number of 0 or more");
    }
    return value_.get<int64_t>();
  }

  std::string text() const {
    if (!value_.is_string()) fail("text");
    return value_.get<std::string>();
  }

  // A name that cannot lead out of the folder.
  std::string file_name() const {
    std::string name = text();
    if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos ||
        name.find('\0') != std::string::npos) {
      fail("a file name without folders");
    }
    return name;
  }

  uint64_t checksum() const {
    const auto value = parse_hex64(text());
    if (!value) fail("16 hexadecimal digits");
    return *value;
  }

  DType dtype() const {
    const std::string name = text();
    for (const DType dtype : kDTypes) {
      if (dtype_name(dtype) == name) return dtype;
    }
    fail("the name of a dtype");
  }

  Shape shape() const {
    Shape shape;
    const auto sizes = elements();
    if (sizes.size() > static_cast<size_t>(Shape::kMaxRank)) fail("at most 5 axes");
    for (const Reader& size : sizes) shape.append(size.count());
    return shape;
  }

  const json& value() const { return value_; }

  [[noreturn]] void fail(const std::string& expected) const {
    throw FormatError(error_text(where_, path_, expected, value_.dump().substr(0, 80)));
  }

 private:
  const json& value_;
  std::string path_;
  const std::string& where_;
};

std::vector<FileRecord> read_files(const Reader& reader) {
  std::vector<FileRecord> files;
  for (const Reader& file : reader.elements()) {
    files.push_back({file.member("name").file_name(), file.member("bytes").count(),
                     file.member("checksum").checksum()});
  }
  return files;
}

TensorGroup read_group(const Reader& reader) {
  TensorGroup group;
  group.files = read_files(reader.member("files"));
  for (const Reader& tensor : reader.member("tensors").elements()) {
    TensorRecord record;
    record.name = tensor.member("name").text();
    record.dtype = tensor.member("dtype").dtype();
    record.shape = tensor.member("shape").shape();
    record.file = tensor.member("file").file_name();
    record.checksum = tensor.member("checksum").checksum();
    if (!group.tensors.empty() && group.tensors.back().name >= record.name) {
      tensor.member("name").fail("a name after \"" + group.tensors.back().name + "\"");
    }
    group.tensors.push_back(std::move(record));
  }
  return group;
}

}  // namespace

std::string to_json(const StateFile& file) {
  ordered_json extra = ordered_json::object();
  for (const auto& [key, text] : file.state.extra) {
    try {
      extra[key] = ordered_json::parse(text);
    } catch (const json::exception&) {
      throw FormatError(error_text("state.json", "extra." + key, "JSON", text.substr(0, 80)));
    }
  }
  const ordered_json root = {{"format", kFormat},
                             {"version", kVersion},
                             {"step", file.state.step},
                             {"consumed_samples", file.state.consumed_samples},
                             {"extra", extra},
                             {"companions", files_to_json(file.companions)},
                             {"model", group_to_json(file.model)},
                             {"optimizer", group_to_json(file.optimizer)}};
  std::string text = root.dump(1);
  text.resize(text.size() - 2);  // the closing "\n}" comes after the checksum
  const std::string checksum = hex64(xxh3_64(text.data(), text.size()));
  text += kBeforeChecksum;
  text += checksum;
  text += kAfterChecksum;
  return text;
}

StateFile parse_state_file(std::string_view text, const std::string& where) {
  const size_t tail = kBeforeChecksum.size() + 16 + kAfterChecksum.size();
  const size_t body = text.size() - std::min(text.size(), tail);
  const std::string_view digits =
      text.substr(std::min(text.size(), body + kBeforeChecksum.size())).substr(0, 16);
  const bool whole = text.size() > tail &&
                     text.substr(body, kBeforeChecksum.size()) == kBeforeChecksum &&
                     text.substr(text.size() - kAfterChecksum.size()) == kAfterChecksum;
  if (!whole)
    throw FormatError(error_text(where, "", "a checkpoint's state.json that ends with its checksum",
                                 "something else"));
  if (hex64(xxh3_64(text.data(), body)) != digits) {
    throw FormatError(
        error_text(where, "checksum", hex64(xxh3_64(text.data(), body)), std::string(digits)));
  }

  json root;
  try {
    root = json::parse(text, [&where](int depth, json::parse_event_t, json&) {
      if (depth > kMaxDepth)
        throw FormatError(error_text(where, "", "JSON of at most 64 levels", "more"));
      return true;
    });
  } catch (const json::exception& error) {
    throw FormatError(where + ": expected JSON: " + error.what());
  }
  const Reader reader(root, "", where);
  if (reader.member("format").text() != kFormat)
    reader.member("format").fail("\"" + std::string(kFormat) + "\"");
  if (reader.member("version").count() != kVersion)
    reader.member("version").fail(std::to_string(kVersion));

  StateFile file;
  file.state.step = reader.member("step").count();
  file.state.consumed_samples = reader.member("consumed_samples").count();
  const Reader extra = reader.member("extra");
  if (!extra.value().is_object()) extra.fail("an object");
  for (const auto& [key, value] : extra.value().items())
    file.state.extra.emplace(key, value.dump());
  file.companions = read_files(reader.member("companions"));
  file.model = read_group(reader.member("model"));
  file.optimizer = read_group(reader.member("optimizer"));
  return file;
}

}  // namespace deltatrain::checkpoint::internal
