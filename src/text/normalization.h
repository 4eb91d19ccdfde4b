// Canonical normalization forms, as Unicode 9.0 has them: the version of the reference tokenizers.
#pragma once

#include <string>
#include <string_view>

namespace deltatrain::text {

// The text is well-formed UTF-8. Time is linear but for runs of combining marks, which are sorted.
std::string to_nfd(std::string_view text);
std::string to_nfc(std::string_view text);

// Quickly, from each character alone. False may also be said of a text that is in the form.
bool is_surely_nfc(std::string_view text);

}  // namespace deltatrain::text
