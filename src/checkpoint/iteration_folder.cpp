#include "checkpoint/iteration_folder.h"

#include <string>

#include "base/check.h"
#include "base/files.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/folders.h"

namespace deltatrain::checkpoint {

IterationFolder::IterationFolder(const std::filesystem::path& folder, int64_t step, int64_t bytes)
    : folder_(folder), final_(checkpoint_path(folder, step)), step_(step) {
  DELTATRAIN_CHECK(step >= 0, "step " + std::to_string(step));
  temporary_ = final_;
  temporary_ += ".tmp";
  internal::create_folder(folder_);
  internal::remove_folder(temporary_);
  internal::require_free_space(folder_, bytes);
  internal::create_folder(temporary_);
}

IterationFolder::~IterationFolder() {
  if (done_) return;
  std::error_code ignored;
  std::filesystem::remove_all(temporary_, ignored);
}

void IterationFolder::commit(const std::function<void()>& before_tracker) {
  std::error_code ignored;
  if (std::filesystem::exists(final_, ignored)) {
    internal::exchange_folders(temporary_, final_);
    sync_directory(folder_);
    internal::remove_folder(temporary_);
  } else {
    internal::rename_folder(temporary_, final_);
    sync_directory(folder_);
  }
  done_ = true;
  if (before_tracker) before_tracker();
  write_file_atomically(folder_ / internal::kTrackerName, std::to_string(step_));
}

double IterationFolder::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

}  // namespace deltatrain::checkpoint
