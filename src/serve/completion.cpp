#include "serve/completion.h"

#include <algorithm>
#include <charconv>
#include <ctime>
#include <nlohmann/json.hpp>
#include <random>

#include "base/hash.h"
#include "serve/service.h"      // error_body
#include "text/case_mapping.h"  // num_code_points
#include "text/utf8.h"

namespace deltatrain::serve {

namespace {

// A JSON string.
std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// The shortest decimal that a reader of f64 takes for this very f32: clients sum what they read, and a decimal that is
// the same f32 only once rounded is off by up to 1e-6 a token.
std::string number(float value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, static_cast<double>(value));
  return {text, end.ptr};
}

// A JSON array of things that are JSON already.
class List {
 public:
  void add(const std::string& item) {
    if (!text_.empty()) text_ += ",";
    text_ += item;
  }
  std::string text() const { return "[" + text_ + "]"; }

 private:
  std::string text_;
};

std::string new_id(bool is_chat) {
  static std::atomic<uint64_t> count{std::random_device()()};
  const uint64_t value = (uint64_t{std::random_device()()} << 32) ^ ++count;
  return (is_chat ? "chatcmpl-" : "cmpl-") + hex64(value);
}

const char* reason_text(FinishReason reason) {
  return reason == FinishReason::kStop ? "\"stop\"" : "\"length\"";
}

}  // namespace

struct Completion::Choice {
  // A token that was generated, where log-probabilities are asked for.
  struct Entry {
    int32_t id;
    TokenLogprobs logprobs;
    int64_t offset;
  };
  TextStream stream;
  std::string text;
  std::vector<Entry> entries;
  size_t num_sent_entries = 0;
  int64_t num_tokens = 0;
  bool has_begun = false;
  std::optional<FinishReason> reason;
};

class Completion::Part : public Listener {
 public:
  Part(Completion& completion, size_t index, std::vector<int32_t> prompt)
      : completion_(completion), index_(index), prompt_(std::move(prompt)) {
    const CompletionSettings& settings = completion.settings_;
    if (settings.echo) prompt_text_ = prompt_text(completion.tokenizer_, prompt_);
    for (int64_t i = 0; i < settings.num_samples; ++i)
      choices_.push_back({.stream = TextStream(completion.tokenizer_, prompt_, settings.stop)});
  }

  void on_prompt(std::vector<TokenLogprobs> logprobs) override {
    prompt_logprobs_ = std::move(logprobs);
  }

  bool on_token(int64_t sample, const GeneratedToken& token) override {
    if (completion_.is_over_) return false;
    completion_.first_token_came();
    Choice& choice = choices_[static_cast<size_t>(sample)];
    if (completion_.settings_.num_top >= 0)
      choice.entries.push_back(
          {token.id, token.logprobs, echoed_characters() + choice.stream.num_characters()});
    ++choice.num_tokens;
    give(static_cast<size_t>(sample), choice.stream.append(token.id, token.is_stop));
    return !choice.stream.is_stopped();
  }

  void on_finish(int64_t sample, FinishReason reason) override {
    if (completion_.is_over_) return;
    const auto at = static_cast<size_t>(sample);
    Choice& choice = choices_[at];
    std::string rest = choice.stream.finish();
    if (completion_.settings_.echo) rest = choice.stream.rest_of_prompt() + rest;
    choice.reason = choice.stream.is_stopped() ? FinishReason::kStop : reason;
    give(at, rest);
    completion_.choice_is_over();
  }

  void on_error(const std::string& message) override { completion_.fail(message); }
  bool is_cancelled() const override {
    return completion_.is_over_ || completion_.exchange_->is_closed();
  }

  size_t index_of(size_t sample) const { return index_ * choices_.size() + sample; }
  int64_t num_prompt_tokens() const { return static_cast<int64_t>(prompt_.size()); }
  const std::vector<Choice>& choices() const { return choices_; }
  const PromptText& echoed() const { return prompt_text_; }

  // "logprobs" of a completion: of the prompt where echoed, and of the entries from first_entry on.
  std::string logprobs(const Choice& choice, size_t first_entry, bool with_prompt) const {
    if (completion_.settings_.num_top < 0) return "null";
    List tokens, values, tops, offsets;
    const auto add = [&](int32_t id, const TokenLogprobs& logprobs, int64_t offset) {
      const std::string own = completion_.token_string(id);
      tokens.add(quoted(own));
      values.add(number(logprobs.own));
      offsets.add(std::to_string(offset));
      // Tokens with one text share a name: the first, which is the most likely, has it.
      std::vector<std::string> names;
      List top;
      const auto name = [&](const std::string& text, float value) {
        if (std::ranges::find(names, text) != names.end()) return;
        names.push_back(text);
        top.add(quoted(text) + ":" + number(value));
      };
      for (const TopToken& other : logprobs.top)
        name(completion_.token_string(other.id), other.logprob);
      name(own, logprobs.own);
      const std::string list = top.text();
      tops.add("{" + list.substr(1, list.size() - 2) + "}");
    };
    if (with_prompt) {
      tokens.add(quoted(completion_.token_string(prompt_[0])));
      values.add("null");
      tops.add("null");
      offsets.add("0");
      for (size_t i = 1; i < prompt_.size(); ++i)
        add(prompt_[i], prompt_logprobs_[i - 1], prompt_text_.offsets[i]);
    }
    for (size_t i = first_entry; i < choice.entries.size(); ++i)
      add(choice.entries[i].id, choice.entries[i].logprobs, choice.entries[i].offset);
    return "{\"tokens\":" + tokens.text() + ",\"token_logprobs\":" + values.text() +
           ",\"top_logprobs\":" + tops.text() + ",\"text_offset\":" + offsets.text() + "}";
  }

  // The same of a chat's answer.
  std::string chat_logprobs(const Choice& choice, size_t first_entry) const {
    if (completion_.settings_.num_top < 0) return "null";
    const auto token = [&](int32_t id, float value) {
      List bytes;
      for (const char c : completion_.tokenizer_.token_bytes(id))
        bytes.add(std::to_string(static_cast<unsigned char>(c)));
      return "{\"token\":" + quoted(completion_.token_string(id)) +
             ",\"logprob\":" + number(value) + ",\"bytes\":" + bytes.text();
    };
    List content;
    for (size_t i = first_entry; i < choice.entries.size(); ++i) {
      const Choice::Entry& entry = choice.entries[i];
      List top;
      for (const TopToken& other : entry.logprobs.top)
        top.add(token(other.id, other.logprob) + "}");
      content.add(token(entry.id, entry.logprobs.own) + ",\"top_logprobs\":" + top.text() + "}");
    }
    return "{\"content\":" + content.text() + "}";
  }

 private:
  int64_t echoed_characters() const { return text::num_code_points(prompt_text_.text); }

  // Text that has become certain. A stream hears of a token with log-probabilities in any case.
  void give(size_t sample, const std::string& text) {
    Choice& choice = choices_[sample];
    if (!completion_.settings_.streams) {
      choice.text += text;
      return;
    }
    const bool has_entries = choice.num_sent_entries < choice.entries.size();
    if (text.empty() && !has_entries && !choice.reason) return;
    completion_.event(
        completion_.chunk(*this, sample, text, choice.num_sent_entries, !choice.has_begun));
    choice.num_sent_entries = choice.entries.size();
    choice.has_begun = true;
  }

  Completion& completion_;
  size_t index_;
  std::vector<int32_t> prompt_;
  PromptText prompt_text_;
  std::vector<TokenLogprobs> prompt_logprobs_;
  std::vector<Choice> choices_;
};

Completion::Completion(const text::Tokenizer& tokenizer, CompletionSettings settings,
                       std::vector<std::vector<int32_t>> prompts,
                       std::shared_ptr<Exchange> exchange, std::shared_ptr<Metrics> metrics)
    : tokenizer_(tokenizer),
      settings_(std::move(settings)),
      exchange_(std::move(exchange)),
      metrics_(std::move(metrics)),
      id_(new_id(settings_.is_chat)),
      created_unix_seconds_(static_cast<int64_t>(std::time(nullptr))),
      start_(std::chrono::steady_clock::now()) {
  for (size_t i = 0; i < prompts.size(); ++i)
    parts_.push_back(std::make_unique<Part>(*this, i, std::move(prompts[i])));
  num_open_choices_ = parts_.size() * static_cast<size_t>(settings_.num_samples);
}

Completion::~Completion() {
  if (!is_answered_) metrics_->count(settings_.path, 499);
}

std::shared_ptr<Listener> Completion::listener(size_t index) {
  return {shared_from_this(), parts_[index].get()};
}

std::string Completion::token_string(int32_t id) const {
  if (tokenizer_.is_special(id)) return tokenizer_.token_text(id);
  return text::replace_ill_formed_utf8(tokenizer_.token_bytes(id));
}

void Completion::first_token_came() {
  if (has_first_token_) return;
  has_first_token_ = true;
  metrics_->first_token_seconds.add(
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count());
}

void Completion::choice_is_over() {
  if (--num_open_choices_ > 0) return;
  is_over_ = is_answered_ = true;
  metrics_->count(settings_.path, 200);
  metrics_->request_seconds.add(
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count());
  if (settings_.streams) {
    if (settings_.includes_usage) event(usage_chunk());
    event("[DONE]");
    exchange_->end_stream();
    return;
  }
  // Much to write for a batch of long prompts: not on the engine's time.
  exchange_->run(
      [self = shared_from_this()] { self->exchange_->respond({.body = self->whole_answer()}); });
}

void Completion::fail(const std::string& message) {
  if (is_over_.exchange(true)) return;
  is_answered_ = true;
  metrics_->count(settings_.path, 500);
  const std::string body = Service::error_body(500, message);
  if (has_stream_) {
    event(body);
    exchange_->end_stream();
  } else {
    exchange_->respond({.status = 500, .body = body});
  }
}

void Completion::event(const std::string& json) {
  if (!has_stream_) exchange_->start_stream("text/event-stream");
  has_stream_ = true;
  exchange_->write("data: " + json + "\n\n");
}

// The keys that every answer begins with.
std::string Completion::beginning(const char* object) const {
  return "{\"id\":\"" + id_ + "\",\"object\":\"" + object +
         "\",\"created\":" + std::to_string(created_unix_seconds_) +
         ",\"model\":" + quoted(settings_.model_name);
}

std::string Completion::usage() const {
  int64_t prompt_tokens = 0, completion_tokens = 0;
  for (const auto& part : parts_) {
    prompt_tokens += part->num_prompt_tokens();
    for (const Choice& choice : part->choices()) completion_tokens += choice.num_tokens;
  }
  return "{\"prompt_tokens\":" + std::to_string(prompt_tokens) +
         ",\"completion_tokens\":" + std::to_string(completion_tokens) +
         ",\"total_tokens\":" + std::to_string(prompt_tokens + completion_tokens) + "}";
}

std::string Completion::whole_answer() const {
  List choices;
  for (const auto& part : parts_) {
    for (size_t sample = 0; sample < part->choices().size(); ++sample) {
      const Choice& choice = part->choices()[sample];
      std::string text = "{\"index\":" + std::to_string(part->index_of(sample));
      if (settings_.is_chat) {
        text += ",\"message\":{\"role\":\"assistant\",\"content\":" + quoted(choice.text) +
                "},\"logprobs\":" + part->chat_logprobs(choice, 0);
      } else {
        text += ",\"text\":" + quoted(part->echoed().text + choice.text) +
                ",\"logprobs\":" + part->logprobs(choice, 0, settings_.echo);
      }
      choices.add(text + ",\"finish_reason\":" + reason_text(*choice.reason) + "}");
    }
  }
  return beginning(settings_.is_chat ? "chat.completion" : "text_completion") +
         ",\"choices\":" + choices.text() + ",\"usage\":" + usage() + "}";
}

std::string Completion::chunk(const Part& part, size_t sample, const std::string& text,
                              size_t first_entry, bool is_first) const {
  const Choice& choice = part.choices()[sample];
  std::string result = beginning(settings_.is_chat ? "chat.completion.chunk" : "text_completion") +
                       ",\"choices\":[{\"index\":" + std::to_string(part.index_of(sample));
  if (settings_.is_chat) {
    const std::string role = is_first ? "\"role\":\"assistant\"," : "";
    result += ",\"delta\":{" + role + "\"content\":" + quoted(text) +
              "},\"logprobs\":" + part.chat_logprobs(choice, first_entry);
  } else {
    const bool echoes = settings_.echo && is_first;
    result += ",\"text\":" + quoted(echoes ? part.echoed().text + text : text) +
              ",\"logprobs\":" + part.logprobs(choice, first_entry, echoes);
  }
  result += std::string(",\"finish_reason\":") +
            (choice.reason ? reason_text(*choice.reason) : "null") + "}]";
  return result + (settings_.includes_usage ? ",\"usage\":null}" : "}");
}

std::string Completion::usage_chunk() const {
  return beginning(settings_.is_chat ? "chat.completion.chunk" : "text_completion") +
         ",\"choices\":[],\"usage\":" + usage() + "}";
}

}  // namespace deltatrain::serve
