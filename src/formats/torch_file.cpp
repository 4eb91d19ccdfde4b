#include "formats/torch_file.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/check.h"
#include "base/error.h"
#include "base/read_ahead.h"

namespace deltatrain::formats {

namespace {

constexpr size_t kMaxPickleBytes = 256 << 20;

struct TypeName {
  std::string_view name;
  DType dtype;
};

constexpr TypeName kStorageClasses[] = {
    {"torch DoubleStorage", DType::kF64}, {"torch FloatStorage", DType::kF32},
    {"torch HalfStorage", DType::kF16},   {"torch BFloat16Storage", DType::kBF16},
    {"torch LongStorage", DType::kI64},   {"torch IntStorage", DType::kI32},
    {"torch ByteStorage", DType::kU8},
};

constexpr TypeName kTorchDTypes[] = {
    {"torch float64", DType::kF64}, {"torch float32", DType::kF32},
    {"torch float16", DType::kF16}, {"torch bfloat16", DType::kBF16},
    {"torch int64", DType::kI64},   {"torch int32", DType::kI32},
    {"torch uint8", DType::kU8},    {"torch uint16", DType::kU16},
};

template <size_t N>
std::optional<DType> lookup(const TypeName (&table)[N], const PickleValue& value) {
  if (!value.is(PickleKind::kGlobal)) return std::nullopt;
  for (const TypeName& row : table) {
    if (row.name == value.text()) return row.dtype;
  }
  return std::nullopt;
}

// The rebuilding call inside a Parameter, or the value itself.
const PickleValue& unwrap_parameter(const PickleValue& value) {
  const bool parameter = value.is(PickleKind::kCall) &&
                         (value.text() == "torch._utils _rebuild_parameter" ||
                          value.text() == "torch._utils _rebuild_parameter_with_state") &&
                         !value.items().empty();
  return parameter ? value.items()[0] : value;
}

bool is_rebuild(const PickleValue& value) {
  return value.is(PickleKind::kCall) && (value.text() == "torch._utils _rebuild_tensor_v2" ||
                                         value.text() == "torch._utils _rebuild_tensor_v3" ||
                                         value.text() == "torch._utils _rebuild_tensor");
}

std::optional<std::vector<int64_t>> integers(const PickleValue& value) {
  // A torch.Size is a call on a tuple.
  const PickleValue& tuple =
      value.is(PickleKind::kCall) && value.text() == "torch Size" && value.items().size() == 1
          ? value.items()[0]
          : value;
  if (!tuple.is(PickleKind::kTuple) && !tuple.is(PickleKind::kList)) return std::nullopt;
  std::vector<int64_t> result;
  for (const PickleValue& item : tuple.items()) {
    if (!item.is(PickleKind::kInteger)) return std::nullopt;
    result.push_back(item.integer);
  }
  return result;
}

uint64_t read_u64(std::span<const std::byte> from) {
  uint64_t value = 0;
  for (size_t i = 8; i > 0; --i) value = (value << 8) | std::to_integer<uint64_t>(from[i - 1]);
  return value;
}

}  // namespace

TorchFile::TorchFile(const std::filesystem::path& path) : path_(path) {
  if (looks_like_zip(path)) {
    open_zip();
  } else {
    open_legacy();
  }
}

void TorchFile::open_zip() {
  zip_ = std::make_unique<ZipArchive>(path_);
  const std::string where = path_.string();
  for (const auto& [name, member] : zip_->members()) {
    if (!name.ends_with("/data.pkl")) continue;
    if (!zip_root_.empty()) throw FormatError(error_text(where, "", "one data.pkl", "two"));
    zip_root_ = name.substr(0, name.size() - 8);
  }
  if (zip_root_.empty()) {
    throw FormatError(
        error_text(where, "", "a file of torch.save, with data.pkl in it", "another ZIP archive"));
  }
  if (const ZipArchive::Member* order = zip_->find(zip_root_ + "byteorder"); order != nullptr) {
    const std::string_view text(reinterpret_cast<const char*>(order->bytes.data()),
                                order->bytes.size());
    if (text != "little")
      throw FormatError(error_text(where, "byteorder", "little", std::string(text.substr(0, 20))));
  }
  const std::string name = zip_root_ + "data.pkl";
  const ZipArchive::Member& pickle = *zip_->find(name);
  if (pickle.bytes.size() > kMaxPickleBytes) {
    throw FormatError(error_text(where, name,
                                 "at most " + std::to_string(kMaxPickleBytes) + " bytes",
                                 std::to_string(pickle.bytes.size())));
  }
  zip_->check_crc32(name);
  tree_ = std::make_unique<PickleTree>(pickle.bytes, where + ": " + name);
}

// Pickles of a magic number, a protocol version, system information, the object and the list of
// storage keys; then for each key the number of elements and the bytes.
void TorchFile::open_legacy() {
  legacy_ = std::make_unique<MappedFile>(path_);
  const std::string where = path_.string();
  std::span<const std::byte> rest = legacy_->bytes();
  static constexpr unsigned char kMagic[] = {0x80, 0x02, 0x8a, 0x0a, 0x6c, 0xfc, 0x9c, 0x46,
                                             0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19, 0x2e};
  if (rest.size() < sizeof kMagic || std::memcmp(rest.data(), kMagic, sizeof kMagic) != 0) {
    throw FormatError(error_text(where, "", "a file of torch.save", "something else"));
  }
  const auto next = [&rest, &where](const char* what) {
    auto tree = std::make_unique<PickleTree>(rest.first(std::min(rest.size(), kMaxPickleBytes)),
                                             where + ": " + what);
    rest = rest.subspan(tree->num_bytes());
    return tree;
  };
  next("magic number");
  const auto version = next("version");
  if (!version->root().is(PickleKind::kInteger) || version->root().integer != 1001) {
    throw FormatError(error_text(where, "version", "1001", "another"));
  }
  const auto system = next("system information");
  const PickleValue* little = system->root().find("little_endian");
  if (little == nullptr || !little->is(PickleKind::kBool) || !little->boolean) {
    throw FormatError(error_text(where, "little_endian", "True", "another value"));
  }
  tree_ = next("object");
  const auto keys = next("storage keys");
  if (!keys->root().is(PickleKind::kList))
    throw FormatError(error_text(where, "storage keys", "a list", "another value"));

  // Element sizes are in the persistent ids of the tree, so the storages' ends are found as they
  // are met.
  std::map<std::string, int64_t> widths;
  collect_widths(widths);
  for (const PickleValue& key : keys->root().items()) {
    const auto width = key.is(PickleKind::kText) ? widths.find(key.text()) : widths.end();
    if (width == widths.end())
      throw FormatError(error_text(where, "storage keys", "storages of the object", "another"));
    if (rest.size() < 8)
      throw FormatError(
          error_text(where, "storage " + key.text(), "its length", "the end of the file"));
    const uint64_t count = read_u64(rest);
    rest = rest.subspan(8);
    if (count > rest.size() / static_cast<uint64_t>(width->second)) {
      throw FormatError(error_text(where, "storage " + key.text(),
                                   "at most " + std::to_string(rest.size()) + " bytes",
                                   std::to_string(count) + " elements"));
    }
    const size_t bytes = count * static_cast<size_t>(width->second);
    if (!legacy_storages_.emplace(key.text(), rest.first(bytes)).second) {
      throw FormatError(error_text(where, "storage " + key.text(), "one of this key", "two"));
    }
    rest = rest.subspan(bytes);
  }
}

void TorchFile::collect_widths(std::map<std::string, int64_t>& widths) const {
  for (const PickleNode& node : tree_->nodes()) {
    // Persistent ids: ("storage", class, key, location, count, None).
    if (node.items.size() < 5 || !node.items[0].is(PickleKind::kText) ||
        node.items[0].text() != "storage" || !node.items[2].is(PickleKind::kText)) {
      continue;
    }
    const auto dtype = lookup(kStorageClasses, node.items[1]);
    if (!dtype) {
      throw FormatError(error_text(path_.string(), "storage " + node.items[2].text(),
                                   "a dtype that is supported", node.items[1].text()));
    }
    widths[node.items[2].text()] = dtype_bytes(*dtype);
  }
}

std::span<const std::byte> TorchFile::storage(const std::string& key) const {
  if (zip_) {
    const ZipArchive::Member* member = zip_->find(zip_root_ + "data/" + key);
    if (member == nullptr)
      throw FormatError(
          error_text(path_.string(), "data/" + key.substr(0, 40), "this member", "none"));
    return member->bytes;
  }
  const auto it = legacy_storages_.find(key);
  if (it == legacy_storages_.end()) {
    throw FormatError(
        error_text(path_.string(), "storage " + key.substr(0, 40), "its data", "none"));
  }
  return it->second;
}

bool TorchFile::is_tensor(const PickleValue& value) { return is_rebuild(unwrap_parameter(value)); }

TorchTensor TorchFile::tensor(const PickleValue& value, const std::string& name) const {
  const PickleValue& call = unwrap_parameter(value);
  const auto fail = [&](const std::string& expected, const std::string& got) {
    throw FormatError(error_text(path_.string(), name, expected, got));
  };
  if (!is_rebuild(call)) fail("a tensor", "another value");
  const std::vector<PickleValue>& arguments = call.items();
  if (arguments.size() < 4 || !arguments[0].is(PickleKind::kPersistent) ||
      !arguments[1].is(PickleKind::kInteger)) {
    fail("a storage, an offset, sizes and strides", "other arguments");
  }
  const std::vector<PickleValue>& id = arguments[0].items();
  if (id.size() < 5 || !id[0].is(PickleKind::kText) || id[0].text() != "storage" ||
      !id[2].is(PickleKind::kText) || !id[4].is(PickleKind::kInteger)) {
    fail("(\"storage\", class, key, location, count)", "another persistent id");
  }
  if (id.size() > 5 && !id[5].is(PickleKind::kNone))
    fail("a storage of its own", "a view of another storage");

  TorchTensor tensor;
  tensor.key = id[2].text();
  std::optional<DType> dtype = lookup(kStorageClasses, id[1]);
  std::string type_name = id[1].text();
  int64_t count = id[4].integer;
  const bool untyped = id[1].is_global("torch.storage UntypedStorage");
  if (call.text() == "torch._utils _rebuild_tensor_v3" && arguments.size() >= 7) {
    type_name = arguments[6].text();
    dtype = lookup(kTorchDTypes, arguments[6]);
  }
  if (!dtype) fail("a dtype that is supported", type_name);
  tensor.dtype = *dtype;
  const int64_t width = dtype_bytes(*dtype);
  if (untyped) count /= width;

  const auto sizes = integers(arguments[2]);
  const auto strides = integers(arguments[3]);
  if (!sizes || !strides || sizes->size() != strides->size())
    fail("as many sizes as strides", "others");
  if (sizes->size() > static_cast<size_t>(Shape::kMaxRank))
    fail("at most 5 axes", std::to_string(sizes->size()));
  const std::span<const std::byte> bytes = storage(tensor.key);
  if (count < 0 || static_cast<uint64_t>(count) != bytes.size() / static_cast<uint64_t>(width) ||
      bytes.size() % static_cast<uint64_t>(width) != 0) {
    fail("a storage of " + std::to_string(count) + " elements of " +
             std::string(dtype_name(tensor.dtype)),
         std::to_string(bytes.size()) + " bytes");
  }
  // The last element's place, with every step checked.
  const int64_t offset = arguments[1].integer;
  int64_t last = offset;
  int64_t elements = 1;
  bool overflow = offset < 0;
  tensor.contiguous = true;
  for (const int64_t size : *sizes) {
    if (size < 0) fail("sizes of 0 or more", std::to_string(size));
    tensor.shape.append(size);
    if (size == 0) elements = 0;
  }
  int64_t contiguous_stride = 1;
  for (size_t axis = sizes->size(); axis > 0 && elements > 0; --axis) {
    const int64_t size = (*sizes)[axis - 1];
    const int64_t stride = (*strides)[axis - 1];
    if (stride < 0) fail("strides of 0 or more", std::to_string(stride));
    int64_t span = 0;
    overflow = overflow || __builtin_mul_overflow(size - 1, stride, &span) ||
               __builtin_add_overflow(last, span, &last) ||
               __builtin_mul_overflow(elements, size, &elements);
    tensor.contiguous = tensor.contiguous && (size == 1 || stride == contiguous_stride);
    contiguous_stride = elements;
    if (overflow) break;
  }
  if (overflow || (elements > 0 && last >= count) || offset > count) {
    fail("a view within " + std::to_string(count) + " elements", "one past its storage's end");
  }
  tensor.strides = *strides;
  tensor.storage = bytes.subspan(static_cast<size_t>(offset * width));
  return tensor;
}

bool TorchFile::can_stream(const TorchTensor& tensor) const {
  const auto width = static_cast<size_t>(dtype_bytes(tensor.dtype));
  const auto bytes = static_cast<size_t>(tensor.shape.num_elements()) * width;
  return tensor.contiguous && storage(tensor.key).size() == bytes &&
         tensor.storage.size() == bytes &&
         reinterpret_cast<uintptr_t>(tensor.storage.data()) % width == 0;
}

void TorchFile::stream(const std::vector<TorchTensor>& tensors,
                       const PieceConsumer& consume) const {
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&tensors](size_t a, size_t b) {
    return tensors[a].storage.data() < tensors[b].storage.data();
  });
  const std::span<const std::byte> whole = zip_ ? zip_->file_bytes() : legacy_->bytes();
  std::vector<FilePart> parts;
  for (const size_t i : order) {
    DELTATRAIN_CHECK(can_stream(tensors[i]), tensors[i].key);
    parts.push_back({&path_, whole, tensors[i].storage});
  }
  size_t current = 0;
  uint32_t crc = 0;
  const auto finish = [&] {
    if (zip_) zip_->require_crc32(zip_root_ + "data/" + tensors[order[current]].key, crc);
    ++current;
    crc = 0;
  };
  read_parts(parts, [&](size_t i, size_t begin, std::span<const std::byte> piece) {
    while (current < i) finish();
    if (zip_) crc = update_crc32(crc, piece);
    consume(order[i], static_cast<int64_t>(begin), piece);
  });
  while (current < parts.size()) finish();
}

void TorchFile::read(const TorchTensor& tensor, int64_t begin, int64_t count, void* out) const {
  if (zip_ && !checked_[tensor.key]) {
    read_ahead(storage(tensor.key));
    zip_->check_crc32(zip_root_ + "data/" + tensor.key);
    checked_[tensor.key] = true;
  }
  const int64_t width = dtype_bytes(tensor.dtype);
  if (tensor.contiguous) {
    if (count > 0)
      std::memcpy(out, tensor.storage.data() + begin * width, static_cast<size_t>(count * width));
    return;
  }
  // Walks the innermost axis; the place of each row follows from its number.
  char* to = static_cast<char*>(out);
  const int rank = tensor.shape.rank();
  const int64_t inner = tensor.shape[rank - 1];
  const int64_t inner_stride = tensor.strides[static_cast<size_t>(rank - 1)];
  int64_t at = begin;
  while (at < begin + count) {
    int64_t row = at / inner;
    const int64_t column = at % inner;
    int64_t place = column * inner_stride;
    for (int axis = rank - 2; axis >= 0; --axis) {
      place += row % tensor.shape[axis] * tensor.strides[static_cast<size_t>(axis)];
      row /= tensor.shape[axis];
    }
    const int64_t n = std::min(inner - column, begin + count - at);
    for (int64_t i = 0; i < n; ++i, to += width) {
      std::memcpy(to, tensor.storage.data() + (place + i * inner_stride) * width,
                  static_cast<size_t>(width));
    }
    at += n;
  }
}

TorchFileWriter::TorchFileWriter(const std::filesystem::path& path)
    : root_(path.stem().string() + "/"), zip_(path) {}

std::string TorchFileWriter::announce(DType dtype, const Shape& shape, PickleWriter& pickle) {
  const auto row = std::find_if(std::begin(kStorageClasses), std::end(kStorageClasses),
                                [dtype](const TypeName& type) { return type.dtype == dtype; });
  DELTATRAIN_CHECK(row != std::end(kStorageClasses), std::string(dtype_name(dtype)));
  const std::string key = std::to_string(storage_bytes_.size());
  std::vector<int64_t> sizes;
  for (int axis = 0; axis < shape.rank(); ++axis) sizes.push_back(shape[axis]);
  pickle.tensor(row->name.substr(6), key, shape.num_elements(), sizes);
  storage_bytes_.push_back(shape.num_elements() * dtype_bytes(dtype));
  return key;
}

void TorchFileWriter::write_tree(std::string pickle) {
  zip_.add_member(root_ + "data.pkl", pickle);
  zip_.add_member(root_ + "byteorder", "little");
}

void TorchFileWriter::begin_tensor() {
  DELTATRAIN_CHECK(next_storage_ < storage_bytes_.size(), root_);
  zip_.begin_member(root_ + "data/" + std::to_string(next_storage_), storage_bytes_[next_storage_]);
  ++next_storage_;
}

void TorchFileWriter::write(const void* data, int64_t bytes) { zip_.write(data, bytes); }

void TorchFileWriter::commit() {
  DELTATRAIN_CHECK(next_storage_ == storage_bytes_.size(), root_);
  zip_.add_member(root_ + "version", "3\n");
  zip_.commit();
}

}  // namespace deltatrain::formats
