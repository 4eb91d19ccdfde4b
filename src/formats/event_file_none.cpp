// Of builds without protobuf; event_file_protobuf.cpp of the others.
#include "formats/event_file.h"

namespace deltatrain::formats {

std::unique_ptr<EventFile> make_event_file(const std::filesystem::path&, double, int64_t) {
  return nullptr;
}

}  // namespace deltatrain::formats
