// Loads the module that reads Parquet. It is no part of the program because the libraries of the
// pyarrow wheel export all that was linked into them, such as their own OpenSSL and simdjson:
// linked in, the program would call those instead of the system's, whose headers it was compiled
// with.
#include <dlfcn.h>

#include "base/error.h"
#include "formats/table_rows.h"
#include "formats/text_column.h"

namespace deltatrain::formats {

namespace {

using OpenText = TextColumn*(const std::filesystem::path&, const std::string&);
using OpenRows = TableRows*(const std::filesystem::path&);

struct Module {
  OpenText* open_text = nullptr;
  OpenRows* open_rows = nullptr;
  std::string problem;  // why there is none
};

// The module prefers its own symbols, but sanitizers allow no such libraries.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
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
  void* const library = ::dlopen(path.c_str(), kFlags);
  const auto find = [&](const char* name) {
    void* const door = library == nullptr ? nullptr : ::dlsym(library, name);
    if (door == nullptr && module.problem.empty()) module.problem = ::dlerror();
    return door;
  };
  module.open_text = reinterpret_cast<OpenText*>(find("deltatrain_open_parquet_text"));
  module.open_rows = reinterpret_cast<OpenRows*>(find("deltatrain_open_parquet_rows"));
  return module;
}

const Module& loaded_module() {
  static const Module module = load();
  return module;
}

const Module& module_for(const std::filesystem::path& path) {
  const Module& module = loaded_module();
  if (!module.problem.empty()) {
    throw UnsupportedError(error_text(path.string(), "", "a format that this build reads",
                                      "Parquet: " + module.problem));
  }
  return module;
}

}  // namespace

std::unique_ptr<TextColumn> open_parquet_text(const std::filesystem::path& path,
                                              const std::string& column) {
  return std::unique_ptr<TextColumn>(module_for(path).open_text(path, column));
}

std::unique_ptr<TableRows> open_parquet_rows(const std::filesystem::path& path) {
  return std::unique_ptr<TableRows>(module_for(path).open_rows(path));
}

bool reads_parquet() { return loaded_module().problem.empty(); }

}  // namespace deltatrain::formats
