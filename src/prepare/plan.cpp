#include "prepare/plan.h"

#include <algorithm>
#include <utility>

#include "base/files.h"
#include "base/hash.h"

namespace deltatrain::prepare {

namespace {

std::string fingerprint(const InputFile& file) {
  constexpr size_t kEnd = size_t{1} << 16;
  const MappedFile map(file.path);
  const auto bytes = map.bytes();
  const auto head = bytes.first(std::min(kEnd, bytes.size()));
  const auto tail = bytes.last(std::min(kEnd, bytes.size()));
  return std::to_string(bytes.size()) + "-" + hex64(xxh3_64(head.data(), head.size())) + "-" +
         hex64(xxh3_64(tail.data(), tail.size()));
}

std::string identity(const Shard& shard, const Plan& plan) {
  std::string text;
  for (const FileRange& range : shard.ranges) {
    const std::string& print = plan.fingerprints[static_cast<size_t>(range.file - plan.files.data())];
    text += range.file->path + " " + file_format_name(range.file->format) + " " + print + " " +
            std::to_string(range.begin) + "-" + std::to_string(range.end) + "\n";
  }
  return hex64(xxh3_64(text.data(), text.size()));
}

}  // namespace

Plan make_plan(std::vector<InputFile> files, const RecordOptions& options, int64_t shard_bytes) {
  Plan plan;
  plan.files = std::move(files);
  for (const InputFile& file : plan.files) plan.fingerprints.push_back(fingerprint(file));
  Shard shard;
  const auto close = [&] {
    if (shard.ranges.empty()) return;
    plan.bytes += shard.bytes;
    shard.identity = identity(shard, plan);
    plan.shards.push_back(std::exchange(shard, Shard{}));
  };
  for (const InputFile& file : plan.files) {
    const int64_t step = can_split(file, options) ? shard_bytes : std::max<int64_t>(file.bytes, 1);
    int64_t begin = 0;
    do {
      const int64_t end = std::min(begin + step, file.bytes);
      if (shard.bytes > 0 && shard.bytes + end - begin > shard_bytes) close();
      shard.ranges.push_back({&file, begin, end});
      shard.bytes += end - begin;
      begin = end;
    } while (begin < file.bytes);
  }
  close();
  return plan;
}

}  // namespace deltatrain::prepare
