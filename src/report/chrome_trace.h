// Chrome traces of several ranks in one.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace deltatrain::report {

// The *.json files of the folders that hold trace events, in the order of their names, numbers as
// numbers: of a run's folder those of its profile/. Files are taken as they are, `except` left out.
// FormatError where a folder has none.
std::vector<std::filesystem::path> find_chrome_traces(const std::vector<std::string>& paths,
                                                      const std::filesystem::path& except);

// One trace with the events of all. Process numbers, which are the same in the traces of many
// programs, are made different, and every process is named after its file and the name it had;
// identifiers of flows and asynchronous events are made different too. Times stay as they are.
// FormatError naming the file that is no trace.
std::string merge_chrome_traces(const std::vector<std::filesystem::path>& files);

}  // namespace deltatrain::report
