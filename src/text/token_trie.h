// A set of byte strings with ids, made to find the longest
// one at the start of a text: one memory access for each byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace deltatrain::text {

class TokenTrie {
 public:
  // `tokens` are different and not empty; ids are not negative.
  explicit TokenTrie(std::vector<std::pair<std::string_view, int32_t>> tokens = {});

  // The id of the longest token that the text starts with, or -1.
  int32_t longest(const char* text, size_t bytes) const {
    if (bytes < 2) return bytes == 0 ? -1 : first_[static_cast<unsigned char>(text[0])];
    const size_t two = static_cast<size_t>(static_cast<unsigned char>(text[0])) << 8 | static_cast<unsigned char>(text[1]);
    Start start = starts_[two];
    int32_t node = start.node;
    int32_t found = start.token;
    if (bytes < 3 || (start.third >> (static_cast<unsigned char>(text[2]) & 31) & 1) == 0) return found;
    for (size_t i = 2; i < bytes; ++i) {
      const int32_t next = nodes_[node].base + static_cast<unsigned char>(text[i]);
      if (nodes_[next].parent != node) break;
      node = next;
      if (nodes_[node].token >= 0) found = nodes_[node].token;
    }
    return found;
  }

 private:
  // A double array: the child of `node` for byte b is base + b, if that one's parent is `node`.
  struct Node {
    int32_t base = 0;
    int32_t parent = -1;
    int32_t token = -1;
  };
  struct Start {
    int32_t node = -1;   // behind two bytes, if tokens go on
    int32_t token = -1;  // the longest of at most two bytes
    uint32_t third = 0;  // five low bits of the bytes with which tokens go on: most are ruled out from near memory
  };
  std::vector<Node> nodes_;
  std::vector<int32_t> first_;  // tokens of one byte
  std::vector<Start> starts_;   // by the first two bytes
};

}  // namespace deltatrain::text
