// Where a hybrid of the reference attends. One symbol per sublayer:
//
//   M  a recurrent mixer        *  attention        -  a feed-forward layer
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace deltatrain::primus {

// The symbols that the reference allots, in whole numbers, when only the ratio of attention is given.
std::string allocate_sublayers(int64_t num_sublayers, double attention_ratio);

// Blocks, from 0, that attend; none unless mixer or attention and feed-forward layer alternate.
std::optional<std::vector<int64_t>> find_attention_blocks(std::string_view symbols);

}  // namespace deltatrain::primus
