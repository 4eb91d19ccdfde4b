// A library that is opened at run time, so that the program starts without it and says what is missing.
#pragma once

#include <string>

namespace deltatrain::backend::cuda {

class LoadedLibrary {
 public:
  // Opens `file` ("libnccl.so.2") on the program's search path, or else where the toolkit installs itself; it stays
  // open. Messages begin with `where` ("device cuda") and call the library `name`. DeviceError with the loader's own
  // text where it is missing.
  LoadedLibrary(const char* where, const char* name, const char* file);

  // DeviceError where the library has no function of this name.
  template <class Function>
  void find(const char* name, Function& function) const {
    function = reinterpret_cast<Function>(address_of(name));
  }

 private:
  void* address_of(const char* name) const;

  std::string where_, file_;
  void* handle_ = nullptr;
};

}  // namespace deltatrain::backend::cuda
