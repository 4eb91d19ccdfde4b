#include "cli/stderr_reporter.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <mutex>
#include <string>

namespace deltatrain::cli {

namespace {

using Clock = std::chrono::steady_clock;

std::string scaled(double value) {
  if (value >= 1e9) return fmt::format("{:.2f}G", value * 1e-9);
  if (value >= 1e6) return fmt::format("{:.2f}M", value * 1e-6);
  if (value >= 1e4) return fmt::format("{:.1f}k", value * 1e-3);
  return fmt::format("{:.4g}", value);
}

std::string clock_text(double seconds) {
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  if (whole >= 3600)
    return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

size_t terminal_columns() {
  winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col < 2) return 80;
  return size.ws_col;
}

// " |####....|" in a line of `columns`, of which `needed` are taken and `wished` would be: 24 marks, or fewer down to ten
// for the sake of what is wished; nothing where there is no room for ten.
std::string bar(int64_t done, int64_t total, size_t columns, size_t needed, size_t wished) {
  constexpr size_t kMost = 24, kLeast = 10, kFrame = 4;  // " |", "|", and the last column
  if (needed + kFrame + kLeast > columns) return "";
  const size_t room =
      std::clamp(columns - std::min(columns, needed + wished + kFrame), kLeast, kMost);
  const double share = std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
  const auto filled = static_cast<size_t>(share * static_cast<double>(room));
  return " |" + std::string(filled, '#') + std::string(room - filled, '.') + "|";
}

class StderrReporter final : public Reporter {
 public:
  StderrReporter() : terminal_(::isatty(STDERR_FILENO) == 1) {}
  ~StderrReporter() override { clear_bar(); }

  void message(std::string_view area, const std::string& text) override {
    const std::lock_guard lock(mutex_);
    clear_bar();
    fmt::print(stderr, "[{}] {}\n", area, text);
  }

  void warning(std::string_view area, const std::string& text) override {
    const std::lock_guard lock(mutex_);
    clear_bar();
    fmt::print(stderr, "[{}] warning: {}\n", area, text);
  }

  void progress(std::string_view task, int64_t done, int64_t total, std::string_view unit,
                std::string_view detail) override {
    const std::lock_guard lock(mutex_);
    const Clock::time_point now = Clock::now();
    if (task != task_ || done < last_done_) {
      task_ = task;
      start_ = now;
      start_done_ = done;
      shown_ = Clock::time_point{};
    }
    last_done_ = done;
    const bool finished = total > 0 && done >= total;
    const double wait = terminal_ ? 0.2 : 10.0;
    if (!finished && std::chrono::duration<double>(now - shown_).count() < wait) return;
    shown_ = now;
    const double seconds = std::chrono::duration<double>(now - start_).count();
    const double rate = seconds > 0 ? static_cast<double>(done - start_done_) / seconds : 0;
    std::string line = fmt::format("[{}] {}", task, scaled(static_cast<double>(done))), rest;
    if (total > 0) {
      line += fmt::format("/{} {}", scaled(static_cast<double>(total)), unit);
      rest +=
          fmt::format(" {:.1f} %", 100 * static_cast<double>(done) / static_cast<double>(total));
    } else {
      line += fmt::format(" {}", unit);
    }
    if (rate > 0) rest += fmt::format(" {} {}/s", scaled(rate), unit);
    if (total > 0 && rate > 0 && !finished) {
      rest += fmt::format(" ETA {}", clock_text(static_cast<double>(total - done) / rate));
    }
    const std::string more = detail.empty() ? "" : fmt::format("  {}", detail);
    if (terminal_) {
      const size_t columns = terminal_columns();
      if (total > 0) line += bar(done, total, columns, line.size() + rest.size(), more.size());
      line += rest + more;
      // A longer line would break, and only its last part be replaced by the next.
      if (line.size() >= columns) line.resize(columns - 1);
      fmt::print(stderr, "\r\x1b[2K{}", line);
      if (finished) fmt::print(stderr, "\n");
      bar_shown_ = !finished;
      std::fflush(stderr);
    } else {
      fmt::print(stderr, "{}{}{}\n", line, rest, more);
    }
  }

 private:
  void clear_bar() {
    if (bar_shown_) fmt::print(stderr, "\r\x1b[2K");
    bar_shown_ = false;
  }

  const bool terminal_;
  std::mutex mutex_;
  std::string task_;
  Clock::time_point start_{};
  Clock::time_point shown_{};
  int64_t start_done_ = 0;
  int64_t last_done_ = 0;
  bool bar_shown_ = false;
};

}  // namespace

std::unique_ptr<Reporter> make_stderr_reporter() { return std::make_unique<StderrReporter>(); }

}  // namespace deltatrain::cli
