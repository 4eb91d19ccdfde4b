#include "base/files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace deltatrain {

namespace {

[[noreturn]] void throw_read_error(const std::filesystem::path& path, const char* what) {
  throw FileError(path.string() + ": " + what + ": " + std::strerror(errno), ExitCode::kBadInput);
}

[[noreturn]] void throw_write_error(const std::filesystem::path& path, const char* what) {
  throw FileError(path.string() + ": " + what + ": " + std::strerror(errno),
                  ExitCode::kEnvironment);
}

// Opens a regular file for reading and returns its descriptor and size.
std::pair<int, size_t> open_for_reading(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) throw_read_error(path, "cannot be opened");
  struct stat info {};
  if (::fstat(fd, &info) != 0) {
    ::close(fd);
    throw_read_error(path, "cannot be examined");
  }
  if (!S_ISREG(info.st_mode)) {
    ::close(fd);
    throw FileError(error_text(path.string(), "", "a regular file",
                               S_ISDIR(info.st_mode) ? "a folder" : "a device, a pipe or the like"),
                    ExitCode::kBadInput);
  }
  return {fd, static_cast<size_t>(info.st_size)};
}

}  // namespace

std::string read_file(const std::filesystem::path& path, int64_t max_bytes) {
  const auto [fd, size] = open_for_reading(path);
  if (static_cast<int64_t>(size) > max_bytes) {
    ::close(fd);
    throw FileError(path.string() + ": expected at most " + std::to_string(max_bytes) +
                        " bytes, got " + std::to_string(size),
                    ExitCode::kBadInput);
  }
  std::string text(size, '\0');
  size_t done = 0;
  while (done < size) {
    const ssize_t count = ::read(fd, text.data() + done, size - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      ::close(fd);
      throw_read_error(path, "cannot be read");
    }
    if (count == 0) break;
    done += static_cast<size_t>(count);
  }
  ::close(fd);
  text.resize(done);
  return text;
}

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  const auto [fd, size] = open_for_reading(path);
  if (size > 0) {
    void* address = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
    if (address == MAP_FAILED) {
      ::close(fd);
      throw_read_error(path, "cannot be mapped");
    }
    data_ = static_cast<const std::byte*>(address);
    size_ = size;
  }
  ::close(fd);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

void drop_pages(std::span<const std::byte> part) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(part.data()) + page - 1) / page * page;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(part.data()) + part.size()) / page * page;
  if (end > begin) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

AtomicFileWriter::AtomicFileWriter(std::filesystem::path path) : path_(std::move(path)) {
  temporary_ = path_;
  temporary_ += ".tmp-" + std::to_string(::getpid());
  fd_ = ::open(temporary_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd_ < 0) throw_write_error(path_, "cannot be created");
}

AtomicFileWriter::~AtomicFileWriter() {
  if (fd_ >= 0) {
    ::close(fd_);
    ::unlink(temporary_.c_str());
  }
}

void AtomicFileWriter::write(const void* data, size_t bytes) {
  write_at(position_, data, bytes);
  position_ += static_cast<int64_t>(bytes);
}

void AtomicFileWriter::write_at(int64_t offset, const void* data, size_t bytes) {
  const char* from = static_cast<const char*>(data);
  size_t done = 0;
  while (done < bytes) {
    const ssize_t count =
        ::pwrite(fd_, from + done, bytes - done, offset + static_cast<int64_t>(done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw_write_error(temporary_, "cannot be written");
    done += static_cast<size_t>(count);
  }
}

void AtomicFileWriter::commit() {
  if (::fsync(fd_) != 0) throw_write_error(temporary_, "cannot be flushed");
  const int fd = std::exchange(fd_, -1);
  if (::close(fd) != 0) {
    ::unlink(temporary_.c_str());
    throw_write_error(temporary_, "cannot be closed");
  }
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
    const int saved = errno;
    ::unlink(temporary_.c_str());
    errno = saved;
    throw_write_error(path_, "cannot be renamed to");
  }
  sync_directory(path_.parent_path());
}

bool link_file_atomically(const std::filesystem::path& file, const std::filesystem::path& name) {
  std::filesystem::path temporary = name;
  temporary += ".tmp-link-" + std::to_string(::getpid());
  ::unlink(temporary.c_str());
  if (::link(file.c_str(), temporary.c_str()) != 0) return false;
  const bool renamed = ::rename(temporary.c_str(), name.c_str()) == 0;
  // Renaming does nothing where the name is one of the same file already.
  ::unlink(temporary.c_str());
  if (renamed) sync_directory(name.parent_path());
  return renamed;
}

void write_file_atomically(const std::filesystem::path& path, std::string_view text) {
  AtomicFileWriter writer(path);
  writer.write(text);
  writer.commit();
}

void sync_directory(const std::filesystem::path& directory) {
  const std::filesystem::path name = directory.empty() ? "." : directory;
  const int fd = ::open(name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) throw_write_error(name, "cannot be opened");
  const int result = ::fsync(fd);
  ::close(fd);
  // Some file systems cannot flush directories and say so with EINVAL.
  if (result != 0 && errno != EINVAL) throw_write_error(name, "cannot be flushed");
}

}  // namespace deltatrain
