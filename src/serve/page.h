// The page at "/": a prompt, its answer as it comes, tokens a second, and what else each token might
// have been. One file without anything from elsewhere.
#pragma once

#include <string_view>

namespace deltatrain::serve {

std::string_view page();

}  // namespace deltatrain::serve
