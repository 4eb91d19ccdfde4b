#include "serve/api_request.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

namespace deltatrain::serve {

namespace {

using Json = nlohmann::json;

constexpr int kMaxDepth = 32;
constexpr size_t kMaxStops = 16;
constexpr size_t kMaxStopBytes = 1024;
constexpr int64_t kMaxTop = 20;

[[noreturn]] void refuse(const std::string& field, const std::string& expected,
                         const std::string& got) {
  throw ApiError(400, error_text("", field, expected, got), field.substr(0, field.find(':')));
}

// A value for a message: its type, and what it is where that is short.
std::string shown(const Json& value) {
  if (value.is_object() || value.is_array())
    return std::string("an ") + (value.is_object() ? "object" : "array");
  const std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  return text.size() <= 40 ? text : std::string("a ") + value.type_name();
}

int64_t whole_number(const std::string& field, const Json& value, int64_t least, int64_t most) {
  const std::string expected =
      "a whole number from " + std::to_string(least) + " to " + std::to_string(most);
  if (!value.is_number_integer()) refuse(field, expected, shown(value));
  const bool is_large = value.is_number_unsigned() &&
                        value.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()};
  if (is_large || value.get<int64_t>() < least || value.get<int64_t>() > most)
    refuse(field, expected, shown(value));
  return value.get<int64_t>();
}

double number(const std::string& field, const Json& value, double least, double most,
              const char* expected) {
  if (!value.is_number()) refuse(field, expected, shown(value));
  const double result = value.get<double>();
  if (!(result >= least && result <= most)) refuse(field, expected, shown(value));
  return result;
}

bool boolean(const std::string& field, const Json& value) {
  if (!value.is_boolean()) refuse(field, "true or false", shown(value));
  return value.get<bool>();
}

std::string text(const std::string& field, const Json& value) {
  if (!value.is_string()) refuse(field, "a string", shown(value));
  return value.get<std::string>();
}

std::vector<int32_t> token_ids(const std::string& field, const Json& value,
                               const ApiLimits& limits) {
  if (value.empty()) refuse(field, "at least one token", "none");
  if (value.size() > static_cast<size_t>(limits.max_prompt_tokens))
    refuse(field, "at most " + std::to_string(limits.max_prompt_tokens) + " tokens",
           std::to_string(value.size()));
  std::vector<int32_t> ids;
  ids.reserve(value.size());
  for (const Json& id : value)
    ids.push_back(
        static_cast<int32_t>(whole_number(field, id, 0, std::numeric_limits<int32_t>::max())));
  return ids;
}

std::vector<Prompt> prompts(const Json& value, const ApiLimits& limits) {
  static const char* const kForms =
      "a string, a list of token ids, or a list of strings or of lists of token ids";
  if (value.is_string()) return {value.get<std::string>()};
  if (!value.is_array()) refuse("prompt", kForms, shown(value));
  if (value.empty()) refuse("prompt", "at least one prompt", "none");
  if (value.front().is_number()) return {token_ids("prompt", value, limits)};
  if (value.size() > static_cast<size_t>(limits.max_prompts))
    refuse("prompt", "at most " + std::to_string(limits.max_prompts) + " prompts",
           std::to_string(value.size()));
  std::vector<Prompt> result;
  for (const Json& item : value) {
    if (item.type() != value.front().type()) refuse("prompt", kForms, "items of several types");
    if (item.is_string()) {
      result.emplace_back(item.get<std::string>());
    } else if (item.is_array()) {
      result.emplace_back(token_ids("prompt", item, limits));
    } else {
      refuse("prompt", kForms, "a list with " + shown(item));
    }
  }
  return result;
}

// A message's content: a string, or parts of which all are text.
std::string content(const Json& value) {
  static const char* const kForms = "a string or a list of {\"type\": \"text\", \"text\": ...}";
  if (value.is_null()) return "";
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) refuse("messages: content", kForms, shown(value));
  std::string result;
  for (const Json& part : value) {
    if (!part.is_object() || part.size() != 2 || !part.contains("type") ||
        part.at("type") != "text" || !part.contains("text") || !part.at("text").is_string())
      refuse("messages: content", kForms, shown(part));
    result += part.at("text").get<std::string>();
  }
  return result;
}

std::vector<ChatMessage> messages(const Json& value) {
  if (!value.is_array() || value.empty())
    refuse("messages", "a list of messages, at least one",
           value.is_array() ? "none" : shown(value));
  std::vector<ChatMessage> result;
  for (const Json& message : value) {
    if (!message.is_object()) refuse("messages", "objects with role and content", shown(message));
    ChatMessage parsed;
    bool has_content = false;
    for (const auto& [key, field] : message.items()) {
      if (key == "role") {
        parsed.role = text("messages: role", field);
      } else if (key == "content") {
        parsed.content = content(field);
        has_content = true;
      } else if (key != "name") {
        refuse("messages", "role and content", "\"" + key.substr(0, 40) + "\"");
      }
    }
    if (parsed.role.empty() || !has_content)
      refuse("messages", "objects with role and content", "one without");
    result.push_back(std::move(parsed));
  }
  return result;
}

std::vector<std::string> stops(const Json& value) {
  const Json list = value.is_string() ? Json::array({value}) : value;
  if (!list.is_array()) refuse("stop", "a string or a list of strings", shown(value));
  if (list.size() > kMaxStops)
    refuse("stop", "at most " + std::to_string(kMaxStops) + " strings",
           std::to_string(list.size()));
  std::vector<std::string> result;
  for (const Json& item : list) {
    std::string stop = text("stop", item);
    if (stop.empty() || stop.size() > kMaxStopBytes)
      refuse("stop", "strings of 1 to " + std::to_string(kMaxStopBytes) + " bytes",
             std::to_string(stop.size()) + " bytes");
    result.push_back(std::move(stop));
  }
  return result;
}

// A field that this server has no use for, where it asks for nothing.
void expect_neutral(const std::string& field, const Json& value, const Json& neutral) {
  const bool is_empty = (value.is_array() || value.is_object() || value.is_string()) &&
                        value.empty() && neutral.type() == value.type();
  if (value != neutral && !is_empty)
    refuse(field, "nothing, or " + neutral.dump() + ", as it is not supported", shown(value));
}

using Reader = std::function<void(const std::string&, const Json&, ApiRequest&)>;

const std::map<std::string, Reader>& common_fields() {
  static const auto ignored = [](const std::string&, const Json&, ApiRequest&) {};
  static const auto neutral = [](Json value) {
    return [value](const std::string& field, const Json& given, ApiRequest&) {
      expect_neutral(field, given, value);
    };
  };
  static const std::map<std::string, Reader> fields = {
      {"model",
       [](const std::string& field, const Json& value, ApiRequest&) { text(field, value); }},
      {"user", ignored},
      {"metadata", ignored},
      {"store", ignored},
      {"service_tier", ignored},
      {"max_tokens",
       [](const std::string& field, const Json& value, ApiRequest& request) {
         request.max_tokens = whole_number(field, value, 0, int64_t{1} << 30);
       }},
      {"temperature",
       [](const std::string& field, const Json& value, ApiRequest& request) {
         request.sampling.temperature = number(field, value, 0, 100, "a number from 0 to 100");
       }},
      {"top_p",
       [](const std::string& field, const Json& value, ApiRequest& request) {
         request.sampling.top_p = number(field, value, 0, 1, "a number from 0 to 1");
       }},
      {"top_k",
       [](const std::string& field, const Json& value, ApiRequest& request) {
         request.sampling.top_k = std::max<int64_t>(0, whole_number(field, value, -1, 1 << 30));
       }},
      {"seed",
       [](const std::string& field, const Json& value, ApiRequest& request) {
         if (!value.is_number_integer()) refuse(field, "a whole number", shown(value));
         request.sampling.seed = value.is_number_unsigned()
                                     ? value.get<uint64_t>()
                                     : static_cast<uint64_t>(value.get<int64_t>());
         request.has_seed = true;
       }},
      {"n", [](const std::string& field, const Json& value,
               ApiRequest& request) { request.num_samples = whole_number(field, value, 1, 1024); }},
      {"stop", [](const std::string&, const Json& value,
                  ApiRequest& request) { request.stop = stops(value); }},
      {"stream", [](const std::string& field, const Json& value,
                    ApiRequest& request) { request.stream = boolean(field, value); }},
      {"stream_options",
       [](const std::string& field, const Json& value, ApiRequest& request) {
         if (!value.is_object()) refuse(field, "an object", shown(value));
         for (const auto& [key, option] : value.items()) {
           if (key != "include_usage") refuse(field, "include_usage", key.substr(0, 40));
           request.include_usage = boolean(field, option);
         }
       }},
      {"ignore_eos", [](const std::string& field, const Json& value,
                        ApiRequest& request) { request.ignore_eos = boolean(field, value); }},
      {"presence_penalty", neutral(0.0)},
      {"frequency_penalty", neutral(0.0)},
      {"logit_bias", neutral(Json::object())},
  };
  return fields;
}

const std::map<std::string, Reader>& completion_fields() {
  static const std::map<std::string, Reader> fields = [] {
    std::map<std::string, Reader> all = common_fields();
    all["prompt"] = nullptr;   // needs the limits
    all["best_of"] = nullptr;  // compared with n
    all["suffix"] = [](const std::string& field, const Json& value, ApiRequest&) {
      expect_neutral(field, value, "");
    };
    all["echo"] = [](const std::string& field, const Json& value, ApiRequest& request) {
      request.echo = boolean(field, value);
    };
    all["logprobs"] = [](const std::string& field, const Json& value, ApiRequest& request) {
      request.num_top = whole_number(field, value, 0, kMaxTop);
    };
    all["add_special_tokens"] = [](const std::string& field, const Json& value,
                                   ApiRequest& request) {
      request.add_special_tokens = boolean(field, value);
    };
    return all;
  }();
  return fields;
}

const std::map<std::string, Reader>& chat_fields() {
  static const std::map<std::string, Reader> fields = [] {
    std::map<std::string, Reader> all = common_fields();
    all["messages"] = [](const std::string&, const Json& value, ApiRequest& request) {
      request.messages = messages(value);
    };
    all["max_completion_tokens"] = all.at("max_tokens");
    all["logprobs"] = nullptr;  // beside top_logprobs
    all["top_logprobs"] = nullptr;
    all["tools"] = [](const std::string& field, const Json& value, ApiRequest&) {
      expect_neutral(field, value, Json::array());
    };
    all["tool_choice"] = [](const std::string& field, const Json& value, ApiRequest&) {
      expect_neutral(field, value, "none");
    };
    all["response_format"] = [](const std::string& field, const Json& value, ApiRequest&) {
      expect_neutral(field, value, Json::object({{"type", "text"}}));
    };
    return all;
  }();
  return fields;
}

// No deeper than any request is, as nesting costs memory out of proportion to its bytes.
Json parse_json(std::string_view body) {
  const auto check_depth = [](int depth, Json::parse_event_t, Json&) {
    if (depth > kMaxDepth)
      throw ApiError(
          400, "body: expected JSON of at most " + std::to_string(kMaxDepth) + " levels, got more");
    return true;
  };
  try {
    return Json::parse(body.begin(), body.end(), check_depth);
  } catch (const Json::exception& error) {
    // "[json.exception.parse_error.101] parse error at line 1, column 5: ..."
    std::string reason = error.what();
    if (const size_t end = reason.find("] "); end != std::string::npos) reason.erase(0, end + 2);
    std::erase_if(reason, [](char c) { return static_cast<unsigned char>(c) >= 0x7f || c < ' '; });
    throw ApiError(400, "body: expected JSON, got a " + reason.substr(0, 200));
  }
}

Json read_fields(std::string_view body, const std::map<std::string, Reader>& fields,
                 ApiRequest& request) {
  const Json json = parse_json(body);
  if (!json.is_object()) refuse("body", "a JSON object", shown(json));
  for (const auto& [key, value] : json.items()) {
    const auto field = fields.find(key);
    if (field == fields.end()) {
      std::vector<std::string> names;
      for (const auto& [name, reader] : fields) names.push_back(name);
      const std::string name = key.substr(0, 64);
      const std::string nearest = nearest_name(name, names);
      throw ApiError(400,
                     name + ": unknown field" +
                         (nearest.empty() ? std::string() : "; did you mean " + nearest + "?"),
                     name);
    }
    if (!value.is_null() && field->second) field->second(key, value, request);
  }
  return json;
}

// The value of a field that is there and not null.
const Json* given(const Json& json, const char* field) {
  const auto found = json.find(field);
  return found == json.end() || found->is_null() ? nullptr : &*found;
}

}  // namespace

ApiRequest parse_completion_request(std::string_view body, const ApiLimits& limits) {
  ApiRequest request;
  const Json json = read_fields(body, completion_fields(), request);
  const Json* prompt = given(json, "prompt");
  if (prompt == nullptr) refuse("prompt", "a prompt", "none");
  request.prompts = prompts(*prompt, limits);
  if (const Json* best_of = given(json, "best_of");
      best_of != nullptr && whole_number("best_of", *best_of, 1, 1024) != request.num_samples)
    refuse("best_of", "the same as n, as choosing is not supported", shown(*best_of));
  if (request.max_tokens == 0 && !request.echo) refuse("max_tokens", "a number >= 1, or echo", "0");
  return request;
}

ApiRequest parse_chat_request(std::string_view body, const ApiLimits&) {
  ApiRequest request;
  const Json json = read_fields(body, chat_fields(), request);
  if (request.messages.empty()) refuse("messages", "a list of messages", "none");
  const Json* logprobs = given(json, "logprobs");
  const Json* top = given(json, "top_logprobs");
  const bool wants = logprobs != nullptr && boolean("logprobs", *logprobs);
  if (wants) request.num_top = 0;
  if (top != nullptr) {
    const int64_t count = whole_number("top_logprobs", *top, 0, kMaxTop);
    if (!wants && count > 0) refuse("top_logprobs", "logprobs: true beside it", "none");
    if (wants) request.num_top = count;
  }
  if (request.max_tokens == 0) refuse("max_tokens", "a number >= 1", "0");
  return request;
}

}  // namespace deltatrain::serve
