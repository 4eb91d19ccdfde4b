#include <nlohmann/json.hpp>

#include "prepare/json_field.h"
#include "text/utf8.h"

namespace deltatrain::prepare {

namespace {

using Outcome = JsonField::Outcome;

// Whether what was read since the last string or number began is a string with an escape that stands
// for no character. Where the string is whole, or lacks nothing but its end, the fault is another.
bool has_bad_escape(std::string read) {
  if (!read.starts_with('"')) return false;
  size_t end = 1;
  while (end < read.size() && read[end] != '"') end += read[end] == '\\' ? 2 : 1;
  if (end > read.size()) return false;  // cut behind a backslash
  read.resize(end);
  return !nlohmann::json::accept(read + '"');
}

// Receives the parts of a line in order. Levels count open arrays and objects.
class FieldEvents final : public nlohmann::json_sax<nlohmann::json> {
 public:
  FieldEvents(std::string_view key, std::string& text) : key_(key), text_(text) {}

  bool null() override { return value("null"); }
  bool boolean(bool) override { return value("a truth value"); }
  bool number_integer(number_integer_t) override { return value("a number"); }
  bool number_unsigned(number_unsigned_t) override { return value("a number"); }
  bool number_float(number_float_t, const string_t&) override { return value("a number"); }
  bool binary(binary_t&) override { return value("bytes"); }
  bool string(string_t& text) override {
    if (is_wanted()) text_ = std::move(text);
    return value("a string");
  }
  bool start_object(size_t) override { return open("an object"); }
  bool start_array(size_t) override { return open("an array"); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    if (level_ != 1) return true;
    in_field_ = name == key_;
    if (!in_field_ && found_ == nullptr && keys_.size() < 200)
      keys_ += (keys_.empty() ? "" : ", ") + name;
    return true;
  }
  bool parse_error(size_t position, const std::string& token,
                   const nlohmann::json::exception&) override {
    problem_ = "no JSON from byte " + std::to_string(position > 0 ? position - 1 : 0) + " on";
    bad_escape_ = has_bad_escape(token);
    return false;
  }

  JsonField result(bool complete) const {
    if (!complete)
      return {.outcome = bad_escape_ ? Outcome::kBadString : Outcome::kBroken, .got = problem_};
    if (std::string_view(root_) != "an object")
      return {.outcome = Outcome::kNotAnObject, .got = root_};
    if (found_ == nullptr) return {.outcome = Outcome::kMissing, .got = keys_};
    const std::string_view type = found_;
    if (type == "a string") return {.outcome = Outcome::kText, .text = text_};
    return {.outcome = type == "null" ? Outcome::kNull : Outcome::kNotText, .got = found_};
  }

 private:
  bool is_wanted() const { return level_ == 1 && in_field_; }
  bool value(const char* type) {
    if (level_ == 0) root_ = type;
    if (is_wanted()) found_ = type;
    return true;
  }
  bool open(const char* type) {
    value(type);
    if (++level_ <= kMaxJsonDepth) return true;
    problem_ = "nested more than 1,024 deep";
    return false;
  }
  bool close() {
    --level_;
    return true;
  }

  std::string_view key_;
  std::string& text_;
  int level_ = 0;
  bool in_field_ = false;
  bool bad_escape_ = false;
  const char* root_ = "";
  const char* found_ = nullptr;  // the kind of the last value under the key
  std::string keys_, problem_;
};

class PlainJsonFieldReader final : public JsonFieldReader {
 public:
  JsonField read(std::string_view line, std::string_view key) override {
    if (text::find_ill_formed_utf8(line) != std::string_view::npos)
      return {.outcome = Outcome::kIllFormedUtf8};
    if (line.starts_with(kByteOrderMark))
      return {.outcome = Outcome::kBroken, .got = "a byte order mark at 0"};
    // Which the parser would take for the end.
    const size_t zero = line.find('\0');
    if (zero != std::string_view::npos)
      return {.outcome = Outcome::kBroken, .got = "a zero byte at " + std::to_string(zero)};
    FieldEvents events(key, text_);
    const bool complete = nlohmann::json::sax_parse(line.begin(), line.end(), &events);
    return events.result(complete);
  }

  void release() override { std::string().swap(text_); }

 private:
  std::string text_;
};

}  // namespace

std::unique_ptr<JsonFieldReader> make_plain_json_field_reader() {
  return std::make_unique<PlainJsonFieldReader>();
}

}  // namespace deltatrain::prepare
