#include "prepare/json_field.h"

namespace deltatrain::prepare {

std::unique_ptr<JsonFieldReader> make_json_field_reader() { return make_plain_json_field_reader(); }

}  // namespace deltatrain::prepare
