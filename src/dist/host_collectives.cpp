#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "dist/collectives.h"
#include "dist/ring.h"

namespace deltatrain::dist {

namespace {

// Sums go around the ring part by part: part p starts on rank p + 1 and ends, summed, on rank p, so
// that its addends come in the order p + 1, p + 2, ..., p on every run.
class HostCollectives final : public Collectives {
 public:
  explicit HostCollectives(Communicator& ranks) : ranks_(ranks), ring_(ranks.connect_ring()) {
    worker_ = std::thread([this] { work(); });
  }
  ~HostCollectives() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    ring_->shut_down();
    worker_.join();
  }

  Ticket all_reduce(const Tensor& x_X) override {
    expect_sum(x_X);
    return start("all_reduce", x_X, [this, x_X] {
      const std::vector<int64_t> bounds = even_bounds(x_X.num_elements());
      reduce(x_X, bounds);
      gather(x_X, bounds);
    });
  }

  Ticket reduce_scatter(const Tensor& x_X) override {
    expect_sum(x_X);
    return start("reduce_scatter", x_X,
                 [this, x_X, bounds = equal_bounds(x_X)] { reduce(x_X, bounds); });
  }

  Ticket all_gather(const Tensor& x_X) override {
    return start("all_gather", x_X,
                 [this, x_X, bounds = equal_bounds(x_X)] { gather(x_X, bounds); });
  }

  // From rank 0 around the ring, in pieces, so that all connections work at the same time.
  Ticket broadcast(const Tensor& x_X) override {
    return start("broadcast", x_X, [this, x_X] {
      constexpr size_t kPiece = size_t{1} << 20;
      char* data = static_cast<char*>(x_X.raw());
      const auto bytes = static_cast<size_t>(x_X.num_bytes());
      const int rank = ranks_.rank();
      const bool is_last = rank == ranks_.size() - 1;
      for (size_t at = 0; at < bytes; at += kPiece) {
        const size_t n = std::min(kPiece, bytes - at);
        if (rank != 0) pass(nullptr, 0, data + at, n);
        if (!is_last) pass(data + at, n, nullptr, 0);
      }
    });
  }

  void wait(Ticket ticket) override {
    std::unique_lock lock(mutex_);
    const auto done = [&] { return done_ >= ticket || failure_ != nullptr; };
    if (!done()) {
      const std::string before = ranks_.set_call("gradients and weights");
      const auto begin = Clock::now();
      changed_.wait(lock, done);
      ranks_.set_call(before);
      times_.exposed_seconds += std::chrono::duration<double>(Clock::now() - begin).count();
    }
    if (failure_ != nullptr) std::rethrow_exception(failure_);
  }

  void start_times() override {
    const std::lock_guard lock(mutex_);
    times_ = {};
  }
  CollectiveTimes take_times() override {
    const std::lock_guard lock(mutex_);
    return times_;
  }
  const char* description() const override { return "TCP ring"; }

 private:
  struct Task {
    const char* call;
    int64_t bytes;
    std::function<void()> run;
  };

  static void expect_sum(const Tensor& x) {
    DELTATRAIN_CHECK(x.is_contiguous() && (x.dtype() == DType::kF32 || x.dtype() == DType::kF64),
                     describe(x));
  }

  // Part p is [bounds[p], bounds[p + 1]).
  std::vector<int64_t> even_bounds(int64_t n) const {
    std::vector<int64_t> bounds;
    for (int64_t p = 0; p <= ranks_.size(); ++p) bounds.push_back(n * p / ranks_.size());
    return bounds;
  }
  std::vector<int64_t> equal_bounds(const Tensor& x) const {
    DELTATRAIN_CHECK(x.is_contiguous() && x.num_elements() % ranks_.size() == 0, describe(x));
    return even_bounds(x.num_elements());
  }

  Ticket start(const char* call, const Tensor& x, std::function<void()> run) {
    ranks_.count_call();
    const std::lock_guard lock(mutex_);
    if (failure_ != nullptr) std::rethrow_exception(failure_);
    tasks_.push_back({call, x.num_bytes(), std::move(run)});
    changed_.notify_all();
    return ++started_;
  }

  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return stopping_ || !tasks_.empty(); });
      if (stopping_) return;
      const Task task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      std::exception_ptr thrown;
      const auto begin = Clock::now();
      try {
        task.run();
      } catch (...) {
        thrown = std::current_exception();
      }
      const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
      lock.lock();
      times_.busy_seconds += seconds;
      times_.bytes += task.bytes;
      if (thrown != nullptr) {
        failure_ = thrown;
        tasks_.clear();
      } else {
        ++done_;
      }
      changed_.notify_all();
    }
  }

  void pass(const void* send, size_t send_bytes, void* receive, size_t receive_bytes) {
    const Exchange result = exchange(ring_->to_next(), send, send_bytes, ring_->from_before(),
                                     receive, receive_bytes, ranks_.alarm());
    if (result.result == Transfer::kDone) return;
    if (stopping_) throw CollectiveError("ended by this rank");
    const int step = result.receiving ? ranks_.size() - 1 : 1;
    ranks_.fail((ranks_.rank() + step) % ranks_.size(), "its connection in the ring broke");
  }

  int part_at(int distance) const {  // of the rank so many places before this one
    return ((ranks_.rank() - distance) % ranks_.size() + ranks_.size()) % ranks_.size();
  }

  template <class T>
  static void add(T* to, const T* addend_before, int64_t n) {
    for (int64_t i = 0; i < n; ++i) to[i] = addend_before[i] + to[i];
  }

  void reduce(const Tensor& x, const std::vector<int64_t>& bounds) {
    const int64_t width = dtype_bytes(x.dtype());
    char* data = static_cast<char*>(x.raw());
    const auto place = [&](int part) { return data + bounds[static_cast<size_t>(part)] * width; };
    const auto count = [&](int part) {
      return bounds[static_cast<size_t>(part) + 1] - bounds[static_cast<size_t>(part)];
    };
    for (int turn = 1; turn < ranks_.size(); ++turn) {
      const int out = part_at(turn), in = part_at(turn + 1);
      received_.resize(static_cast<size_t>(count(in) * width));
      pass(place(out), static_cast<size_t>(count(out) * width), received_.data(), received_.size());
      if (x.dtype() == DType::kF64) {
        add(reinterpret_cast<double*>(place(in)), reinterpret_cast<const double*>(received_.data()),
            count(in));
      } else {
        add(reinterpret_cast<float*>(place(in)), reinterpret_cast<const float*>(received_.data()),
            count(in));
      }
    }
  }

  void gather(const Tensor& x, const std::vector<int64_t>& bounds) {
    const int64_t width = dtype_bytes(x.dtype());
    char* data = static_cast<char*>(x.raw());
    const auto place = [&](int part) { return data + bounds[static_cast<size_t>(part)] * width; };
    const auto bytes = [&](int part) {
      return static_cast<size_t>(
          (bounds[static_cast<size_t>(part) + 1] - bounds[static_cast<size_t>(part)]) * width);
    };
    for (int turn = 0; turn + 1 < ranks_.size(); ++turn) {
      const int out = part_at(turn), in = part_at(turn + 1);
      pass(place(out), bytes(out), place(in), bytes(in));
    }
  }

  Communicator& ranks_;
  std::unique_ptr<Ring> ring_;
  std::vector<char> received_;  // of the worker alone

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  Ticket started_ = 0, done_ = 0;
  std::exception_ptr failure_;
  std::atomic<bool> stopping_ = false;
  CollectiveTimes times_;
  std::thread worker_;
};

}  // namespace

std::unique_ptr<Collectives> make_host_collectives(Communicator& ranks) {
  return std::make_unique<HostCollectives>(ranks);
}

}  // namespace deltatrain::dist
