#include "train/verdict.h"

#include <unistd.h>

#include <charconv>
#include <exception>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/files.h"

namespace deltatrain::train {

const char* verdict_word(int exit_code) {
  if (exit_code > 128) return "stopped by a signal";
  switch (static_cast<ExitCode>(exit_code)) {
    case ExitCode::kDone:
      return "done";
    case ExitCode::kNonFinite:
      return "not finite";
    case ExitCode::kPeerLost:
      return "lost a rank";
    default:
      return "error";
  }
}

void record_verdict(const std::filesystem::path& out, const dist::Communicator* ranks, int64_t step,
                    int exit_code, const std::string& message) noexcept {
  try {
    using Json = nlohmann::ordered_json;
    const int rank = ranks == nullptr ? 0 : ranks->rank();
    Json json = {{"rank", rank}};
    if (ranks != nullptr) {
      json["size"] = ranks->size();
      json["host"] = ranks->host(rank);
      json["process"] = static_cast<int64_t>(::getpid());
    }
    json["step"] = step;
    json["verdict"] = verdict_word(exit_code);
    json["exit_code"] = exit_code;
    if (!message.empty()) json["message"] = message;
    const std::optional<dist::Loss> lost = ranks == nullptr ? std::nullopt : ranks->loss();
    if (lost && exit_code == static_cast<int>(ExitCode::kPeerLost)) {
      json["lost"] = {{"rank", lost->rank},
                      {"host", lost->host},
                      {"step", lost->step},
                      {"call", lost->call},
                      {"what", lost->what}};
    }
    std::filesystem::create_directories(out / "ranks");
    write_file_atomically(out / "ranks" / (std::to_string(rank) + ".json"),
                          json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
  } catch (const std::exception&) {
    return;  // the disk is full, say: the exit code and stderr still tell
  }
}

void forget_verdicts(const std::filesystem::path& out, int rank, int size) noexcept {
  std::error_code error;
  std::filesystem::remove(out / "ranks" / (std::to_string(rank) + ".json"), error);
  if (rank != 0) return;
  std::filesystem::directory_iterator entry(out / "ranks", error), end;
  for (; !error && entry != end; entry.increment(error)) {
    int number = -1;
    const std::string name = entry->path().stem().string();
    std::from_chars(name.data(), name.data() + name.size(), number);
    std::error_code ignored;
    if (number >= size) std::filesystem::remove(entry->path(), ignored);
  }
}

bool holds_only_verdicts(const std::filesystem::path& out) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(out, error)) {
    if (entry.path().filename() != "ranks") return false;
  }
  return true;
}

}  // namespace deltatrain::train
