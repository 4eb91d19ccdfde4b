// What ranks tell each other over TCP, as bytes. Everything that arrives is hostile until it has
// been parsed: lengths are bounded before anything is allocated. Internal to the folder.
//
// A frame is 12 bytes (magic, protocol, kind, two zero bytes, length of the body) and the body.
// Numbers are little-endian; a text is its length (u32) and its bytes.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace deltatrain::dist {

enum class MessageKind : uint8_t {
  kHello = 1,    // rank -> 0, first on a connection
  kWelcome = 2,  // 0 -> rank: all are there
  kRefusal = 3,  // 0 -> rank: why not
  kBeat = 4,     // both ways: still here, and where
  kLost = 5,     // 0 -> rank: a rank was lost
  kGoodbye = 6,  // both ways: this rank ends
  kPart = 7,     // rank -> 0: its part of an all_gather
  kWhole = 8,    // 0 -> rank: all parts
  kRing = 9,     // rank -> rank: first on a connection of the ring
};

inline constexpr size_t kFrameBytes = 12;
inline constexpr size_t kMaxText = 4096;  // of a single text in a message
inline constexpr size_t kMaxPart = size_t{16} << 20;
inline constexpr size_t kMaxWhole = size_t{64} << 20;

struct FrameHeader {
  MessageKind kind = MessageKind::kBeat;
  uint32_t bytes = 0;  // of the body
};

// A frame, ready to send.
std::string frame(MessageKind kind, std::string_view body);
// FormatError for anything but a header whose body is within the bounds of its kind.
FrameHeader parse_frame_header(std::span<const char, kFrameBytes> bytes);

enum class Purpose : uint8_t { kControl = 1, kHeartbeat = 2 };

struct Hello {
  uint32_t rank = 0;
  uint32_t size = 0;
  Purpose purpose = Purpose::kControl;
  uint64_t process = 0;
  int32_t local_rank = -1;
  std::string host;
  std::string version;
};

struct RankInfo {
  std::string host;
  uint64_t process = 0;
};

struct Welcome {
  uint64_t key = 0;  // of this job, which connections of the ring must know
  std::vector<RankInfo> ranks;
};

struct Refusal {
  uint8_t exit_code = 0;
  std::string text;
};

struct Beat {
  int64_t step = 0;
  uint64_t entered = 0;  // calls that wait for other ranks, begun and ended
  uint64_t left = 0;
  std::string call;  // where the rank is
};

struct Lost {
  uint32_t rank = 0;
  int64_t step = 0;
  std::string host;
  std::string call;
  std::string what;
};

struct Goodbye {
  uint8_t exit_code = 0;
  int64_t step = 0;
  std::string call;
  std::string what;
};

struct Part {
  uint64_t number = 0;  // of the all_gather, counted from 0
  std::string call;
  std::string content;
};

struct RingHello {
  uint64_t key = 0;
  uint32_t rank = 0;
};

std::string encode(const Hello& message);
std::string encode(const Welcome& message);
std::string encode(const Refusal& message);
std::string encode(const Beat& message);
std::string encode(const Lost& message);
std::string encode(const Goodbye& message);
std::string encode(const Part& message);
std::string encode(const RingHello& message);
std::string encode(const std::vector<std::string>& whole);

// Of a body. FormatError for anything else than encode() writes.
Hello parse_hello(std::string_view body);
Welcome parse_welcome(std::string_view body);
Refusal parse_refusal(std::string_view body);
Beat parse_beat(std::string_view body);
Lost parse_lost(std::string_view body);
Goodbye parse_goodbye(std::string_view body);
Part parse_part(std::string_view body);
RingHello parse_ring_hello(std::string_view body);
std::vector<std::string> parse_whole(std::string_view body);

}  // namespace deltatrain::dist
