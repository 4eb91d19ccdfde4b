#include "text/token_trie.h"

#include <algorithm>

namespace deltatrain::text {

namespace {
constexpr int32_t kFree = -1;
}

TokenTrie::TokenTrie(std::vector<std::pair<std::string_view, int32_t>> tokens) {
  std::sort(tokens.begin(), tokens.end());
  first_.assign(256, -1);
  starts_.assign(65536, Start{});

  // A node to be placed: the tokens [begin, end) share their first `depth` bytes.
  struct Pending {
    size_t begin, end, depth;
    int32_t node;
  };
  std::vector<Pending> pending = {{0, tokens.size(), 0, 0}};
  nodes_.assign(512, Node{});
  nodes_[0].parent = 0;  // the root is taken
  size_t search = 1;     // slots before this one are nearly all taken
  std::vector<std::pair<unsigned char, Pending>> children;
  while (!pending.empty()) {
    Pending range = pending.back();
    pending.pop_back();
    if (range.begin < range.end && tokens[range.begin].first.size() == range.depth) {
      nodes_[range.node].token = tokens[range.begin].second;
      ++range.begin;
    }
    children.clear();
    for (size_t i = range.begin; i < range.end;) {
      const auto byte = static_cast<unsigned char>(tokens[i].first[range.depth]);
      size_t k = i + 1;
      while (k < range.end && static_cast<unsigned char>(tokens[k].first[range.depth]) == byte) ++k;
      children.push_back({byte, {i, k, range.depth + 1, 0}});
      i = k;
    }
    if (children.empty()) {
      nodes_[range.node].base = 0;
      continue;
    }
    const auto least = static_cast<size_t>(children.front().first);
    size_t slot = std::max(search, least + 1);
    size_t tried = 0, taken = 0;
    while (true) {
      if (slot + 256 >= nodes_.size()) nodes_.resize(nodes_.size() * 2);
      ++tried;
      if (nodes_[slot].parent != kFree) {
        ++taken;
        ++slot;
        continue;
      }
      const bool fits = std::all_of(children.begin(), children.end(), [&](const auto& child) {
        return nodes_[slot - least + child.first].parent == kFree;
      });
      if (fits) break;
      ++slot;
    }
    if (tried > 64 && taken * 20 > tried * 19) search = std::max(search, slot);
    const auto base = static_cast<int32_t>(slot - least);
    nodes_[range.node].base = base;
    for (auto& [byte, child] : children) {
      child.node = base + byte;
      nodes_[child.node].parent = range.node;
    }
    for (auto child = children.rbegin(); child != children.rend(); ++child) pending.push_back(child->second);
  }
  nodes_.resize(nodes_.size() + 256);  // so that base + byte is always inside

  const auto child = [&](int32_t node, size_t byte) {
    const int32_t next = nodes_[node].base + static_cast<int32_t>(byte);
    return next != node && next != 0 && nodes_[next].parent == node ? next : -1;
  };
  for (size_t a = 0; a < 256; ++a) {
    const int32_t one = child(0, a);
    if (one < 0) continue;
    first_[a] = nodes_[one].token;
    for (size_t b = 0; b < 256; ++b) {
      const int32_t two = child(one, b);
      Start& start = starts_[a << 8 | b];
      start.node = two;
      start.token = two >= 0 && nodes_[two].token >= 0 ? nodes_[two].token : first_[a];
      for (size_t c = 0; two >= 0 && c < 256; ++c) {
        if (child(two, c) >= 0) start.third |= uint32_t{1} << (c & 31);
      }
    }
  }
}

}  // namespace deltatrain::text
