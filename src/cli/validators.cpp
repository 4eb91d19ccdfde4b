#include "cli/validators.h"

#include <charconv>
#include <string>
#include <system_error>

#include "base/error.h"
#include "text/utf8.h"

namespace deltatrain::cli {

CLI::Validator whole_number(uint64_t low, uint64_t high) {
  const bool is_open = high == std::numeric_limits<uint64_t>::max();
  const std::string bounds = is_open
                                 ? ">= " + std::to_string(low)
                                 : "from " + std::to_string(low) + " to " + std::to_string(high);
  const auto check = [=](const std::string& text) -> std::string {
    uint64_t value = 0;
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    if (error == std::errc() && stop == end && value >= low && value <= high) return "";
    return error_text("", "", "a whole number " + bounds, "\"" + text + "\"");
  };
  return {check,
          is_open ? bounds : "in [" + std::to_string(low) + " - " + std::to_string(high) + "]"};
}

CLI::Validator well_formed_text() {
  const auto check = [](const std::string& text) -> std::string {
    const size_t bad = text::find_ill_formed_utf8(text);
    if (!text.empty() && bad == std::string::npos) return "";
    return error_text("", "", "a text in UTF-8",
                      text.empty() ? "an empty one"
                                   : "other bytes from offset " + std::to_string(bad) + " on");
  };
  return {check, "TEXT"};
}

}  // namespace deltatrain::cli
