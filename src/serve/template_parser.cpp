#include "serve/template_parser.h"

#include <algorithm>
#include <cstdlib>

#include "base/error.h"
#include "serve/template_pieces.h"

namespace deltatrain::serve {

namespace {

using Expression = TemplateExpression;
using Kind = TemplateExpression::Kind;
using Node = TemplateNode;
using OrderedJson = nlohmann::ordered_json;

constexpr int kMaxNesting = 60;
constexpr size_t kMaxTokens = 2000;  // of one statement: a tree is no deeper than it has tokens

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

struct Token {
  enum class Kind : uint8_t { kName, kString, kNumber, kSymbol, kEnd } kind = Kind::kEnd;
  std::string text;
};

class Parser {
 public:
  Parser(std::string_view source, const std::string& where)
      : where_(where), pieces_(cut_template(source, where)) {}

  std::vector<Node> parse() {
    std::vector<Node> nodes = block({});
    return nodes;
  }

 private:
  [[noreturn]] void fail(const std::string& expected, const std::string& got) const {
    throw FormatError(error_text(where_, "line " + std::to_string(line_), expected, got));
  }

  // --- tokens of a piece ---

  void read_tokens(const TemplatePiece& piece) {
    tokens_.clear();
    next_ = 0;
    line_ = piece.line;
    const std::string& text = piece.text;
    for (size_t at = 0; at < text.size();) {
      if (tokens_.size() == kMaxTokens)
        fail("at most " + std::to_string(kMaxTokens) + " words and signs", "more");
      const char c = text[at];
      if (is_space(c)) {
        ++at;
      } else if (is_name_start(c)) {
        const size_t begin = at;
        while (at < text.size() && (is_name_start(text[at]) || is_digit(text[at]))) ++at;
        tokens_.push_back({Token::Kind::kName, text.substr(begin, at - begin)});
      } else if (is_digit(c)) {
        const size_t begin = at;
        while (at < text.size() && (is_digit(text[at]) || text[at] == '_')) ++at;
        if (at + 1 < text.size() && text[at] == '.' && is_digit(text[at + 1])) {
          ++at;
          while (at < text.size() && is_digit(text[at])) ++at;
        }
        std::string number = text.substr(begin, at - begin);
        std::erase(number, '_');
        tokens_.push_back({Token::Kind::kNumber, number});
      } else if (c == '"' || c == '\'') {
        tokens_.push_back({Token::Kind::kString, string_at(text, at)});
      } else {
        static constexpr std::string_view kPairs[] = {"==", "!=", "<=", ">=", "//", "**"};
        const bool is_pair =
            std::ranges::find(kPairs, std::string_view(text).substr(at, 2)) != std::end(kPairs);
        if (!is_pair && std::string_view("+-*/%~<>=|()[]{},:.").find(c) == std::string_view::npos)
          fail("an expression", std::string("\"") + (c >= ' ' && c < 0x7f ? c : '?') + "\"");
        tokens_.push_back({Token::Kind::kSymbol, text.substr(at, is_pair ? 2 : 1)});
        at += is_pair ? 2 : 1;
      }
    }
    tokens_.push_back({});
  }

  std::string string_at(const std::string& text, size_t& at) const {
    const char quote = text[at++];
    std::string value;
    while (at < text.size() && text[at] != quote) {
      char c = text[at++];
      if (c == '\\' && at < text.size()) {
        c = text[at++];
        switch (c) {
          case 'n':
            value += '\n';
            break;
          case 't':
            value += '\t';
            break;
          case 'r':
            value += '\r';
            break;
          case '\\':
          case '\'':
          case '"':
            value += c;
            break;
          default:
            fail("one of the escapes \\n \\t \\r \\\\ \\' \\\"",
                 std::string("\\") + (c >= ' ' && c < 0x7f ? c : '?'));
        }
      } else {
        value += c;
      }
    }
    if (at == text.size()) fail("a string's end", "the end of the line");
    ++at;
    return value;
  }

  const Token& token() const { return tokens_[next_]; }
  bool is(std::string_view text) const {
    return token().text == text &&
           (token().kind == Token::Kind::kName || token().kind == Token::Kind::kSymbol);
  }
  bool take(std::string_view text) {
    if (!is(text)) return false;
    ++next_;
    return true;
  }
  void expect(std::string_view text) {
    if (!take(text)) fail("\"" + std::string(text) + "\"", shown());
  }
  std::string name() {
    if (token().kind != Token::Kind::kName) fail("a name", shown());
    return tokens_[next_++].text;
  }
  std::string shown() const {
    return token().kind == Token::Kind::kEnd ? "the end" : "\"" + token().text.substr(0, 40) + "\"";
  }
  void expect_end() const {
    if (token().kind != Token::Kind::kEnd) fail("the end of the statement", shown());
  }

  // --- statements ---

  // Up to a statement that begins with one of `ends`, which is left as the tokens read last.
  std::vector<Node> block(const std::vector<std::string_view>& ends) {
    if (++depth_ > kMaxNesting) fail("at most " + std::to_string(kMaxNesting) + " levels", "more");
    std::vector<Node> nodes;
    while (piece_ < pieces_.size()) {
      const TemplatePiece& piece = pieces_[piece_++];
      if (piece.kind == TemplatePiece::Kind::kText) {
        nodes.push_back({.text = piece.text});
        continue;
      }
      read_tokens(piece);
      if (piece.kind == TemplatePiece::Kind::kOutput) {
        Node node{.kind = Node::Kind::kOutput};
        node.expression = expression_or_tuple();
        expect_end();
        nodes.push_back(std::move(node));
        continue;
      }
      if (std::ranges::any_of(ends, [&](std::string_view end) { return is(end); })) {
        --depth_;
        return nodes;
      }
      statement(nodes);
    }
    if (!ends.empty()) fail("\"" + std::string(ends.back()) + "\"", "the end of the template");
    --depth_;
    return nodes;
  }

  void statement(std::vector<Node>& nodes) {
    Node node;
    if (take("if")) {
      node.kind = Node::Kind::kIf;
      ExpressionPointer condition = expression();
      while (true) {
        expect_end();
        std::vector<Node> body = block({"elif", "else", "endif"});
        node.branches.emplace_back(std::move(condition), std::move(body));
        if (take("endif")) break;
        condition = take("elif") ? expression() : nullptr;
        if (condition == nullptr) {
          expect("else");
          expect_end();
          node.branches.emplace_back(nullptr, block({"endif"}));
          expect("endif");
          break;
        }
      }
    } else if (take("for")) {
      node.kind = Node::Kind::kFor;
      const bool has_parentheses = take("(");
      do node.names.push_back(name());
      while (take(","));
      if (has_parentheses) expect(")");
      expect("in");
      node.expression = without_condition();
      if (take("if")) node.condition = expression();
      expect_end();
      node.body = block({"else", "endfor"});
      if (take("else")) {
        expect_end();
        node.otherwise = block({"endfor"});
      }
      expect("endfor");
    } else if (take("set")) {
      node.kind = Node::Kind::kSet;
      node.names.push_back(name());
      if (take(".")) {
        node.attribute = name();
      } else {
        while (take(",")) node.names.push_back(name());
      }
      if (take("=")) {
        node.expression = expression_or_tuple();
      } else {
        expect_end();
        node.body = block({"endset"});
        expect("endset");
      }
    } else if (take("macro")) {
      node.kind = Node::Kind::kMacro;
      node.names.push_back(name());
      expect("(");
      while (!take(")")) {
        if (node.names.size() > 1) expect(",");
        node.names.push_back(name());
        if (take("=")) {
          node.defaults.push_back(expression());
        } else if (!node.defaults.empty()) {
          fail("defaults for all arguments that follow", "none");
        }
      }
      expect_end();
      node.body = block({"endmacro"});
      expect("endmacro");
      if (token().kind == Token::Kind::kName) ++next_;
    } else if (take("generation")) {
      expect_end();
      for (Node& inner : block({"endgeneration"})) nodes.push_back(std::move(inner));
      expect("endgeneration");
      expect_end();
      return;
    } else if (take("break")) {
      node.kind = Node::Kind::kBreak;
    } else if (take("continue")) {
      node.kind = Node::Kind::kContinue;
    } else {
      fail("if, for, set, macro, generation, break or continue", shown());
    }
    expect_end();
    nodes.push_back(std::move(node));
  }

  // --- expressions, from the loosest to the tightest binding ---

  static ExpressionPointer make(Kind kind, std::string name = "") {
    auto result = std::make_unique<Expression>();
    result->kind = kind;
    result->name = std::move(name);
    return result;
  }
  static ExpressionPointer binary(std::string name, ExpressionPointer a, ExpressionPointer b) {
    ExpressionPointer result = make(Kind::kBinary, std::move(name));
    result->operands.push_back(std::move(a));
    result->operands.push_back(std::move(b));
    return result;
  }
  static ExpressionPointer literal(OrderedJson value) {
    ExpressionPointer result = make(Kind::kLiteral);
    result->value = std::move(value);
    return result;
  }

  ExpressionPointer expression_or_tuple() {
    ExpressionPointer first = expression();
    if (!is(",")) return first;
    ExpressionPointer list = make(Kind::kList);
    list->operands.push_back(std::move(first));
    while (take(",")) {
      if (token().kind == Token::Kind::kEnd) break;
      list->operands.push_back(expression());
    }
    return list;
  }

  ExpressionPointer expression() {
    if (++depth_ > kMaxNesting) fail("at most " + std::to_string(kMaxNesting) + " levels", "more");
    ExpressionPointer value = without_condition();
    while (take("if")) {
      ExpressionPointer result = make(Kind::kCondition);
      result->operands.push_back(std::move(value));
      result->operands.push_back(without_condition());
      result->operands.push_back(take("else") ? expression() : nullptr);
      value = std::move(result);
    }
    --depth_;
    return value;
  }

  ExpressionPointer without_condition() {
    ExpressionPointer left = conjunction();
    while (take("or")) left = binary("or", std::move(left), conjunction());
    return left;
  }

  ExpressionPointer conjunction() {
    ExpressionPointer left = negation();
    while (take("and")) left = binary("and", std::move(left), negation());
    return left;
  }

  ExpressionPointer negation() {
    if (!take("not")) return comparison();
    if (++depth_ > kMaxNesting) fail("at most " + std::to_string(kMaxNesting) + " levels", "more");
    ExpressionPointer result = make(Kind::kUnary, "not");
    result->operands.push_back(negation());
    --depth_;
    return result;
  }

  ExpressionPointer comparison() {
    ExpressionPointer left = sum();
    while (true) {
      std::string op;
      for (const char* symbol : {"==", "!=", "<=", ">=", "<", ">"}) {
        if (op.empty() && take(symbol)) op = symbol;
      }
      if (op.empty() && is("not") && tokens_[next_ + 1].text == "in") {
        next_ += 2;
        op = "not in";
      }
      if (op.empty() && take("in")) op = "in";
      if (op.empty()) return left;
      left = binary(op, std::move(left), sum());
    }
  }

  ExpressionPointer sum() {
    ExpressionPointer left = concatenation();
    while (is("+") || is("-")) {
      const std::string op = tokens_[next_++].text;
      left = binary(op, std::move(left), concatenation());
    }
    return left;
  }

  ExpressionPointer concatenation() {
    ExpressionPointer left = product();
    while (take("~")) left = binary("~", std::move(left), product());
    return left;
  }

  ExpressionPointer product() {
    ExpressionPointer left = signed_value();
    while (is("*") || is("/") || is("//") || is("%")) {
      const std::string op = tokens_[next_++].text;
      left = binary(op, std::move(left), signed_value());
    }
    return left;
  }

  // A sign binds tighter than a filter.
  ExpressionPointer signed_value(bool with_filters = true) {
    ExpressionPointer value;
    if (is("-") || is("+")) {
      if (++depth_ > kMaxNesting)
        fail("at most " + std::to_string(kMaxNesting) + " levels", "more");
      value = make(Kind::kUnary, tokens_[next_++].text);
      value->operands.push_back(signed_value(false));
      --depth_;
    } else {
      value = primary();
    }
    value = postfix(std::move(value));
    return with_filters ? filtered(std::move(value)) : std::move(value);
  }

  ExpressionPointer filtered(ExpressionPointer value) {
    while (true) {
      if (take("|")) {
        ExpressionPointer result = make(Kind::kFilter, name());
        result->operands.push_back(std::move(value));
        if (take("(")) arguments(*result);
        value = std::move(result);
      } else if (take("is")) {
        const bool is_negated = take("not");
        ExpressionPointer result = make(Kind::kTest, name());
        result->operands.push_back(std::move(value));
        if (take("(")) {
          arguments(*result);
        } else if (result->name == "in" || result->name == "eq" || result->name == "equalto" ||
                   result->name == "divisibleby") {
          result->operands.push_back(postfix(primary()));
        }
        value = std::move(result);
        if (is_negated) {
          ExpressionPointer negated = make(Kind::kUnary, "not");
          negated->operands.push_back(std::move(value));
          value = std::move(negated);
        }
      } else {
        return value;
      }
    }
  }

  void arguments(Expression& call) {
    while (!take(")")) {
      if (!call.keywords.empty() ||
          call.operands.size() > (call.kind == Kind::kCall && !call.is_method ? 0U : 1U))
        expect(",");
      if (take(")")) return;
      if (token().kind == Token::Kind::kName && tokens_[next_ + 1].text == "=" &&
          tokens_[next_ + 1].kind == Token::Kind::kSymbol) {
        std::string keyword = name();
        expect("=");
        call.keywords.emplace_back(std::move(keyword), expression());
      } else {
        call.operands.push_back(expression());
      }
    }
  }

  ExpressionPointer postfix(ExpressionPointer value) {
    int count = 0;
    while (true) {
      if (++count > kMaxNesting) fail("at most " + std::to_string(kMaxNesting) + " levels", "more");
      if (take(".")) {
        ExpressionPointer result = make(Kind::kAttribute, name());
        result->operands.push_back(std::move(value));
        if (take("(")) {
          result->kind = Kind::kCall;
          result->is_method = true;
          arguments(*result);
        }
        value = std::move(result);
      } else if (take("[")) {
        ExpressionPointer result = make(Kind::kItem);
        result->operands.push_back(std::move(value));
        ExpressionPointer index = is(":") ? nullptr : expression();
        result->operands.push_back(std::move(index));
        if (is(":")) {
          result->kind = Kind::kSlice;
          result->operands.resize(4);
          take(":");
          if (!is(":") && !is("]")) result->operands[2] = expression();
          if (take(":") && !is("]")) result->operands[3] = expression();
        }
        expect("]");
        value = std::move(result);
      } else if (is("(") && value->kind == Kind::kName) {
        take("(");
        value->kind = Kind::kCall;
        arguments(*value);
      } else {
        return value;
      }
    }
  }

  ExpressionPointer primary() {
    const Token now = token();
    switch (now.kind) {
      case Token::Kind::kString: {
        std::string text;
        while (token().kind == Token::Kind::kString) text += tokens_[next_++].text;
        return literal(text);
      }
      case Token::Kind::kNumber:
        ++next_;
        if (now.text.find('.') != std::string::npos)
          return literal(std::strtod(now.text.c_str(), nullptr));
        if (now.text.size() > 18) fail("a number of at most 18 digits", "a longer one");
        return literal(static_cast<int64_t>(std::strtoll(now.text.c_str(), nullptr, 10)));
      case Token::Kind::kName:
        ++next_;
        if (now.text == "true" || now.text == "True") return literal(true);
        if (now.text == "false" || now.text == "False") return literal(false);
        if (now.text == "none" || now.text == "None") return literal(nullptr);
        return make(Kind::kName, now.text);
      default:
        break;
    }
    if (take("(")) {
      if (take(")")) return make(Kind::kList);
      ExpressionPointer value = expression();
      if (is(",")) {
        ExpressionPointer list = make(Kind::kList);
        list->operands.push_back(std::move(value));
        while (take(",")) {
          if (is(")")) break;
          list->operands.push_back(expression());
        }
        value = std::move(list);
      }
      expect(")");
      return value;
    }
    if (take("[")) {
      ExpressionPointer list = make(Kind::kList);
      while (!take("]")) {
        if (!list->operands.empty()) expect(",");
        if (take("]")) break;
        list->operands.push_back(expression());
      }
      return list;
    }
    if (take("{")) {
      ExpressionPointer map = make(Kind::kMap);
      while (!take("}")) {
        if (!map->operands.empty()) expect(",");
        if (take("}")) break;
        map->operands.push_back(expression());
        expect(":");
        map->operands.push_back(expression());
      }
      return map;
    }
    fail("an expression", shown());
  }

  std::string where_;
  int line_ = 1;
  std::vector<TemplatePiece> pieces_;
  size_t piece_ = 0;
  std::vector<Token> tokens_;
  size_t next_ = 0;
  int depth_ = 0;
};

}  // namespace

std::vector<TemplateNode> parse_template(std::string_view source, const std::string& where) {
  return Parser(source, where).parse();
}

}  // namespace deltatrain::serve
