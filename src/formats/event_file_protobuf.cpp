#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <system_error>

#include "base/error.h"
#include "formats/event_file.h"
#include "tensorboard_event.pb.h"

namespace deltatrain::formats {

namespace {

// Little-endian, as all of the machines are that this program runs on.
template <class T>
void append(std::string& text, T value) {
  text.append(reinterpret_cast<const char*>(&value), sizeof value);
}

std::string file_name(double unix_seconds) {
  static std::atomic<int> number{0};
  char host[256] = "host";
  ::gethostname(host, sizeof host - 1);
  char name[400];
  std::snprintf(name, sizeof name, "events.out.tfevents.%010lld.%s.%d.%d",
                static_cast<long long>(unix_seconds), host, static_cast<int>(::getpid()), number++);
  return name;
}

class ProtobufEventFile final : public EventFile {
 public:
  ProtobufEventFile(const std::filesystem::path& folder, double unix_seconds, int64_t first_step)
      : path_(folder / file_name(unix_seconds)) {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    file_ = std::fopen(path_.c_str(), "wb");
    if (file_ == nullptr)
      throw FileError(path_.string() + ": cannot be created: " + std::strerror(errno),
                      ExitCode::kEnvironment);
    tensorboard::Event event;
    event.set_wall_time(unix_seconds);
    event.set_file_version("brain.Event:2");
    write(event);
    if (first_step > 0) {
      event.Clear();
      event.set_wall_time(unix_seconds);
      event.set_step(first_step);
      event.mutable_session_log()->set_status(tensorboard::SessionLog::START);
      write(event);
    }
    flush();
  }
  ~ProtobufEventFile() override { std::fclose(file_); }
  ProtobufEventFile(const ProtobufEventFile&) = delete;
  ProtobufEventFile& operator=(const ProtobufEventFile&) = delete;

  void add(int64_t step, double unix_seconds, std::span<const EventScalar> scalars) override {
    event_.Clear();
    event_.set_wall_time(unix_seconds);
    event_.set_step(step);
    for (const EventScalar& scalar : scalars) {
      tensorboard::Summary::Value* value = event_.mutable_summary()->add_value();
      value->set_tag(scalar.tag);
      value->set_simple_value(static_cast<float>(scalar.value));
    }
    write(event_);
  }

  void flush() override {
    if (std::fflush(file_) != 0) fail();
  }

 private:
  [[noreturn]] void fail() const {
    throw FileError(path_.string() + ": cannot be written: " + std::strerror(errno),
                    ExitCode::kEnvironment);
  }

  // u64 size, its checksum, the message, its checksum
  void write(const tensorboard::Event& event) {
    const std::string message = event.SerializeAsString();
    record_.clear();
    append(record_, static_cast<uint64_t>(message.size()));
    append(record_, masked_crc32c(record_));
    record_ += message;
    append(record_, masked_crc32c(message));
    if (std::fwrite(record_.data(), 1, record_.size(), file_) != record_.size()) fail();
  }

  std::filesystem::path path_;
  std::FILE* file_ = nullptr;
  tensorboard::Event event_;  // used again: its memory stays
  std::string record_;
};

}  // namespace

std::unique_ptr<EventFile> make_event_file(const std::filesystem::path& folder, double unix_seconds,
                                           int64_t first_step) {
  return std::make_unique<ProtobufEventFile>(folder, unix_seconds, first_step);
}

}  // namespace deltatrain::formats
