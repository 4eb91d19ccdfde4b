#include <algorithm>
#include <string>
#include <vector>

#include "formats/arrow_ipc.h"
#include "fuzz/hostile_file.h"

// Every column of the schema is read as rows of tokens and as text.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static deltatrain::fuzz::HostileFile hostile;
  const auto& path = hostile.fill(data, size);
  return deltatrain::fuzz::refuse_or_accept([&] {
    const deltatrain::formats::ArrowFile file(path);
    std::vector<int32_t> ids;
    int64_t characters = 0;
    for (int64_t batch = 0; batch < std::min<int64_t>(file.num_batches(), 16); ++batch) {
      for (const auto& field : file.fields()) {
        (void)deltatrain::fuzz::refuse_or_accept([&] {
          const auto rows = file.list_column(batch, field.name);
          for (int64_t i = 0; i < std::min<int64_t>(rows.num_rows(), 64); ++i) {
            if (rows.is_null(i)) continue;
            ids.resize(static_cast<size_t>(std::min<int64_t>(rows.length(i), 4096)));
            rows.read(i, 0, ids);
          }
        });
        (void)deltatrain::fuzz::refuse_or_accept([&] {
          const auto texts = file.text_column(batch, field.name);
          for (int64_t i = 0; i < std::min<int64_t>(texts.num_rows(), 64); ++i) {
            for (const char c : texts.text(i).value_or("")) characters += c;
          }
        });
      }
    }
    if (characters == 1) (void)file.path();  // keeps the reads
  });
}
