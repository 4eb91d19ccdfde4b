// Loads the module that reads Parquet. It is no part of the program because the libraries of the
// pyarrow wheel export all that was linked into them, such as their own OpenSSL and simdjson:
// linked in, the program would call those instead of the system's, whose headers it was compiled
// with.
#include <dlfcn.h>

#include "base/error.h"
#include "formats/text_column.h"

namespace deltatrain::formats {

namespace {

using Open = TextColumn*(const std::filesystem::path&, const std::string&);

struct Module {
  Open* open = nullptr;
  std::string problem;  // why there is none
};

// The module prefers its own symbols, but sanitizers allow no such libraries.
#if defined(__SANITIZE_ADDRESS__)
constexpr int kFlags = RTLD_NOW | RTLD_LOCAL;
#else
constexpr int kFlags = RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND;
#endif

Module load() {
  Module module;
  const auto program = std::filesystem::read_symlink("/proc/self/exe");
  const auto path = program.parent_path() / "deltatrain_parquet.so";
  if (!std::filesystem::exists(path)) {
    module.problem =
        "the program was built without Arrow C++ (tools/setup.sh installs it, the CMake option "
        "DELTATRAIN_ARROW takes it in)";
    return module;
  }
  void* library = ::dlopen(path.c_str(), kFlags);
  if (library != nullptr)
    module.open = reinterpret_cast<Open*>(::dlsym(library, "deltatrain_open_parquet_text"));
  if (module.open == nullptr) module.problem = ::dlerror();
  return module;
}

const Module& loaded_module() {
  static const Module module = load();
  return module;
}

}  // namespace

std::unique_ptr<TextColumn> open_parquet_text(const std::filesystem::path& path,
                                              const std::string& column) {
  const Module& module = loaded_module();
  if (module.open == nullptr) {
    throw UnsupportedError(error_text(path.string(), "", "a format that this build reads",
                                      "Parquet: " + module.problem));
  }
  return std::unique_ptr<TextColumn>(module.open(path, column));
}

bool reads_parquet() { return loaded_module().open != nullptr; }

}  // namespace deltatrain::formats
