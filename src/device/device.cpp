#include "device/context.h"

namespace deltatrain {

static_assert(std::is_copy_constructible_v<Context>);

}  // namespace deltatrain
