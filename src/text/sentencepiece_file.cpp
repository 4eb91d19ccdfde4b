// SentencePiece's .model files, as far as they hold BPE models: a protocol buffer, read by hand.
//
// The result is what Hugging Face's conversion makes of the file: the dummy prefix and the blanks become
// U+2581 in a normalizer, two pieces are joined wherever they make a piece, best score first, and characters
// without a piece become bytes. Control pieces are special tokens, which are found in the text too.

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"
#include "base/error.h"
#include "text/merges_of_tokens.h"
#include "text/regex.h"
#include "text/tokenizer_model.h"
#include "text/utf8.h"

namespace deltatrain::text {

namespace {

constexpr const char* kSpace = "\xe2\x96\x81";  // U+2581

// One field of a message.
struct Field {
  uint64_t number = 0;
  uint64_t value = 0;      // of a varint or a fixed number
  std::string_view bytes;  // of a string or message
};

// Walks through the fields of a message; everything is checked against its end.
class MessageReader {
 public:
  MessageReader(std::string_view bytes, const std::string& where, size_t offset)
      : bytes_(bytes), where_(where), offset_(offset) {}

  bool next(Field& field) {
    if (at_ == bytes_.size()) return false;
    const uint64_t key = varint();
    field = {key >> 3, 0, {}};
    switch (key & 7) {
      case 0:
        field.value = varint();
        return true;
      case 1:
        field.value = fixed(8);
        return true;
      case 2: {
        const uint64_t length = varint();
        if (length > bytes_.size() - at_) malformed();
        field.bytes = bytes_.substr(at_, length);
        at_ += length;
        return true;
      }
      case 5:
        field.value = fixed(4);
        return true;
      default:
        malformed();
    }
  }
  // Of the bytes of the field just read, in the file.
  size_t offset_of(const Field& field) const {
    return offset_ + static_cast<size_t>(field.bytes.data() - bytes_.data());
  }

 private:
  [[noreturn]] void malformed() const {
    throw FormatError(where_ + ": byte " + std::to_string(offset_ + at_) +
                      ": expected a SentencePiece model (or tokenizer.json, or Llama 3's tokenizer.model), got "
                      "something else or a part of one");
  }
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (at_ == bytes_.size()) malformed();
      const auto byte = static_cast<unsigned char>(bytes_[at_++]);
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    malformed();
  }
  uint64_t fixed(size_t size) {
    if (bytes_.size() - at_ < size) malformed();
    uint64_t value = 0;
    std::memcpy(&value, bytes_.data() + at_, size);
    at_ += size;
    return value;
  }

  std::string_view bytes_;
  const std::string& where_;
  size_t offset_;
  size_t at_ = 0;
};

enum class PieceType : uint64_t { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };

struct Piece {
  std::string text;
  float score = 0;
  PieceType type = PieceType::kNormal;
};

struct Model {
  std::vector<Piece> pieces;
  uint64_t model_type = 1;  // 1 unigram, 2 BPE, 3 word, 4 char
  bool byte_fallback = false;
  bool space_behind = false;
  int64_t unknown_id = 0, bos_id = 1, eos_id = 2, pad_id = -1;
  std::string normalizer;
  bool has_charsmap = false;
  bool dummy_prefix = true, remove_extra_spaces = true, escape_spaces = true;
};

Piece read_piece(std::string_view bytes, const std::string& where, size_t offset) {
  Piece piece;
  MessageReader reader(bytes, where, offset);
  Field field;
  while (reader.next(field)) {
    if (field.number == 1) piece.text = field.bytes;
    if (field.number == 2) {
      const auto bits = static_cast<uint32_t>(field.value);
      std::memcpy(&piece.score, &bits, sizeof bits);
    }
    if (field.number == 3) piece.type = static_cast<PieceType>(field.value);
  }
  return piece;
}

void read_trainer(std::string_view bytes, const std::string& where, size_t offset, Model& model) {
  MessageReader reader(bytes, where, offset);
  Field field;
  const auto id = [&] { return static_cast<int64_t>(field.value); };
  while (reader.next(field)) {
    switch (field.number) {
      case 3: model.model_type = field.value; break;
      case 24: model.space_behind = field.value != 0; break;
      case 35: model.byte_fallback = field.value != 0; break;
      case 40: model.unknown_id = id(); break;
      case 41: model.bos_id = id(); break;
      case 42: model.eos_id = id(); break;
      case 43: model.pad_id = id(); break;
      default: break;
    }
  }
}

void read_normalizer(std::string_view bytes, const std::string& where, size_t offset, Model& model) {
  MessageReader reader(bytes, where, offset);
  Field field;
  while (reader.next(field)) {
    switch (field.number) {
      case 1: model.normalizer = field.bytes; break;
      case 2: model.has_charsmap = !field.bytes.empty(); break;
      case 3: model.dummy_prefix = field.value != 0; break;
      case 4: model.remove_extra_spaces = field.value != 0; break;
      case 5: model.escape_spaces = field.value != 0; break;
      default: break;
    }
  }
}

Model read_model(std::string_view bytes, const std::string& where) {
  Model model;
  MessageReader reader(bytes, where, 0);
  Field field;
  while (reader.next(field)) {
    const size_t offset = field.bytes.empty() ? 0 : reader.offset_of(field);
    if (field.number == 1) model.pieces.push_back(read_piece(field.bytes, where, offset));
    if (field.number == 2) read_trainer(field.bytes, where, offset, model);
    if (field.number == 3) read_normalizer(field.bytes, where, offset, model);
  }
  return model;
}

void check_supported(const Model& model, const std::string& where) {
  static constexpr std::array<const char*, 5> kTypes = {"?", "unigram", "BPE", "word", "char"};
  if (model.pieces.size() > static_cast<size_t>(MergeTable::kMaxId)) {
    throw UnsupportedError(error_text(where, "pieces", "at most " + std::to_string(MergeTable::kMaxId),
                                      std::to_string(model.pieces.size())));
  }
  if (model.pieces.empty()) throw FormatError(error_text(where, "pieces", "some", "none"));
  if (model.model_type != 2) {
    throw UnsupportedError(error_text(where, "trainer_spec.model_type", "BPE",
                                      kTypes[model.model_type < kTypes.size() ? model.model_type : 0]));
  }
  if (model.has_charsmap) {
    throw UnsupportedError(
        error_text(where, "normalizer_spec", "the rules \"identity\"", "\"" + model.normalizer + "\""));
  }
  if (model.space_behind)
    throw UnsupportedError(error_text(where, "trainer_spec.treat_whitespace_as_suffix", "false", "true"));
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    const Piece& piece = model.pieces[i];
    const std::string at = "pieces[" + std::to_string(i) + "]";
    if (piece.type == PieceType::kUnused)
      throw UnsupportedError(error_text(where, at, "a piece in use", "an unused one"));
    if (piece.text.empty() || find_ill_formed_utf8(piece.text) != std::string::npos) {
      throw FormatError(error_text(where, at, "a text in UTF-8", "something else"));
    }
  }
}

NormalizerStep replace_step(const std::string& pattern, bool literal, const std::string& by) {
  NormalizerStep step;
  step.kind = NormalizerStep::Kind::kReplace;
  step.pattern.text = pattern;
  step.pattern.is_literal = literal;
  if (!literal) step.pattern.regex = std::make_shared<const Regex>(pattern);
  step.content = by;
  return step;
}

void set_stages(const Model& model, TokenizerParts& parts) {
  const std::string space = model.escape_spaces ? kSpace : " ";
  if (model.remove_extra_spaces) {
    parts.normalizer.push_back(replace_step(R"(\A +| +\z)", false, ""));
    parts.normalizer.push_back(replace_step(" {2,}", false, " "));
  }
  if (model.dummy_prefix) {
    NormalizerStep prepend;
    prepend.kind = NormalizerStep::Kind::kPrepend;
    prepend.content = space;
    parts.normalizer.push_back(prepend);
  }
  if (model.escape_spaces) parts.normalizer.push_back(replace_step(" ", true, kSpace));

  const auto step = [](DecoderStep::Kind kind) {
    DecoderStep result;
    result.kind = kind;
    return result;
  };
  DecoderStep replace = step(DecoderStep::Kind::kReplace);
  replace.pattern.text = kSpace;
  replace.content = " ";
  parts.decoder = {replace, step(DecoderStep::Kind::kByteFallback), step(DecoderStep::Kind::kFuse)};
  if (model.dummy_prefix) {
    DecoderStep strip = step(DecoderStep::Kind::kStrip);
    strip.content = " ";
    strip.start = 1;
    parts.decoder.push_back(strip);
  }
}

}  // namespace

TokenizerParts read_sentencepiece_file(std::string_view bytes, const std::string& where) {
  const Model model = read_model(bytes, where);
  check_supported(model, where);
  TokenizerParts parts;
  parts.where = where;
  set_stages(model, parts);

  TokenTable mergeable;
  std::vector<TokenToMake> wanted;
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    const Piece& piece = model.pieces[i];
    const auto id = narrow<int32_t>(i);
    if (!parts.tokens.insert(piece.text, id)) {
      throw FormatError(error_text(where, "pieces[" + std::to_string(i) + "]", "a text of its own", "\"" + piece.text + "\" again"));
    }
    if (piece.type == PieceType::kNormal) {
      mergeable.insert(piece.text, id);
      wanted.push_back({piece.text, id, piece.score});
    }
    const bool special = piece.type == PieceType::kControl || piece.type == PieceType::kUnknown;
    if (special || piece.type == PieceType::kUserDefined) {
      AddedToken added;
      added.content = piece.text;
      added.id = id;
      added.special = special;
      added.normalized = !special;
      if (!special) added.pattern = piece.text;  // found as it stands in the normalized text
      parts.added_tokens.push_back(added);
    }
  }
  parts.merges = merges_of_tokens(std::move(wanted), mergeable, true);
  parts.settings.byte_fallback = model.byte_fallback;
  parts.settings.fuse_unknown = true;
  const auto valid = [&](int64_t id) { return id >= 0 && id < static_cast<int64_t>(model.pieces.size()); };
  const auto named = [&](int64_t id) { return valid(id) ? std::optional<int32_t>(static_cast<int32_t>(id)) : std::nullopt; };
  if (valid(model.unknown_id)) parts.settings.unknown_id = static_cast<int32_t>(model.unknown_id);
  parts.named = {named(model.bos_id), named(model.eos_id), named(model.pad_id)};
  if (parts.named.bos) parts.ids_in_front = {*parts.named.bos};
  return parts;
}

}  // namespace deltatrain::text
