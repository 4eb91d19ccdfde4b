#include "eval/tasks.h"

#include <fnmatch.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "eval/text_rules.h"
#include "text/case_mapping.h"

namespace deltatrain::eval {

namespace {

struct Subject {
  const char* name;
  int num_documents;
};

constexpr Subject kStem[] = {{"abstract_algebra", 100},
                             {"anatomy", 135},
                             {"astronomy", 152},
                             {"college_biology", 144},
                             {"college_chemistry", 100},
                             {"college_computer_science", 100},
                             {"college_mathematics", 100},
                             {"college_physics", 102},
                             {"computer_security", 100},
                             {"conceptual_physics", 235},
                             {"electrical_engineering", 145},
                             {"elementary_mathematics", 378},
                             {"high_school_biology", 310},
                             {"high_school_chemistry", 203},
                             {"high_school_computer_science", 100},
                             {"high_school_mathematics", 270},
                             {"high_school_physics", 151},
                             {"high_school_statistics", 216},
                             {"machine_learning", 112}};
constexpr Subject kOther[] = {{"business_ethics", 100},
                              {"clinical_knowledge", 265},
                              {"college_medicine", 173},
                              {"global_facts", 100},
                              {"human_aging", 223},
                              {"management", 103},
                              {"marketing", 234},
                              {"medical_genetics", 100},
                              {"miscellaneous", 783},
                              {"nutrition", 306},
                              {"professional_accounting", 282},
                              {"professional_medicine", 272},
                              {"virology", 166}};
constexpr Subject kSocialSciences[] = {{"econometrics", 114},
                                       {"high_school_geography", 198},
                                       {"high_school_government_and_politics", 193},
                                       {"high_school_macroeconomics", 390},
                                       {"high_school_microeconomics", 238},
                                       {"high_school_psychology", 545},
                                       {"human_sexuality", 131},
                                       {"professional_psychology", 612},
                                       {"public_relations", 110},
                                       {"security_studies", 245},
                                       {"sociology", 201},
                                       {"us_foreign_policy", 100}};
constexpr Subject kHumanities[] = {{"formal_logic", 126},
                                   {"high_school_european_history", 165},
                                   {"high_school_us_history", 204},
                                   {"high_school_world_history", 237},
                                   {"international_law", 121},
                                   {"jurisprudence", 108},
                                   {"logical_fallacies", 163},
                                   {"moral_disputes", 346},
                                   {"moral_scenarios", 895},
                                   {"philosophy", 311},
                                   {"prehistory", 324},
                                   {"professional_law", 1534},
                                   {"world_religions", 171}};

template <size_t n>
void add_subjects(const Subject (&subjects)[n], const std::string& group,
                  std::vector<Task>& tasks) {
  for (const Subject& subject : subjects) {
    std::string words = subject.name;
    std::replace(words.begin(), words.end(), '_', ' ');
    tasks.push_back(
        {.name = std::string("mmlu_") + subject.name,
         .alias = subject.name,
         .form = TaskForm::kMmlu,
         .dataset = "cais/mmlu",
         .config = subject.name,
         .scored_split = "test",
         .fewshot = FewshotPool::kFirstOfDev,
         .fewshot_split = "dev",
         .metrics = {{"acc"}},
         .num_documents = subject.num_documents,
         .chance = 0.25,
         .description =
             "The following are multiple choice questions (with answers) about " + words + ".\n\n",
         .group = group});
  }
}

std::vector<Task> make_tasks() {
  const std::vector<Metric> both = {{"acc"}, {"acc_norm"}};
  std::vector<Task> tasks = {{.name = "arc_easy",
                              .form = TaskForm::kArc,
                              .dataset = "allenai/ai2_arc",
                              .config = "ARC-Easy",
                              .scored_split = "test",
                              .fewshot = FewshotPool::kTrain,
                              .fewshot_split = "train",
                              .metrics = both,
                              .num_documents = 2376,
                              .chance = 0.25},
                             {.name = "arc_challenge",
                              .form = TaskForm::kArc,
                              .dataset = "allenai/ai2_arc",
                              .config = "ARC-Challenge",
                              .scored_split = "test",
                              .fewshot = FewshotPool::kTrain,
                              .fewshot_split = "train",
                              .metrics = both,
                              .num_documents = 1172,
                              .chance = 0.25},
                             {.name = "hellaswag",
                              .form = TaskForm::kHellaswag,
                              .dataset = "Rowan/hellaswag",
                              .scored_split = "validation",
                              .fewshot = FewshotPool::kTrainWithout,
                              .fewshot_split = "train",
                              .metrics = both,
                              .num_documents = 10042,
                              .chance = 0.25},
                             {.name = "openbookqa",
                              .form = TaskForm::kOpenbookqa,
                              .dataset = "allenai/openbookqa",
                              .config = "main",
                              .scored_split = "test",
                              .fewshot = FewshotPool::kTrain,
                              .fewshot_split = "train",
                              .metrics = both,
                              .num_documents = 500,
                              .chance = 0.25},
                             {.name = "piqa",
                              .form = TaskForm::kPiqa,
                              .dataset = "baber/piqa",
                              .scored_split = "validation",
                              .fewshot = FewshotPool::kTrainWithout,
                              .fewshot_split = "train",
                              .metrics = both,
                              .num_documents = 1838,
                              .chance = 0.5},
                             {.name = "winogrande",
                              .form = TaskForm::kWinogrande,
                              .dataset = "allenai/winogrande",
                              .config = "winogrande_xl",
                              .scored_split = "validation",
                              .fewshot = FewshotPool::kTrainWithout,
                              .fewshot_split = "train",
                              .metrics = {{"acc"}},
                              .num_documents = 1267,
                              .chance = 0.5},
                             {.name = "race",
                              .form = TaskForm::kRace,
                              .dataset = "EleutherAI/race",
                              .config = "high",
                              .scored_split = "test",
                              .fewshot = FewshotPool::kScored,
                              .fewshot_split = "test",
                              .metrics = {{"acc"}},
                              .version = 3,
                              .num_documents = 1045,
                              .chance = 0.25},
                             {.name = "lambada_openai",
                              .form = TaskForm::kLambada,
                              .dataset = "EleutherAI/lambada_openai",
                              .config = "default",
                              .scored_split = "test",
                              .fewshot = FewshotPool::kScored,
                              .fewshot_split = "test",
                              .metrics = {{"perplexity", false}, {"acc"}},
                              .num_documents = 5153},
                             {.name = "wikitext",
                              .form = TaskForm::kWikitext,
                              .dataset = "EleutherAI/wikitext_document_level",
                              .config = "wikitext-2-raw-v1",
                              .scored_split = "test",
                              .metrics = {{"word_perplexity", false},
                                          {"byte_perplexity", false},
                                          {"bits_per_byte", false}},
                              .version = 2,
                              .num_documents = 62},
                             {.name = "cloze",
                              .form = TaskForm::kCloze,
                              .dataset = "cloze",
                              .scored_split = "test",
                              .fewshot = FewshotPool::kTrain,
                              .fewshot_split = "train",
                              .metrics = both}};
  add_subjects(kStem, "mmlu_stem", tasks);
  add_subjects(kOther, "mmlu_other", tasks);
  add_subjects(kSocialSciences, "mmlu_social_sciences", tasks);
  add_subjects(kHumanities, "mmlu_humanities", tasks);
  for (Task& task : tasks) {
    if (task.alias.empty()) task.alias = task.name;
  }
  return tasks;
}

// Whether `name` stands for the task: itself, a group around it or a tag.
bool stands_for(const std::string& name, const Task& task) {
  if (name == task.name || (name == "ai2_arc" && task.form == TaskForm::kArc)) return true;
  std::string group = task.group;
  while (!group.empty()) {
    if (name == group) return true;
    const auto& groups = all_groups();
    group = std::find_if(groups.begin(), groups.end(), [&](const Group& g) {
              return g.name == group;
            })->parent;
  }
  return false;
}

// Reads columns of a document by name.
class Columns {
 public:
  Columns(const Json& document, const std::string& where) : document_(document), where_(where) {
    if (!document.is_object()) fail("row", "an object", document.type_name());
  }

  const Json& at(const char* name) const {
    const auto found = document_.find(name);
    if (found == document_.end()) {
      std::string have;
      for (const auto& item : document_.items()) have += (have.empty() ? "" : ", ") + item.key();
      throw FormatError(error_text(where_, "columns", std::string(name) + " among them", have));
    }
    return *found;
  }

  const std::string& string(const char* name) const {
    const Json& value = at(name);
    if (!value.is_string()) fail(name, "a string", value.type_name());
    return value.get_ref<const std::string&>();
  }

  std::vector<std::string> strings(const char* name) const { return strings_of(name, at(name)); }

  // A whole number in [0, count), as a number or as text.
  int64_t index(const char* name, int64_t count) const {
    const Json& value = at(name);
    int64_t index = -1;
    if (value.is_number_integer() &&
        !(value.is_number_unsigned() && value.get<uint64_t>() > 1000)) {
      index = value.get<int64_t>();
    } else if (value.is_string()) {
      const auto& text = value.get_ref<const std::string&>();
      if (text.size() == 1 && text[0] >= '0' && text[0] <= '9') index = text[0] - '0';
    }
    if (index < 0 || index >= count)
      fail(name, "a whole number from 0 to " + std::to_string(count - 1),
           value.dump(-1, ' ', false, Json::error_handler_t::replace));
    return index;
  }

  // A struct of two lists of one length: the texts of the choices and their labels.
  std::pair<std::vector<std::string>, std::vector<std::string>> labelled(const char* name) const {
    const Json& value = at(name);
    if (!value.is_object() || !value.contains("text") || !value.contains("label"))
      fail(name, "an object with text and label",
           value.is_object() ? "another object" : value.type_name());
    auto texts = strings_of(name, value.at("text"));
    auto labels = strings_of(name, value.at("label"));
    if (texts.size() != labels.size() || texts.empty())
      fail(
          name, "as many labels as texts, one or more",
          std::to_string(labels.size()) + " labels and " + std::to_string(texts.size()) + " texts");
    return {std::move(texts), std::move(labels)};
  }

  [[noreturn]] void fail(const std::string& name, const std::string& expected,
                         const std::string& got) const {
    throw FormatError(error_text(where_, name, expected, got));
  }

 private:
  std::vector<std::string> strings_of(const char* name, const Json& value) const {
    if (!value.is_array()) fail(name, "a list of strings", value.type_name());
    std::vector<std::string> result;
    for (const Json& item : value) {
      if (!item.is_string())
        fail(name, "a list of strings", std::string("one with a ") + item.type_name());
      result.push_back(item.get<std::string>());
    }
    return result;
  }

  const Json& document_;
  const std::string& where_;
};

Question multiple_choice(std::string context, const std::vector<std::string>& choices,
                         int64_t gold) {
  Question question;
  question.contexts = {std::move(context)};
  for (const std::string& choice : choices) {
    question.continuations.push_back(" " + choice);
    question.choice_lengths.push_back(text::num_code_points(choice));
  }
  question.gold = gold;
  question.target = std::to_string(gold);
  question.fewshot_answer = choices[static_cast<size_t>(gold)];
  return question;
}

// ARC and OpenBookQA: the label decides, not its letter.
Question labelled_choices(const Columns& columns, std::string context, std::string_view key) {
  const auto [texts, labels] = columns.labelled("choices");
  const auto found = std::find(labels.begin(), labels.end(), key);
  if (found == labels.end())
    columns.fail("answerKey", "one of the labels", "\"" + std::string(key) + "\"");
  return multiple_choice(std::move(context), texts, found - labels.begin());
}

Question hellaswag(Json& document, const Columns& columns) {
  const std::string query =
      clean_hellaswag(columns.string("activity_label") + ": " + columns.string("ctx_a") + " " +
                      text::capitalize(columns.string("ctx_b")));
  std::vector<std::string> endings = columns.strings("endings");
  if (endings.size() < 2) columns.fail("endings", "two or more", std::to_string(endings.size()));
  for (std::string& ending : endings) ending = clean_hellaswag(ending);
  const int64_t gold = columns.index("label", static_cast<int64_t>(endings.size()));
  document["query"] = query;
  document["choices"] = endings;
  document["gold"] = gold;
  return multiple_choice(query, endings, gold);
}

Question winogrande(const Columns& columns) {
  const std::string& sentence = columns.string("sentence");
  const size_t blank = sentence.find('_');
  if (blank == std::string::npos) columns.fail("sentence", "an underscore in it", "none");
  const std::string before = sentence.substr(0, blank);
  Question question;
  question.target = std::string(text::strip(std::string_view(sentence).substr(blank + 1)));
  question.contexts = {before + columns.string("option1"), before + columns.string("option2")};
  question.continuations = {" " + question.target};
  const Json& answer = columns.at("answer");
  if (answer != "1" && answer != "2" && answer != 1 && answer != 2)
    columns.fail("answer", "1 or 2", answer.dump(-1, ' ', false, Json::error_handler_t::replace));
  question.gold = answer == "2" || answer == 2 ? 1 : 0;
  question.fewshot_answer = question.target;
  return question;
}

Question mmlu(const Columns& columns) {
  const std::vector<std::string> choices = columns.strings("choices");
  if (choices.size() != 4) columns.fail("choices", "four", std::to_string(choices.size()));
  std::string context(text::strip(columns.string("question")));
  const std::vector<std::string> letters = {"A", "B", "C", "D"};
  for (size_t i = 0; i < 4; ++i) context += "\n" + letters[i] + ". " + choices[i];
  return multiple_choice(context + "\nAnswer:", letters, columns.index("answer", 4));
}

Question lambada(const Columns& columns) {
  const std::string& text = columns.string("text");
  const size_t blank = text.rfind(' ');
  Question question;
  question.contexts = {blank == std::string::npos ? "" : text.substr(0, blank)};
  question.target = " " + (blank == std::string::npos ? text : text.substr(blank + 1));
  question.continuations = {question.target};
  question.fewshot_answer = question.target;
  return question;
}

Question wikitext(const Columns& columns) {
  const std::string& page = columns.string("page");
  Question question;
  question.target = detokenize_wikitext(page);
  question.contexts = {question.target};
  question.num_words = count_wikitext_words(page);
  question.num_bytes = static_cast<int64_t>(page.size());
  return question;
}

}  // namespace

int64_t Question::num_requests() const {
  return static_cast<int64_t>(std::max(contexts.size(), continuations.size()));
}

const std::vector<Task>& all_tasks() {
  static const std::vector<Task> tasks = make_tasks();
  return tasks;
}

const std::vector<Group>& all_groups() {
  static const std::vector<Group> groups = {
      {"mmlu_stem", "stem", "mmlu", "2"},
      {"mmlu_other", "other", "mmlu", "2"},
      {"mmlu_social_sciences", "social sciences", "mmlu", "2"},
      {"mmlu_humanities", "humanities", "mmlu", "2"},
      {"mmlu", "mmlu", "", "2"}};
  return groups;
}

std::vector<Task> find_tasks(std::span<const std::string> names) {
  std::vector<Task> found;
  std::set<std::string> taken;
  std::vector<std::string> known = {"ai2_arc"};
  for (const Task& task : all_tasks()) known.push_back(task.name);
  for (const Group& group : all_groups()) known.push_back(group.name);
  for (const std::string& name : names) {
    const bool is_pattern = name.find_first_of("*?") != std::string::npos;
    bool matched = false;
    for (const Task& task : all_tasks()) {
      const bool meant =
          is_pattern ? fnmatch(name.c_str(), task.name.c_str(), 0) == 0 : stands_for(name, task);
      if (!meant) continue;
      matched = true;
      if (!taken.insert(task.name).second)
        throw ConfigError(error_text("", "--tasks", "every task once", task.name + " twice"));
      found.push_back(task);
    }
    if (matched) continue;
    const std::string nearest = is_pattern ? "" : nearest_name(name, known);
    throw ConfigError(
        "--tasks: " + name + ": unknown task" +
        (nearest.empty() ? " (eval --list shows all)" : "; did you mean " + nearest + "?"));
  }
  return found;
}

std::vector<std::string> columns_of(TaskForm form) {
  switch (form) {
    case TaskForm::kArc:
      return {"question", "choices", "answerKey"};
    case TaskForm::kHellaswag:
      return {"activity_label", "ctx_a", "ctx_b", "endings", "label"};
    case TaskForm::kOpenbookqa:
      return {"question_stem", "choices", "answerKey"};
    case TaskForm::kPiqa:
      return {"goal", "sol1", "sol2", "label"};
    case TaskForm::kWinogrande:
      return {"sentence", "option1", "option2", "answer"};
    case TaskForm::kMmlu:
      return {"question", "choices", "answer"};
    case TaskForm::kRace:
      return {"article", "problems"};
    case TaskForm::kLambada:
      return {"text"};
    case TaskForm::kWikitext:
      return {"page"};
    case TaskForm::kCloze:
      return {"context", "choices", "label"};
  }
  throw InternalError("columns_of: a task without a form");
}

Question make_question(const Task& task, Json& document, const std::string& where,
                       int race_version) {
  const Columns columns(document, where);
  switch (task.form) {
    case TaskForm::kArc:
      return labelled_choices(columns, "Question: " + columns.string("question") + "\nAnswer:",
                              columns.string("answerKey"));
    case TaskForm::kHellaswag:
      return hellaswag(document, columns);
    case TaskForm::kOpenbookqa:
      return labelled_choices(columns, columns.string("question_stem"),
                              text::strip_front(columns.string("answerKey")));
    case TaskForm::kPiqa:
      return multiple_choice("Question: " + columns.string("goal") + "\nAnswer:",
                             {columns.string("sol1"), columns.string("sol2")},
                             columns.index("label", 2));
    case TaskForm::kWinogrande:
      return winogrande(columns);
    case TaskForm::kMmlu:
      return mmlu(columns);
    case TaskForm::kRace: {
      const auto problems = parse_race_problems(columns.string("problems"), where);
      return multiple_choice(race_context(columns.string("article"), problems, race_version),
                             problems.back().options, problems.back().answer[0] - 'A');
    }
    case TaskForm::kLambada:
      return lambada(columns);
    case TaskForm::kWikitext:
      return wikitext(columns);
    case TaskForm::kCloze: {
      const std::vector<std::string> choices = columns.strings("choices");
      if (choices.size() < 2)
        columns.fail("choices", "two or more", std::to_string(choices.size()));
      return multiple_choice(columns.string("context"), choices,
                             columns.index("label", static_cast<int64_t>(choices.size())));
    }
  }
  throw InternalError("make_question: a task without a form");
}

}  // namespace deltatrain::eval
