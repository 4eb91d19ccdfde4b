#include "eval/fewshot.h"

#include <nlohmann/json.hpp>
#include <numeric>

#include "base/error.h"

namespace deltatrain::eval {

FewshotSampler::FewshotSampler(const Task& task, std::vector<Json> pool, std::string where,
                               int64_t num_fewshot, uint64_t seed, int race_version)
    : task_(task),
      pool_(std::move(pool)),
      where_(std::move(where)),
      num_fewshot_(num_fewshot),
      race_version_(race_version),
      random_(seed) {
  if (num_fewshot == 0) return;
  if (task.fewshot == FewshotPool::kNone)
    throw ConfigError(error_text("--num-fewshot", task.name, "0: the task has no examples",
                                 std::to_string(num_fewshot)));
  const int64_t needed = num_fewshot + (task.fewshot == FewshotPool::kTrainWithout ? 1 : 0);
  if (static_cast<int64_t>(pool_.size()) < needed)
    throw ConfigError(error_text(where_, "documents for few-shot examples",
                                 std::to_string(needed) + " or more",
                                 std::to_string(pool_.size())));
}

std::string FewshotSampler::next_prefix(const Json& document) {
  if (num_fewshot_ == 0) return "";
  const auto size = static_cast<int64_t>(pool_.size());
  std::vector<int64_t> drawn(static_cast<size_t>(num_fewshot_));
  switch (task_.fewshot) {
    case FewshotPool::kFirstOfDev:
      std::iota(drawn.begin(), drawn.end(), int64_t{0});
      break;
    case FewshotPool::kTrainWithout:
      drawn = random_.sample(size, num_fewshot_ + 1);
      std::erase_if(drawn, [&](int64_t i) { return pool_[static_cast<size_t>(i)] == document; });
      drawn.resize(std::min(drawn.size(), static_cast<size_t>(num_fewshot_)));
      break;
    default:
      drawn = random_.sample(size, num_fewshot_);
  }
  std::string prefix;
  for (const int64_t i : drawn) {
    Json example = pool_[static_cast<size_t>(i)];
    const Question question =
        make_question(task_, example, where_ + ":" + std::to_string(i + 1), race_version_);
    prefix += question.context(question.contexts.size() == 1 ? 0 : question.gold) + " " +
              question.fewshot_answer + "\n\n";
  }
  return prefix;
}

}  // namespace deltatrain::eval
