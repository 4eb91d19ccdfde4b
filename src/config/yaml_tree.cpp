#include "config/yaml_tree.h"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <map>
#include <sstream>

#include "base/error.h"

namespace deltatrain {

namespace {

constexpr size_t kMaxDepth = 16;

class TreeBuilder final : public YAML::EventHandler {
 public:
  TreeBuilder(std::string where, bool line_numbers)
      : where_(std::move(where)), line_numbers_(line_numbers) {}

  YamlNode take() { return std::move(root_); }

  [[noreturn]] void refuse(int line, std::string_view what, std::string_view expected,
                           std::string_view got) const {
    const std::string place = line_numbers_ ? where_ + ":" + std::to_string(line) : where_;
    throw ConfigError(error_text(place, what, expected, got));
  }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    check(mark, "", anchor);
    attach(make(YamlNode::Kind::kNull, mark));
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    refuse(mark.line + 1, "", "values written out", "an alias (*name)");
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    check(mark, tag, anchor);
    YamlNode node = make(YamlNode::Kind::kScalar, mark);
    node.text = value;
    node.quoted = tag == "!";
    attach(std::move(node));
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    check(mark, tag, anchor);
    open(make(YamlNode::Kind::kList, mark));
  }

  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    check(mark, tag, anchor);
    open(make(YamlNode::Kind::kMap, mark));
  }

  void OnSequenceEnd() override { close(); }
  void OnMapEnd() override { close(); }

 private:
  struct Frame {
    YamlNode node;
    bool has_key = false;
    std::string key;
    int key_line = 0;
    std::map<std::string, int> lines;  // of the keys so far
  };

  static YamlNode make(YamlNode::Kind kind, const YAML::Mark& mark) {
    YamlNode node;
    node.kind = kind;
    node.line = mark.line + 1;
    return node;
  }

  void check(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) const {
    if (anchor != YAML::NullAnchor)
      refuse(mark.line + 1, "", "values written out", "an anchor (&name)");
    if (!tag.empty() && tag != "?" && tag != "!")
      refuse(mark.line + 1, "", "no tags", "\"" + tag + "\"");
  }

  void open(YamlNode node) {
    if (frames_.size() >= kMaxDepth) {
      refuse(node.line, "", fmt::format("at most {} levels of nesting", kMaxDepth), "more");
    }
    if (!frames_.empty() && frames_.back().node.is_map() && !frames_.back().has_key) {
      refuse(node.line, "", "a name as key",
             node.is_map() ? "a mapping or an open bracket" : "a list or an open bracket");
    }
    frames_.emplace_back();
    frames_.back().node = std::move(node);
  }

  void close() {
    YamlNode node = std::move(frames_.back().node);
    frames_.pop_back();
    attach(std::move(node));
  }

  void attach(YamlNode node) {
    if (frames_.empty()) {
      root_ = std::move(node);
      return;
    }
    Frame& frame = frames_.back();
    if (frame.node.is_map()) {
      if (!frame.has_key) {
        take_key(frame, node);
        return;
      }
      node.key = std::move(frame.key);
      node.key_line = frame.key_line;
      frame.has_key = false;
    }
    frame.node.items.push_back(std::move(node));
  }

  void take_key(Frame& frame, const YamlNode& node) const {
    if (!node.is_scalar()) refuse(node.line, "", "a name as key", "null");
    constexpr size_t kLongestKey = 100;
    const bool is_one_line = std::none_of(node.text.begin(), node.text.end(),
                                          [](unsigned char c) { return c < 0x20 || c == 0x7f; });
    if (node.text.size() > kLongestKey || !is_one_line) {
      refuse(node.line, "", "a name as key", quoted_text(node.text));
    }
    const auto [before, is_first] = frame.lines.emplace(node.text, node.line);
    if (!is_first) {
      refuse(node.line, node.text, "each key once",
             line_numbers_ ? "a second one, the first in line " + std::to_string(before->second)
                           : "a second one");
    }
    frame.has_key = true;
    frame.key = node.text;
    frame.key_line = node.line;
  }

  std::string where_;
  bool line_numbers_;
  YamlNode root_;
  std::vector<Frame> frames_;
};

// Bytes of the character at `at`, or 0 where the text is no UTF-8 or has a zero byte.
size_t character_bytes(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) -> unsigned {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U;
  };
  const unsigned first = byte(at);
  if (first < 0x80) return first == 0 ? 0 : 1;
  const size_t bytes = first < 0xc2   ? 0
                       : first < 0xe0 ? 2
                       : first < 0xf0 ? 3
                       : first < 0xf5 ? 4
                                      : 0;
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(at + i) & 0xc0U) != 0x80U) return 0;
  }
  const unsigned second = byte(at + 1);
  const bool is_overlong = (first == 0xe0 && second < 0xa0) || (first == 0xf0 && second < 0x90);
  const bool is_no_character = (first == 0xed && second > 0x9f) || (first == 0xf4 && second > 0x8f);
  return is_overlong || is_no_character ? 0 : bytes;
}

constexpr size_t kShownBytes = 60;  // of a value in a message

// Cut to kShownBytes, not inside a character.
std::string shortened(std::string text) {
  if (text.size() <= kShownBytes) return text;
  size_t end = kShownBytes - 3;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return text.substr(0, end) + "...";
}

// The inside of a scalar in double quotes.
std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      result += fmt::format("\\x{:02x}", byte);
    } else {
      result += c;
    }
  }
  return result;
}

std::string whole_text(const YamlNode& node, size_t limit) {
  switch (node.kind) {
    case YamlNode::Kind::kNull:
      return "null";
    case YamlNode::Kind::kScalar:
      return node.quoted ? yaml_string(node.text) : node.text;
    default:
      break;
  }
  std::string text;
  for (const YamlNode& item : node.items) {
    if (text.size() > limit) break;  // a long list is not spelt out to be thrown away
    if (!text.empty()) text += ", ";
    if (node.is_map()) text += item.key + ": ";
    text += whole_text(item, limit);
  }
  return node.is_map() ? "{" + text + "}" : "[" + text + "]";
}

}  // namespace

const YamlNode* YamlNode::find(std::string_view name) const {
  for (const YamlNode& item : items) {
    if (item.key == name) return &item;
  }
  return nullptr;
}

YamlNode parse_yaml(std::string_view text, const std::string& where, bool line_numbers) {
  if (static_cast<int64_t>(text.size()) > kMaxYamlBytes) {
    throw ConfigError(error_text(where, "", fmt::format("at most {} bytes", kMaxYamlBytes),
                                 fmt::format("{}", text.size())));
  }
  TreeBuilder builder(where, line_numbers);
  for (size_t at = 0, line = 1; at < text.size();) {
    const size_t bytes = character_bytes(text, at);
    if (bytes == 0) {
      builder.refuse(static_cast<int>(line), "", "UTF-8 text",
                     fmt::format("byte {:#04x}", static_cast<unsigned char>(text[at])));
    }
    if (text[at] == '\n') ++line;
    at += bytes;
  }
  std::istringstream stream{std::string(text)};
  try {
    YAML::Parser parser(stream);
    if (!parser.HandleNextDocument(builder)) return {};
    YamlNode root = builder.take();
    TreeBuilder rest(where, line_numbers);
    if (parser.HandleNextDocument(rest))
      rest.refuse(rest.take().line, "", "one document", "a second one (---)");
    return root;
  } catch (const YAML::Exception& error) {
    std::string reason = error.msg;
    std::replace(reason.begin(), reason.end(), '\n', ' ');
    builder.refuse(error.mark.line + 1, "not YAML: " + reason, "", "");
  }
}

std::string yaml_text(const YamlNode& node) {
  std::string text = whole_text(node, kShownBytes);
  std::replace(text.begin(), text.end(), '\n', ' ');
  return shortened(std::move(text));
}

std::string quoted_text(std::string_view text) {
  return "\"" + escaped(shortened(std::string(text.substr(0, 2 * kShownBytes)))) + "\"";
}

bool looks_typed(std::string_view plain) {
  static constexpr std::array<std::string_view, 9> kWords = {"",    "~",  "null", "true", "false",
                                                             "yes", "no", "on",   "off"};
  std::string lower(plain);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  if (std::find(kWords.begin(), kWords.end(), lower) != kWords.end()) return true;
  if (lower.find("inf") != std::string::npos || lower.find("nan") != std::string::npos) {
    const size_t start = lower.find_first_not_of("+-.");
    return lower.substr(start) == "inf" || lower.substr(start) == "nan";
  }
  char* end = nullptr;
  std::strtod(lower.c_str(), &end);
  return end == lower.c_str() + lower.size();
}

std::string yaml_string(std::string_view text) {
  const auto is_safe = [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '.' || c == '/' || c == '-' || c == '+';
  };
  if (!text.empty() && text.front() != '-' && std::all_of(text.begin(), text.end(), is_safe) &&
      !looks_typed(text)) {
    return std::string(text);
  }
  return "\"" + escaped(text) + "\"";
}

}  // namespace deltatrain
