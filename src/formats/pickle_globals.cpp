#include <algorithm>
#include <iterator>

#include "formats/pickle.h"

namespace deltatrain::formats {

namespace {

struct Name {
  std::string_view module;
  std::string_view name;
};

constexpr Name kNames[] = {
    {"collections", "OrderedDict"},
    {"collections", "defaultdict"},
    {"collections", "Counter"},
    {"argparse", "Namespace"},
    {"types", "SimpleNamespace"},
    {"pathlib", "PosixPath"},
    {"pathlib", "PurePosixPath"},
    {"pathlib._local", "PosixPath"},
    {"_codecs", "encode"},
    {"_io", "BytesIO"},
    {"signal", "Signals"},
    {"copyreg", "_reconstructor"},
    {"copy_reg", "_reconstructor"},
    {"builtins", "object"},
    {"__builtin__", "object"},
    {"builtins", "set"},
    {"__builtin__", "set"},
    {"builtins", "frozenset"},
    {"builtins", "bytearray"},
    {"__builtin__", "bytearray"},
    {"__builtin__", "bytes"},
    {"datetime", "timedelta"},
    {"torch._utils", "_rebuild_tensor"},
    {"torch._utils", "_rebuild_tensor_v2"},
    {"torch._utils", "_rebuild_tensor_v3"},
    {"torch._utils", "_rebuild_parameter"},
    {"torch._utils", "_rebuild_parameter_with_state"},
    {"torch", "Size"},
    {"torch", "device"},
    {"torch", "Tensor"},
    {"torch.nn.parameter", "Parameter"},
    {"torch.storage", "UntypedStorage"},
    {"torch.serialization", "_get_layout"},
    {"numpy", "ndarray"},
    {"numpy", "dtype"},
    {"numpy.core.multiarray", "_reconstruct"},
    {"numpy._core.multiarray", "_reconstruct"},
    {"numpy.core.multiarray", "scalar"},
    {"numpy._core.multiarray", "scalar"},
};

// Dtypes and storage classes in module torch.
constexpr std::string_view kDTypeNames[] = {"float64",
                                            "float32",
                                            "float16",
                                            "bfloat16",
                                            "int64",
                                            "int32",
                                            "int16",
                                            "int8",
                                            "uint8",
                                            "uint16",
                                            "uint32",
                                            "uint64",
                                            "bool",
                                            "complex64",
                                            "complex128",
                                            "float8_e4m3fn",
                                            "float8_e5m2",
                                            "float8_e4m3fnuz",
                                            "float8_e5m2fnuz",
                                            "DoubleStorage",
                                            "FloatStorage",
                                            "HalfStorage",
                                            "BFloat16Storage",
                                            "LongStorage",
                                            "IntStorage",
                                            "ShortStorage",
                                            "CharStorage",
                                            "ByteStorage",
                                            "BoolStorage",
                                            "ComplexFloatStorage",
                                            "ComplexDoubleStorage"};

constexpr std::string_view kOpaquePackages[] = {"megatron", "primus", "transformer_engine",
                                                "transformer_engine_torch"};

// A dotted path of plain words, so that nothing such as "megatron/../os" passes for a package.
bool is_dotted_name(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.';
  });
}

}  // namespace

bool is_allowed_global(std::string_view module, std::string_view name) {
  for (const Name& allowed : kNames) {
    if (allowed.module == module && allowed.name == name) return true;
  }
  if (module == "torch") {
    return std::find(std::begin(kDTypeNames), std::end(kDTypeNames), name) != std::end(kDTypeNames);
  }
  if (module == "numpy.dtypes" && name.ends_with("DType") && is_dotted_name(name)) return true;
  const std::string_view package = module.substr(0, module.find('.'));
  return std::find(std::begin(kOpaquePackages), std::end(kOpaquePackages), package) !=
             std::end(kOpaquePackages) &&
         is_dotted_name(module) && is_dotted_name(name);
}

}  // namespace deltatrain::formats
