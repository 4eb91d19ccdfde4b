#include "verify/op_trial.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"

namespace deltatrain::verify {

namespace {

constexpr int64_t kGuardBytes = 256;
constexpr unsigned char kGuard = 0xA5;
constexpr unsigned char kPoison = 0xFF;  // NaN in every floating dtype

double read_element(const unsigned char* at, DType dtype) {
  const auto load = [at](auto value) {
    std::memcpy(&value, at, sizeof value);
    return value;
  };
  switch (dtype) {
    case DType::kF64:
      return load(double{});
    case DType::kF32:
      return static_cast<double>(load(float{}));
    case DType::kBF16:
      return static_cast<double>(static_cast<float>(load(BFloat16{})));
    case DType::kI32:
      return load(int32_t{});
    case DType::kU8:
      return load(uint8_t{});
    default:
      throw InternalError("op trial: no such dtype in ops: " + std::string(dtype_name(dtype)));
  }
}

void write_element(unsigned char* at, DType dtype, double value) {
  const auto store = [at](auto x) { std::memcpy(at, &x, sizeof x); };
  switch (dtype) {
    case DType::kF64:
      return store(value);
    case DType::kF32:
      return store(static_cast<float>(value));
    case DType::kBF16:
      return store(BFloat16(static_cast<float>(value)));
    case DType::kI32:
      return store(static_cast<int32_t>(value));
    case DType::kU8:
      return store(static_cast<uint8_t>(value));
    default:
      throw InternalError("op trial: no such dtype in ops: " + std::string(dtype_name(dtype)));
  }
}

bool is_integer(DType dtype) { return dtype == DType::kI32 || dtype == DType::kU8; }

// The tensor of `shape` inside a block that starts at `data`;
// *block_elements tells how many the block holds.
Tensor place(void* data, DType dtype, const Shape& shape, Placement placement,
             int64_t* block_elements) {
  const int64_t last = shape.rank() > 0 ? shape[shape.rank() - 1] : 1;
  const int64_t rows = shape.rank() > 0 ? shape[0] : 1;
  if (placement == Placement::kContiguous || shape.num_elements() == 0) {
    *block_elements = shape.num_elements();
    return Tensor(data, dtype, shape);
  }
  if (placement == Placement::kStridedHeads) {
    const int64_t lead = 8;
    const int64_t outer = shape.num_elements() / last;
    *block_elements = outer * (lead + last);
    Shape wide;
    for (int axis = 0; axis + 1 < shape.rank(); ++axis) wide.append(shape[axis]);
    wide.append(lead + last);
    return Tensor(data, dtype, wide).columns(lead, lead + last);
  }
  const int64_t lead = placement == Placement::kOddRows ? 3 : 8;
  const int64_t width = shape.num_elements() / rows;
  const int64_t stride =
      placement == Placement::kOddRows ? (lead + width + 2) | 1 : lead + width + 8;
  *block_elements = rows * stride;
  const Tensor matrix = Tensor(data, dtype, {rows, stride}).columns(lead, lead + width);
  if (shape.rank() == 2) return matrix;
  DELTATRAIN_CHECK(shape.rank() == 3, to_string(shape));
  return matrix.split_last(shape[1], shape[2]);
}

std::vector<int64_t> offsets_of_elements(const Tensor& tensor, int64_t start) {
  const int64_t n = tensor.num_elements();
  std::vector<int64_t> offsets(static_cast<size_t>(n));
  std::array<int64_t, Shape::kMaxRank> index{};
  for (int64_t i = 0; i < n; ++i) {
    int64_t element = 0;
    for (int axis = 0; axis < tensor.rank(); ++axis)
      element += index[static_cast<size_t>(axis)] * tensor.stride(axis);
    offsets[static_cast<size_t>(i)] = start + element * dtype_bytes(tensor.dtype());
    for (int axis = tensor.rank() - 1; axis >= 0; --axis) {
      if (++index[static_cast<size_t>(axis)] < tensor.size(axis)) break;
      index[static_cast<size_t>(axis)] = 0;
    }
  }
  return offsets;
}

}  // namespace

Fill normal(double deviation) {
  return [deviation](const RandomStream& stream, int64_t i) {
    return deviation * stream.normal(static_cast<uint64_t>(i));
  };
}

Fill uniform(double low, double high) {
  return [low, high](const RandomStream& stream, int64_t i) {
    return low + (high - low) * stream.uniform(static_cast<uint64_t>(i));
  };
}

Fill constant(double value) {
  return [value](const RandomStream&, int64_t) { return value; };
}

ops::Sequences Pick::operator()(const SequenceArgument& sequences) const {
  const Buffer& block = on_device_ ? sequences.device_block_ : sequences.host_block_;
  return {sequences.offsets_, block.tensor(DType::kI32, {sequences.num() + 1})};
}

Tensor Pick::opaque(int64_t bytes) const {
  const Context& context = on_device_ ? trial_->tested_ : trial_->reference_;
  const int64_t guard = trial_->guard_bytes();
  OpTrial::Opaque opaque{Buffer(context.device->memory(), static_cast<size_t>(bytes + 2 * guard)),
                         bytes};
  if (trial_->surroundings_ == Surroundings::kGuarded) {
    std::vector<unsigned char> image(static_cast<size_t>(bytes + 2 * guard), kGuard);
    std::fill_n(image.begin() + guard, bytes, kPoison);
    context.device->copy_to_device(opaque.block.data(), image.data(), image.size());
  }
  const Tensor tensor = opaque.block.tensor(DType::kU8, {bytes}, static_cast<size_t>(guard));
  if (on_device_) {
    trial_->opaque_.push_back(std::move(opaque));
    return tensor;
  }
  trial_->reference_opaque_.push_back(std::move(opaque.block));
  return tensor;
}

OpTrial::OpTrial(const Context& tested, const Context& reference, std::string op,
                 std::string case_name, std::vector<OpCaseResult>& results,
                 Surroundings surroundings)
    : tested_(tested),
      reference_(reference),
      op_(std::move(op)),
      case_name_(std::move(case_name)),
      results_(&results),
      surroundings_(surroundings) {}

int64_t OpTrial::guard_bytes() const {
  return surroundings_ == Surroundings::kGuarded ? kGuardBytes : 0;
}

bool OpTrial::is_left_out() const {
  return surroundings_ == Surroundings::kExact && !is_kept_ &&
         std::any_of(arguments_.begin(), arguments_.end(), [](const auto& argument) {
           return argument->shape().num_elements() > kMaxExactElements;
         });
}

Argument& OpTrial::argument(const std::string& name, Role role, DType dtype, const Shape& shape,
                            Quantity quantity, const std::vector<double>& values,
                            Placement placement) {
  return make(name, role, dtype, is_integer(dtype) ? dtype : DType::kF64, shape, quantity, values,
              placement);
}

Argument& OpTrial::literal(const std::string& name, Role role, DType dtype, const Shape& shape,
                           Quantity quantity, const std::vector<double>& values) {
  return make(name, role, dtype, dtype, shape, quantity, values, Placement::kContiguous);
}

Argument& OpTrial::make(const std::string& name, Role role, DType dtype, DType reference_dtype,
                        const Shape& shape, Quantity quantity, const std::vector<double>& values,
                        Placement placement) {
  DELTATRAIN_CHECK(static_cast<int64_t>(values.size()) == shape.num_elements(),
                   name + " " + to_string(shape));
  arguments_.push_back(std::make_unique<Argument>());
  Argument& a = *arguments_.back();
  a.name_ = name;
  a.role_ = role;
  a.quantity_ = quantity;
  int64_t block_elements = 0;
  place(nullptr, dtype, shape, placement, &block_elements);
  const int64_t bytes = block_elements * dtype_bytes(dtype);
  const int64_t guard = guard_bytes();
  const int64_t padded = guard > 0 ? round_up(bytes, guard) : bytes;
  a.device_block_ = Buffer(tested_.device->memory(), static_cast<size_t>(padded + 2 * guard));
  a.device_ = place(static_cast<char*>(a.device_block_.data()) + guard, dtype, shape, placement,
                    &block_elements);
  a.element_offsets_ = offsets_of_elements(
      a.device_, static_cast<char*>(a.device_.raw()) - static_cast<char*>(a.device_block_.data()));
  a.image_.assign(static_cast<size_t>(padded + 2 * guard), kGuard);
  std::fill_n(a.image_.begin() + guard, bytes, kPoison);

  a.reference_block_ = Buffer(
      host_memory(), static_cast<size_t>(shape.num_elements() * dtype_bytes(reference_dtype)));
  a.reference_ = a.reference_block_.tensor(reference_dtype, shape);
  for (int64_t i = 0; i < shape.num_elements(); ++i) {
    unsigned char* element = a.image_.data() + a.element_offsets_[static_cast<size_t>(i)];
    if (role != Role::kOut) write_element(element, dtype, values[static_cast<size_t>(i)]);
    write_element(
        static_cast<unsigned char*>(a.reference_block_.data()) + i * dtype_bytes(reference_dtype),
        reference_dtype, read_element(element, dtype));
  }
  return a;
}

Argument& OpTrial::activation(const std::string& name, const Shape& shape,
                              const std::vector<double>& values, Placement placement) {
  return argument(name, Role::kIn, activation_dtype(), shape, Quantity::kExact, values, placement);
}

Argument& OpTrial::statistic(const std::string& name, const Shape& shape,
                             const std::vector<double>& values) {
  return argument(name, Role::kIn, statistics_dtype(), shape, Quantity::kExact, values);
}

namespace {
std::vector<double> filled(const std::string& case_name, const std::string& name,
                           const Shape& shape, const Fill& fill) {
  const RandomStream stream(hash_text(case_name), name);
  std::vector<double> values(static_cast<size_t>(shape.num_elements()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = fill(stream, static_cast<int64_t>(i));
  return values;
}
}  // namespace

Argument& OpTrial::activation(const std::string& name, const Shape& shape, const Fill& fill,
                              Placement placement) {
  return activation(name, shape, filled(case_name_, name, shape, fill), placement);
}

Argument& OpTrial::statistic(const std::string& name, const Shape& shape, const Fill& fill) {
  return statistic(name, shape, filled(case_name_, name, shape, fill));
}

Argument& OpTrial::integers(const std::string& name, const std::vector<int32_t>& values) {
  return argument(name, Role::kIn, DType::kI32, {static_cast<int64_t>(values.size())},
                  Quantity::kExact, std::vector<double>(values.begin(), values.end()));
}

Argument& OpTrial::activation_output(const std::string& name, const Shape& shape, Quantity quantity,
                                     Placement placement) {
  const std::vector<double> unused(static_cast<size_t>(shape.num_elements()));
  return argument(name, Role::kOut, activation_dtype(), shape, quantity, unused, placement);
}

Argument& OpTrial::statistic_output(const std::string& name, const Shape& shape,
                                    Quantity quantity) {
  const std::vector<double> unused(static_cast<size_t>(shape.num_elements()));
  return argument(name, Role::kOut, statistics_dtype(), shape, quantity, unused);
}

Argument& OpTrial::accumulated(const std::string& name, const Shape& shape, Quantity quantity) {
  return argument(name, Role::kInOut, statistics_dtype(), shape, quantity,
                  filled(case_name_, name, shape, normal()));
}

Argument& OpTrial::changed(Argument& argument, Quantity quantity) {
  argument.role_ = Role::kInOut;
  argument.quantity_ = quantity;
  return argument;
}

SequenceArgument& OpTrial::sequences(const std::vector<int32_t>& offsets) {
  sequences_.push_back(std::make_unique<SequenceArgument>());
  SequenceArgument& s = *sequences_.back();
  s.offsets_ = offsets;
  const size_t bytes = offsets.size() * sizeof(int32_t);
  s.device_block_ = Buffer(tested_.device->memory(), bytes);
  s.host_block_ = Buffer(host_memory(), bytes);
  tested_.device->copy_to_device(s.device_block_.data(), offsets.data(), bytes);
  std::memcpy(s.host_block_.data(), offsets.data(), bytes);
  return s;
}

std::vector<double> OpTrial::values(const Argument& argument) const {
  std::vector<double> values(static_cast<size_t>(argument.reference_.num_elements()));
  const auto* data = static_cast<const unsigned char*>(argument.reference_block_.data());
  const DType dtype = argument.reference_.dtype();
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = read_element(data + static_cast<int64_t>(i) * dtype_bytes(dtype), dtype);
  }
  return values;
}

namespace {
// Calls run(offset, bytes) for each range of a block that elements fill without gaps.
template <class Function>
void for_each_run(const std::vector<int64_t>& element_offsets, int64_t element_bytes,
                  const Function& run) {
  for (size_t begin = 0; begin < element_offsets.size();) {
    size_t end = begin + 1;
    while (end < element_offsets.size() &&
           element_offsets[end] == element_offsets[end - 1] + element_bytes)
      ++end;
    run(element_offsets[begin], static_cast<int64_t>(end - begin) * element_bytes);
    begin = end;
  }
}
}  // namespace

void OpTrial::upload(Argument& argument) const {
  if (surroundings_ == Surroundings::kExact) {
    if (argument.role_ == Role::kOut) return;
    for_each_run(argument.element_offsets_, dtype_bytes(argument.device_.dtype()),
                 [&](int64_t offset, int64_t bytes) {
                   tested_.device->copy_to_device(
                       static_cast<char*>(argument.device_block_.data()) + offset,
                       argument.image_.data() + offset, static_cast<size_t>(bytes));
                 });
    return;
  }
  tested_.device->copy_to_device(argument.device_block_.data(), argument.image_.data(),
                                 argument.image_.size());
}

std::vector<unsigned char> OpTrial::download(const Argument& argument) const {
  std::vector<unsigned char> block = argument.image_;
  if (surroundings_ == Surroundings::kExact) {
    for_each_run(argument.element_offsets_, dtype_bytes(argument.device_.dtype()),
                 [&](int64_t offset, int64_t bytes) {
                   tested_.device->copy_to_host(
                       block.data() + offset,
                       static_cast<const char*>(argument.device_block_.data()) + offset,
                       static_cast<size_t>(bytes));
                 });
    return block;
  }
  tested_.device->copy_to_host(block.data(), argument.device_block_.data(), block.size());
  return block;
}

OpCaseResult& OpTrial::fail(const std::string& tensor, const std::string& note) {
  OpCaseResult result;
  result.op = op_;
  result.case_name = case_name_;
  result.tensor = tensor;
  result.note = note;
  results_->push_back(result);
  return results_->back();
}

bool OpTrial::run_tested(const Call& call) {
  for (const auto& argument : arguments_) upload(*argument);
  opaque_.clear();
  try {
    const Arena::ScratchScope scope(*tested_.arena);
    call(tested_, Pick(*this, true));
    tested_.device->synchronize();
  } catch (const UnsupportedError& error) {
    fail("", error.what()).supported = false;
    return false;
  } catch (const Error& error) {
    fail("", error.what());
    return false;
  }
  return true;
}

void OpTrial::run(const Call& call) {
  {
    const Arena::ScratchScope scope(*reference_.arena);
    call(reference_, Pick(*this, false));
  }
  if (is_left_out()) return;
  if (!run_tested(call)) {
    failed_ = true;
    return;
  }
  check_opaque();
  std::vector<std::vector<unsigned char>> first;
  for (const auto& argument : arguments_) {
    first.push_back(download(*argument));
    check_surroundings(*argument, first.back());
    if (argument->role_ != Role::kIn) compare(*argument, first.back());
  }
  if (surroundings_ == Surroundings::kExact || !run_tested(call)) return;
  for (size_t n = 0; n < arguments_.size(); ++n) {
    if (download(*arguments_[n]) != first[n])
      fail(arguments_[n]->name_, "other bits when the same call ran again");
  }
}

void OpTrial::expect_prefix_unchanged(const Call& call, int64_t num_rows,
                                      const std::vector<int64_t>& cuts) {
  if (failed_ || surroundings_ == Surroundings::kExact) return;
  std::vector<std::vector<unsigned char>> whole;
  for (const auto& argument : arguments_) whole.push_back(download(*argument));
  for (const int64_t row : cuts) {
    std::vector<std::vector<unsigned char>> images;
    for (const auto& argument : arguments_) {
      Argument& a = *argument;
      images.push_back(a.image_);
      const DType dtype = a.device_.dtype();
      if (a.role_ != Role::kIn || is_integer(dtype) || a.device_.size(0) != num_rows) continue;
      const int64_t per_row = a.device_.num_elements() / num_rows;
      for (int64_t i = row * per_row; i < a.device_.num_elements(); ++i) {
        unsigned char* element = a.image_.data() + a.element_offsets_[static_cast<size_t>(i)];
        write_element(element, dtype,
                      read_element(element, dtype) / 2);  // valid whatever the tensor means
      }
    }
    const bool ran = run_tested(call);
    for (size_t n = 0; n < arguments_.size(); ++n) {
      Argument& a = *arguments_[n];
      if (ran && a.role_ == Role::kOut && a.device_.size(0) == num_rows) {
        const std::vector<unsigned char> block = download(a);
        const int64_t kept = row * (a.device_.num_elements() / num_rows);
        for (int64_t i = 0; i < kept; ++i) {
          const auto at = static_cast<size_t>(a.element_offsets_[static_cast<size_t>(i)]);
          const auto bytes = static_cast<size_t>(dtype_bytes(a.device_.dtype()));
          if (std::memcmp(block.data() + at, whole[n].data() + at, bytes) == 0) continue;
          OpCaseResult& result =
              fail(a.name_, "depends on rows from " + std::to_string(row) + " on");
          result.worst_index = i;
          result.got = read_element(block.data() + at, a.device_.dtype());
          result.expected = read_element(whole[n].data() + at, a.device_.dtype());
          break;
        }
      }
      a.image_ = images[n];
    }
    if (!ran) return;
  }
}

void OpTrial::check_opaque() {
  if (surroundings_ == Surroundings::kExact) return;
  for (const Opaque& opaque : opaque_) {
    std::vector<unsigned char> block(opaque.block.num_bytes());
    tested_.device->copy_to_host(block.data(), opaque.block.data(), block.size());
    const auto is_guard = [](unsigned char byte) { return byte == kGuard; };
    if (!std::all_of(block.begin(), block.begin() + kGuardBytes, is_guard) ||
        !std::all_of(block.begin() + kGuardBytes + opaque.bytes, block.end(), is_guard)) {
      fail("saved", "wrote outside of the buffer");
    }
  }
}

// Bytes that are no element of an output: guards, gaps, and the whole of inputs.
void OpTrial::check_surroundings(const Argument& argument,
                                 const std::vector<unsigned char>& block) {
  std::vector<unsigned char> masked = block;
  if (argument.role_ != Role::kIn) {
    const auto bytes = dtype_bytes(argument.device_.dtype());
    for (const int64_t offset : argument.element_offsets_) {
      std::copy_n(argument.image_.begin() + offset, bytes, masked.begin() + offset);
    }
  }
  if (masked == argument.image_) return;
  const auto at =
      std::mismatch(masked.begin(), masked.end(), argument.image_.begin()).first - masked.begin();
  OpCaseResult& result =
      fail(argument.name_, argument.role_ == Role::kIn ? "changed an input, or memory around it"
                                                       : "wrote outside of the tensor");
  result.note += " (byte " + std::to_string(at - guard_bytes()) + ")";
}

void OpTrial::compare(const Argument& argument, const std::vector<unsigned char>& block) {
  const std::vector<double> expected = values(argument);
  OpCaseResult result;
  result.op = op_;
  result.case_name = case_name_;
  result.tensor = argument.name_;
  result.bound = tolerance(tested_.activation_dtype, argument.quantity_);
  double expected_sq = 0;
  for (const double x : expected) expected_sq += std::isfinite(x) ? x * x : 0;
  const auto count = static_cast<double>(std::max<size_t>(1, expected.size()));
  const double rms = std::max(std::sqrt(expected_sq / count), error_floor(argument.quantity_));
  double difference_sq = 0;
  double worst = -1;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double got =
        read_element(block.data() + argument.element_offsets_[i], argument.device_.dtype());
    const double want = expected[i];
    const bool same = got == want || (std::isnan(got) && std::isnan(want));
    const double difference = same ? 0 : std::abs(got - want);
    double excess = same ? 0 : difference / (std::abs(want) + rms);
    if (!std::isfinite(excess)) excess = std::numeric_limits<double>::infinity();
    difference_sq +=
        std::isfinite(excess) ? difference * difference : std::numeric_limits<double>::infinity();
    if (excess > worst) {
      worst = excess;
      result.worst_index = static_cast<int64_t>(i);
      result.got = got;
      result.expected = want;
    }
  }
  result.error = std::sqrt(difference_sq / count) / rms;
  result.passed = result.error <= result.bound && worst <= kElementFactor * result.bound;
  if (!result.passed && result.error <= result.bound) result.note = "one element is too far off";
  results_->push_back(result);
}

}  // namespace deltatrain::verify
