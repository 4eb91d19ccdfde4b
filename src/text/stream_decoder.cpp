#include "text/decoder.h"
#include "text/tokenizer.h"
#include "text/tokenizer_model.h"
#include "text/utf8.h"

namespace deltatrain::text {

namespace {

// How the decoder's steps can be followed token by token.
enum class Streaming {
  kByteLevel,  // ByteLevel alone
  kByteRuns,   // any Replace, ByteFallback, and behind them optionally Fuse and Strip at the start
  kWhole,      // anything else: all is held back to the end
};

Streaming streaming_of(const std::vector<DecoderStep>& steps) {
  using Kind = DecoderStep::Kind;
  if (steps.size() == 1 && steps[0].kind == Kind::kByteLevel) return Streaming::kByteLevel;
  size_t i = 0;
  while (i < steps.size() && steps[i].kind == Kind::kReplace) ++i;
  if (i == steps.size() || steps[i].kind != Kind::kByteFallback) return Streaming::kWhole;
  ++i;
  if (i < steps.size() && steps[i].kind == Kind::kFuse) ++i;
  const bool fused = i > 0 && steps[i - 1].kind == Kind::kFuse;
  if (fused && i < steps.size() && steps[i].kind == Kind::kStrip && steps[i].stop == 0) ++i;
  return i == steps.size() ? Streaming::kByteRuns : Streaming::kWhole;
}

}  // namespace

struct StreamDecoder::State {
  Tokenizer tokenizer;
  SkipSpecialTokens skip;
  Streaming streaming;
  std::string bytes;                // kByteLevel: unfinished character; kByteRuns: run of byte tokens
  std::vector<std::string> tokens;  // kWhole
  int64_t num_stripped = 0;         // kByteRuns: leading characters taken off
  bool at_start = true;

  std::string replaced(std::string token) const {
    for (const DecoderStep& step : tokenizer.model().decoder()) {
      if (step.kind != DecoderStep::Kind::kReplace) break;
      token = decode_tokens({step}, {std::move(token)});
    }
    return token;
  }

  // The bytes of the run, read as the decoder reads a whole run.
  std::string take_run() {
    std::string text;
    if (find_ill_formed_utf8(bytes) == std::string::npos) {
      text = bytes;
    } else {
      for (size_t i = 0; i < bytes.size(); ++i) text += "\xef\xbf\xbd";
    }
    bytes.clear();
    return text;
  }

  // Takes off what the Strip at the end would take off the front of the whole text.
  std::string stripped(std::string text) {
    const DecoderStep& last = tokenizer.model().decoder().back();
    if (last.kind != DecoderStep::Kind::kStrip || !at_start) return text;
    while (num_stripped < last.start && text.starts_with(last.content)) {
      text.erase(0, last.content.size());
      ++num_stripped;
    }
    if (!text.empty()) at_start = false;
    return text;
  }

  std::string append(std::string token) {
    switch (streaming) {
      case Streaming::kByteLevel: {
        bytes += byte_level_token_bytes(token);
        const size_t settled = settled_utf8_bytes(bytes);
        std::string text = replace_ill_formed_utf8(std::string_view(bytes).substr(0, settled));
        bytes.erase(0, settled);
        return text;
      }
      case Streaming::kByteRuns: {
        token = replaced(std::move(token));
        if (const int byte = fallback_byte(token); byte >= 0) {
          bytes += static_cast<char>(byte);
          return "";
        }
        return stripped(take_run() + token);
      }
      case Streaming::kWhole:
        tokens.push_back(std::move(token));
        return "";
    }
    return "";
  }

  std::string finish() {
    std::string text;
    switch (streaming) {
      case Streaming::kByteLevel:
        text = replace_ill_formed_utf8(bytes);
        break;
      case Streaming::kByteRuns:
        text = stripped(take_run());
        break;
      case Streaming::kWhole:
        text = decode_tokens(tokenizer.model().decoder(), std::move(tokens));
        break;
    }
    bytes.clear();
    tokens.clear();
    num_stripped = 0;
    at_start = true;
    return text;
  }
};

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, SkipSpecialTokens skip)
    : state_(new State{tokenizer, skip, streaming_of(tokenizer.model().decoder()), {}, {}, 0, true}) {}
StreamDecoder::~StreamDecoder() = default;
StreamDecoder::StreamDecoder(StreamDecoder&&) noexcept = default;
StreamDecoder& StreamDecoder::operator=(StreamDecoder&&) noexcept = default;

std::string StreamDecoder::append(int32_t id) {
  const TokenizerModel& model = state_->tokenizer.model();
  auto token = model.decoder_text(id);
  if (!token) return "";
  if (state_->skip == SkipSpecialTokens::kYes && model.is_special_text(*token)) return "";
  return state_->append(*std::move(token));
}

std::string StreamDecoder::finish() { return state_->finish(); }

}  // namespace deltatrain::text
