#include "fuzz/hostile_file.h"
#include "serve/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace deltatrain::serve;
  const std::string source(reinterpret_cast<const char*>(data), size);
  return deltatrain::fuzz::refuse_or_accept([&] {
    const ChatTemplate chat(source, "fuzz", "<s>", "</s>");
    (void)chat.render({{"system", "Be brief."}, {"user", "Hi \xc3\xa9"}, {"assistant", ""}});
  });
}
