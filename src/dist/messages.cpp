#include "dist/messages.h"

#include <cstring>
#include <type_traits>

#include "base/error.h"
#include "dist/rank_place.h"  // kMaxRanks

namespace deltatrain::dist {

namespace {

constexpr uint32_t kMagic = 0x4B525444;  // "DTRK"
constexpr uint8_t kProtocol = 1;

[[noreturn]] void refuse(std::string_view what, std::string_view expected, const std::string& got) {
  throw FormatError(error_text("message of a rank", what, expected, got));
}

class Writer {
 public:
  template <class T>
  Writer& number(T value) {
    static_assert(std::is_integral_v<T>);
    char bytes[sizeof value];
    std::memcpy(bytes, &value, sizeof value);
    text_.append(bytes, sizeof value);
    return *this;
  }
  Writer& bytes(std::string_view value) {
    number(static_cast<uint32_t>(value.size()));
    text_ += value;
    return *this;
  }
  Writer& text(std::string_view value) { return bytes(value.substr(0, kMaxText)); }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

class Reader {
 public:
  explicit Reader(std::string_view body) : rest_(body) {}

  template <class T>
  T number() {
    static_assert(std::is_integral_v<T>);
    if (rest_.size() < sizeof(T))
      refuse("number", std::to_string(sizeof(T)) + " bytes", std::to_string(rest_.size()));
    T value = 0;
    std::memcpy(&value, rest_.data(), sizeof value);
    rest_.remove_prefix(sizeof value);
    return value;
  }
  std::string bytes(size_t most) {
    const auto size = number<uint32_t>();
    if (size > most)
      refuse("text", "at most " + std::to_string(most) + " bytes", std::to_string(size));
    if (size > rest_.size())
      refuse("text", std::to_string(size) + " bytes", std::to_string(rest_.size()));
    std::string value(rest_.substr(0, size));
    rest_.remove_prefix(size);
    return value;
  }
  std::string text() { return bytes(kMaxText); }
  void end() const {
    if (!rest_.empty()) refuse("end", "no more bytes", std::to_string(rest_.size()));
  }
  size_t left() const { return rest_.size(); }

 private:
  std::string_view rest_;
};

size_t most_bytes(MessageKind kind) {
  constexpr size_t kTexts = 4 * (kMaxText + 4);
  switch (kind) {
    case MessageKind::kHello:
    case MessageKind::kRefusal:
    case MessageKind::kBeat:
    case MessageKind::kLost:
    case MessageKind::kGoodbye:
      return kTexts + 64;
    case MessageKind::kRing:
      return 16;
    case MessageKind::kWelcome:
      return 16 + size_t{kMaxRanks} * (kMaxText + 12);
    case MessageKind::kPart:
      return kMaxPart + kMaxText + 32;
    case MessageKind::kWhole:
      return kMaxWhole;
  }
  refuse("kind", "1 to 9", std::to_string(static_cast<int>(kind)));
}

uint32_t bounded_rank(Reader& reader, const char* what, uint32_t least, uint32_t most) {
  const auto value = reader.number<uint32_t>();
  if (value < least || value > most)
    refuse(what, std::to_string(least) + " to " + std::to_string(most), std::to_string(value));
  return value;
}

constexpr auto kMost = static_cast<uint32_t>(kMaxRanks);

}  // namespace

std::string frame(MessageKind kind, std::string_view body) {
  if (body.size() > most_bytes(kind))
    refuse("body", "at most " + std::to_string(most_bytes(kind)) + " bytes",
           std::to_string(body.size()));
  std::string text = Writer()
                         .number(kMagic)
                         .number(kProtocol)
                         .number(static_cast<uint8_t>(kind))
                         .number(uint16_t{0})
                         .number(static_cast<uint32_t>(body.size()))
                         .take();
  text += body;
  return text;
}

FrameHeader parse_frame_header(std::span<const char, kFrameBytes> bytes) {
  Reader reader(std::string_view(bytes.data(), bytes.size()));
  if (const auto magic = reader.number<uint32_t>(); magic != kMagic)
    refuse("start", "a deltatrain rank's", "another program's");
  if (const auto protocol = reader.number<uint8_t>(); protocol != kProtocol)
    refuse("protocol", std::to_string(kProtocol), std::to_string(protocol));
  FrameHeader header;
  header.kind = static_cast<MessageKind>(reader.number<uint8_t>());
  if (const auto zero = reader.number<uint16_t>(); zero != 0)
    refuse("header", "two zero bytes", std::to_string(zero));
  header.bytes = reader.number<uint32_t>();
  if (header.bytes > most_bytes(header.kind))
    refuse("body", "at most " + std::to_string(most_bytes(header.kind)) + " bytes",
           std::to_string(header.bytes));
  return header;
}

std::string encode(const Hello& m) {
  return Writer()
      .number(m.rank)
      .number(m.size)
      .number(static_cast<uint8_t>(m.purpose))
      .number(m.process)
      .number(m.local_rank)
      .text(m.host)
      .text(m.version)
      .take();
}

Hello parse_hello(std::string_view body) {
  Reader reader(body);
  Hello m;
  m.rank = bounded_rank(reader, "rank", 0, kMost - 1);
  m.size = bounded_rank(reader, "number of ranks", 1, kMost);
  const auto purpose = reader.number<uint8_t>();
  if (purpose != 1 && purpose != 2) refuse("purpose", "1 or 2", std::to_string(purpose));
  m.purpose = static_cast<Purpose>(purpose);
  m.process = reader.number<uint64_t>();
  m.local_rank = reader.number<int32_t>();
  m.host = reader.text();
  m.version = reader.text();
  reader.end();
  return m;
}

std::string encode(const Welcome& m) {
  Writer writer;
  writer.number(m.key).number(static_cast<uint32_t>(m.ranks.size()));
  for (const RankInfo& info : m.ranks) writer.text(info.host).number(info.process);
  return writer.take();
}

Welcome parse_welcome(std::string_view body) {
  Reader reader(body);
  Welcome m;
  m.key = reader.number<uint64_t>();
  const uint32_t count = bounded_rank(reader, "number of ranks", 1, kMost);
  for (uint32_t i = 0; i < count; ++i) {
    RankInfo info;
    info.host = reader.text();
    info.process = reader.number<uint64_t>();
    m.ranks.push_back(std::move(info));
  }
  reader.end();
  return m;
}

std::string encode(const Refusal& m) { return Writer().number(m.exit_code).text(m.text).take(); }

Refusal parse_refusal(std::string_view body) {
  Reader reader(body);
  Refusal m;
  m.exit_code = reader.number<uint8_t>();
  m.text = reader.text();
  reader.end();
  return m;
}

std::string encode(const Beat& m) {
  return Writer().number(m.step).number(m.entered).number(m.left).text(m.call).take();
}

Beat parse_beat(std::string_view body) {
  Reader reader(body);
  Beat m;
  m.step = reader.number<int64_t>();
  m.entered = reader.number<uint64_t>();
  m.left = reader.number<uint64_t>();
  m.call = reader.text();
  reader.end();
  return m;
}

std::string encode(const Lost& m) {
  return Writer().number(m.rank).number(m.step).text(m.host).text(m.call).text(m.what).take();
}

Lost parse_lost(std::string_view body) {
  Reader reader(body);
  Lost m;
  m.rank = bounded_rank(reader, "rank", 0, kMost - 1);
  m.step = reader.number<int64_t>();
  m.host = reader.text();
  m.call = reader.text();
  m.what = reader.text();
  reader.end();
  return m;
}

std::string encode(const Goodbye& m) {
  return Writer().number(m.exit_code).number(m.step).text(m.call).text(m.what).take();
}

Goodbye parse_goodbye(std::string_view body) {
  Reader reader(body);
  Goodbye m;
  m.exit_code = reader.number<uint8_t>();
  m.step = reader.number<int64_t>();
  m.call = reader.text();
  m.what = reader.text();
  reader.end();
  return m;
}

std::string encode(const Part& m) {
  return Writer().number(m.number).text(m.call).bytes(m.content).take();
}

Part parse_part(std::string_view body) {
  Reader reader(body);
  Part m;
  m.number = reader.number<uint64_t>();
  m.call = reader.text();
  m.content = reader.bytes(kMaxPart);
  reader.end();
  return m;
}

std::string encode(const RingHello& m) { return Writer().number(m.key).number(m.rank).take(); }

RingHello parse_ring_hello(std::string_view body) {
  Reader reader(body);
  RingHello m;
  m.key = reader.number<uint64_t>();
  m.rank = bounded_rank(reader, "rank", 0, kMost - 1);
  reader.end();
  return m;
}

std::string encode(const std::vector<std::string>& whole) {
  Writer writer;
  writer.number(static_cast<uint32_t>(whole.size()));
  for (const std::string& part : whole) writer.bytes(part);
  return writer.take();
}

std::vector<std::string> parse_whole(std::string_view body) {
  Reader reader(body);
  const uint32_t count = bounded_rank(reader, "number of parts", 1, kMost);
  std::vector<std::string> parts;
  for (uint32_t i = 0; i < count; ++i) parts.push_back(reader.bytes(kMaxPart));
  reader.end();
  return parts;
}

}  // namespace deltatrain::dist
