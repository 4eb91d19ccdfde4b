#include "prepare/byte_stream.h"

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/error.h"

namespace deltatrain::prepare {

namespace {

class PlainStream final : public ByteStream {
 public:
  PlainStream(std::filesystem::path path, int64_t offset)
      : path_(std::move(path)), position_(offset) {
    fd_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd_ < 0) fail("cannot be opened");
    ::posix_fadvise(fd_, offset, 0, POSIX_FADV_SEQUENTIAL);
  }
  ~PlainStream() override { ::close(fd_); }
  PlainStream(const PlainStream&) = delete;
  PlainStream& operator=(const PlainStream&) = delete;

  size_t read(char* to, size_t bytes) override {
    size_t done = 0;
    while (done < bytes) {
      const ssize_t count = ::pread(fd_, to + done, bytes - done, position_);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) fail("cannot be read");
      if (count == 0) break;
      done += static_cast<size_t>(count);
      position_ += count;
    }
    return done;
  }

  int64_t file_position() const override { return position_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  [[noreturn]] void fail(const char* what) const {
    throw FileError(path_.string() + ": " + what + ": " + std::strerror(errno),
                    ExitCode::kBadInput);
  }

  std::filesystem::path path_;
  int fd_ = -1;
  int64_t position_ = 0;
};

constexpr size_t kInputBytes = size_t{1} << 18;

// What both compressed forms share: input read in pieces, and the words for what can go wrong.
class CompressedStream : public ByteStream {
 public:
  CompressedStream(const std::filesystem::path& path, std::string format)
      : file_(path, 0), input_(kInputBytes), format_(std::move(format)) {}

  int64_t file_position() const override { return file_.file_position(); }

 protected:
  // The next piece of the file; empty at its end.
  size_t refill() { return file_.read(input_.data(), input_.size()); }

  [[noreturn]] void fail(const std::string& got) const {
    throw FormatError(
        error_text(file_.path().string(), "", "a whole " + format_ + " stream",
                   got + " before byte " + std::to_string(file_.file_position()) + " of the file"));
  }

  PlainStream file_;
  std::vector<char> input_;
  std::string format_;
};

// One member after another, as `gzip` and `zcat` read them.
class GzipStream final : public CompressedStream {
 public:
  explicit GzipStream(const std::filesystem::path& path) : CompressedStream(path, "gzip") {
    const int status = ::inflateInit2(&stream_, 15 + 16);
    if (status != Z_OK) throw std::bad_alloc();
  }
  ~GzipStream() override { ::inflateEnd(&stream_); }
  GzipStream(const GzipStream&) = delete;
  GzipStream& operator=(const GzipStream&) = delete;

  size_t read(char* to, size_t bytes) override {
    size_t done = 0;
    while (done < bytes) {
      if (stream_.avail_in == 0) {
        stream_.next_in = reinterpret_cast<Bytef*>(input_.data());
        stream_.avail_in = static_cast<uInt>(refill());
        if (stream_.avail_in == 0) {
          if (inside_member_ || file_.file_position() == 0) fail("its end");
          return done;
        }
      }
      if (!inside_member_) {
        ::inflateReset(&stream_);
        inside_member_ = true;
      }
      const size_t wanted = std::min(bytes - done, size_t{1} << 30);
      stream_.next_out = reinterpret_cast<Bytef*>(to + done);
      stream_.avail_out = static_cast<uInt>(wanted);
      const int status = ::inflate(&stream_, Z_NO_FLUSH);
      done += wanted - stream_.avail_out;
      if (status == Z_STREAM_END) {
        inside_member_ = false;
      } else if (status != Z_OK && status != Z_BUF_ERROR) {
        fail(stream_.msg != nullptr ? stream_.msg : "broken data");
      }
    }
    return done;
  }

 private:
  z_stream stream_{};
  bool inside_member_ = false;
};

// One frame after another; windows of any size that zstd itself can write.
class ZstdStream final : public CompressedStream {
 public:
  explicit ZstdStream(const std::filesystem::path& path)
      : CompressedStream(path, "zstd"), context_(::ZSTD_createDCtx()) {
    if (context_ == nullptr) throw std::bad_alloc();
    ::ZSTD_DCtx_setParameter(context_, ZSTD_d_windowLogMax,
                             ZSTD_dParam_getBounds(ZSTD_d_windowLogMax).upperBound);
  }
  ~ZstdStream() override { ::ZSTD_freeDCtx(context_); }
  ZstdStream(const ZstdStream&) = delete;
  ZstdStream& operator=(const ZstdStream&) = delete;

  size_t read(char* to, size_t bytes) override {
    ZSTD_outBuffer out{to, bytes, 0};
    while (out.pos < out.size) {
      // A frame may still owe output although its input is used up.
      if (in_.pos == in_.size && !owes_output_) {
        in_ = {input_.data(), refill(), 0};
        if (in_.size == 0) {
          if (inside_frame_ || file_.file_position() == 0) fail("its end");
          break;
        }
      }
      const size_t before = out.pos;
      const size_t status = ::ZSTD_decompressStream(context_, &out, &in_);
      if (::ZSTD_isError(status) != 0U) fail(::ZSTD_getErrorName(status));
      inside_frame_ = status != 0;
      owes_output_ = inside_frame_ && out.pos == out.size && out.pos != before;
    }
    return out.pos;
  }

 private:
  ZSTD_DCtx* context_;
  ZSTD_inBuffer in_{nullptr, 0, 0};
  bool inside_frame_ = false;
  bool owes_output_ = false;
};

}  // namespace

Compression compression_of(const std::filesystem::path& path) {
  const std::string extension = path.extension().string();
  if (extension == ".gz") return Compression::kGzip;
  if (extension == ".zst") return Compression::kZstd;
  return Compression::kNone;
}

std::unique_ptr<ByteStream> open_byte_stream(const std::filesystem::path& path,
                                             Compression compression, int64_t offset) {
  DELTATRAIN_CHECK(compression == Compression::kNone || offset == 0, path.string());
  switch (compression) {
    case Compression::kNone:
      return std::make_unique<PlainStream>(path, offset);
    case Compression::kGzip:
      return std::make_unique<GzipStream>(path);
    case Compression::kZstd:
      return std::make_unique<ZstdStream>(path);
  }
  throw InternalError(path.string() + ": compression");
}

}  // namespace deltatrain::prepare
