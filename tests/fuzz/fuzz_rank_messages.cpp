#include "dist/messages.h"
#include "fuzz/hostile_file.h"

// A stream as another rank, or a stranger, would send it: a frame's header, and the body that it names.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace deltatrain::dist;
  return deltatrain::fuzz::refuse_or_accept([&] {
    if (size < kFrameBytes) return;
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    const FrameHeader header =
        parse_frame_header(std::span<const char, kFrameBytes>(text.data(), kFrameBytes));
    const std::string_view body = text.substr(kFrameBytes, header.bytes);
    // What is accepted has to survive being written again.
    std::string again;
    switch (header.kind) {
      case MessageKind::kHello:
        again = encode(parse_hello(body));
        break;
      case MessageKind::kWelcome:
        again = encode(parse_welcome(body));
        break;
      case MessageKind::kRefusal:
        again = encode(parse_refusal(body));
        break;
      case MessageKind::kBeat:
        again = encode(parse_beat(body));
        break;
      case MessageKind::kLost:
        again = encode(parse_lost(body));
        break;
      case MessageKind::kGoodbye:
        again = encode(parse_goodbye(body));
        break;
      case MessageKind::kPart:
        again = encode(parse_part(body));
        break;
      case MessageKind::kWhole:
        again = encode(parse_whole(body));
        break;
      case MessageKind::kRing:
        again = encode(parse_ring_hello(body));
        break;
    }
    if (again != body) std::abort();
  });
}
