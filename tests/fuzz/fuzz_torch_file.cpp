#include <algorithm>
#include <vector>

#include "formats/torch_file.h"
#include "fuzz/hostile_file.h"

using deltatrain::formats::PickleValue;
using deltatrain::formats::TorchFile;

// Reads the first elements of every tensor of the dict "model", as a conversion does.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static deltatrain::fuzz::HostileFile hostile;
  return deltatrain::fuzz::refuse_or_accept([&] {
    const TorchFile file(hostile.fill(data, size));
    const PickleValue* model = file.root().find("model");
    if (model == nullptr) return;
    for (size_t i = 0; i + 1 < model->items().size(); i += 2) {
      const PickleValue& value = model->items()[i + 1];
      if (!TorchFile::is_tensor(value)) continue;
      const auto tensor = file.tensor(value, "tensor");
      const int64_t count = std::min<int64_t>(tensor.shape.num_elements(), 4096);
      std::vector<std::byte> bytes(
          static_cast<size_t>(count * deltatrain::dtype_bytes(tensor.dtype)));
      file.read(tensor, 0, count, bytes.data());
      if (count > 0) file.read(tensor, tensor.shape.num_elements() - 1, 1, bytes.data());
    }
  });
}
