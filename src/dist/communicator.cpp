#include "dist/communicator.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <random>

#include "base/error.h"
#include "base/hash.h"
#include "dist/messages.h"
#include "dist/monitor.h"
#include "dist/ring.h"
#include "dist/socket.h"

namespace deltatrain::dist {

namespace {

std::string own_host() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 && name[0] != '\0' ? name.data()
                                                                             : "unknown";
}

std::string who(uint32_t rank, const std::string& host) {
  return "rank " + std::to_string(rank) + " (host " + host + ")";
}

// A frame of any kind, as far as it has come.
struct Arriving {
  Socket socket;
  std::string bytes;
  Clock::time_point since;

  enum class Status : uint8_t { kMore, kWhole, kBad };
  // Reads what is there. A body longer than a hello's is nobody's who belongs here.
  Status read(FrameHeader* header) {
    std::array<char, 4096> buffer;
    while (true) {
      size_t wanted = kFrameBytes;
      if (bytes.size() >= kFrameBytes) {
        try {
          *header =
              parse_frame_header(std::span<const char, kFrameBytes>(bytes.data(), kFrameBytes));
        } catch (const FormatError&) {
          return Status::kBad;
        }
        if (header->kind != MessageKind::kHello && header->kind != MessageKind::kRing)
          return Status::kBad;
        wanted = kFrameBytes + header->bytes;
        if (bytes.size() == wanted) return Status::kWhole;
      }
      const size_t room = std::min(buffer.size(), wanted - bytes.size());
      const ssize_t got = ::recv(socket.descriptor(), buffer.data(), room, MSG_DONTWAIT);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Status::kMore;
      if (got <= 0) return Status::kBad;
      bytes.append(buffer.data(), static_cast<size_t>(got));
    }
  }
  std::string_view body() const { return std::string_view(bytes).substr(kFrameBytes); }
};

constexpr auto kPatience = std::chrono::seconds(5);  // with a connection that says nothing

// Accepts connections and hands on the first frame of each, strangers left out, until `take` says
// that it has all. False when the deadline came first.
bool gather_connections(
    const Socket& listening, size_t most_pending, Clock::time_point deadline, int alarm,
    const std::function<bool(Socket, const FrameHeader&, std::string_view)>& take) {
  std::vector<Arriving> pending;
  while (Clock::now() < deadline) {
    std::vector<pollfd> waiting = {{listening.descriptor(), POLLIN, 0}, {alarm, POLLIN, 0}};
    for (const Arriving& one : pending) waiting.push_back({one.socket.descriptor(), POLLIN, 0});
    ::poll(waiting.data(), waiting.size(), 50);
    if (waiting[1].revents != 0) return false;
    while (auto socket = accept_from(listening)) {
      if (pending.size() >= most_pending) pending.erase(pending.begin());
      pending.push_back({std::move(*socket), "", Clock::now()});
    }
    for (size_t i = 0; i < pending.size();) {
      FrameHeader header;
      const Arriving::Status status = pending[i].read(&header);
      const bool late = Clock::now() - pending[i].since > kPatience;
      if (status == Arriving::Status::kMore && !late) {
        ++i;
        continue;
      }
      Arriving one = std::move(pending[i]);
      pending.erase(pending.begin() + static_cast<std::ptrdiff_t>(i));
      if (status != Arriving::Status::kWhole) continue;
      const std::string body(one.body());
      if (take(std::move(one.socket), header, body)) return true;
    }
  }
  return false;
}

}  // namespace

struct Communicator::State {
  RankPlace place;
  Timeouts timeouts;
  std::vector<RankInfo> ranks;
  uint64_t key = 0;
  std::vector<Socket> control;  // rank 0: by rank, its own closed; others: one, to rank 0
  std::unique_ptr<Monitor> monitor;
  uint64_t next_gather = 0;

  void meet_as_first(const std::string& version);
  void meet_rank_0(const std::string& version);
  void send_frame(int peer, const Socket& socket, MessageKind kind, const std::string& body);
  std::string receive_frame(int peer, const Socket& socket, MessageKind kind);
  [[noreturn]] void fail(int peer, const std::string& what);
};

// Rank 0: takes the others in and checks what they say.
void Communicator::State::meet_as_first(const std::string& version) {
  const Socket listening = listen_at(place.address, place.port);
  const auto size = static_cast<size_t>(place.size);
  std::vector<std::optional<Hello>> hellos(size);
  std::vector<Socket> heartbeat(size);
  control.resize(size);
  const auto refuse_all = [&](ExitCode code, const std::string& text, const Socket* also,
                              size_t also_rank) {
    const std::string message =
        frame(MessageKind::kRefusal, encode(Refusal{static_cast<uint8_t>(code), text}));
    const auto tell = [&message](const Socket& socket) {
      send_all(socket, message.data(), message.size(), -1, Clock::now() + std::chrono::seconds(1));
    };
    std::vector<bool> told(size, false);
    for (size_t r = 1; r < size; ++r) {
      if (!control[r].is_open()) continue;
      tell(control[r]);
      told[r] = true;
    }
    if (also != nullptr) {
      tell(*also);
      if (also_rank < size) told[also_rank] = true;
    }
    // Those that come a little later hear it too.
    const auto late = [&](Socket socket, const FrameHeader& header, std::string_view body) {
      if (header.kind != MessageKind::kHello) return false;
      try {
        const Hello hello = parse_hello(body);
        if (hello.purpose != Purpose::kControl) return false;
        tell(socket);
        if (hello.rank < size) told[hello.rank] = true;
      } catch (const FormatError&) {
        return false;
      }
      return std::all_of(told.begin() + 1, told.end(), [](bool heard) { return heard; });
    };
    gather_connections(listening, 2 * size + 64, Clock::now() + std::chrono::seconds(2), -1, late);
    if (code == ExitCode::kBadInput) throw ConfigError(text);
    throw CollectiveError(text);
  };
  size_t open = 0;
  const auto take = [&](Socket socket, const FrameHeader& header, std::string_view body) {
    if (header.kind != MessageKind::kHello) return false;
    Hello hello;
    try {
      hello = parse_hello(body);
    } catch (const FormatError&) {
      return false;  // a stranger
    }
    const std::string from = who(hello.rank, hello.host);
    const auto differs = [&](const char* what, const std::string& ours, const std::string& theirs) {
      if (ours != theirs)
        refuse_all(
            ExitCode::kBadInput,
            error_text(from, what, ours + ", as on rank 0 (host " + own_host() + ")", theirs),
            &socket, hello.rank);
    };
    differs("number of ranks", std::to_string(place.size), std::to_string(hello.size));
    differs("version of the program", version, hello.version);
    std::optional<Hello>& known = hellos[hello.rank];
    const bool is_heartbeat = hello.purpose == Purpose::kHeartbeat;
    Socket& slot = is_heartbeat ? heartbeat[hello.rank] : control[hello.rank];
    if (hello.rank == 0 || slot.is_open() ||
        (known && (known->host != hello.host || known->process != hello.process))) {
      const std::string other = hello.rank == 0
                                    ? own_host() + " process " + std::to_string(::getpid())
                                    : known->host + " process " + std::to_string(known->process);
      refuse_all(ExitCode::kBadInput,
                 error_text("rank " + std::to_string(hello.rank), "", "one process",
                            "two: " + other + " and " + hello.host + " process " +
                                std::to_string(hello.process)),
                 &socket, hello.rank);
    }
    known = hello;
    slot = std::move(socket);
    return ++open == 2 * (size - 1);
  };
  if (!gather_connections(listening, 2 * size + 64,
                          Clock::now() + seconds(timeouts.connect_seconds), -1, take)) {
    std::string missing, there = "0";
    for (size_t r = 1; r < size; ++r) {
      const bool complete = control[r].is_open() && heartbeat[r].is_open();
      std::string& list = complete ? there : missing;
      if (!list.empty()) list += ", ";
      list += std::to_string(r);
      if (complete) list += " (" + hellos[r]->host + ")";
    }
    refuse_all(ExitCode::kPeerLost,
               error_text("ranks", "at " + place.address + ":" + std::to_string(place.port),
                          std::to_string(size) + " ranks within " +
                              std::to_string(static_cast<int>(timeouts.connect_seconds)) + " s",
                          "ranks " + there + "; missing: " + missing),
               nullptr, 0);
  }
  std::random_device random;
  key = (static_cast<uint64_t>(random()) << 32) | random();
  ranks.push_back({own_host(), static_cast<uint64_t>(::getpid())});
  for (size_t r = 1; r < size; ++r) ranks.push_back({hellos[r]->host, hellos[r]->process});
  const std::string welcome = frame(MessageKind::kWelcome, encode(Welcome{key, ranks}));
  std::vector<Monitor::Connection> connections;
  for (size_t r = 1; r < size; ++r) {
    send_all(control[r], welcome.data(), welcome.size(), -1,
             Clock::now() + std::chrono::seconds(5));
    connections.push_back({static_cast<int>(r), std::move(heartbeat[r])});
  }
  monitor = std::make_unique<Monitor>(0, ranks, std::move(connections), timeouts);
}

void Communicator::State::meet_rank_0(const std::string& version) {
  const auto deadline = Clock::now() + seconds(timeouts.connect_seconds);
  Hello hello{.rank = static_cast<uint32_t>(place.rank),
              .size = static_cast<uint32_t>(place.size),
              .purpose = Purpose::kControl,
              .process = static_cast<uint64_t>(::getpid()),
              .local_rank = place.local_rank.value_or(-1),
              .host = own_host(),
              .version = version};
  std::vector<Monitor::Connection> connections;
  // Both before either speaks: rank 0 may end with what it hears first.
  control.push_back(connect_to(place.address, place.port, deadline));
  connections.push_back({0, connect_to(place.address, place.port, deadline)});
  for (const Purpose purpose : {Purpose::kControl, Purpose::kHeartbeat}) {
    hello.purpose = purpose;
    const std::string message = frame(MessageKind::kHello, encode(hello));
    const Socket& socket = purpose == Purpose::kControl ? control[0] : connections[0].socket;
    send_all(socket, message.data(), message.size(), -1, deadline);
  }
  // Rank 0 says by then who is missing.
  const auto last = deadline + std::chrono::seconds(5);
  const std::string where = "rank 0 at " + place.address + ":" + std::to_string(place.port);
  const auto receive = [&](void* to, size_t bytes) {
    const Transfer result = receive_all(control[0], to, bytes, -1, last);
    if (result == Transfer::kDone) return;
    throw CollectiveError(
        error_text(where, "welcome", "an answer",
                   result == Transfer::kTimeout ? "none" : "a closed connection"));
  };
  std::array<char, kFrameBytes> head{};
  receive(head.data(), head.size());
  const FrameHeader header = parse_frame_header(head);
  if (header.kind != MessageKind::kWelcome && header.kind != MessageKind::kRefusal)
    throw FormatError(error_text(where, "", "a welcome or a refusal", "another message"));
  std::string body(header.bytes, '\0');
  receive(body.data(), body.size());
  if (header.kind == MessageKind::kRefusal) {
    const Refusal refusal = parse_refusal(body);
    if (refusal.exit_code == static_cast<uint8_t>(ExitCode::kBadInput))
      throw ConfigError(refusal.text);
    throw CollectiveError(refusal.text);
  }
  Welcome welcome = parse_welcome(body);
  if (welcome.ranks.size() != static_cast<size_t>(place.size))
    throw FormatError(error_text(where, "number of ranks", std::to_string(place.size),
                                 std::to_string(welcome.ranks.size())));
  key = welcome.key;
  ranks = std::move(welcome.ranks);
  monitor = std::make_unique<Monitor>(place.rank, ranks, std::move(connections), timeouts);
}

void Communicator::State::fail(int peer, const std::string& what) {
  Loss seen{peer, ranks[static_cast<size_t>(peer)].host, 0, "", what};
  throw CollectiveError(monitor->wait_for_loss(timeouts.heartbeat_seconds + 2, seen).text());
}

void Communicator::State::send_frame(int peer, const Socket& socket, MessageKind kind,
                                     const std::string& body) {
  const std::string message = frame(kind, body);
  if (send_all(socket, message.data(), message.size(), monitor->alarm()) != Transfer::kDone)
    fail(peer, "its connection broke");
}

std::string Communicator::State::receive_frame(int peer, const Socket& socket, MessageKind kind) {
  std::array<char, kFrameBytes> head{};
  if (receive_all(socket, head.data(), head.size(), monitor->alarm()) != Transfer::kDone)
    fail(peer, "its connection broke");
  const FrameHeader header = parse_frame_header(head);
  if (header.kind != kind) throw FormatError("message of a rank: another kind than was due");
  std::string body(header.bytes, '\0');
  if (receive_all(socket, body.data(), body.size(), monitor->alarm()) != Transfer::kDone)
    fail(peer, "its connection broke");
  return body;
}

Communicator::Communicator(const RankPlace& place, const std::string& version,
                           const Timeouts& timeouts)
    : state_(std::make_unique<State>()) {
  state_->place = place;
  state_->timeouts = timeouts;
  if (place.rank == 0) {
    state_->meet_as_first(version);
  } else {
    state_->meet_rank_0(version);
  }
}

Communicator::~Communicator() = default;

int Communicator::rank() const { return state_->place.rank; }
int Communicator::size() const { return state_->place.size; }

const std::string& Communicator::host(int rank) const {
  return state_->ranks.at(static_cast<size_t>(rank)).host;
}

int Communicator::local_rank() const {
  if (state_->place.local_rank) return *state_->place.local_rank;
  int before = 0;
  for (int r = 0; r < rank(); ++r) before += host(r) == host(rank()) ? 1 : 0;
  return before;
}

int Communicator::local_size() const {
  return static_cast<int>(
      std::count_if(state_->ranks.begin(), state_->ranks.end(),
                    [&](const RankInfo& info) { return info.host == host(rank()); }));
}

void Communicator::set_timeouts(const Timeouts& timeouts) {
  state_->timeouts = timeouts;
  state_->monitor->set_timeouts(timeouts);
}

const Timeouts& Communicator::timeouts() const { return state_->timeouts; }
void Communicator::set_step(int64_t step) { state_->monitor->set_step(step); }
std::string Communicator::set_call(std::string_view call) {
  return state_->monitor->set_call(call);
}
void Communicator::count_call() { state_->monitor->count_call(); }

Communicator::Call::Call(Communicator& ranks, std::string_view call)
    : ranks_(ranks), before_(ranks.state_->monitor->enter(call)) {}
Communicator::Call::~Call() { ranks_.state_->monitor->leave(before_); }

std::vector<std::string> Communicator::all_gather(std::string_view call, const std::string& part) {
  State& state = *state_;
  const Call scope(*this, call);
  check();
  const uint64_t number = state.next_gather++;
  if (part.size() > kMaxPart)
    throw InternalError("all_gather: a part of " + std::to_string(part.size()) + " bytes");
  if (rank() != 0) {
    state.send_frame(0, state.control[0], MessageKind::kPart,
                     encode(Part{number, std::string(call), part}));
    std::vector<std::string> parts =
        parse_whole(state.receive_frame(0, state.control[0], MessageKind::kWhole));
    if (parts.size() != static_cast<size_t>(size()))
      throw FormatError(error_text("message of rank 0", "parts", std::to_string(size()),
                                   std::to_string(parts.size())));
    state.monitor->met(call);
    return parts;
  }
  std::vector<std::string> parts = {part};
  size_t total = part.size();
  for (int r = 1; r < size(); ++r) {
    Part theirs = parse_part(
        state.receive_frame(r, state.control[static_cast<size_t>(r)], MessageKind::kPart));
    if (theirs.number != number || theirs.call != call) {
      throw CollectiveError(
          error_text(who(static_cast<uint32_t>(r), host(r)), "call",
                     "\"" + std::string(call) + "\" (" + std::to_string(number) + ")",
                     "\"" + theirs.call + "\" (" + std::to_string(theirs.number) + ")"));
    }
    total += theirs.content.size();
    if (total > kMaxWhole - 16 * static_cast<size_t>(size()))
      throw InternalError("all_gather: parts of more than 64 MiB together");
    parts.push_back(std::move(theirs.content));
  }
  state.monitor->met(call);
  const std::string whole = encode(parts);
  for (int r = 1; r < size(); ++r)
    state.send_frame(r, state.control[static_cast<size_t>(r)], MessageKind::kWhole, whole);
  return parts;
}

std::string Communicator::broadcast(std::string_view call, const std::string& text) {
  return all_gather(call, rank() == 0 ? text : "").front();
}

void Communicator::agree(std::string_view what, const std::string& value) {
  const std::vector<std::string> values = all_gather(what, value);
  for (size_t r = 1; r < values.size(); ++r) {
    if (values[r] != values[0]) {
      throw ConfigError(error_text(who(static_cast<uint32_t>(r), host(static_cast<int>(r))), what,
                                   values[0] + ", as on rank 0 (host " + host(0) + ")", values[r]));
    }
  }
}

std::optional<Loss> Communicator::loss() const { return state_->monitor->loss(); }

void Communicator::check() const {
  if (const auto lost = loss()) throw CollectiveError(lost->text());
}

void Communicator::fail(int peer, const std::string& what) { state_->fail(peer, what); }
int Communicator::alarm() const { return state_->monitor->alarm(); }
void Communicator::on_loss(std::function<void()> action) {
  state_->monitor->on_loss(std::move(action));
}
void Communicator::on_stuck(std::function<void(const Loss&)> action) {
  state_->monitor->on_stuck(std::move(action));
}
void Communicator::leave(int exit_code, const std::string& what) {
  state_->monitor->goodbye(exit_code, what);
}

std::unique_ptr<Ring> Communicator::connect_ring() {
  State& state = *state_;
  const std::string own = rank() == 0 ? state.place.address : own_address(state.control[0]);
  const Socket listening = listen_at(own, 0);
  const std::vector<std::string> places =
      all_gather("ring", own + " " + std::to_string(port_of(listening)));
  const Call scope(*this, "ring");
  const int next = (rank() + 1) % size(), before = (rank() + size() - 1) % size();
  const std::string& place = places[static_cast<size_t>(next)];
  const size_t space = place.find(' ');
  int port = 0;
  if (space != std::string::npos)
    std::from_chars(place.data() + space + 1, place.data() + place.size(), port);
  if (port < 1 || port > 65535)
    throw FormatError(error_text(who(static_cast<uint32_t>(next), host(next)),
                                 "address in the ring", "an address and a port",
                                 "\"" + place + "\""));
  const auto deadline = Clock::now() + seconds(state.timeouts.connect_seconds);
  Socket to_next = connect_to(place.substr(0, space), port, deadline);
  const std::string hello =
      frame(MessageKind::kRing, encode(RingHello{state.key, static_cast<uint32_t>(rank())}));
  send_all(to_next, hello.data(), hello.size(), alarm(), deadline);
  Socket from_before;
  const auto take = [&](Socket socket, const FrameHeader& header, std::string_view body) {
    if (header.kind != MessageKind::kRing) return false;
    try {
      const RingHello theirs = parse_ring_hello(body);
      if (theirs.key != state.key || theirs.rank != static_cast<uint32_t>(before)) return false;
    } catch (const FormatError&) {
      return false;
    }
    from_before = std::move(socket);
    return true;
  };
  if (!gather_connections(listening, 64, deadline, alarm(), take)) {
    check();
    fail(before, "did not connect to " + own + ":" + std::to_string(port_of(listening)));
  }
  return std::make_unique<Ring>(std::move(to_next), std::move(from_before));
}

}  // namespace deltatrain::dist
