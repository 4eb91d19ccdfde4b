#include "dist/monitor.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>

#include "base/error.h"

namespace deltatrain::dist {

namespace {

std::string seconds_text(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.3g s", value);
  return text.data();
}

// Enough for every message that a monitor gets, so that no peer can fill the memory.
constexpr size_t kMaxUnread = size_t{256} << 10;
constexpr size_t kMaxUnsent = size_t{64} << 10;

}  // namespace

std::string Loss::text() const {
  return "rank " + std::to_string(rank) + " (host " + host + "): lost in step " +
         std::to_string(step) + (call.empty() ? "" : ", in \"" + call + "\"") + ": " + what;
}

Monitor::Monitor(int rank, std::vector<RankInfo> ranks, std::vector<Connection> connections,
                 const Timeouts& timeouts)
    : rank_(rank), ranks_(std::move(ranks)), timeouts_(timeouts), progress_(ranks_.size()) {
  const auto now = Clock::now();
  for (Connection& connection : connections)
    peers_.push_back({connection.rank, std::move(connection.socket), "", "", now});
  for (Progress& progress : progress_) progress.moved = now;
  thread_ = std::thread([this] { run(); });
}

Monitor::~Monitor() { goodbye(0, ""); }

void Monitor::set_step(int64_t step) {
  const std::lock_guard lock(mutex_);
  progress_[static_cast<size_t>(rank_)].beat.step = step;
}

std::string Monitor::enter(std::string_view call) {
  const std::lock_guard lock(mutex_);
  Progress& own = progress_[static_cast<size_t>(rank_)];
  ++own.beat.entered;
  own.moved = Clock::now();
  return std::exchange(own.beat.call, std::string(call));
}

void Monitor::leave(const std::string& call_before) {
  const std::lock_guard lock(mutex_);
  Progress& own = progress_[static_cast<size_t>(rank_)];
  ++own.beat.left;
  own.moved = Clock::now();
  own.beat.call = call_before;
}

std::string Monitor::set_call(std::string_view call) {
  const std::lock_guard lock(mutex_);
  return std::exchange(progress_[static_cast<size_t>(rank_)].beat.call, std::string(call));
}

void Monitor::count_call() {
  const std::lock_guard lock(mutex_);
  Progress& own = progress_[static_cast<size_t>(rank_)];
  ++own.beat.entered;
  ++own.beat.left;
  own.moved = Clock::now();
}

void Monitor::met(std::string_view call) {
  const std::lock_guard lock(mutex_);
  const int64_t step = progress_[static_cast<size_t>(rank_)].beat.step;
  for (size_t r = 0; r < progress_.size(); ++r) {
    Beat& beat = progress_[r].beat;
    if (r == static_cast<size_t>(rank_) || beat.step >= step) continue;
    beat.step = step;
    beat.call = call;
  }
}

void Monitor::set_timeouts(const Timeouts& timeouts) {
  const std::lock_guard lock(mutex_);
  timeouts_ = timeouts;
}

void Monitor::on_loss(std::function<void()> action) {
  const std::lock_guard lock(action_mutex_);
  on_loss_ = std::move(action);
}

void Monitor::on_stuck(std::function<void(const Loss&)> action) {
  const std::lock_guard lock(mutex_);
  on_stuck_ = std::move(action);
}

std::optional<Loss> Monitor::loss() const {
  const std::lock_guard lock(mutex_);
  return loss_;
}

Loss Monitor::wait_for_loss(double limit_seconds, Loss otherwise) {
  const auto end = Clock::now() + seconds(limit_seconds);
  while (Clock::now() < end) {
    if (const auto known = loss()) return *known;
    pollfd waiting{alarm_.descriptor(), POLLIN, 0};
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
    ::poll(&waiting, 1, static_cast<int>(std::max<int64_t>(1, left.count())));
  }
  return loss().value_or(std::move(otherwise));
}

void Monitor::goodbye(int exit_code, const std::string& what) {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    const Beat& own = progress_[static_cast<size_t>(rank_)].beat;
    goodbye_ = {static_cast<uint8_t>(exit_code), own.step, own.call, what};
    stopping_ = true;
  }
  wake_.raise();
  thread_.join();
  if (last_resort_.joinable()) last_resort_.join();
}

// A thread of its own, since what is done about a loss may itself not return.
void Monitor::watch_the_end() {
  std::unique_lock lock(mutex_);
  if (ended_changed_.wait_for(lock, seconds(timeouts_.grace_seconds), [this] { return ended_; }))
    return;
  const auto action = on_stuck_;
  const Loss loss = *loss_;
  lock.unlock();
  if (action) action(loss);
}

// A rank's last words about itself, as far as they are known here.
Loss Monitor::describe(int rank, const std::string& what) const {
  const Beat& beat = progress_[static_cast<size_t>(rank)].beat;
  return {rank, ranks_[static_cast<size_t>(rank)].host, beat.step, beat.call, what};
}

// With the mutex held. The first loss counts: what follows is its consequence.
void Monitor::declare(const Loss& loss) {
  if (loss_) return;
  loss_ = loss;
  if (rank_ != 0) return;
  const std::string message = frame(
      MessageKind::kLost,
      encode(Lost{static_cast<uint32_t>(loss.rank), loss.step, loss.host, loss.call, loss.what}));
  for (Peer& peer : peers_) {
    if (!peer.left || peer.rank == loss.rank) peer.out += message;
  }
}

void Monitor::lose(int rank, const std::string& what) {
  const std::lock_guard lock(mutex_);
  declare(describe(rank, what));
}

void Monitor::take(Peer& peer, MessageKind kind, std::string_view body, Clock::time_point now) {
  switch (kind) {
    case MessageKind::kBeat: {
      Beat beat = parse_beat(body);
      const std::lock_guard lock(mutex_);
      Progress& progress = progress_[static_cast<size_t>(peer.rank)];
      if (beat.entered != progress.beat.entered || beat.left != progress.beat.left)
        progress.moved = now;
      beat.step = std::max(beat.step, progress.beat.step);
      progress.beat = std::move(beat);
      return;
    }
    case MessageKind::kLost: {
      if (rank_ == 0) throw FormatError("a rank judges others");
      const Lost lost = parse_lost(body);
      if (lost.rank >= ranks_.size()) throw FormatError("no such rank");
      const std::lock_guard lock(mutex_);
      declare({static_cast<int>(lost.rank), lost.host, lost.step, lost.call, lost.what});
      return;
    }
    case MessageKind::kGoodbye: {
      const Goodbye message = parse_goodbye(body);
      peer.left = true;
      const std::lock_guard lock(mutex_);
      if (message.exit_code == 0) return;
      declare({peer.rank, ranks_[static_cast<size_t>(peer.rank)].host, message.step, message.call,
               "ended with exit code " + std::to_string(message.exit_code) +
                   (message.what.empty() ? "" : ": " + message.what)});
      return;
    }
    default:
      throw FormatError("not a message of a monitor");
  }
}

void Monitor::read_from(Peer& peer, Clock::time_point now) {
  std::array<char, 16384> buffer;
  bool closed = false;
  while (peer.in.size() < kMaxUnread) {
    const ssize_t got =
        ::recv(peer.socket.descriptor(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (got <= 0) {
      closed = true;
      break;
    }
    peer.in.append(buffer.data(), static_cast<size_t>(got));
    peer.heard = now;
  }
  try {
    while (peer.in.size() >= kFrameBytes) {
      const FrameHeader header =
          parse_frame_header(std::span<const char, kFrameBytes>(peer.in.data(), kFrameBytes));
      if (peer.in.size() < kFrameBytes + header.bytes) break;
      take(peer, header.kind, std::string_view(peer.in).substr(kFrameBytes, header.bytes), now);
      peer.in.erase(0, kFrameBytes + header.bytes);
    }
  } catch (const FormatError& error) {
    closed = true;
    if (!peer.left) lose(peer.rank, std::string("its heartbeat is broken: ") + error.what());
  }
  if (!closed) return;
  // Only now: its last words were read before its end.
  peer.socket.close();
  if (!peer.left) lose(peer.rank, "its connection closed without a goodbye: killed or crashed");
  peer.left = true;
}

void Monitor::write_to(Peer& peer) {
  while (!peer.out.empty() && peer.socket.is_open()) {
    const ssize_t sent = ::send(peer.socket.descriptor(), peer.out.data(), peer.out.size(),
                                MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) break;  // full, or broken: reading will tell
    peer.out.erase(0, static_cast<size_t>(sent));
  }
}

void Monitor::send_beats() {
  std::string message;
  {
    const std::lock_guard lock(mutex_);
    message = frame(MessageKind::kBeat, encode(progress_[static_cast<size_t>(rank_)].beat));
  }
  for (Peer& peer : peers_) {
    // A peer that does not read gets no more than it can be late for.
    if (!peer.left && peer.out.size() < kMaxUnsent) peer.out += message;
    write_to(peer);
  }
}

void Monitor::look_for_silence(Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  for (const Peer& peer : peers_) {
    if (!peer.left && now - peer.heard > seconds(timeouts_.heartbeat_seconds)) {
      declare(describe(peer.rank, "no sign of life for " +
                                      seconds_text(timeouts_.heartbeat_seconds) +
                                      ": stopped, or out of reach"));
      return;
    }
  }
}

// Rank 0: a rank that does not come to a call that others entered, or never returns from one.
void Monitor::look_for_stragglers(Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  if (loss_) return;
  uint64_t most = 0;
  Clock::time_point most_moved = now;
  for (const Progress& progress : progress_) {
    if (progress.beat.entered < most) continue;
    most_moved =
        progress.beat.entered > most ? progress.moved : std::min(most_moved, progress.moved);
    most = progress.beat.entered;
  }
  const auto limit = seconds(timeouts_.collective_seconds);
  const auto waits = "did not come to the call that others wait in for " +
                     seconds_text(timeouts_.collective_seconds);
  for (size_t r = 0; r < progress_.size(); ++r) {
    const Progress& progress = progress_[r];
    if (progress.beat.entered < most && now - most_moved > limit && now - progress.moved > limit) {
      declare(describe(static_cast<int>(r), waits));
      return;
    }
  }
  // All are there, and nothing comes of it.
  for (size_t r = 0; r < progress_.size(); ++r) {
    const Progress& progress = progress_[r];
    if (progress.beat.entered == most && progress.beat.left < progress.beat.entered &&
        now - progress.moved > 2 * limit) {
      declare(describe(static_cast<int>(r), "the call did not end within " +
                                                seconds_text(2 * timeouts_.collective_seconds) +
                                                " although all ranks came to it"));
      return;
    }
  }
}

void Monitor::wait_until(Clock::time_point until) {
  std::vector<pollfd> waiting = {{wake_.descriptor(), POLLIN, 0}};
  for (const Peer& peer : peers_) {
    const auto events = static_cast<short>(peer.out.empty() ? POLLIN : POLLIN | POLLOUT);
    waiting.push_back({peer.socket.descriptor(), events, 0});
  }
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now());
  ::poll(waiting.data(), waiting.size(), static_cast<int>(std::max<int64_t>(0, left.count() + 1)));
}

bool Monitor::flush(double limit_seconds) {
  const auto end = Clock::now() + seconds(limit_seconds);
  while (true) {
    bool done = true;
    std::vector<pollfd> waiting;
    for (Peer& peer : peers_) {
      write_to(peer);
      if (!peer.socket.is_open() || peer.out.empty()) continue;
      done = false;
      waiting.push_back({peer.socket.descriptor(), POLLOUT, 0});
    }
    if (done || Clock::now() >= end) return done;
    ::poll(waiting.data(), waiting.size(), 50);
  }
}

// Tells the peers, and reads what they still have to say, so that no reset overtakes a message.
void Monitor::end(std::unique_lock<std::mutex>& lock) {
  const std::string message = frame(MessageKind::kGoodbye, encode(goodbye_));
  lock.unlock();
  for (Peer& peer : peers_) {
    if (peer.socket.is_open()) peer.out += message;
  }
  flush(2);
  for (Peer& peer : peers_) {
    if (peer.socket.is_open()) ::shutdown(peer.socket.descriptor(), SHUT_WR);
  }
  const auto limit = Clock::now() + std::chrono::seconds(1);
  while (Clock::now() < limit) {
    std::vector<pollfd> waiting;
    for (const Peer& peer : peers_) {
      if (peer.socket.is_open()) waiting.push_back({peer.socket.descriptor(), POLLIN, 0});
    }
    if (waiting.empty()) break;
    ::poll(waiting.data(), waiting.size(), 50);
    for (Peer& peer : peers_) {
      if (!peer.socket.is_open()) continue;
      peer.left = true;
      peer.in.clear();
      std::array<char, 4096> rest;
      const ssize_t got = ::recv(peer.socket.descriptor(), rest.data(), rest.size(), MSG_DONTWAIT);
      if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) peer.socket.close();
    }
  }
}

void Monitor::run() {
  auto next_beat = Clock::now();
  auto last_turn = next_beat;
  bool told = false;
  while (true) {
    wait_until(next_beat);
    const auto now = Clock::now();
    std::unique_lock lock(mutex_);
    const Timeouts timeouts = timeouts_;
    // A process that was stopped itself has heard nobody, and cannot blame them for it.
    if (const auto gap = now - last_turn; gap > seconds(timeouts.heartbeat_seconds / 2)) {
      for (Peer& peer : peers_) peer.heard += gap;
      for (Progress& progress : progress_) progress.moved += gap;
    }
    last_turn = now;
    if (stopping_) {
      end(lock);
      lock.lock();
      ended_ = true;
      ended_changed_.notify_all();
      return;
    }
    lock.unlock();
    for (Peer& peer : peers_) {
      if (peer.socket.is_open()) read_from(peer, now);
      write_to(peer);
    }
    if (now >= next_beat) {
      send_beats();
      next_beat = now + seconds(timeouts.beat_seconds);
    }
    look_for_silence(now);
    if (rank_ == 0) look_for_stragglers(now);

    lock.lock();
    if (loss_ && !told) {
      last_resort_ = std::thread([this] { watch_the_end(); });
      lock.unlock();
      flush(1);  // before this rank's own threads hear of it, and end
      alarm_.raise();
      told = true;
      const std::lock_guard action_lock(action_mutex_);
      if (on_loss_) on_loss_();
    }
  }
}

}  // namespace deltatrain::dist
