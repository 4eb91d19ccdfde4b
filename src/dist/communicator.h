// The ranks of a run: small messages between them over TCP, and who is still there.
//
// Rank 0 listens; every other rank keeps two connections to it, one for calls and one for the
// heartbeat of a thread of its own. Bulk data go another way (dist/collectives.h). Calls are
// collective: every rank makes the same ones in the same order.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dist/rank_place.h"

namespace deltatrain::dist {

// A rank that is gone, and where it was.
struct Loss {
  int rank = 0;
  std::string host;
  int64_t step = 0;
  std::string call;
  std::string what;
  std::string text() const;  // in one line
};

struct Timeouts {
  double connect_seconds = 60;      // for all ranks to come
  double heartbeat_seconds = 10;    // silence after which a rank is lost
  double collective_seconds = 300;  // for the last rank to come to a call
  double beat_seconds = 1;          // between signs of life
  double grace_seconds = 10;        // for a rank to end by itself once a peer is lost
};

class Ring;

class Communicator {
 public:
  // Waits for all ranks. Every rank throws the same where they disagree about their number or the
  // program's version or a rank comes twice (ConfigError), or where one does not come
  // (CollectiveError): naming rank, host and what differs. DeviceError where rank 0 cannot listen.
  Communicator(const RankPlace& place, const std::string& version, const Timeouts& timeouts = {});
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const;
  int size() const;
  const std::string& host(int rank) const;
  int local_rank() const;  // among the ranks of this host: as the launcher said, else counted
  int local_size() const;

  void set_timeouts(const Timeouts& timeouts);
  const Timeouts& timeouts() const;
  // Where this rank is, for the text that names it when it is lost.
  void set_step(int64_t step);
  std::string set_call(std::string_view call);  // returns what it was
  // A call that all ranks make and that does not wait.
  void count_call();
  // While one lives, this rank counts as waiting for the others in `call`.
  class Call {
   public:
    Call(Communicator& ranks, std::string_view call);
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    Communicator& ranks_;
    std::string before_;
  };

  // Every rank's text (at most 16 MiB, 64 MiB together), in the order of ranks. CollectiveError
  // names a rank that is lost, or that is in another call.
  std::vector<std::string> all_gather(std::string_view call, const std::string& part);
  // Rank 0's text. The other ranks' is ignored.
  std::string broadcast(std::string_view call, const std::string& text);
  // ConfigError on every rank where one has another value, naming the first that has.
  void agree(std::string_view what, const std::string& value);

  // Throws CollectiveError when a rank is lost.
  void check() const;
  std::optional<Loss> loss() const;
  // Waits for the word on a failure that this rank met in `call`, on its way to `peer`, and throws it.
  [[noreturn]] void fail(int peer, const std::string& what);
  int alarm() const;  // a descriptor that becomes readable when a rank is lost

  // `action` runs on the monitor's thread when a rank is lost: to end what waits for it.
  void on_loss(std::function<void()> action);
  // `action` runs when this rank has not ended grace_seconds after a loss.
  void on_stuck(std::function<void(const Loss&)> action);
  // Tells the others that this rank ends; with exit code 0 only behind a last call of all.
  void leave(int exit_code, const std::string& what);

  // The connections of a ring, made by all ranks together: to the next rank and from the one before.
  std::unique_ptr<Ring> connect_ring();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace deltatrain::dist
