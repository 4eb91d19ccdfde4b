// Rules of the project that a program can check:
// who includes whom, which files an op has, what documents say.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "support/test_files.h"

namespace deltatrain {
namespace {

namespace fs = std::filesystem;

// Levels of src/README.md.
const std::map<std::string, int>& levels() {
  static const std::map<std::string, int> table = {
      {"base", 0},    {"config", 1}, {"tensor", 1},  {"device", 2},     {"ops", 3},
      {"formats", 3}, {"dist", 3},   {"backend", 4}, {"layers", 4},     {"loss", 4},
      {"optim", 4},   {"text", 4},   {"data", 4},    {"checkpoint", 4}, {"model", 5},
      {"prepare", 5}, {"decode", 6}, {"convert", 7}, {"eval", 7},       {"serve", 7},
      {"verify", 7},  {"report", 7}, {"bench", 7},   {"train", 8},      {"cli", 9}};
  return table;
}

fs::path root() { return test::golden_path("x").parent_path().parent_path().parent_path(); }

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<fs::path> sources() {
  const std::set<std::string> extensions = {".h", ".cpp", ".cu", ".cuh"};
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(root() / "src")) {
    if (extensions.contains(entry.path().extension().string())) files.push_back(entry.path());
  }
  return files;
}

// Text without // comments.
std::string code_of(const fs::path& file) {
  return std::regex_replace(read(file), std::regex("//[^\n]*"), "");
}

std::string folder_of(const fs::path& file) {
  return fs::relative(file, root() / "src").begin()->string();
}

std::set<std::string> included_folders(const fs::path& file) {
  static const std::regex include("#include \"([a-z_]+)/");
  const std::string text = read(file);
  std::set<std::string> folders;
  for (auto it = std::sregex_iterator(text.begin(), text.end(), include);
       it != std::sregex_iterator(); ++it) {
    folders.insert((*it)[1]);
  }
  return folders;
}

TEST(IncludePolicyTest, FoldersIncludeOnlyFromLowerLevels) {
  for (const fs::path& file : sources()) {
    const std::string from = folder_of(file);
    ASSERT_TRUE(levels().contains(from)) << file << " lies in a folder without a level";
    for (const std::string& to : included_folders(file)) {
      if (to == from || !levels().contains(to)) continue;
      EXPECT_LT(levels().at(to), levels().at(from)) << file << " includes " << to;
    }
  }
}

// Not seen from the levels alone: tokens know nothing of tensors' ops, and backends are reached through a Context.
TEST(IncludePolicyTest, FoldersKeepToWhatTheyAreFor) {
  std::set<std::string> include_backend;
  for (const fs::path& file : sources()) {
    const std::string from = folder_of(file);
    const std::set<std::string> included = included_folders(file);
    if (from == "text" || from == "data" || from == "prepare") {
      for (const char* const folder : {"ops", "layers", "model", "device"})
        EXPECT_FALSE(included.contains(folder)) << file << " includes " << folder;
    }
    if (included.contains("backend") && from != "backend") include_backend.insert(from);
  }
  EXPECT_EQ(include_backend, std::set<std::string>{"cli"});
}

TEST(IncludePolicyTest, LinkGraphStatesEveryInclude) {
  std::map<std::string, std::set<std::string>> included;
  for (const fs::path& file : sources()) {
    for (const std::string& to : included_folders(file)) {
      if (to != folder_of(file) && levels().contains(to)) included[folder_of(file)].insert(to);
    }
  }
  const std::regex library("deltatrain_library\\(NAME ([a-z_]+)([^)]*)\\)");
  for (const auto& [folder, wanted] : included) {
    if (folder == "backend" || folder == "cli") continue;  // several targets, an executable
    const std::string text = read(root() / "src" / folder / "CMakeLists.txt");
    std::smatch match;
    ASSERT_TRUE(std::regex_search(text, match, library)) << folder;
    const std::string body = match[2];
    const size_t deps = body.find("DEPS");
    ASSERT_NE(deps, std::string::npos) << folder;
    std::istringstream words(body.substr(deps + 4));
    std::set<std::string> linked;
    for (std::string word; words >> word && word != "PRIVATE_DEPS";) linked.insert(word);
    for (const std::string& to : wanted) {
      EXPECT_TRUE(linked.contains(to))
          << "src/" << folder << " includes " << to << " and does not link it";
    }
    for (const std::string& to : linked) {
      EXPECT_LT(levels().at(to), levels().at(folder)) << "src/" << folder << " links " << to;
    }
  }
}

TEST(IncludePolicyTest, DeviceHeadersStayInTheirFolders) {
  const std::regex device("#include <(cuda|cublas|nccl|mpi|dnnl)[A-Za-z_]*\\.h");
  for (const fs::path& file : sources()) {
    const std::string relative = fs::relative(file, root() / "src").string();
    if (relative.starts_with("backend/") || relative.starts_with("dist/")) continue;
    EXPECT_FALSE(std::regex_search(read(file), device)) << file;
  }
}

TEST(OpPolicyTest, EveryOpHasItsFiles) {
  const std::set<std::string> not_ops = {"context", "op_table", "check_arguments"};
  const std::string table = read(root() / "src/ops/op_table.h");
  std::string cases;
  for (const auto& entry : fs::directory_iterator(root() / "src/verify")) {
    if (entry.path().filename().string().starts_with("op_cases_")) cases += read(entry.path());
  }
  int ops = 0;
  for (const auto& entry : fs::directory_iterator(root() / "src/ops")) {
    const std::string name = entry.path().stem().string();
    if (entry.path().extension() != ".h" || not_ops.contains(name)) continue;
    ++ops;
    EXPECT_TRUE(fs::exists(root() / "src/ops" / (name + ".cpp"))) << name;
    EXPECT_NE(table.find("#include \"ops/" + name + ".h\""), std::string::npos) << name;
    EXPECT_NE(cases.find("{\"" + name + "\","), std::string::npos) << name << " has no op cases";
    const std::string header = read(entry.path());
    // Of other ops, where a backend has nothing better.
    const bool has_stand_ins = header.find("_by_parts(") != std::string::npos ||
                               header.find("null: the composition") != std::string::npos;
    EXPECT_TRUE(has_stand_ins || fs::exists(root() / "src/backend/cpu" / (name + ".cpp"))) << name;
    for (const char* const word : {"ccumulates in f", "Throws ShapeError"})
      EXPECT_NE(header.find(word), std::string::npos) << name << ".h does not say: " << word;
    if (name == "elementwise") continue;  // sums and copies: nothing to derive
    // Defined by the ops they are composed of.
    if (name == "delta_step" || name == "norm_linear" || name == "linear_swiglu") continue;
    EXPECT_TRUE(fs::exists(root() / "src/ops/reference" / (name + ".h"))) << name;
    EXPECT_TRUE(fs::exists(root() / "docs/maths" / (name + ".md"))) << name;
  }
  EXPECT_GE(ops, 15);
}

TEST(SourcePolicyTest, HeadersAreGuardedAndSourcesAreAscii) {
  for (const fs::path& file : sources()) {
    const std::string text = read(file);
    const std::string extension = file.extension().string();
    if (extension == ".h" || extension == ".cuh") {
      EXPECT_NE(text.find("#pragma once"), std::string::npos) << file;
      EXPECT_EQ(text.find("using namespace"), std::string::npos) << file;
    }
    EXPECT_TRUE(std::all_of(text.begin(), text.end(), [](char c) {
      return static_cast<unsigned char>(c) < 128;
    })) << file;
  }
}

TEST(SourcePolicyTest, LibrariesNeitherPrintNorExit) {
  const std::regex call(
      "\\b(cout|cerr|clog|fmt::print)\\b|"
      "\\b(v?f?printf|puts|fputs|putchar|perror|exit|_exit|quick_exit|_Exit|abort|terminate)\\s*"
      "\\(");
  for (const char* bad :
       {"printf(\"x\")", "std::puts(x)", "exit (1)", "::_exit(1)", "std::cerr << x"})
    EXPECT_TRUE(std::regex_search(bad, call)) << bad;
  for (const char* good : {"snprintf(x)", "exit_code(1)", "on_exit = 1", "std::atexit(x)"})
    EXPECT_FALSE(std::regex_search(good, call)) << good;
  for (const fs::path& file : sources()) {
    if (folder_of(file) == "cli") continue;
    const std::string text = code_of(file);
    std::smatch match;
    EXPECT_FALSE(std::regex_search(text, match, call)) << file << ": " << match.str();
  }
}

std::vector<fs::path> cuda_sources() {
  std::vector<fs::path> files;
  for (const fs::path& file : sources()) {
    if (file.string().find("backend/cuda/") != std::string::npos) files.push_back(file);
  }
  return files;
}

TEST(CudaPolicyTest, AssemblyOnlyInTheWrapperHeader) {
  ASSERT_GE(cuda_sources().size(), 20U);
  const std::regex assembly("\\basm\\b");
  for (const fs::path& file : cuda_sources()) {
    if (file.filename() == "ptx_wrappers.cuh") continue;
    EXPECT_FALSE(std::regex_search(code_of(file), assembly)) << file;
  }
}

TEST(CudaPolicyTest, TheNumberOfLanesIsWrittenOnce) {
  // Lanes counted by hand, full masks as literals, and intrinsics that take the width for granted.
  const std::regex literal(
      "threadIdx\\.[xyz]\\s*\\)?\\s*(%|/|&|>>)\\s*[0-9]|0x[fF]{8}\\b|\\bwarpSize\\b|"
      "__activemask|__syncwarp|__ballot|__any_sync|__all_sync");
  const std::regex shuffle("__shfl[a-z_]*\\(([^;]*);");
  for (const fs::path& file : cuda_sources()) {
    const std::string code = code_of(file);
    std::smatch match;
    if (file.filename() != "lanes.cuh") {
      EXPECT_FALSE(std::regex_search(code, match, literal)) << file << ": " << match.str();
    }
    for (auto it = std::sregex_iterator(code.begin(), code.end(), shuffle);
         it != std::sregex_iterator(); ++it) {
      const std::string arguments = (*it)[1];
      EXPECT_EQ(arguments.find("kAllLanes"), 0U) << file << ": " << arguments;
      EXPECT_NE(arguments.find("kWarpSize)"), std::string::npos) << file << ": " << arguments;
    }
  }
}

TEST(CudaPolicyTest, HopperOnlyCodeStandsInItsFolder) {
  const std::regex hopper("this_cluster|cluster_group|mbarrier|wgmma|cp_async_bulk|setmaxnreg");
  for (const fs::path& file : cuda_sources()) {
    if (file.parent_path().filename() == "hopper" || file.filename() == "ptx_wrappers.cuh")
      continue;
    std::smatch match;
    const std::string code = code_of(file);
    EXPECT_FALSE(std::regex_search(code, match, hopper)) << file << ": " << match.str();
  }
}

TEST(DocumentPolicyTest, EveryFolderStandsInTheList) {
  const std::string list = read(root() / "src/README.md");
  for (const auto& entry : fs::directory_iterator(root() / "src")) {
    if (!entry.is_directory()) continue;
    EXPECT_NE(list.find("`" + entry.path().filename().string() + "`"), std::string::npos)
        << entry.path();
  }
}

// One paragraph, one full stop at its end.
bool is_one_sentence(const std::string& change) {
  static const std::regex form("(added|changed|fixed|removed|faster): [^\\n]+[^.\\n]\\.\\n");
  static const std::regex end_inside("[.!?][`)]* ");
  return std::regex_match(change, form) && !std::regex_search(change, end_inside);
}

TEST(DocumentPolicyTest, ChangesAreOneSentenceUnderAHeading) {
  EXPECT_TRUE(is_one_sentence("added: `a` reads .gz, b.txt and (c.d): e.\n"));
  EXPECT_FALSE(is_one_sentence("added: `a` reads b. It writes c.\n"));
  EXPECT_FALSE(is_one_sentence("added: `a` reads `b`?` c.\n\n"));
  EXPECT_FALSE(is_one_sentence("better: a.\n"));
  for (const auto& entry : fs::directory_iterator(root() / "changes")) {
    EXPECT_TRUE(is_one_sentence(read(entry.path()))) << entry.path();
  }
}

}  // namespace
}  // namespace deltatrain
