// Event files as TensorBoard reads them: records of protobuf messages (docs/formats/run_folder.md).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

namespace deltatrain::formats {

struct EventScalar {
  std::string tag;   // "train/loss"; TensorBoard groups by what stands before the slash
  double value = 0;  // stored as f32
};

class EventFile {
 public:
  virtual ~EventFile() = default;
  virtual void add(int64_t step, double unix_seconds, std::span<const EventScalar> scalars) = 0;
  // Hands what was added to the operating system.
  virtual void flush() = 0;
};

// Makes a new file in `folder`, which is made too, named as TensorBoard looks for it:
// "events.out.tfevents.SECONDS.HOST.PID.NUMBER". With `first_step` > 0, events of other files from
// that step on no longer count: a run went on from before them. FileError (exit code 5), here and in
// EventFile, where it cannot be written. Null in a build without protobuf.
std::unique_ptr<EventFile> make_event_file(const std::filesystem::path& folder, double unix_seconds,
                                           int64_t first_step);

// The checksum of the records: CRC-32C (Castagnoli), rotated and offset as TFRecord does.
uint32_t masked_crc32c(std::span<const char> bytes);

}  // namespace deltatrain::formats
