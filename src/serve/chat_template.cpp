#include "serve/chat_template.h"

#include <algorithm>
#include <ctime>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "serve/template_parser.h"
#include "serve/template_values.h"

namespace deltatrain::serve {

namespace {

using Value = TemplateValue;
using Node = TemplateNode;
using Expression = TemplateExpression;

constexpr int64_t kMaxSteps = 10000000;  // of which one copies some bytes of a value, too
constexpr size_t kMaxOutputBytes = size_t{16} << 20;
constexpr int kMaxCalls = 50;  // of macros, one inside the other

// What a template says by raise_exception.
class Raised : public Error {
 public:
  explicit Raised(const std::string& message) : Error(message, ExitCode::kBadInput) {}
};

// Steps that a copy of a value costs.
int64_t weight(const Value& value) {
  if (value.is_string())
    return static_cast<int64_t>(value.get_ref<const std::string&>().size()) / 64;
  int64_t sum = 0;
  if (value.is_array() || value.is_object()) {
    for (const Value& item : value) sum += 1 + weight(item);
  }
  return sum;
}

std::string time_text(const std::string& format) {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  localtime_r(&now, &parts);
  char text[256];
  return {text, std::strftime(text, sizeof text, format.substr(0, 64).c_str(), &parts)};
}

class Renderer {
 public:
  explicit Renderer(Value variables) {
    scopes_.emplace_back();
    for (const auto& [name, value] : variables.items()) scopes_.back()[name] = value;
  }

  std::string render(const std::vector<Node>& nodes) {
    run(nodes);
    return std::move(output_);
  }

 private:
  enum class Flow : uint8_t { kOn, kBreak, kContinue };

  void count_step(int64_t steps = 1) {
    steps_ += steps;
    if (steps_ > kMaxSteps || output_.size() > kMaxOutputBytes)
      throw FormatError(error_text("", "chat template", "an end", "ever more steps"));
  }

  Flow run(const std::vector<Node>& nodes) {
    for (const Node& node : nodes) {
      count_step();
      const Flow flow = run(node);
      if (flow != Flow::kOn) return flow;
    }
    return Flow::kOn;
  }

  Flow run(const Node& node) {
    switch (node.kind) {
      case Node::Kind::kText:
        output_ += node.text;
        return Flow::kOn;
      case Node::Kind::kOutput:
        output_ += to_text(evaluate(*node.expression));
        return Flow::kOn;
      case Node::Kind::kIf:
        for (const auto& [condition, body] : node.branches) {
          if (condition == nullptr || is_true(evaluate(*condition))) return run(body);
        }
        return Flow::kOn;
      case Node::Kind::kFor:
        loop(node);
        return Flow::kOn;
      case Node::Kind::kSet:
        set(node);
        return Flow::kOn;
      case Node::Kind::kMacro:
        macros_[node.names[0]] = &node;
        return Flow::kOn;
      case Node::Kind::kBreak:
        return Flow::kBreak;
      case Node::Kind::kContinue:
        return Flow::kContinue;
    }
    return Flow::kOn;
  }

  void unpack(const std::vector<std::string>& names, const Value& value) {
    if (names.size() == 1) {
      scopes_.back()[names[0]] = value;
      return;
    }
    if (!value.is_array() || value.size() != names.size())
      throw FormatError(
          error_text("", names[0], std::to_string(names.size()) + " values", "another number"));
    for (size_t i = 0; i < names.size(); ++i) scopes_.back()[names[i]] = value[i];
  }

  void loop(const Node& node) {
    std::vector<Value> items = elements_of(evaluate(*node.expression));
    scopes_.emplace_back();
    if (node.condition != nullptr) {
      std::erase_if(items, [&](const Value& item) {
        count_step();
        unpack(node.names, item);
        return !is_true(evaluate(*node.condition));
      });
    }
    const size_t size = items.size();
    for (size_t i = 0; i < size; ++i) {
      count_step();
      scopes_.back().clear();
      scopes_.back()["loop"] = {{"index", i + 1},       {"index0", i},
                                {"revindex", size - i}, {"revindex0", size - i - 1},
                                {"first", i == 0},      {"last", i + 1 == size},
                                {"length", size}};
      if (i > 0) scopes_.back()["loop"]["previtem"] = items[i - 1];
      if (i + 1 < size) scopes_.back()["loop"]["nextitem"] = items[i + 1];
      unpack(node.names, items[i]);
      if (run(node.body) == Flow::kBreak) break;
    }
    scopes_.pop_back();
    if (size == 0) run(node.otherwise);
  }

  void set(const Node& node) {
    Value value;
    if (node.expression != nullptr) {
      value = evaluate(*node.expression);
    } else {
      std::string outer;
      outer.swap(output_);
      run(node.body);
      value = output_;
      output_ = std::move(outer);
    }
    if (node.attribute.empty()) return unpack(node.names, value);
    Value* const target = find(node.names[0]);
    if (target == nullptr || !target->is_object())
      throw FormatError(error_text("", node.names[0], "a namespace", "something else"));
    (*target)[node.attribute] = std::move(value);
  }

  Value* find(const std::string& name) {
    for (size_t i = scopes_.size(); i-- > 0;) {
      const auto found = scopes_[i].find(name);
      if (found != scopes_[i].end()) return &found->second;
    }
    return nullptr;
  }

  // Where the value of names, and of attributes of names, lies; null for what has to be computed.
  const Value* place_of(const Expression& expression) {
    if (expression.kind == Expression::Kind::kName) return find(expression.name);
    if (expression.kind != Expression::Kind::kAttribute) return nullptr;
    const Value* const outer = place_of(*expression.operands[0]);
    if (outer == nullptr || !outer->is_object()) return nullptr;
    const auto found = outer->find(expression.name);
    return found == outer->end() ? nullptr : &*found;
  }

  TemplateArguments arguments(const Expression& call, size_t first) {
    TemplateArguments result;
    for (size_t i = first; i < call.operands.size(); ++i)
      result.values.push_back(evaluate(*call.operands[i]));
    for (const auto& [name, value] : call.keywords)
      result.keywords.emplace_back(name, evaluate(*value));
    return result;
  }

  Value evaluate(const Expression& expression) {
    count_step();
    const auto operand = [&](size_t i) { return evaluate(*expression.operands[i]); };
    const auto optional = [&](size_t i) {
      return expression.operands[i] == nullptr ? undefined_value() : operand(i);
    };
    switch (expression.kind) {
      case Expression::Kind::kLiteral:
        return expression.value;
      case Expression::Kind::kName: {
        const Value* const value = find(expression.name);
        if (value == nullptr) return undefined_value();
        count_step(weight(*value));
        return *value;
      }
      case Expression::Kind::kList: {
        Value list = Value::array();
        for (size_t i = 0; i < expression.operands.size(); ++i) list.push_back(operand(i));
        return list;
      }
      case Expression::Kind::kMap: {
        Value map = Value::object();
        for (size_t i = 0; i + 1 < expression.operands.size(); i += 2)
          map[to_text(operand(i))] = operand(i + 1);
        return map;
      }
      case Expression::Kind::kAttribute:
      case Expression::Kind::kItem: {
        const bool is_attribute = expression.kind == Expression::Kind::kAttribute;
        const Value index = is_attribute ? Value(expression.name) : operand(1);
        // What lies in a variable is not copied to be looked into.
        const Value* const variable = place_of(*expression.operands[0]);
        Value item = variable != nullptr ? item_of(*variable, index) : item_of(operand(0), index);
        count_step(weight(item));
        return item;
      }
      case Expression::Kind::kSlice:
        return slice_of(operand(0), optional(1), optional(2), optional(3));
      case Expression::Kind::kCall:
        if (!expression.is_method) return call(expression);
        return call_method(expression.name, operand(0), arguments(expression, 1));
      case Expression::Kind::kFilter:
        return apply_filter(expression.name, operand(0), arguments(expression, 1));
      case Expression::Kind::kTest:
        return apply_test(expression.name, operand(0), arguments(expression, 1));
      case Expression::Kind::kUnary: {
        const Value value = operand(0);
        if (expression.name == "not") return !is_true(value);
        return apply_operator(expression.name, int64_t{0}, value);
      }
      case Expression::Kind::kBinary: {
        const Value left = operand(0);
        if (expression.name == "and") return is_true(left) ? operand(1) : left;
        if (expression.name == "or") return is_true(left) ? left : operand(1);
        return apply_operator(expression.name, left, operand(1));
      }
      case Expression::Kind::kCondition:
        return is_true(operand(1)) ? operand(0) : optional(2);
    }
    return undefined_value();
  }

  Value call(const Expression& expression) {
    const TemplateArguments given = arguments(expression, 0);
    const std::string& name = expression.name;
    if (const auto found = macros_.find(name); found != macros_.end())
      return call_macro(*found->second, given);
    if (name == "raise_exception") throw Raised(to_text(given.get(0, "message")));
    if (name == "namespace" || name == "dict") {
      Value result = Value::object();
      if (!given.values.empty() && given.values[0].is_object()) result = given.values[0];
      for (const auto& [key, value] : given.keywords) result[key] = value;
      return result;
    }
    if (name == "strftime_now") return time_text(to_text(given.get(0, "format")));
    if (name == "range") {
      const auto bound = [&](size_t i) {
        const Value value = given.get(i, "");
        if (!value.is_number_integer())
          throw FormatError(error_text("", "range", "whole numbers", "something else"));
        return value.get<int64_t>();
      };
      const bool has_start = given.values.size() > 1;
      const int64_t begin = has_start ? bound(0) : 0, end = bound(has_start ? 1 : 0);
      const int64_t step = given.values.size() > 2 ? bound(2) : 1;
      if (step == 0) throw FormatError(error_text("", "range", "a step other than 0", "0"));
      Value list = Value::array();
      for (int64_t i = begin; step > 0 ? i < end : i > end;) {
        count_step();
        list.push_back(i);
        if (__builtin_add_overflow(i, step, &i)) break;
      }
      return list;
    }
    throw FormatError(error_text("", "function", "one that docs/serving.md lists", name));
  }

  Value call_macro(const Node& macro, const TemplateArguments& given) {
    if (++num_calls_ > kMaxCalls)
      throw FormatError(error_text("", "macro " + macro.names[0],
                                   "at most " + std::to_string(kMaxCalls) + " calls inside calls",
                                   "more"));
    // A macro sees what stands outside of everything, and its arguments.
    std::vector<std::map<std::string, Value>> outer(scopes_.begin() + 1, scopes_.end());
    scopes_.resize(1);
    scopes_.emplace_back();
    const size_t num_names = macro.names.size() - 1;
    for (size_t i = 0; i < num_names; ++i) {
      const std::string& name = macro.names[i + 1];
      Value value = given.get(i, name.c_str());
      const size_t from_end = num_names - i;
      if (is_undefined(value) && from_end <= macro.defaults.size())
        value = evaluate(*macro.defaults[macro.defaults.size() - from_end]);
      scopes_.back()[name] = std::move(value);
    }
    std::string text;
    text.swap(output_);
    run(macro.body);
    text.swap(output_);
    scopes_.resize(1);
    scopes_.insert(scopes_.end(), outer.begin(), outer.end());
    --num_calls_;
    return text;
  }

  std::vector<std::map<std::string, Value>> scopes_;
  std::map<std::string, const Node*> macros_;
  std::string output_;
  int64_t steps_ = 0;
  int num_calls_ = 0;
};

// chat_template as tokenizer_config.json holds it: one, or several with names.
std::optional<std::string> template_in(const std::string& json, const std::string& where) {
  const auto config = nlohmann::json::parse(json, nullptr, false);
  if (!config.is_object())
    throw FormatError(error_text(where, "content", "a JSON object", "something else"));
  const auto found = config.find("chat_template");
  if (found == config.end() || found->is_null()) return std::nullopt;
  if (found->is_string()) return found->get<std::string>();
  if (found->is_array()) {
    for (const auto& item : *found) {
      if (item.is_object() && item.value("name", nlohmann::json()) == "default" &&
          item.contains("template") && item.at("template").is_string())
        return item.at("template").get<std::string>();
    }
  }
  throw FormatError(error_text(where, "chat_template",
                               "a string, or a list of which one is named \"default\"",
                               found->type_name()));
}

}  // namespace

struct ChatTemplate::Program {
  std::vector<Node> nodes;
  std::string bos_text, eos_text;
};

ChatTemplate::ChatTemplate(const std::string& source, const std::string& where,
                           std::string bos_text, std::string eos_text)
    : program_(
          new Program{parse_template(source, where), std::move(bos_text), std::move(eos_text)}) {}
ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;

std::optional<ChatTemplate> ChatTemplate::load(const std::filesystem::path& folder,
                                               const std::string& bos_text,
                                               const std::string& eos_text) {
  const std::filesystem::path own = folder / "chat_template.jinja";
  if (std::filesystem::exists(own))
    return ChatTemplate(read_file(own, 1 << 20), own.string(), bos_text, eos_text);
  const std::filesystem::path config = folder / "tokenizer_config.json";
  if (!std::filesystem::exists(config)) return std::nullopt;
  const auto source = template_in(read_file(config, 1 << 26), config.string());
  if (!source) return std::nullopt;
  return ChatTemplate(*source, config.string() + ": chat_template", bos_text, eos_text);
}

std::string ChatTemplate::render(const std::vector<ChatMessage>& messages) const {
  Value list = Value::array();
  for (const ChatMessage& message : messages)
    list.push_back({{"role", message.role}, {"content", message.content}});
  try {
    return Renderer({{"messages", list},
                     {"add_generation_prompt", true},
                     {"bos_token", program_->bos_text},
                     {"eos_token", program_->eos_text},
                     {"tools", nullptr},
                     {"documents", nullptr}})
        .render(program_->nodes);
  } catch (const Raised& raised) {
    throw ApiError(400, std::string("messages: the chat template says: ") + raised.what(),
                   "messages");
  } catch (const FormatError& error) {
    throw ApiError(400,
                   std::string("the model's chat template cannot be carried out: ") + error.what());
  }
}

}  // namespace deltatrain::serve
