// A model's own way of writing a conversation down as one text: the chat_template of its tokenizer.
//
// Templates are programs in Jinja's language, out of files that may come from anywhere: they see
// nothing but the conversation, and their steps and output are limited. Rendered texts equal those of
// Hugging Face's apply_chat_template for the part of the language in serve/template_parser.h and the
// filters, tests, methods and functions listed in docs/serving.md.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "serve/api_request.h"

namespace deltatrain::serve {

class ChatTemplate {
 public:
  // FormatError naming `where` and the line for a source that is not understood.
  ChatTemplate(const std::string& source, const std::string& where, std::string bos_text,
               std::string eos_text);
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  // chat_template.jinja beside the tokenizer, else chat_template in its tokenizer_config.json (of
  // several the one named "default"); nothing where there is neither. FormatError, FileError.
  static std::optional<ChatTemplate> load(const std::filesystem::path& folder,
                                          const std::string& bos_text, const std::string& eos_text);

  // The conversation, and the beginning of the assistant's answer. ApiError with status 400 where the
  // template raises an exception or cannot be carried out.
  std::string render(const std::vector<ChatMessage>& messages) const;

 private:
  struct Program;
  std::unique_ptr<Program> program_;
};

}  // namespace deltatrain::serve
