// A thread that tells the peers where this rank is and listens for theirs, so that a rank that
// dies, hangs or falls silent is known by name within seconds, whatever the other threads wait for.
//
// Beats go between rank 0 and each other rank. Rank 0 judges: a connection that closes without a
// goodbye, silence, and a rank that does not come where all others wait; it tells everybody. The
// others judge rank 0. Internal to the folder.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "dist/communicator.h"  // Loss, Timeouts
#include "dist/messages.h"
#include "dist/socket.h"

namespace deltatrain::dist {

class Monitor {
 public:
  struct Connection {
    int rank = 0;
    Socket socket;
  };

  Monitor(int rank, std::vector<RankInfo> ranks, std::vector<Connection> connections,
          const Timeouts& timeouts);
  ~Monitor();  // as goodbye(0, "")
  Monitor(const Monitor&) = delete;
  Monitor& operator=(const Monitor&) = delete;

  // Where this rank is. enter() returns where it was, for leave().
  void set_step(int64_t step);
  std::string enter(std::string_view call);
  void leave(const std::string& call_before);
  std::string set_call(std::string_view call);  // not one that waits; returns what it was
  void count_call();
  // All ranks were in this call: they are in this rank's step, which beats tell only once a second.
  void met(std::string_view call);

  void set_timeouts(const Timeouts& timeouts);
  // On this thread, once. Setting another waits for one that runs, so that what it uses can end.
  void on_loss(std::function<void()> action);
  void on_stuck(std::function<void(const Loss&)> action);  // `grace` after a loss, once

  std::optional<Loss> loss() const;
  int alarm() const { return alarm_.descriptor(); }  // raised with the loss
  // The loss, once there is one, or after `seconds` the one given.
  Loss wait_for_loss(double seconds, Loss otherwise);
  // Ends the thread after it has told the peers.
  void goodbye(int exit_code, const std::string& what);

 private:
  struct Progress {
    Beat beat;
    Clock::time_point moved;  // when `entered` last changed
  };
  struct Peer {
    int rank = 0;
    Socket socket;
    std::string in, out;
    Clock::time_point heard;
    bool left = false;  // said goodbye, or is gone
  };

  void run();
  void watch_the_end();
  void wait_until(Clock::time_point until);
  void read_from(Peer& peer, Clock::time_point now);
  void take(Peer& peer, MessageKind kind, std::string_view body, Clock::time_point now);
  void write_to(Peer& peer);
  void send_beats();
  void look_for_silence(Clock::time_point now);
  void look_for_stragglers(Clock::time_point now);
  void lose(int rank, const std::string& what);
  void declare(const Loss& loss);
  void end(std::unique_lock<std::mutex>& lock);
  bool flush(double seconds);
  Loss describe(int rank, const std::string& what) const;

  const int rank_;
  const std::vector<RankInfo> ranks_;
  std::vector<Peer> peers_;  // of the thread alone
  Alarm alarm_, wake_;

  mutable std::mutex mutex_;
  Timeouts timeouts_;
  std::vector<Progress> progress_;  // by rank; rank 0 knows all, others their own and rank 0's
  std::optional<Loss> loss_;
  std::function<void(const Loss&)> on_stuck_;
  bool stopping_ = false;
  Goodbye goodbye_;

  std::mutex action_mutex_;
  std::function<void()> on_loss_;

  bool ended_ = false;  // the thread is
  std::condition_variable ended_changed_;

  std::thread thread_;
  std::thread last_resort_;  // from a loss on
};

}  // namespace deltatrain::dist
