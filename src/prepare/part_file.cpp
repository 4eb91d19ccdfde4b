#include "prepare/part_file.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace deltatrain::prepare {

namespace {

void add_counts(Counts& to, const Counts& from) {
  for (const auto& [name, count] : from) to[name] += count;
}

}  // namespace

void PartCounts::add(const PartCounts& other) {
  documents += other.documents;
  tokens += other.tokens;
  text_bytes += other.text_bytes;
  add_counts(skipped, other.skipped);
  add_counts(replaced, other.replaced);
}

PartWriter::PartWriter(std::string stem)
    : stem_(std::move(stem)), tokens_(stem_ + ".tokens"), lengths_(stem_ + ".lengths") {}

PartWriter::~PartWriter() = default;

void PartWriter::append(std::span<const std::byte> tokens, std::span<const int32_t> lengths,
                        const PartCounts& counts) {
  tokens_.write(tokens.data(), tokens.size());
  lengths_.write(lengths.data(), lengths.size_bytes());
  counts_.add(counts);
}

PartCounts PartWriter::commit() {
  tokens_.commit();
  lengths_.commit();
  const nlohmann::json json{{"documents", counts_.documents},
                            {"tokens", counts_.tokens},
                            {"text_bytes", counts_.text_bytes},
                            {"skipped", counts_.skipped},
                            {"replaced", counts_.replaced}};
  write_file_atomically(stem_ + ".json", json.dump() + "\n");
  return counts_;
}

bool part_is_whole(const std::string& stem) { return std::filesystem::exists(stem + ".json"); }

PartCounts read_part_counts(const std::string& stem) {
  const std::string path = stem + ".json";
  try {
    const nlohmann::json json = nlohmann::json::parse(read_file(path));
    PartCounts counts;
    json.at("documents").get_to(counts.documents);
    json.at("tokens").get_to(counts.tokens);
    json.at("text_bytes").get_to(counts.text_bytes);
    json.at("skipped").get_to(counts.skipped);
    json.at("replaced").get_to(counts.replaced);
    return counts;
  } catch (const nlohmann::json::exception& error) {
    throw FormatError(error_text(path, "", "the counts of a finished part", error.what()));
  }
}

PartReader::PartReader(const std::string& stem, int64_t token_bytes)
    : counts_(read_part_counts(stem)), tokens_(stem + ".tokens"), lengths_(stem + ".lengths") {
  const auto size = [](const MappedFile& file) {
    return static_cast<int64_t>(file.bytes().size());
  };
  int64_t documents = 0;
  int64_t tokens = 0;
  for (const int32_t length : lengths()) {
    documents += length >= 0;
    tokens += std::max(length, 0);
  }
  if (size(lengths_) % 4 != 0 || documents != counts_.documents || tokens != counts_.tokens ||
      size(tokens_) != tokens * token_bytes) {
    throw FormatError(error_text(stem, "",
                                 std::to_string(counts_.documents) + " documents of " +
                                     std::to_string(counts_.tokens) + " tokens",
                                 std::to_string(documents) + " of " + std::to_string(tokens) +
                                     " and " + std::to_string(size(tokens_)) +
                                     " bytes of tokens; remove the part to make it again"));
  }
}

std::span<const int32_t> PartReader::lengths() const {
  const auto bytes = lengths_.bytes();
  return {reinterpret_cast<const int32_t*>(bytes.data()), bytes.size() / sizeof(int32_t)};
}

}  // namespace deltatrain::prepare
