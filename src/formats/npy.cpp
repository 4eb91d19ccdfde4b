#include "formats/npy.h"

#include <charconv>
#include <optional>

#include "base/error.h"

namespace deltatrain::formats {

namespace {

constexpr std::string_view kNpyMagic = "\x93NUMPY";
constexpr size_t kMaxHeaderBytes = 1 << 20;

// The header is a Python literal, {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }.
class HeaderScanner {
 public:
  HeaderScanner(std::string_view text, std::string where) : text_(text), where_(std::move(where)) {}

  void scan() {
    expect('{');
    while (!accept('}')) {
      const std::string key = quoted();
      expect(':');
      if (key == "descr") {
        if (peek() != '\'' && peek() != '"') fail("descr", "one element type", "a record type");
        descr = quoted();
      } else if (key == "fortran_order") {
        fortran_order = word() == "True";
      } else if (key == "shape") {
        scan_shape();
      } else {
        fail(key, "descr, fortran_order or shape", "this key");
      }
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    if (peek() != '\0') fail("header", "nothing after }", "more");
  }

  [[noreturn]] void fail(std::string_view what, std::string_view expected,
                         std::string_view got) const {
    throw FormatError(error_text(where_, what, expected, got));
  }

  std::optional<std::string> descr;
  std::optional<bool> fortran_order;
  std::optional<Shape> shape;

 private:
  char peek() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool accept(char wanted) {
    if (peek() != wanted) return false;
    ++at_;
    return true;
  }
  void expect(char wanted) {
    if (!accept(wanted)) {
      fail("header byte " + std::to_string(at_), std::string("'") + wanted + "'", "something else");
    }
  }
  std::string quoted() {
    const char quote = peek();
    if (quote != '\'' && quote != '"')
      fail("header byte " + std::to_string(at_), "text", "something else");
    const size_t end = text_.find(quote, ++at_);
    if (end == std::string_view::npos) fail("header", "text that ends", "no end");
    const std::string result(text_.substr(at_, end - at_));
    at_ = end + 1;
    return result;
  }
  std::string_view word() {
    peek();
    const size_t begin = at_;
    while (at_ < text_.size() && std::isalpha(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
    const std::string_view result = text_.substr(begin, at_ - begin);
    if (result != "True" && result != "False") fail("fortran_order", "True or False", result);
    return result;
  }
  void scan_shape() {
    shape = Shape{};
    expect('(');
    while (!accept(')')) {
      peek();
      int64_t size = 0;
      const auto [end, error] =
          std::from_chars(text_.data() + at_, text_.data() + text_.size(), size);
      if (error != std::errc{} || size < 0) fail("shape", "numbers of 0 or more", "something else");
      at_ = static_cast<size_t>(end - text_.data());
      if (shape->rank() == Shape::kMaxRank) fail("shape", "at most 5 axes", "more");
      shape->append(size);
      if (!accept(',')) {
        expect(')');
        break;
      }
    }
  }

  std::string_view text_;
  std::string where_;
  size_t at_ = 0;
};

std::optional<DType> dtype_from_descr(std::string_view descr) {
  if (descr == "<f8") return DType::kF64;
  if (descr == "<f4") return DType::kF32;
  if (descr == "<i8") return DType::kI64;
  if (descr == "<i4") return DType::kI32;
  if (descr == "<u2") return DType::kU16;
  if (descr == "|u1") return DType::kU8;
  return std::nullopt;
}

}  // namespace

NpyFile::NpyFile(const std::filesystem::path& path) : file_(path) {
  const std::string where = path.string();
  const std::string_view all(reinterpret_cast<const char*>(file_.bytes().data()),
                             file_.bytes().size());
  if (all.size() < 12 || all.substr(0, kNpyMagic.size()) != kNpyMagic) {
    throw FormatError(error_text(where, "", "a .npy file", "something else"));
  }
  const auto byte = [&all](size_t at) {
    return static_cast<size_t>(static_cast<unsigned char>(all[at]));
  };
  const size_t version = byte(6);
  if (version < 1 || version > 3) {
    throw FormatError(error_text(where, "version", "1, 2 or 3", std::to_string(version)));
  }
  size_t header_begin = 10;
  size_t header_bytes = byte(8) | (byte(9) << 8);
  if (version >= 2) {
    header_begin = 12;
    header_bytes |= (byte(10) << 16) | (byte(11) << 24);
  }
  if (header_bytes > kMaxHeaderBytes || header_bytes > all.size() - header_begin) {
    throw FormatError(
        error_text(where, "header length", "at most the file's", std::to_string(header_bytes)));
  }
  HeaderScanner header(all.substr(header_begin, header_bytes), where);
  header.scan();
  if (!header.descr) header.fail("descr", "this key", "none");
  if (!header.fortran_order) header.fail("fortran_order", "this key", "none");
  if (!header.shape) header.fail("shape", "this key", "none");
  const auto dtype = dtype_from_descr(*header.descr);
  if (!dtype) header.fail("descr", "one of <f8, <f4, <i8, <i4, <u2, |u1", *header.descr);
  if (*header.fortran_order && header.shape->rank() > 1)
    header.fail("fortran_order", "False", "True");

  const std::span<const std::byte> data = file_.bytes().subspan(header_begin + header_bytes);
  int64_t bytes = dtype_bytes(*dtype);
  bool too_large = false;
  for (int axis = 0; axis < header.shape->rank(); ++axis) {
    too_large = too_large || __builtin_mul_overflow(bytes, (*header.shape)[axis], &bytes);
  }
  if (too_large || bytes != static_cast<int64_t>(data.size())) {
    header.fail("data", too_large ? "less than 2^63 bytes" : std::to_string(bytes) + " bytes",
                std::to_string(data.size()));
  }
  array_ = StoredTensor{*dtype, *header.shape, data};
}

}  // namespace deltatrain::formats
