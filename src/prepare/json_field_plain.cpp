// For a program without simdjson.
#include "prepare/json_field.h"

namespace deltatrain::prepare {

std::unique_ptr<JsonFieldReader> make_json_field_reader() {
  return make_scanning_json_field_reader();
}

}  // namespace deltatrain::prepare
