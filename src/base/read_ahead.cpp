#include "base/read_ahead.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <thread>

#include "base/error.h"

namespace deltatrain {

namespace {

constexpr size_t kBlockBytes = size_t{2} << 20;  // of a file, read at a time: fits a core's cache
constexpr size_t kNumBuffers = 8;
constexpr size_t kNumReaders = 4;    // requests that the disk has at a time
constexpr size_t kAlignment = 4096;  // of memory, places and sizes past the page cache

struct Block {
  const std::filesystem::path* path;
  std::span<const std::byte> file;
  size_t index;

  size_t begin() const { return index * kBlockBytes; }
  size_t size() const { return std::min(kBlockBytes, file.size() - begin()); }
  bool is(const FilePart& part, size_t other) const {
    return file.data() == part.file.data() && index == other;
  }
};

size_t first_block(const FilePart& part) {
  return static_cast<size_t>(part.bytes.data() - part.file.data()) / kBlockBytes;
}

// A file opened both ways; the second is refused by file systems that cannot.
class OpenFile {
 public:
  explicit OpenFile(const std::filesystem::path& path)
      : path_(path),
        cached_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)),
        direct_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT)) {
    if (cached_ < 0) fail(std::strerror(errno));
  }
  ~OpenFile() {
    if (cached_ >= 0) ::close(cached_);
    if (direct_ >= 0) ::close(direct_);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  // `to` has room for a whole block.
  void read(const Block& block, std::byte* to) const {
    const bool direct = direct_ >= 0 && !is_cached(block);
    size_t done = direct ? read_once(direct_, to, kBlockBytes, block.begin()) : 0;
    while (done < block.size()) {
      const size_t more = read_once(cached_, to + done, block.size() - done, block.begin() + done);
      if (more == 0) fail("ends too early");
      done += more;
    }
  }

 private:
  [[noreturn]] void fail(const char* reason) const {
    throw FileError(path_.string() + ": cannot be read: " + reason, ExitCode::kBadInput);
  }

  static bool is_cached(const Block& block) {
    unsigned char pages[kBlockBytes / kAlignment];
    const std::byte* at = block.file.data() + block.begin();
    if (::mincore(const_cast<std::byte*>(at), block.size(), pages) != 0) return false;
    const size_t count = (block.size() + kAlignment - 1) / kAlignment;
    return std::all_of(pages, pages + count, [](unsigned char page) { return (page & 1) != 0; });
  }

  size_t read_once(int fd, std::byte* to, size_t bytes, size_t at) const {
    while (true) {
      const ssize_t count = ::pread(fd, to, bytes, static_cast<off_t>(at));
      if (count >= 0) return static_cast<size_t>(count);
      if (errno == EINTR) continue;
      if (fd == direct_ && errno == EINVAL)
        return 0;  // other alignments than ours: the cache's way
      fail(std::strerror(errno));
    }
  }

  std::filesystem::path path_;
  int cached_, direct_;
};

// Blocks in order, read by threads ahead of who takes them.
class BlockReader {
 public:
  explicit BlockReader(std::vector<Block> blocks)
      : blocks_(std::move(blocks)),
        buffers_(static_cast<std::byte*>(std::aligned_alloc(kAlignment, kNumBuffers * kBlockBytes)),
                 &std::free),
        ready_(blocks_.size(), 0) {
    if (buffers_ == nullptr) throw std::bad_alloc();
    for (const Block& block : blocks_) files_.try_emplace(block.file.data(), *block.path);
    for (size_t i = 0; i < std::min(kNumReaders, blocks_.size()); ++i)
      readers_.emplace_back([this] { read(); });
  }
  ~BlockReader() {
    {
      const std::lock_guard lock(mutex_);
      next_ = blocks_.size();
    }
    changed_.notify_all();
    for (std::thread& reader : readers_) reader.join();
  }
  BlockReader(const BlockReader&) = delete;
  BlockReader& operator=(const BlockReader&) = delete;

  const Block& block() const { return blocks_[taken_]; }
  // The bytes of block(), until pass().
  std::span<const std::byte> wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return ready_[taken_] != 0 || error_ != nullptr; });
    if (ready_[taken_] == 0) std::rethrow_exception(error_);
    return {buffer(taken_), block().size()};
  }
  void pass() {
    {
      const std::lock_guard lock(mutex_);
      ++taken_;
    }
    changed_.notify_all();
  }

 private:
  std::byte* buffer(size_t i) const { return buffers_.get() + i % kNumBuffers * kBlockBytes; }

  void read() {
    while (true) {
      size_t i = 0;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock,
                      [this] { return next_ == blocks_.size() || next_ < taken_ + kNumBuffers; });
        if (next_ == blocks_.size()) return;
        i = next_++;
      }
      try {
        files_.at(blocks_[i].file.data()).read(blocks_[i], buffer(i));
      } catch (...) {
        const std::lock_guard lock(mutex_);
        error_ = std::current_exception();
        next_ = blocks_.size();
        changed_.notify_all();
        return;
      }
      {
        const std::lock_guard lock(mutex_);
        ready_[i] = 1;
      }
      changed_.notify_all();
    }
  }

  std::vector<Block> blocks_;
  std::map<const std::byte*, OpenFile> files_;  // by where they are mapped
  std::unique_ptr<std::byte, decltype(&std::free)> buffers_;
  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  size_t next_ = 0;   // to be read
  size_t taken_ = 0;  // passed
  std::vector<char> ready_;
  std::exception_ptr error_;
  std::vector<std::thread> readers_;
};

}  // namespace

void read_ahead(std::span<const std::byte> part) {
  if (part.empty()) return;
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t begin = reinterpret_cast<uintptr_t>(part.data()) / page * page;
  const uintptr_t end = reinterpret_cast<uintptr_t>(part.data()) + part.size();
  // Advice: where the system won't take it, reading is slower and nothing else.
  ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_WILLNEED);
}

void read_parts(const std::vector<FilePart>& parts, const PieceConsumer& consume) {
  std::vector<Block> blocks;
  const auto for_each_block = [](const FilePart& part, const auto& visit) {
    if (part.bytes.empty()) return;
    const std::byte* last = part.bytes.data() + part.bytes.size() - 1;
    const auto end = static_cast<size_t>(last - part.file.data()) / kBlockBytes + 1;
    for (size_t index = first_block(part); index < end; ++index) visit(index);
  };
  for (const FilePart& part : parts) {
    for_each_block(part, [&](size_t index) {
      if (blocks.empty() || !blocks.back().is(part, index))
        blocks.push_back({part.path, part.file, index});
    });
  }
  if (blocks.empty()) return;
  BlockReader reader(std::move(blocks));
  for (size_t p = 0; p < parts.size(); ++p) {
    const auto begin = static_cast<size_t>(parts[p].bytes.data() - parts[p].file.data());
    const size_t end = begin + parts[p].bytes.size();
    for_each_block(parts[p], [&](size_t index) {
      if (!reader.block().is(parts[p], index)) reader.pass();
      const std::span<const std::byte> bytes = reader.wait();
      const size_t at = index * kBlockBytes;
      const size_t from = std::max(begin, at), to = std::min(end, at + bytes.size());
      consume(p, from - begin, bytes.subspan(from - at, to - from));
    });
  }
}

}  // namespace deltatrain
