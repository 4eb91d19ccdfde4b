// Documents laid end to end in one row against the same documents alone: state, convolution window
// and attention restart at each start, so loss, logits and every gradient must be the same. And
// labels that do not count: they must be missing from the loss and from every gradient.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "backend/registry.h"
#include "base/files.h"
#include "base/random.h"
#include "config/hf_config.h"
#include "formats/safetensors.h"
#include "model/training_step.h"
#include "ops/cross_entropy.h"
#include "small_model.h"
#include "support/devices.h"
#include "support/test_files.h"
#include "verify/tolerance.h"

namespace deltatrain {
namespace {

constexpr double kScale = 1.0 / 512;  // of the gradients

struct Outcome {
  double loss = 0;
  std::vector<double> logits;
  std::vector<std::vector<double>> gradients;

  void add(const Outcome& other) {
    loss += other.loss;
    logits.insert(logits.end(), other.logits.begin(), other.logits.end());
    gradients.resize(other.gradients.size());
    for (size_t i = 0; i < gradients.size(); ++i) {
      gradients[i].resize(other.gradients[i].size());
      for (size_t j = 0; j < gradients[i].size(); ++j) gradients[i][j] += other.gradients[i][j];
    }
  }
};

double relative_error(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(difference / norm);
}

// A tiny model with its golden weights, for this many rows in so many documents of any lengths.
class TinyModel {
 public:
  TinyModel(const std::string& name, DeviceKind kind, int64_t num_rows, int64_t num_sequences)
      : folder_(test::golden_path(name)),
        config_(model_config_from_hf(read_file(folder_ / "config.json"), "config.json")),
        backend_(backend::make_backend(kind)) {
    const DType dtype = kind == DeviceKind::kReference ? DType::kF64 : DType::kF32;
    backend::BackendOptions plan_options;
    plan_options.planned = kind;
    const auto plan_backend = backend::make_backend(DeviceKind::kPlan, plan_options);
    context_ = {&backend_->device(), &backend_->table(), nullptr, dtype};
    const Context planning{&plan_backend->device(), &plan_backend->table(), nullptr, dtype};
    const BatchShape shape{
        .num_rows = num_rows, .num_sequences = num_sequences, .lengths = SequenceLengths::kAny};
    const auto purpose = TrainingStep::Purpose::kGradients;
    const MemoryPlan plan = TrainingStep::plan(planning, config_, shape, purpose);
    step_ = std::make_unique<TrainingStep>(context_, config_, OptimizerConfig{}, shape,
                                           plan.arena(), purpose);
    const formats::SafetensorsFolder weights(folder_);
    for (const auto& info : step_->parameters().infos()) {
      test::load_tensor(context_, *weights.at(info.name).tensor, step_->parameters().master(info),
                        name, info.name);
    }
    step_->parameters().refresh_compute(context_);
  }

  int64_t vocab_size() const { return config_.vocab_size; }
  const std::vector<layers::ParameterInfo>& parameters() const {
    return step_->parameters().infos();
  }

  Outcome run(const std::vector<int32_t>& ids, const std::vector<int32_t>& labels,
              const std::vector<int32_t>& offsets) {
    const auto trace = step_->trace({.ids = ids, .labels = labels, .offsets = offsets}, kScale);
    Outcome outcome{trace.loss_sum, trace.logits, {}};
    for (const auto& info : parameters())
      outcome.gradients.push_back(to_host(context_, step_->parameters().gradient(info)));
    return outcome;
  }

 private:
  const std::filesystem::path folder_;
  const ModelConfig config_;
  const std::unique_ptr<backend::Backend> backend_;
  Context context_;
  std::unique_ptr<TrainingStep> step_;
};

class PackedDocumentsTest : public testing::TestWithParam<std::tuple<std::string, DeviceKind>> {
 protected:
  void SetUp() override {
    const auto& [name, kind] = GetParam();
    if (!test::has_device(kind)) GTEST_SKIP() << "no such device";
    tolerance_ = kind == DeviceKind::kReference ? 1e-12 : 1e-5;
    // Products of few rows are other kernels on a GPU, and gradients of these weights enlarge rounding.
    gradient_tolerance_ = kind == DeviceKind::kCuda ? verify::kModelF32.gradient : tolerance_;
    int32_t rows = 0;
    for (const int32_t length : {1, 2, 63, 64, 65, 500, 1}) offsets_.push_back(rows += length);
    model_ = std::make_unique<TinyModel>(name, kind, rows, 7);
    const auto vocab = static_cast<uint64_t>(model_->vocab_size());
    const RandomStream stream(1, "packed documents");
    for (int32_t i = 0; i < rows; ++i) {
      ids_.push_back(static_cast<int32_t>(stream.below(static_cast<uint64_t>(i), vocab)));
      labels_.push_back(static_cast<int32_t>(stream.below(static_cast<uint64_t>(rows + i), vocab)));
    }
  }

  Outcome whole(const std::vector<int32_t>& labels, const std::vector<int32_t>& offsets) {
    return model_->run(ids_, labels, offsets);
  }

  void expect_equal(const Outcome& got, const Outcome& want) const {
    EXPECT_NEAR(got.loss, want.loss, tolerance_ * want.loss);
    for (size_t i = 0; i < want.gradients.size(); ++i) {
      EXPECT_LE(relative_error(got.gradients[i], want.gradients[i]), gradient_tolerance_)
          << model_->parameters()[i].name;
    }
  }

  double tolerance_ = 0, gradient_tolerance_ = 0;
  std::unique_ptr<TinyModel> model_;
  std::vector<int32_t> ids_, labels_, offsets_ = {0};
};

TEST_P(PackedDocumentsTest, EqualTheSameDocumentsAlone) {
  const Outcome packed = whole(labels_, offsets_);
  Outcome alone;
  for (size_t s = 0; s + 1 < offsets_.size(); ++s) {
    const auto part = [&](const std::vector<int32_t>& row) {
      return std::vector<int32_t>(row.begin() + offsets_[s], row.begin() + offsets_[s + 1]);
    };
    alone.add(model_->run(part(ids_), part(labels_), {0, offsets_[s + 1] - offsets_[s]}));
  }
  expect_equal(packed, alone);
  EXPECT_LE(relative_error(packed.logits, alone.logits), tolerance_);
  // As one document the row says something else.
  EXPECT_GT(relative_error(whole(labels_, {0, offsets_.back()}).logits, alone.logits), 1e-3);
}

// The sum over labels is split in two: what counts in one half and what counts in the other.
TEST_P(PackedDocumentsTest, LabelsThatDoNotCountAreMissingEverywhere) {
  std::vector<int32_t> counted = labels_, others = labels_;
  for (size_t i = 0; i < labels_.size(); ++i)
    (i % 3 == 0 ? others : counted)[i] = ops::kIgnoredLabel;
  Outcome sum = whole(counted, offsets_);
  sum.add(whole(others, offsets_));
  expect_equal(sum, whole(labels_, offsets_));

  const Outcome none = whole(std::vector<int32_t>(labels_.size(), ops::kIgnoredLabel), offsets_);
  EXPECT_EQ(none.loss, 0);
  for (size_t i = 0; i < none.gradients.size(); ++i) {
    for (const double value : none.gradients[i])
      ASSERT_EQ(value, 0) << model_->parameters()[i].name;
  }
}

INSTANTIATE_TEST_SUITE_P(TinyModels, PackedDocumentsTest,
                         testing::Combine(testing::Values("tiny_gdn", "tiny_kda", "tiny_hybrid"),
                                          testing::Values(DeviceKind::kReference, DeviceKind::kCpu,
                                                          DeviceKind::kCuda)),
                         [](const auto& param) {
                           return std::get<0>(param.param) + "_on_" +
                                  backend::device_kind_name(std::get<1>(param.param));
                         });

}  // namespace
}  // namespace deltatrain
