#include "convert/tensor_diff.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "checkpoint/model_folder.h"
#include "checkpoint/tensor_matching.h"
#include "formats/element_cast.h"
#include "formats/safetensors.h"

namespace deltatrain::convert {

namespace {

constexpr int64_t kBlock = 1 << 15;  // elements converted at a time
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// A safetensors file or a model's folder.
class Side {
 public:
  explicit Side(const std::filesystem::path& path) {
    std::error_code ignored;
    if (std::filesystem::is_regular_file(path, ignored)) {
      file_.emplace(path);
      for (const auto& [name, tensor] : file_->tensors())
        specs_.push_back({name, tensor.dtype, tensor.shape});
    } else {
      folder_.emplace(path);
      specs_ = folder_->tensors();
    }
  }
  const std::vector<formats::TensorSpec>& specs() const { return specs_; }
  const formats::StoredTensor& tensor(const std::string& name) const {
    return file_ ? file_->at(name) : folder_->tensor(name);
  }

 private:
  std::optional<formats::SafetensorsFile> file_;
  std::optional<checkpoint::ModelFolder> folder_;
  std::vector<formats::TensorSpec> specs_;
};

void compare_integers(const formats::StoredTensor& a, const formats::StoredTensor& b,
                      TensorDifference& result) {
  const auto width = static_cast<size_t>(dtype_bytes(a.dtype));
  for (size_t at = 0; at < a.bytes.size(); at += width) {
    result.num_different +=
        std::memcmp(a.bytes.data() + at, b.bytes.data() + at, width) != 0 ? 1 : 0;
  }
  if (result.num_different > 0) result.relative_error = result.max_abs = kInfinity;
}

void compare_floats(const formats::StoredTensor& a, const formats::StoredTensor& b,
                    TensorDifference& result) {
  std::vector<double> block_a(kBlock);
  std::vector<double> block_b(kBlock);
  const int64_t count = b.shape.num_elements();
  double sum_difference = 0;
  double sum_reference = 0;
  bool bad = false;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t n = std::min(kBlock, count - begin);
    formats::cast_elements(a.dtype, a.bytes.data() + begin * dtype_bytes(a.dtype), DType::kF64,
                           block_a.data(), n);
    formats::cast_elements(b.dtype, b.bytes.data() + begin * dtype_bytes(b.dtype), DType::kF64,
                           block_b.data(), n);
    for (int64_t i = 0; i < n; ++i) {
      const double x = block_a[static_cast<size_t>(i)];
      const double y = block_b[static_cast<size_t>(i)];
      if (!std::isfinite(x) || !std::isfinite(y)) {
        if (std::bit_cast<uint64_t>(x) != std::bit_cast<uint64_t>(y)) {  // NaN payloads count
          ++result.num_different;
          bad = true;
        }
        continue;
      }
      const double difference = x - y;
      result.num_different += difference != 0 ? 1 : 0;
      result.max_abs = std::max(result.max_abs, std::abs(difference));
      sum_difference += difference * difference;
      sum_reference += y * y;
    }
  }
  if (bad) {
    result.relative_error = result.max_abs = kInfinity;
  } else if (sum_difference > 0) {
    result.relative_error = std::sqrt(sum_difference / sum_reference);  // infinity when b is zero
  }
}

// The block that a name belongs to: "model.layers.3.attn.A_log" and "hidden.4" are of block 3.
int64_t block_of(const std::string& name) {
  const auto number_after = [&name](const std::string& mark) -> std::optional<int64_t> {
    const size_t at = name.find(mark);
    if (at == std::string::npos) return std::nullopt;
    const size_t begin = at + mark.size();
    const size_t end = name.find_first_not_of("0123456789", begin);
    const std::string digits = name.substr(begin, end == std::string::npos ? end : end - begin);
    if (digits.empty() || digits.size() > 9) return std::nullopt;
    return std::stoll(digits);
  };
  if (const auto layer = number_after("layers.")) return *layer;
  if (const auto hidden = number_after("hidden.")) return *hidden - 1;
  if (name.find("embeddings") != std::string::npos) return -1;
  return std::numeric_limits<int64_t>::max();
}

}  // namespace

bool DiffReport::passed() const {
  return missing.empty() && extra.empty() && mismatched.empty() && !first_tensor;
}

DiffReport diff_tensors(const std::filesystem::path& a, const std::filesystem::path& b,
                        double tolerance, Reporter& reporter) {
  const Side side_a(a);
  const Side side_b(b);
  DiffReport report;
  report.tolerance = tolerance;
  std::map<std::string, const formats::TensorSpec*> in_a;
  for (const formats::TensorSpec& spec : side_a.specs()) in_a.emplace(spec.name, &spec);

  int64_t done = 0;
  double largest = -1;
  for (const formats::TensorSpec& want : side_b.specs()) {
    reporter.progress("diff", ++done, static_cast<int64_t>(side_b.specs().size()), "tensors",
                      want.name);
    const auto it = in_a.find(want.name);
    if (it == in_a.end()) {
      report.missing.push_back(want.name);
      continue;
    }
    const formats::TensorSpec got = *it->second;
    in_a.erase(it);
    const bool floating = formats::is_floating(want.dtype) && formats::is_floating(got.dtype);
    if (got.shape != want.shape || (!floating && got.dtype != want.dtype)) {
      report.mismatched.push_back(fmt::format("{}: expected {} {}, got {} {}", want.name,
                                              dtype_name(want.dtype), to_string(want.shape),
                                              dtype_name(got.dtype), to_string(got.shape)));
      continue;
    }
    TensorDifference result;
    result.name = want.name;
    result.dtype_a = got.dtype;
    result.dtype_b = want.dtype;
    result.shape = want.shape;
    const auto& compare = floating ? compare_floats : compare_integers;
    compare(side_a.tensor(want.name), side_b.tensor(want.name), result);
    if (result.relative_error > largest) {
      largest = result.relative_error;
      report.largest = want.name;
    }
    if (!(result.relative_error <= tolerance)) {
      const int64_t block = block_of(want.name);
      if (!report.first_layer || block < *report.first_layer) {
        report.first_layer = block;
        report.first_tensor = want.name;
      }
    }
    report.tensors.push_back(std::move(result));
  }
  for (const auto& [name, spec] : in_a) report.extra.push_back(name);
  if (report.first_layer == std::numeric_limits<int64_t>::max()) report.first_layer.reset();
  return report;
}

std::string to_text(const DiffReport& report) {
  size_t width = 6;
  for (const TensorDifference& tensor : report.tensors) width = std::max(width, tensor.name.size());
  std::string text = fmt::format("{:<{}}  {:>10}  {:>10}  {:>11}  {}\n", "tensor", width,
                                 "relative", "max abs", "different", "shape");
  double largest = 0;
  for (const TensorDifference& tensor : report.tensors) {
    const bool past = !(tensor.relative_error <= report.tolerance);
    text += fmt::format("{:<{}}  {:>10.3e}  {:>10.3e}  {:>11}  {} {}{}\n", tensor.name, width,
                        tensor.relative_error, tensor.max_abs, tensor.num_different,
                        dtype_name(tensor.dtype_b), to_string(tensor.shape),
                        past ? "  past the tolerance" : "");
    largest = std::max(largest, tensor.relative_error);
  }
  for (const std::string& name : report.missing) text += "missing: " + name + "\n";
  for (const std::string& name : report.extra) text += "extra: " + name + "\n";
  for (const std::string& line : report.mismatched) text += "mis-shaped: " + line + "\n";
  const auto past = std::count_if(
      report.tensors.begin(), report.tensors.end(),
      [&report](const auto& tensor) { return !(tensor.relative_error <= report.tolerance); });
  text += fmt::format("{} tensors compared, {} past {:g}, {} missing, {} extra, {} mis-shaped\n",
                      report.tensors.size(), past, report.tolerance, report.missing.size(),
                      report.extra.size(), report.mismatched.size());
  if (report.largest)
    text += fmt::format("largest relative error: {:.3e} ({})\n", largest, *report.largest);
  if (report.first_tensor) {
    const std::string layer = !report.first_layer ? "none of the blocks"
                              : *report.first_layer == -1
                                  ? "the embedding"
                                  : "block " + std::to_string(*report.first_layer);
    text += fmt::format("first layer that differs: {} ({})\n", layer, *report.first_tensor);
  }
  return text;
}

std::string to_json(const DiffReport& report) {
  // JSON has no infinity: such an error is null.
  const auto number = [](double value) {
    return std::isfinite(value) ? nlohmann::ordered_json(value) : nullptr;
  };
  nlohmann::ordered_json tensors = nlohmann::ordered_json::array();
  for (const TensorDifference& tensor : report.tensors) {
    tensors.push_back({{"name", tensor.name},
                       {"relative_error", number(tensor.relative_error)},
                       {"max_abs", number(tensor.max_abs)},
                       {"num_different", tensor.num_different},
                       {"passed", tensor.relative_error <= report.tolerance}});
  }
  const nlohmann::ordered_json root = {
      {"passed", report.passed()},
      {"tolerance", report.tolerance},
      {"largest", report.largest ? nlohmann::ordered_json(*report.largest) : nullptr},
      {"first_layer", report.first_layer ? nlohmann::ordered_json(*report.first_layer) : nullptr},
      {"first_tensor",
       report.first_tensor ? nlohmann::ordered_json(*report.first_tensor) : nullptr},
      {"missing", report.missing},
      {"extra", report.extra},
      {"mismatched", report.mismatched},
      {"tensors", tensors}};
  return root.dump(1) + "\n";
}

}  // namespace deltatrain::convert
