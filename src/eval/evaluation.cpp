#include "eval/evaluation.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/error.h"
#include "eval/datasets.h"
#include "eval/fewshot.h"

namespace deltatrain::eval {

Evaluation::Evaluation(const EvaluationOptions& options, const text::Tokenizer& tokenizer,
                       Reporter& reporter)
    : options_(options) {
  check_data(options.data, options.tasks, options.num_fewshot > 0);
  tasks_.reserve(options.tasks.size());  // samples point into their documents
  for (const Task& task : options.tasks) {
    add_task(task, tokenizer);
    reporter.progress("read", static_cast<int64_t>(tasks_.size()),
                      static_cast<int64_t>(options.tasks.size()), "tasks", "");
  }
}

Evaluation::~Evaluation() = default;
Evaluation::Evaluation(Evaluation&&) noexcept = default;

void Evaluation::add_task(const Task& task, const text::Tokenizer& tokenizer) {
  TaskRun& run = tasks_.emplace_back();
  run.task = task;
  if (task.form == TaskForm::kRace) run.task.version = options_.race_version;
  Split split = read_split(options_.data, task, task.scored_split);
  run.documents = std::move(split.documents);
  run.files = std::move(split.digests);
  run.num_original = static_cast<int64_t>(run.documents.size());

  std::vector<Json> pool;
  std::string pool_where = split.where;
  if (options_.num_fewshot > 0 && task.fewshot != FewshotPool::kNone) {
    if (task.fewshot_split == task.scored_split) {
      pool = run.documents;
    } else {
      Split examples = read_split(options_.data, task, task.fewshot_split);
      pool = std::move(examples.documents);
      pool_where = examples.where;
      run.files.insert(examples.digests.begin(), examples.digests.end());
    }
  }
  FewshotSampler sampler(task, std::move(pool), pool_where, options_.num_fewshot,
                         options_.fewshot_seed, options_.race_version);
  int64_t count = run.num_original;
  if (options_.limit) {
    const double wanted = *options_.limit < 1
                              ? std::ceil(static_cast<double>(count) * *options_.limit)
                              : *options_.limit;
    count = std::min(count, static_cast<int64_t>(wanted));
  }
  run.documents.resize(static_cast<size_t>(count));
  TaskHash hash;
  for (int64_t i = 0; i < count; ++i) {
    Sample sample;
    sample.doc_id = i;
    sample.document = &run.documents[static_cast<size_t>(i)];
    const std::string where = split.where + ": row " + std::to_string(i + 1);
    sample.prefix = task.description + sampler.next_prefix(*sample.document);
    sample.question = make_question(task, *sample.document, where, options_.race_version);
    sample.hashes = hash_sample(*sample.document, sample.prefix + sample.question.context(0),
                                sample.question.target);
    hash.add(sample.hashes);
    add_requests(run, sample, tokenizer, where);
    run.samples.push_back(std::move(sample));
  }
  run.hash = hash.hex();
}

void Evaluation::add_requests(TaskRun& run, Sample& sample, const text::Tokenizer& tokenizer,
                              const std::string& where) {
  sample.first_request = requests_.size();
  if (run.task.form == TaskForm::kWikitext) {
    const std::vector<int32_t> ids =
        tokenizer.encode(sample.question.target, options_.special_tokens);
    for (TokenRequest& window : rolling_windows(ids, prefix_token(tokenizer), options_.max_length))
      requests_.push_back(std::move(window));
  } else {
    for (int64_t i = 0; i < sample.question.num_requests(); ++i) {
      TokenRequest request = encode_request(tokenizer, options_.special_tokens,
                                            sample.prefix + sample.question.context(i),
                                            sample.question.continuation(i), where);
      truncate(request, options_.max_length, where);
      run.truncated_requests += request.num_dropped > 0 ? 1 : 0;
      run.truncated_tokens += request.num_dropped;
      requests_.push_back(std::move(request));
    }
  }
  sample.num_requests = requests_.size() - sample.first_request;
}

void Evaluation::finish(const std::vector<Score>& scores) {
  DELTATRAIN_CHECK(scores.size() == requests_.size(), "one score per request");
  for (TaskRun& run : tasks_) {
    for (Sample& sample : run.samples) {
      const auto begin = scores.begin() + static_cast<std::ptrdiff_t>(sample.first_request);
      sample.scores.assign(begin, begin + static_cast<std::ptrdiff_t>(sample.num_requests));
      if (run.task.form == TaskForm::kWikitext) {
        Score total{0, true};
        for (const Score& score : sample.scores) total.log_likelihood += score.log_likelihood;
        sample.scores = {total};
      }
    }
    finish_task(run);
  }
  finish_groups();
}

void Evaluation::finish_task(TaskRun& run) {
  std::vector<std::vector<double>> values(run.task.metrics.size());
  std::vector<int64_t> words, bytes;
  std::vector<double> sums;
  for (Sample& sample : run.samples) {
    std::vector<double> scores;
    for (const Score& score : sample.scores) scores.push_back(score.log_likelihood);
    sample.values.clear();
    for (const Metric& metric : run.task.metrics) {
      double value = scores.front();  // perplexities
      if (metric.name == "acc_norm") {
        value =
            best_choice_normalized(scores, sample.question.choice_lengths) == sample.question.gold
                ? 1
                : 0;
      } else if (metric.name == "acc" && run.task.form == TaskForm::kLambada) {
        value = sample.scores.front().is_greedy ? 1 : 0;
      } else if (metric.name == "acc") {
        value = best_choice(scores) == sample.question.gold ? 1 : 0;
      }
      sample.values.push_back(value);
      values[sample.values.size() - 1].push_back(value);
    }
    words.push_back(sample.question.num_words);
    bytes.push_back(sample.question.num_bytes);
  }
  run.metrics.clear();
  for (size_t m = 0; m < run.task.metrics.size(); ++m) {
    const std::string_view name = run.task.metrics[m].name;
    if (name == "perplexity") {
      run.metrics.push_back(perplexity(values[m], options_.bootstrap_iters));
    } else if (name == "word_perplexity") {
      run.metrics.push_back(weighted_perplexity(values[m], words));
    } else if (name == "byte_perplexity") {
      run.metrics.push_back(weighted_perplexity(values[m], bytes));
    } else if (name == "bits_per_byte") {
      run.metrics.push_back(bits_per_byte(values[m], bytes));
    } else {
      run.metrics.push_back(mean(values[m]));
      if (options_.bootstrap_iters == 0) run.metrics.back().stderr_value.reset();
    }
  }
}

void Evaluation::finish_groups() {
  groups_.clear();
  const auto asked = [&](const std::string& name) {
    return std::find(options_.groups.begin(), options_.groups.end(), name) != options_.groups.end();
  };
  for (const Group& group : all_groups()) {
    if (!asked(group.name) && !asked(group.parent)) continue;
    GroupRun run{.group = group};
    std::vector<Estimate> estimates;
    std::vector<int64_t> sizes;
    for (const TaskRun& task : tasks_) {
      const bool is_child = task.task.group == group.name;
      const bool is_below = is_child || (group.parent.empty() && task.task.form == TaskForm::kMmlu);
      if (!is_below) continue;
      if (is_child) run.children.push_back(task.task.name);
      estimates.push_back(task.metrics.front());
      sizes.push_back(static_cast<int64_t>(task.samples.size()));
      run.num_samples += sizes.back();
    }
    if (estimates.empty()) continue;
    for (const GroupRun& child : groups_) {
      if (child.group.parent == group.name) run.children.push_back(child.group.name);
    }
    run.acc = pooled(estimates, sizes);
    groups_.push_back(std::move(run));
  }
}

}  // namespace deltatrain::eval
