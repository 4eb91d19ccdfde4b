#include <nlohmann/json.hpp>
#include <set>

#include "base/check.h"
#include "base/error.h"
#include "formats/safetensors.h"

namespace deltatrain::formats {

namespace {

constexpr int64_t kMaxIndexBytes = 100'000'000;

std::filesystem::path index_path(const std::filesystem::path& folder, std::string_view stem) {
  return folder / (std::string(stem) + ".safetensors.index.json");
}

std::filesystem::path single_path(const std::filesystem::path& folder, std::string_view stem) {
  return folder / (std::string(stem) + ".safetensors");
}

// name -> file, from the index's weight_map.
std::map<std::string, std::string> read_weight_map(const std::filesystem::path& path) {
  const std::string where = path.string();
  const std::string text = read_file(path, kMaxIndexBytes);
  std::set<std::string> names;
  // The parser keeps the last of two equal keys; the callback sees both.
  const auto callback = [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json& value) {
    if (depth > 2) throw FormatError(error_text(where, "", "JSON of two levels", "deeper"));
    if (event == nlohmann::json::parse_event_t::key && depth == 2 &&
        !names.insert(value.get<std::string>()).second) {
      throw FormatError(
          error_text(where, value.get<std::string>(), "one entry of this name", "two"));
    }
    return true;
  };
  nlohmann::json index;
  try {
    index = nlohmann::json::parse(text, callback);
  } catch (const nlohmann::json::exception& error) {
    throw FormatError(where + ": expected JSON: " + error.what());
  }
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    throw FormatError(error_text(where, "weight_map", "an object", "none"));
  }
  std::map<std::string, std::string> files;
  for (const auto& [name, file] : index["weight_map"].items()) {
    if (!file.is_string())
      throw FormatError(error_text(where, name, "a file name", file.type_name()));
    const auto file_name = file.get<std::string>();
    if (file_name.empty() || file_name == ".." || file_name == "." ||
        file_name.find('/') != std::string::npos || file_name.find('\0') != std::string::npos) {
      throw FormatError(
          error_text(where, name, "a file name without folders", "\"" + file_name + "\""));
    }
    files.emplace(name, file_name);
  }
  if (files.empty()) throw FormatError(error_text(where, "weight_map", "an entry", "none"));
  return files;
}

}  // namespace

bool has_safetensors(const std::filesystem::path& folder, std::string_view stem) {
  std::error_code ignored;
  return std::filesystem::exists(single_path(folder, stem), ignored) ||
         std::filesystem::exists(index_path(folder, stem), ignored);
}

SafetensorsFolder::SafetensorsFolder(const std::filesystem::path& folder, std::string_view stem)
    : path_(folder) {
  std::error_code ignored;
  const bool is_file = std::filesystem::is_regular_file(folder, ignored);
  const std::filesystem::path single = is_file ? folder : single_path(folder, stem);
  const std::filesystem::path index = index_path(folder, stem);
  if (std::filesystem::exists(single, ignored)) {
    if (!is_file && std::filesystem::exists(index, ignored)) {
      throw FormatError(error_text(folder.string(), "",
                                   single.filename().string() + " or its index",
                                   "both; remove the one that is out of date"));
    }
    files_.push_back(std::make_unique<SafetensorsFile>(single));
  } else if (std::filesystem::exists(index, ignored)) {
    const auto file_of = read_weight_map(index);
    std::map<std::string, const SafetensorsFile*> opened;
    for (const auto& [name, file] : file_of) {
      if (opened.contains(file)) continue;
      files_.push_back(std::make_unique<SafetensorsFile>(folder / file));
      opened.emplace(file, files_.back().get());
    }
    for (const auto& [name, file] : file_of) {
      if (opened[file]->find(name) == nullptr) {
        throw FormatError(
            error_text((folder / file).string(), name, "this tensor, as the index says", "none"));
      }
    }
    for (const auto& [file, opened_file] : opened) {
      for (const auto& [name, tensor] : opened_file->tensors()) {
        const auto it = file_of.find(name);
        if (it == file_of.end() || it->second != file) {
          throw FormatError(error_text((folder / file).string(), name,
                                       "a tensor that the index lists here",
                                       it == file_of.end() ? "one that it doesn't list"
                                                           : "one that it lists in " + it->second));
        }
      }
    }
  } else {
    throw FormatError(error_text(folder.string(), "",
                                 single.filename().string() + " or " + index.filename().string(),
                                 "neither"));
  }
  for (const auto& file : files_) {
    for (const auto& [name, tensor] : file->tensors())
      tensors_.emplace(name, Entry{file.get(), &tensor});
  }
}

const SafetensorsFolder::Entry* SafetensorsFolder::find(const std::string& name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

const SafetensorsFolder::Entry& SafetensorsFolder::at(const std::string& name) const {
  const Entry* entry = find(name);
  if (entry == nullptr) throw FormatError(error_text(path_.string(), name, "this tensor", "none"));
  return *entry;
}

SafetensorsFolderWriter::SafetensorsFolderWriter(std::filesystem::path folder,
                                                 std::string_view stem,
                                                 const std::vector<TensorSpec>& specs,
                                                 int64_t max_shard_bytes, const Metadata& metadata)
    : folder_(std::move(folder)), stem_(stem) {
  std::vector<std::vector<TensorSpec>> shards(1);
  int64_t shard_bytes = 0;
  for (const TensorSpec& spec : specs) {
    if (!shards.back().empty() && shard_bytes + spec.num_bytes() > max_shard_bytes) {
      shards.emplace_back();
      shard_bytes = 0;
    }
    shards.back().push_back(spec);
    shard_bytes += spec.num_bytes();
  }
  const auto digits = [](size_t number) {
    const std::string text = std::to_string(number);
    return std::string(text.size() < 5 ? 5 - text.size() : 0, '0') + text;
  };
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = shards.size() == 1 ? stem_ + ".safetensors"
                                                : stem_ + "-" + digits(i + 1) + "-of-" +
                                                      digits(shards.size()) + ".safetensors";
    writers_.push_back(std::make_unique<SafetensorsWriter>(folder_ / name, shards[i], metadata));
    for (const TensorSpec& spec : shards[i]) {
      if (!writer_of_.emplace(spec.name, writers_.back().get()).second) {
        throw FormatError(
            error_text(folder_.string(), spec.name, "one tensor of this name", "two"));
      }
    }
  }
}

void SafetensorsFolderWriter::write(const std::string& name, int64_t offset, const void* data,
                                    int64_t bytes) {
  const auto it = writer_of_.find(name);
  DELTATRAIN_CHECK(it != writer_of_.end(), name);
  it->second->write(name, offset, data, bytes);
}

void SafetensorsFolderWriter::write(const std::string& name, const Tensor& tensor) {
  const auto it = writer_of_.find(name);
  DELTATRAIN_CHECK(it != writer_of_.end(), name);
  it->second->write(name, tensor);
}

void SafetensorsFolderWriter::commit() {
  for (const auto& writer : writers_) writer->commit();
  if (writers_.size() > 1) write_file_atomically(index_path(), index_text());
}

std::filesystem::path SafetensorsFolderWriter::index_path() const {
  return writers_.size() == 1 ? std::filesystem::path() : formats::index_path(folder_, stem_);
}

std::string SafetensorsFolderWriter::index_text() const {
  if (writers_.size() == 1) return "";
  int64_t total_bytes = 0;
  nlohmann::json weight_map = nlohmann::json::object();
  for (const auto& writer : writers_) {
    for (const TensorSpec& spec : writer->specs()) {
      total_bytes += spec.num_bytes();
      weight_map[spec.name] = writer->path().filename().string();
    }
  }
  const nlohmann::json index = {{"metadata", {{"total_size", total_bytes}}},
                                {"weight_map", weight_map}};
  return index.dump(2) + "\n";
}

const std::filesystem::path& SafetensorsFolderWriter::file_of(const std::string& name) const {
  const auto it = writer_of_.find(name);
  DELTATRAIN_CHECK(it != writer_of_.end(), name);
  return it->second->path();
}

}  // namespace deltatrain::formats
