#include "config/primus_pattern.h"

namespace deltatrain::primus {

std::string allocate_sublayers(int64_t num_sublayers, double attention_ratio) {
  const int64_t blocks = num_sublayers / 2;
  const auto attention = static_cast<int64_t>(static_cast<double>(blocks) * attention_ratio);
  const int64_t mixers = blocks - attention;
  std::string symbols;
  const auto add = [&](const char* sublayers, int64_t times) {
    for (int64_t i = 0; i < times; ++i) symbols += sublayers;
  };
  if (attention == 0) {
    add("M-", blocks);
  } else if (attention_ratio <= 0.5) {
    for (int64_t i = 0; i < attention; ++i) {
      add("*-", 1);
      add("M-", mixers / attention);
    }
    add("M-", mixers % attention);
  } else {
    add("*-", attention - mixers);
    add("*-M-", mixers);
  }
  return symbols;
}

std::optional<std::vector<int64_t>> find_attention_blocks(std::string_view symbols) {
  std::vector<int64_t> blocks;
  if (symbols.empty() || symbols.size() % 2 != 0) return std::nullopt;
  for (size_t i = 0; i < symbols.size(); i += 2) {
    if ((symbols[i] != 'M' && symbols[i] != '*') || symbols[i + 1] != '-') return std::nullopt;
    if (symbols[i] == '*') blocks.push_back(static_cast<int64_t>(i / 2));
  }
  return blocks;
}

}  // namespace deltatrain::primus
