#include "report/chrome_trace.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>

#include "base/error.h"
#include "base/files.h"

namespace deltatrain::report {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// Runs of digits compare as numbers: rank2 before rank10.
bool comes_before(const fs::path& a_path, const fs::path& b_path) {
  const std::string a = a_path.filename().string(), b = b_path.filename().string();
  size_t i = 0, j = 0;
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  while (i < a.size() && j < b.size()) {
    if (is_digit(a[i]) && is_digit(b[j])) {
      const auto number = [&](const std::string& text, size_t& at) {
        while (at + 1 < text.size() && text[at] == '0' && is_digit(text[at + 1])) ++at;
        const size_t begin = at;
        while (at < text.size() && is_digit(text[at])) ++at;
        return text.substr(begin, at - begin);
      };
      const std::string x = number(a, i), y = number(b, j);
      if (x.size() != y.size()) return x.size() < y.size();
      if (x != y) return x < y;
      continue;
    }
    if (a[i] != b[j]) return a[i] < b[j];
    ++i;
    ++j;
  }
  if (a.size() - i != b.size() - j) return a.size() - i < b.size() - j;
  return a_path < b_path;
}

// The events of a trace: an array, or an object with one.
Json read_events(const fs::path& file) {
  Json trace = Json::parse(read_file(file, int64_t{4} << 30), nullptr, false);
  if (trace.is_object() && trace.contains("traceEvents")) trace = Json(trace["traceEvents"]);
  if (!trace.is_array())
    throw FormatError(error_text(file.string(), "Chrome trace", "JSON with an array traceEvents",
                                 trace.is_discarded() ? "no JSON" : "other JSON"));
  return trace;
}

// "rank3" of rank3.trace.json
std::string trace_name(const fs::path& file) {
  std::string name = file.filename().string();
  for (const std::string ending : {".json", ".trace", ".pt"}) {
    if (name.ends_with(ending)) name.resize(name.size() - ending.size());
  }
  return name;
}

}  // namespace

std::vector<fs::path> find_chrome_traces(const std::vector<std::string>& paths,
                                         const fs::path& except) {
  std::vector<fs::path> files;
  for (const std::string& path : paths) {
    std::error_code error;
    if (!fs::is_directory(path, error)) {
      files.emplace_back(path);
      continue;
    }
    const fs::path folder = fs::is_directory(fs::path(path) / "profile", error)
                                ? fs::path(path) / "profile"
                                : fs::path(path);
    std::vector<fs::path> found;
    for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
      if (it->path().extension() != ".json" || it->path().filename() == "merged.trace.json" ||
          fs::equivalent(it->path(), except, error))
        continue;
      error.clear();
      found.push_back(it->path());
    }
    if (found.empty())
      throw FormatError(
          error_text(path, "folder", "Chrome traces, *.json, in it or in its profile/", "none"));
    std::sort(found.begin(), found.end(), comes_before);
    files.insert(files.end(), found.begin(), found.end());
  }
  return files;
}

std::string merge_chrome_traces(const std::vector<fs::path>& files) {
  Json events = Json::array();
  int64_t next_process = 0;
  for (const fs::path& file : files) {
    const std::string name = trace_name(file);
    Json trace = read_events(file);
    std::map<std::string, int64_t> processes;  // by the number (or text) in the file
    std::map<int64_t, std::string> names;
    const auto process_of = [&](const Json& event) {
      const auto at = event.find("pid");
      const std::string key =
          at == event.end() ? "" : at->dump(-1, ' ', false, Json::error_handler_t::replace);
      const auto [entry, is_new] = processes.emplace(key, next_process);
      if (is_new) {
        names[next_process++] =
            at != event.end() && at->is_string() ? name + ": " + at->get<std::string>() : name;
      }
      return entry->second;
    };
    for (Json& event : trace) {
      if (!event.is_object()) continue;  // a stump of a file that was being written
      const int64_t process = process_of(event);
      const auto kind = event.find("name");
      if (event.value("ph", Json()) == "M" && kind != event.end() && *kind == "process_name") {
        const auto args = event.find("args");
        if (args != event.end() && args->is_object() && args->contains("name") &&
            (*args)["name"].is_string())
          names[process] = name + ": " + (*args)["name"].get<std::string>();
        continue;
      }
      event["pid"] = process;
      for (const char* const key : {"id", "bind_id"}) {
        if (event.contains(key))
          event[key] = name + ":" + event[key].dump(-1, ' ', false, Json::error_handler_t::replace);
      }
      events.push_back(std::move(event));
    }
    for (const auto& [process, process_name] : names) {
      events.push_back({{"ph", "M"},
                        {"name", "process_name"},
                        {"pid", process},
                        {"args", {{"name", process_name}}}});
      events.push_back({{"ph", "M"},
                        {"name", "process_sort_index"},
                        {"pid", process},
                        {"args", {{"sort_index", process}}}});
    }
  }
  return Json{{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}}.dump(
             -1, ' ', false, Json::error_handler_t::replace) +
         "\n";
}

}  // namespace deltatrain::report
