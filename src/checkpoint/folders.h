// Folders on disk with this project's errors. Internal to the folder.
#pragma once

#include <filesystem>

namespace deltatrain::checkpoint::internal {

constexpr const char* kTrackerName = "latest_checkpointed_iteration.txt";
constexpr const char* kStateName = "state.json";

// All throw FileError with exit code 5 and the system's text.
void create_folder(const std::filesystem::path& path);  // with its parents
void remove_folder(const std::filesystem::path& path);  // with its contents; may be absent
void rename_folder(const std::filesystem::path& from,
                   const std::filesystem::path& to);  // `to` is absent
// Swaps two folders in one step of the file system.
void exchange_folders(const std::filesystem::path& a, const std::filesystem::path& b);
// FileError when fewer than `bytes` are free.
void require_free_space(const std::filesystem::path& folder, int64_t bytes);

}  // namespace deltatrain::checkpoint::internal
