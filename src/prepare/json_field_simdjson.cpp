#include <simdjson.h>

#include "prepare/json_field.h"

namespace deltatrain::prepare {

namespace {

static_assert(simdjson::SIMDJSON_PADDING <= kJsonPadding);

using Outcome = JsonField::Outcome;

std::string type_name(simdjson::dom::element value) {
  switch (value.type()) {
    case simdjson::dom::element_type::ARRAY:
      return "an array";
    case simdjson::dom::element_type::OBJECT:
      return "an object";
    case simdjson::dom::element_type::STRING:
      return "a string";
    case simdjson::dom::element_type::BOOL:
      return "a truth value";
    case simdjson::dom::element_type::NULL_VALUE:
      return "null";
    default:
      return "a number";
  }
}

class SimdjsonFieldReader final : public JsonFieldReader {
 public:
  JsonField read(std::string_view line, std::string_view key) override {
    // Which of several faults counts, numbers past 64 bits and the last level of nesting are as in
    // every build: the plain reader judges what this one refuses. Releases of simdjson differ on a
    // byte order mark.
    if (line.starts_with(kByteOrderMark)) return plain_->read(line, key);
    simdjson::dom::element root;
    const auto error =
        parser_.parse(line.data(), line.size(), /*realloc_if_needed=*/false).get(root);
    if (error != simdjson::SUCCESS) return plain_->read(line, key);
    simdjson::dom::object object;
    if (root.get(object) != simdjson::SUCCESS)
      return {.outcome = Outcome::kNotAnObject, .got = type_name(root)};
    bool found = false;
    simdjson::dom::element value;
    std::string keys;
    for (const auto& field : object) {
      if (field.key == key) {
        found = true;
        value = field.value;
      } else if (!found && keys.size() < 200) {
        keys += (keys.empty() ? "" : ", ") + std::string(field.key);
      }
    }
    if (!found) return {.outcome = Outcome::kMissing, .got = std::move(keys)};
    JsonField result{.outcome = Outcome::kText};
    if (value.get(result.text) != simdjson::SUCCESS) {
      result.outcome = value.is_null() ? Outcome::kNull : Outcome::kNotText;
      result.got = type_name(value);
    }
    return result;
  }

  void release() override {
    parser_ = simdjson::dom::parser(simdjson::SIMDJSON_MAXSIZE_BYTES);
    plain_->release();
  }

 private:
  std::unique_ptr<JsonFieldReader> plain_ = make_plain_json_field_reader();
  simdjson::dom::parser parser_{simdjson::SIMDJSON_MAXSIZE_BYTES};
};

}  // namespace

std::unique_ptr<JsonFieldReader> make_json_field_reader() {
  return std::make_unique<SimdjsonFieldReader>();
}

}  // namespace deltatrain::prepare
