#include "dist/messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace deltatrain::dist {
namespace {

std::string_view body_of(const std::string& message) {
  return std::string_view(message).substr(kFrameBytes);
}

std::string header_with(const std::string& message, size_t at, char value) {
  std::string changed = message.substr(0, kFrameBytes);
  changed[at] = value;
  return changed;
}

FrameHeader header_of(const std::string& text) {
  return parse_frame_header(std::span<const char, kFrameBytes>(text.data(), kFrameBytes));
}

TEST(MessagesTest, ComeBackAsTheyWere) {
  const Hello hello{3, 8, Purpose::kHeartbeat, 77, 1, "node", "1.0"};
  const std::string message = frame(MessageKind::kHello, encode(hello));
  EXPECT_EQ(header_of(message).kind, MessageKind::kHello);
  EXPECT_EQ(header_of(message).bytes, message.size() - kFrameBytes);
  const Hello back = parse_hello(body_of(message));
  EXPECT_EQ(back.rank, 3U);
  EXPECT_EQ(back.size, 8U);
  EXPECT_EQ(back.purpose, Purpose::kHeartbeat);
  EXPECT_EQ(back.process, 77U);
  EXPECT_EQ(back.local_rank, 1);
  EXPECT_EQ(back.host, "node");
  EXPECT_EQ(back.version, "1.0");
  const Part part = parse_part(encode(Part{9, "save", std::string("a\0b", 3)}));
  EXPECT_EQ(part.number, 9U);
  EXPECT_EQ(part.content, std::string("a\0b", 3));
  const Lost lost = parse_lost(encode(Lost{2, 120, "h", "save", "killed"}));
  EXPECT_EQ(lost.step, 120);
  EXPECT_EQ(lost.what, "killed");
  EXPECT_EQ(parse_whole(encode(std::vector<std::string>{"a", "", "c"})),
            (std::vector<std::string>{"a", "", "c"}));
}

// Bytes of the format's description, not of the writer.
TEST(MessagesTest, AFrameIsTheBytesOfItsDescription) {
  EXPECT_EQ(frame(MessageKind::kRing, encode(RingHello{0x0102030405060708, 9})),
            std::string("DTRK\x01\x09\0\0\x0c\0\0\0", 12) +
                std::string("\x08\x07\x06\x05\x04\x03\x02\x01\x09\0\0\0", 12));
}

TEST(MessagesTest, HeadersOfOthersAreRefused) {
  const std::string good = frame(MessageKind::kBeat, encode(Beat{}));
  EXPECT_NO_THROW(header_of(good));
  EXPECT_THROW(header_of("GET / HTTP/1.1\r\n"), FormatError);
  EXPECT_THROW(header_of(header_with(good, 4, 2)), FormatError) << "protocol";
  EXPECT_THROW(header_of(header_with(good, 5, 0)), FormatError) << "kind";
  EXPECT_THROW(header_of(header_with(good, 5, 10)), FormatError) << "kind";
  EXPECT_THROW(header_of(header_with(good, 6, 1)), FormatError) << "zero bytes";
  EXPECT_THROW(header_of(header_with(good, 11, 0x7f)), FormatError) << "2 GiB";
}

TEST(MessagesTest, EveryCutAndEveryByteTooManyIsRefused) {
  const std::string messages[] = {encode(Hello{1, 2, Purpose::kControl, 3, 4, "h", "v"}),
                                  encode(Welcome{1, {{"a", 1}, {"b", 2}}}),
                                  encode(Refusal{2, "why"}),
                                  encode(Beat{1, 2, 3, "call"}),
                                  encode(Lost{1, 2, "h", "c", "w"}),
                                  encode(Goodbye{6, 2, "c", "w"}),
                                  encode(Part{1, "c", "x"}),
                                  encode(RingHello{1, 2}),
                                  encode(std::vector<std::string>{"a", "b"})};
  const auto parse = [](size_t i, std::string_view body) {
    switch (i) {
      case 0:
        parse_hello(body);
        break;
      case 1:
        parse_welcome(body);
        break;
      case 2:
        parse_refusal(body);
        break;
      case 3:
        parse_beat(body);
        break;
      case 4:
        parse_lost(body);
        break;
      case 5:
        parse_goodbye(body);
        break;
      case 6:
        parse_part(body);
        break;
      case 7:
        parse_ring_hello(body);
        break;
      default:
        parse_whole(body);
    }
  };
  for (size_t i = 0; i < std::size(messages); ++i) {
    EXPECT_NO_THROW(parse(i, messages[i]));
    for (size_t cut = 0; cut < messages[i].size(); ++cut)
      EXPECT_THROW(parse(i, std::string_view(messages[i]).substr(0, cut)), FormatError)
          << i << " cut to " << cut;
    EXPECT_THROW(parse(i, messages[i] + "x"), FormatError) << i;
  }
}

TEST(MessagesTest, NumbersOutOfRangeAreRefused) {
  EXPECT_THROW(parse_hello(encode(Hello{.rank = 4096, .size = 2})), FormatError);
  EXPECT_THROW(parse_hello(encode(Hello{.rank = 0, .size = 0})), FormatError);
  EXPECT_THROW(parse_lost(encode(Lost{.rank = 5000})), FormatError);
  EXPECT_THROW(parse_whole(encode(std::vector<std::string>{})), FormatError);
  EXPECT_THROW(frame(MessageKind::kBeat, std::string(size_t{1} << 20, 'x')), FormatError);
}

}  // namespace
}  // namespace deltatrain::dist
