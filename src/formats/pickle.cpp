#include "formats/pickle.h"

#include <cstring>
#include <unordered_map>

#include "base/error.h"

namespace deltatrain::formats {

namespace {

constexpr size_t kMaxNodes = 1'000'000;
constexpr size_t kMaxWork = 8'000'000;  // values pushed, copied, marked or remembered

const std::vector<PickleValue>& no_items() {
  static const std::vector<PickleValue> empty;
  return empty;
}

bool has_node(PickleKind kind) { return kind >= PickleKind::kText; }

}  // namespace

bool PickleValue::is_global(std::string_view name) const {
  return kind == PickleKind::kGlobal && node->text == name;
}

const std::string& PickleValue::text() const {
  static const std::string empty;
  return has_node(kind) ? node->text : empty;
}

const std::vector<PickleValue>& PickleValue::items() const {
  return has_node(kind) ? node->items : no_items();
}

const PickleValue* PickleValue::find(std::string_view key) const {
  if (kind != PickleKind::kDict) return nullptr;
  const std::vector<PickleValue>& all = node->items;
  for (size_t i = 0; i + 1 < all.size(); i += 2) {
    if (all[i].is(PickleKind::kText) && all[i].text() == key) return &all[i + 1];
  }
  return nullptr;
}

// A stack machine that builds the tree; one method per group of opcodes.
class PickleReader {
 public:
  PickleReader(PickleTree& tree, std::span<const std::byte> bytes, const std::string& where)
      : tree_(tree), bytes_(bytes), where_(where) {}

  void run() {
    for (;;) {
      opcode_at_ = at_;
      const auto code = static_cast<uint8_t>(byte());
      if (code == '.') break;
      step(code);
    }
    if (stack_.size() != 1 || !marks_.empty())
      fail("one value at the end", std::to_string(stack_.size()));
    tree_.root_ = stack_.back();
    tree_.num_bytes_ = at_;
  }

 private:
  [[noreturn]] void fail(const std::string& expected, const std::string& got) const {
    throw FormatError(error_text(where_, "byte " + std::to_string(opcode_at_), expected, got));
  }

  char byte() {
    if (at_ >= bytes_.size()) fail("a pickle that ends", "the end of the data");
    return static_cast<char>(bytes_[at_++]);
  }

  std::string_view take(uint64_t count) {
    if (count > bytes_.size() - at_) {
      fail(std::to_string(count) + " bytes",
           std::to_string(bytes_.size() - at_) + " to the end of the data");
    }
    const std::string_view part(reinterpret_cast<const char*>(bytes_.data()) + at_, count);
    at_ += count;
    return part;
  }

  uint64_t number(size_t width) {
    const std::string_view part = take(width);
    uint64_t value = 0;
    for (size_t i = width; i > 0; --i)
      value = (value << 8) | static_cast<unsigned char>(part[i - 1]);
    return value;
  }

  std::string_view line() {
    const std::string_view rest(reinterpret_cast<const char*>(bytes_.data()) + at_,
                                bytes_.size() - at_);
    const size_t end = rest.find('\n');
    if (end == std::string_view::npos) fail("a line", "the end of the data");
    at_ += end + 1;
    return rest.substr(0, end);
  }

  PickleNode& new_node() {
    if (tree_.nodes_.size() >= kMaxNodes)
      fail("at most " + std::to_string(kMaxNodes) + " objects", "more");
    return tree_.nodes_.emplace_back();
  }

  static PickleValue with_node(PickleKind kind, PickleNode& node) {
    PickleValue value;
    value.kind = kind;
    value.node = &node;
    return value;
  }

  // Bounds memory whatever the input: nothing grows that was not charged for.
  void charge(size_t amount) {
    work_ += amount;
    if (work_ > kMaxWork) fail("at most " + std::to_string(kMaxWork) + " values", "more");
  }

  void push(const PickleValue& value) {
    charge(1);
    stack_.push_back(value);
  }
  void push_node(PickleKind kind, std::string_view text = {}) {
    PickleNode& node = new_node();
    node.text = text;
    push(with_node(kind, node));
  }
  void push_integer(int64_t integer) {
    PickleValue value;
    value.kind = PickleKind::kInteger;
    value.integer = integer;
    push(value);
  }
  void push_boolean(bool boolean) {
    PickleValue value;
    value.kind = PickleKind::kBool;
    value.boolean = boolean;
    push(value);
  }

  // Number of values above the last mark, or on the stack.
  size_t available() const { return stack_.size() - (marks_.empty() ? 0 : marks_.back()); }

  PickleValue& top() {
    if (available() == 0) fail("a value on the stack", "none");
    return stack_.back();
  }
  PickleValue pop() {
    const PickleValue value = top();
    stack_.pop_back();
    return value;
  }
  std::vector<PickleValue> pop_to_mark() {
    if (marks_.empty()) fail("a mark on the stack", "none");
    const auto begin = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<PickleValue> values(begin, stack_.end());
    stack_.erase(begin, stack_.end());
    marks_.pop_back();
    return values;
  }
  std::vector<PickleValue> pop_count(size_t count) {
    if (available() < count)
      fail(std::to_string(count) + " values on the stack", std::to_string(available()));
    std::vector<PickleValue> values(stack_.end() - static_cast<std::ptrdiff_t>(count),
                                    stack_.end());
    stack_.resize(stack_.size() - count);
    return values;
  }
  void push_items(PickleKind kind, std::vector<PickleValue> items) {
    PickleNode& node = new_node();
    node.items = std::move(items);
    push(with_node(kind, node));
  }

  // The tree owns all nodes; while it is read they may change.
  static PickleNode& mutable_node(const PickleValue& value) {
    return *const_cast<PickleNode*>(value.node);
  }

  static void append_all(std::vector<PickleValue>& to, const std::vector<PickleValue>& values) {
    to.insert(to.end(), values.begin(), values.end());
  }

  void append(const std::vector<PickleValue>& values) {
    const PickleValue target = top();
    if (target.is(PickleKind::kList) || target.is(PickleKind::kSet)) {
      append_all(mutable_node(target).items, values);
    } else if (target.is(PickleKind::kCall)) {
      append_all(mutable_node(target).entries, values);
    } else {
      fail("a list to append to", "another value");
    }
  }

  void set_items(const std::vector<PickleValue>& values) {
    if (values.size() % 2 != 0) fail("keys with values", "an odd number");
    const PickleValue target = top();
    if (target.is(PickleKind::kDict)) {
      append_all(mutable_node(target).items, values);
    } else if (target.is(PickleKind::kCall)) {
      append_all(mutable_node(target).entries, values);
    } else {
      fail("a dict to put items into", "another value");
    }
  }

  void push_global(std::string_view module, std::string_view name) {
    if (!is_allowed_global(module, name)) {
      std::string shown = std::string(module.substr(0, 80)) + "." + std::string(name.substr(0, 80));
      for (char& c : shown) {
        if (static_cast<unsigned char>(c) < 0x20) c = '?';
      }
      fail("a class or function that only holds data", shown + ", which is refused");
    }
    push_node(PickleKind::kGlobal, std::string(module) + " " + std::string(name));
  }

  // What REDUCE, NEWOBJ and NEWOBJ_EX would call; an OrderedDict is a dict.
  void push_call(const PickleValue& callable, const PickleValue& arguments) {
    if (!callable.is(PickleKind::kGlobal)) fail("a name to call", "another value");
    if (!arguments.is(PickleKind::kTuple)) fail("a tuple of arguments", "another value");
    if (callable.is_global("collections OrderedDict") && arguments.items().empty()) {
      push_node(PickleKind::kDict);
      return;
    }
    PickleNode& node = new_node();
    charge(arguments.items().size());
    node.text = callable.text();
    node.items = arguments.items();
    push(with_node(PickleKind::kCall, node));
  }

  void build() {
    const PickleValue state = pop();
    const PickleValue target = top();
    if (target.is(PickleKind::kCall)) {
      mutable_node(target).state = state;
    } else if (!target.is(
                   PickleKind::kDict)) {  // an OrderedDict's attributes say nothing of its items
      fail("an object to give a state", "another value");
    }
  }

  void put(uint64_t index) {
    charge(1);
    memo_[index] = top();
  }
  void get(uint64_t index) {
    const auto it = memo_.find(index);
    if (it == memo_.end()) fail("a remembered value " + std::to_string(index), "none");
    push(it->second);
  }

  void push_long(std::string_view digits) {
    if (digits.size() > 8) {
      push_node(PickleKind::kBytes, digits);
      return;
    }
    uint64_t value = 0;
    for (size_t i = digits.size(); i > 0; --i)
      value = (value << 8) | static_cast<unsigned char>(digits[i - 1]);
    const bool negative =
        !digits.empty() && (static_cast<unsigned char>(digits.back()) & 0x80U) != 0;
    if (negative && digits.size() < 8) value |= ~uint64_t{0} << (8 * digits.size());
    push_integer(static_cast<int64_t>(value));
  }

  void step(uint8_t code) {
    switch (code) {
      case 0x80: {  // PROTO
        const auto protocol = static_cast<uint8_t>(byte());
        if (protocol < 2 || protocol > 5) fail("protocol 2 to 5", std::to_string(protocol));
        return;
      }
      case 0x95:  // FRAME
        number(8);
        return;
      case '(':
        charge(1);
        marks_.push_back(stack_.size());
        return;
      case '0':
        pop();
        return;
      case '1':
        pop_to_mark();
        return;
      case '2':
        push(top());
        return;
      case 'N':
        push(PickleValue());
        return;
      case 0x88:
        return push_boolean(true);
      case 0x89:
        return push_boolean(false);
      case 'J':
        return push_integer(static_cast<int32_t>(number(4)));
      case 'K':
        return push_integer(static_cast<int64_t>(number(1)));
      case 'M':
        return push_integer(static_cast<int64_t>(number(2)));
      case 0x8a:
        return push_long(take(number(1)));
      case 0x8b:
        return push_long(take(number(4)));
      case 'G': {
        const std::string_view part = take(8);
        uint64_t bits = 0;
        for (const char c : part) bits = (bits << 8) | static_cast<unsigned char>(c);
        PickleValue value;
        value.kind = PickleKind::kFloat;
        std::memcpy(&value.number, &bits, sizeof bits);
        return push(value);
      }
      case 'X':
        return push_node(PickleKind::kText, take(number(4)));
      case 0x8c:
        return push_node(PickleKind::kText, take(number(1)));
      case 0x8d:
        return push_node(PickleKind::kText, take(number(8)));
      case 'U':
        return push_node(PickleKind::kText, take(number(1)));
      case 'T':
        return push_node(PickleKind::kText, take(number(4)));
      case 'B':
        return push_node(PickleKind::kBytes, take(number(4)));
      case 'C':
        return push_node(PickleKind::kBytes, take(number(1)));
      case 0x8e:
      case 0x96:
        return push_node(PickleKind::kBytes, take(number(8)));
      case ']':
        return push_node(PickleKind::kList);
      case ')':
        return push_node(PickleKind::kTuple);
      case '}':
        return push_node(PickleKind::kDict);
      case 0x8f:
        return push_node(PickleKind::kSet);
      case 'l':
        return push_items(PickleKind::kList, pop_to_mark());
      case 't':
        return push_items(PickleKind::kTuple, pop_to_mark());
      case 0x91:
        return push_items(PickleKind::kSet, pop_to_mark());
      case 'd': {
        std::vector<PickleValue> values = pop_to_mark();
        if (values.size() % 2 != 0) fail("keys with values", "an odd number");
        return push_items(PickleKind::kDict, std::move(values));
      }
      case 0x85:
      case 0x86:
      case 0x87:
        return push_items(PickleKind::kTuple, pop_count(code - 0x84U));
      case 'a':
        return append(pop_count(1));
      case 'e':
      case 0x90:
        return append(pop_to_mark());
      case 's':
        return set_items(pop_count(2));
      case 'u':
        return set_items(pop_to_mark());
      case 'c': {
        const std::string_view module = line();
        return push_global(module, line());
      }
      case 0x93: {
        const PickleValue name = pop();
        const PickleValue module = pop();
        if (!name.is(PickleKind::kText) || !module.is(PickleKind::kText))
          fail("two names", "other values");
        return push_global(module.text(), name.text());
      }
      case 'R':
      case 0x81: {
        const PickleValue arguments = pop();
        return push_call(pop(), arguments);
      }
      case 0x92: {
        pop();  // keyword arguments
        const PickleValue arguments = pop();
        return push_call(pop(), arguments);
      }
      case 'b':
        return build();
      case 'Q': {
        const PickleValue id = pop();
        if (!id.is(PickleKind::kTuple)) fail("a tuple as persistent id", "another value");
        charge(id.items().size());
        return push_items(PickleKind::kPersistent, id.items());
      }
      case 'q':
        return put(number(1));
      case 'r':
        return put(number(4));
      case 0x94:
        return put(memo_.size());
      case 'h':
        return get(number(1));
      case 'j':
        return get(number(4));
      default:
        fail("an opcode of torch.save's pickles", std::to_string(code));
    }
  }

  PickleTree& tree_;
  std::span<const std::byte> bytes_;
  const std::string& where_;
  size_t at_ = 0;
  size_t opcode_at_ = 0;
  size_t work_ = 0;
  std::vector<PickleValue> stack_;
  std::vector<size_t> marks_;
  std::unordered_map<uint64_t, PickleValue> memo_;
};

PickleTree::PickleTree(std::span<const std::byte> bytes, const std::string& where) {
  PickleReader(*this, bytes, where).run();
}

}  // namespace deltatrain::formats
