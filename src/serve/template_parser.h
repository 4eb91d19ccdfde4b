// Source text of a chat template to a tree: the part of Jinja's language that such templates use.
//
// Statements: if, for (with if, else, break, continue), set (also of a block, and of a namespace's
// attribute), macro, and generation, which says nothing. White space as Hugging Face's renderer sets it:
// the line end after a statement and the blanks before one at the start of a line are dropped.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace deltatrain::serve {

struct TemplateExpression;
using ExpressionPointer = std::unique_ptr<TemplateExpression>;

struct TemplateExpression {
  enum class Kind : uint8_t {
    kLiteral,    // value
    kName,       // name
    kList,       // operands
    kMap,        // operands: key, value, key, value, ...
    kAttribute,  // operands[0].name
    kItem,       // operands[0][operands[1]]
    kSlice,   // operands[0][operands[1] : operands[2] : operands[3]], each of the three may be null
    kCall,    // name(operands), or operands[0].name(...) as is_method says
    kFilter,  // operands[0] | name(...)
    kTest,    // operands[0] is name(...)
    kUnary,   // name: "-", "+", "not"
    kBinary,  // name: "+", "==", "and", "in", "not in", "~", ...
    kCondition,  // operands[0] if operands[1] else operands[2], the last may be null
  };
  Kind kind = Kind::kLiteral;
  std::string name;
  nlohmann::ordered_json value;
  std::vector<ExpressionPointer> operands;
  std::vector<std::pair<std::string, ExpressionPointer>> keywords;  // of calls, filters and tests
  bool is_method = false;
};

struct TemplateNode {
  enum class Kind : uint8_t {
    kText,    // text
    kOutput,  // expression
    kIf,      // branches: (condition or null, body)
    kFor,     // names in expression, kept where condition holds; body, otherwise
    kSet,     // names = expression, or the block body where expression is null
    kMacro,   // names[0](names[1], ...), with the defaults of the last ones; body
    kBreak,
    kContinue,
  };
  Kind kind = Kind::kText;
  std::string text;
  ExpressionPointer expression, condition;
  std::vector<std::string> names;
  std::string attribute;  // kSet of a namespace's attribute
  std::vector<std::pair<ExpressionPointer, std::vector<TemplateNode>>> branches;
  std::vector<TemplateNode> body, otherwise;
  std::vector<ExpressionPointer> defaults;
};

// FormatError, "WHERE: line N: ...", for what is not understood; sources of up to 1 MiB.
std::vector<TemplateNode> parse_template(std::string_view source, const std::string& where);

}  // namespace deltatrain::serve
