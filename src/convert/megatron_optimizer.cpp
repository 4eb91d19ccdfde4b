#include "convert/megatron_optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/error.h"
#include "formats/element_cast.h"

namespace deltatrain::convert {

using formats::PickleKind;
using formats::PickleValue;
using formats::TorchFile;
using formats::TorchTensor;

namespace {

constexpr const char* kDistributedName = "distrib_optim.pt";
// Alignment of a parameter in the distributed optimizer's flat buffer, in elements.
constexpr int64_t kParameterAlignment = 64;
// Megatron's size of a bucket where gradients are reduced while backward runs.
constexpr int64_t kDefaultBucketElements = 40'000'000;
constexpr int64_t kBucketElementsPerRank = 1'000'000;
constexpr int64_t kProbes = 64;

class OptimizerReader {
 public:
  OptimizerReader(const TorchFile& file,
                  const std::vector<std::pair<std::string, MegatronStored>>& weights)
      : file_(file), weights_(weights), where_(file.path().string()) {}

  std::optional<MegatronOptimizer> run() {
    const PickleValue* outer = file_.root().find("optimizer");
    if (outer == nullptr || outer->is(PickleKind::kNone)) return std::nullopt;
    if (outer->is(PickleKind::kList) && outer->items().size() == 1) outer = &outer->items()[0];
    if (!outer->is(PickleKind::kDict)) fail("optimizer", "a dict", "another value");
    // Around a model in bf16 there is a wrapper with the f32 masters; an f32 model has the plain
    // optimizer.
    const PickleValue* wrapped = outer->find("optimizer");
    const PickleValue& inner = wrapped != nullptr ? *wrapped : *outer;
    const PickleValue* groups = inner.find("param_groups");
    if (groups == nullptr || !groups->is(PickleKind::kList))
      fail("optimizer.param_groups", "a list", "none");
    read_steps(*groups);
    if (const PickleValue* state = inner.find("state");
        state != nullptr && !state->items().empty()) {
      read_in_groups(*groups, *state, outer->find("fp32_from_fp16_params"));
    } else {
      read_distributed();
    }
    return std::move(result_);
  }

 private:
  [[noreturn]] void fail(const std::string& what, const std::string& expected,
                         const std::string& got) const {
    throw FormatError(error_text(where_, what, expected, got));
  }

  // The number of updates, which FusedAdam keeps in the groups and torch's AdamW in the states.
  void read_steps(const PickleValue& groups) {
    for (const PickleValue& group : groups.items()) {
      const PickleValue* step = group.find("step");
      if (step != nullptr) take_step(*step);
    }
  }

  void take_step(const PickleValue& value) {
    double step = 0;
    if (value.is(PickleKind::kInteger)) {
      step = static_cast<double>(value.integer);
    } else if (value.is(PickleKind::kFloat)) {
      step = value.number;
    } else if (TorchFile::is_tensor(value)) {
      const TorchTensor tensor = file_.tensor(value, "step");
      if (tensor.shape.num_elements() != 1) fail("optimizer step", "one value", "several");
      std::byte bytes[8];
      file_.read(tensor, 0, 1, bytes);
      if (formats::is_floating(tensor.dtype)) {
        formats::cast_elements(tensor.dtype, bytes, DType::kF64, &step, 1);
      } else if (tensor.dtype == DType::kI64) {
        int64_t whole;
        std::memcpy(&whole, bytes, sizeof whole);
        step = static_cast<double>(whole);
      } else if (tensor.dtype == DType::kI32) {
        int32_t whole;
        std::memcpy(&whole, bytes, sizeof whole);
        step = whole;
      }
    } else {
      return;
    }
    if (!(step >= 0) || step > 1e15 || step != std::floor(step))
      fail("optimizer step", "a whole number of 0 or more", fmt::format("{}", step));
    const auto whole = static_cast<int64_t>(step);
    if (result_.completed_steps && *result_.completed_steps != whole)
      fail("optimizer step", std::to_string(*result_.completed_steps) + " as before",
           std::to_string(whole));
    result_.completed_steps = whole;
  }

  static bool decays(const PickleValue& group) {
    const PickleValue* multiplier = group.find("wd_mult");
    if (multiplier == nullptr) multiplier = group.find("weight_decay");
    if (multiplier == nullptr) return true;
    if (multiplier->is(PickleKind::kFloat)) return multiplier->number != 0;
    return !multiplier->is(PickleKind::kInteger) || multiplier->integer != 0;
  }

  MegatronStored state_tensor(const PickleValue& value, const std::string& name,
                              const MegatronStored& weight) const {
    MegatronStored stored{&file_, file_.tensor(value, name)};
    if (!formats::is_floating(stored.tensor.dtype) ||
        stored.tensor.shape.num_elements() != weight.tensor.shape.num_elements() ||
        !stored.tensor.contiguous) {
      fail(name, "a contiguous tensor of " + to_string(weight.tensor.shape),
           to_string(stored.tensor.shape));
    }
    return stored;
  }

  // Megatron numbers the parameters group by group, within a group in the model's order.
  void read_in_groups(const PickleValue& groups, const PickleValue& state,
                      const PickleValue* masters) {
    std::map<int64_t, const PickleValue*> states;
    for (size_t i = 0; i + 1 < state.items().size(); i += 2) {
      if (!state.items()[i].is(PickleKind::kInteger))
        fail("optimizer.state", "numbers of parameters", "another key");
      states.emplace(state.items()[i].integer, &state.items()[i + 1]);
    }
    size_t total = 0;
    for (size_t g = 0; g < groups.items().size(); ++g) {
      const PickleValue& group = groups.items()[g];
      const bool group_decays = decays(group);
      std::vector<const std::pair<std::string, MegatronStored>*> members;
      for (const auto& weight : weights_) {
        if (groups.items().size() == 1 ||
            megatron_decays(weight.second.tensor.shape) == group_decays)
          members.push_back(&weight);
      }
      const PickleValue* numbers = group.find("params");
      const std::string place = "optimizer.param_groups[" + std::to_string(g) + "]";
      if (numbers == nullptr || numbers->items().size() != members.size()) {
        fail(place,
             fmt::format("{} parameters: those that {}decay", members.size(),
                         group_decays ? "" : "don't "),
             numbers == nullptr ? "none" : std::to_string(numbers->items().size()));
      }
      const PickleValue* group_masters =
          masters != nullptr && g < masters->items().size() ? &masters->items()[g] : nullptr;
      if (masters != nullptr &&
          (group_masters == nullptr || group_masters->items().size() != members.size()))
        fail("optimizer.fp32_from_fp16_params", "a master for each parameter", "another number");
      for (size_t i = 0; i < members.size(); ++i) {
        add(*members[i], numbers->items()[i], states,
            group_masters == nullptr ? nullptr : &group_masters->items()[i]);
      }
      total += members.size();
    }
    if (total != weights_.size())
      fail("optimizer.param_groups", std::to_string(weights_.size()) + " parameters",
           std::to_string(total));
  }

  void add(const std::pair<std::string, MegatronStored>& weight, const PickleValue& number,
           const std::map<int64_t, const PickleValue*>& states, const PickleValue* master) {
    const auto& [name, stored] = weight;
    MegatronMoments moments;
    const auto found = number.is(PickleKind::kInteger) ? states.find(number.integer) : states.end();
    if (found == states.end()) {
      // A parameter that no gradient ever reaches.
      if (name.ends_with("mixer.gate_norm.weight")) return;
      fail("optimizer.state", "the moments of " + name, "none");
    }
    const PickleValue* exp_avg = found->second->find("exp_avg");
    const PickleValue* exp_avg_sq = found->second->find("exp_avg_sq");
    if (exp_avg == nullptr || exp_avg_sq == nullptr)
      fail(name, "exp_avg and exp_avg_sq", "neither or one");
    if (const PickleValue* step = found->second->find("step"); step != nullptr) take_step(*step);
    moments.exp_avg = state_tensor(*exp_avg, name + ": exp_avg", stored);
    moments.exp_avg_sq = state_tensor(*exp_avg_sq, name + ": exp_avg_sq", stored);
    if (master != nullptr) {
      moments.master = state_tensor(*master, name + ": fp32_from_fp16_params", stored);
    } else if (stored.tensor.dtype != DType::kF32) {
      fail(name, "an f32 master beside weights of " + std::string(dtype_name(stored.tensor.dtype)),
           "none");
    }
    result_.moments.emplace(name, std::move(moments));
  }

  // Where each parameter begins in the distributed optimizer's buffer once the ends of buckets are
  // cut: parameters last to first, each at a multiple of 64 elements, a bucket closed when it has
  // `bucket_elements`. Returns the length.
  int64_t lay_out(int64_t bucket_elements, std::map<std::string, int64_t>& offsets) const {
    int64_t before = 0;  // of closed buckets
    int64_t end = 0;     // within the open one
    for (size_t i = weights_.size(); i > 0; --i) {
      const auto& [name, stored] = weights_[i - 1];
      const int64_t begin = round_up(end, kParameterAlignment);
      offsets[name] = before + begin;
      end = begin + stored.tensor.shape.num_elements();
      if (bucket_elements > 0 && end >= bucket_elements) {
        before += end;
        end = 0;
      }
    }
    return before + end;
  }

  void read_distributed() {
    const std::filesystem::path path = file_.path().parent_path() / kDistributedName;
    std::error_code ignored;
    if (!std::filesystem::exists(path, ignored))
      fail("optimizer", "its state, here or in " + std::string(kDistributedName) + " beside",
           "neither");
    result_.distributed = std::make_unique<TorchFile>(path);
    const TorchFile& flat = *result_.distributed;
    where_ = path.string();
    const PickleValue* buffer = nullptr;
    const std::vector<PickleValue>& items = flat.root().items();
    for (size_t i = 0; i + 1 < items.size(); i += 2) {
      if (!items[i].is(PickleKind::kInteger)) continue;
      if (buffer != nullptr) fail("buffers", "one", "several");
      buffer = &items[i + 1];
    }
    if (buffer == nullptr || !buffer->is(PickleKind::kDict) || buffer->items().size() != 2)
      fail("buffers", "one, of one pair of dtypes", "another number");
    const PickleValue& parts = buffer->items()[1];
    const PickleValue* count = parts.find("numel_unpadded");
    if (count == nullptr || !count->is(PickleKind::kInteger))
      fail("numel_unpadded", "a whole number", "none");
    const int64_t length = count->integer;
    const auto part = [&](const char* key) {
      const PickleValue* value = parts.find(key);
      if (value == nullptr) fail(key, "a flat tensor", "none");
      TorchTensor tensor = flat.tensor(*value, key);
      if (tensor.dtype != DType::kF32 || tensor.shape != Shape{length} || !tensor.contiguous) {
        fail(key, "f32 " + to_string(Shape{length}),
             std::string(dtype_name(tensor.dtype)) + " " + to_string(tensor.shape));
      }
      return tensor;
    };
    const TorchTensor master = part("param");
    const TorchTensor exp_avg = part("exp_avg");
    const TorchTensor exp_avg_sq = part("exp_avg_sq");
    // The size of buckets is not recorded where args are missing; the length and the weights tell
    // which it was.
    std::vector<int64_t> sizes = {0, kDefaultBucketElements};
    for (int64_t ranks = 64; ranks <= 4096; ranks *= 2)
      sizes.push_back(ranks * kBucketElementsPerRank);
    for (const int64_t size : sizes) {
      std::map<std::string, int64_t> offsets;
      if (lay_out(size, offsets) != length || !masters_match(flat, master, offsets)) continue;
      for (const auto& [name, stored] : weights_) {
        const int64_t offset = offsets.at(name);
        result_.moments[name] = {
            MegatronStored{&flat, slice(master, offset, stored.tensor.shape)},
            MegatronStored{&flat, slice(exp_avg, offset, stored.tensor.shape)},
            MegatronStored{&flat, slice(exp_avg_sq, offset, stored.tensor.shape)}};
      }
      return;
    }
    throw UnsupportedError(
        error_text(where_, "layout", "one bucket or buckets of Megatron's default size",
                   fmt::format("{} elements that don't round to the weights of {} parameters in "
                               "either (no_load_optim takes the weights alone)",
                               length, weights_.size())));
  }

  static TorchTensor slice(const TorchTensor& flat, int64_t offset, const Shape& shape) {
    TorchTensor part = flat;
    part.shape = shape;
    part.strides.assign(static_cast<size_t>(shape.rank()), 1);
    for (int axis = shape.rank() - 2; axis >= 0; --axis)
      part.strides[static_cast<size_t>(axis)] =
          part.strides[static_cast<size_t>(axis + 1)] * shape[axis + 1];
    part.storage = flat.storage.subspan(static_cast<size_t>(offset * 4),
                                        static_cast<size_t>(shape.num_elements() * 4));
    return part;
  }

  // Whether masters at these places round to the weights, by values spread over each tensor.
  bool masters_match(const TorchFile& flat, const TorchTensor& master,
                     const std::map<std::string, int64_t>& offsets) const {
    for (const auto& [name, stored] : weights_) {
      const int64_t count = stored.tensor.shape.num_elements();
      const int64_t probes = std::min(count, kProbes);
      for (int64_t probe = 0; probe < probes; ++probe) {
        const int64_t at = probe * (count - 1) / std::max<int64_t>(1, probes - 1);
        float want;
        std::byte raw[8];
        stored.file->read(stored.tensor, at, 1, raw);
        formats::cast_elements(stored.tensor.dtype, raw, DType::kF32, &want, 1);
        float got;
        flat.read(master, offsets.at(name) + at, 1, &got);
        if (stored.tensor.dtype == DType::kBF16) got = static_cast<float>(BFloat16(got));
        if (got != want && !(std::isnan(got) && std::isnan(want))) return false;
      }
    }
    return true;
  }

  const TorchFile& file_;
  const std::vector<std::pair<std::string, MegatronStored>>& weights_;
  std::string where_;
  MegatronOptimizer result_;
};

}  // namespace

std::optional<MegatronOptimizer> read_megatron_optimizer(
    const TorchFile& file, const std::vector<std::pair<std::string, MegatronStored>>& weights) {
  return OptimizerReader(file, weights).run();
}

}  // namespace deltatrain::convert
