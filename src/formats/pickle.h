// Python pickles as trees of plain values. Nothing is imported, called or built: a class or
// function that the pickle names is a name here, and only names on a list are let through at all.
//
// Read: the opcodes of protocols 2 to 5 that torch.save, argparse and numpy use. Written: those of
// protocol 2 that torch's own restricted loader takes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace deltatrain::formats {

enum class PickleKind : uint8_t {
  kNone,
  kBool,
  kInteger,  // fits int64
  kFloat,
  kText,
  kBytes,  // bytes, bytearray; and integers that don't fit, little-endian two's complement
  kList,
  kTuple,
  kDict,  // dict and OrderedDict: keys and values alternate in items
  kSet,
  kGlobal,      // text: "module name"
  kCall,        // text: "module name" of what would be called; items: its arguments; state, entries
  kPersistent,  // items: the persistent id's tuple
};

struct PickleNode;

// A value; containers and texts live in the tree.
struct PickleValue {
  PickleKind kind = PickleKind::kNone;
  union {
    bool boolean;
    int64_t integer;
    double number;
    const PickleNode* node;
  };

  PickleValue() : integer(0) {}
  bool is(PickleKind wanted) const { return kind == wanted; }
  bool is_global(std::string_view name) const;
  const std::string& text() const;                // kText, kBytes, kGlobal, kCall
  const std::vector<PickleValue>& items() const;  // empty for kinds without
  const PickleValue* find(
      std::string_view key) const;  // of a dict with text keys; null when absent
};

struct PickleNode {
  std::string text;
  std::vector<PickleValue> items;
  std::vector<PickleValue> entries;  // kCall: what SETITEMS and APPENDS put into it
  PickleValue state;                 // kCall: what BUILD gave it
};

class PickleTree {
 public:
  // Reads one pickle from the front of `bytes`. FormatError "WHERE: byte N: ..." for anything cut
  // off, malformed, not supported or not on the list of names, and for more than a million objects.
  PickleTree(std::span<const std::byte> bytes, const std::string& where);
  PickleTree(PickleTree&&) noexcept = default;
  PickleTree& operator=(PickleTree&&) noexcept = default;
  PickleTree(const PickleTree&) = delete;
  PickleTree& operator=(const PickleTree&) = delete;

  const PickleValue& root() const { return root_; }
  size_t num_bytes() const { return num_bytes_; }  // of the pickle, STOP included
  const std::deque<PickleNode>& nodes() const { return nodes_; }

 private:
  friend class PickleReader;
  std::deque<PickleNode> nodes_;
  PickleValue root_;
  size_t num_bytes_ = 0;
};

// Whether a pickle may name this class or function ("module name"). Data only: torch's tensors and
// dtypes, OrderedDict, Namespace, numpy arrays, and classes of Megatron, Primus and Transformer
// Engine, whose instances (enums, options) stay opaque.
bool is_allowed_global(std::string_view module, std::string_view name);

// Emits protocol 2, value by value. A dict or list is an opening call, its contents, a closing
// call.
class PickleWriter {
 public:
  PickleWriter();

  void none();
  void boolean(bool value);
  void integer(int64_t value);
  void number(double value);
  void text(std::string_view value);  // UTF-8
  // bytes, in the way of protocol 2: the call of _codecs.encode on their Latin-1 text.
  void bytes(std::string_view value);
  // A one-dimensional numpy array of uint32.
  void numpy_u32(std::span<const uint32_t> values);
  void global(std::string_view module, std::string_view name);
  void begin_dict();
  void begin_ordered_dict();
  void end_dict();
  void begin_list();
  void end_list();
  void begin_tuple();
  void end_tuple();
  // REDUCE of the global and the tuple that were written last.
  void call();
  // The persistent object of the id written last.
  void persistent();
  // An argparse.Namespace; its attributes follow as a dict's entries.
  void begin_namespace();
  void end_namespace();
  // A tensor in storage KEY of `count` elements, contiguous, from its start; storage_class as in
  // "BFloat16Storage".
  void tensor(std::string_view storage_class, std::string_view key, int64_t count,
              std::span<const int64_t> shape);

  std::string finish();

 private:
  void opcode(char code) { out_ += code; }
  std::string out_;
};

}  // namespace deltatrain::formats
