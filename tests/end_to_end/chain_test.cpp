// The whole chain through the program itself, on text that the test makes, and what it says to bad input.

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <pty.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "support/test_files.h"

namespace deltatrain {
namespace {

namespace fs = std::filesystem;

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Sentences of a small grammar, so that there is something to learn.
std::string sentences(int count, unsigned state) {
  const char* const subjects[] = {"The driver", "A thread", "The kernel", "This buffer",
                                  "Every device"};
  const char* const verbs[] = {"reads", "writes", "holds", "releases", "checks"};
  const char* const objects[] = {"the lock", "a page", "its queue", "the first block",
                                 "some memory"};
  std::string text;
  for (int i = 0; i < count; ++i) {
    const auto pick = [&state](auto& words) {
      state = state * 1664525U + 1013904223U;
      return std::string(words[(state >> 16) % 5]);
    };
    text += pick(subjects) + " " + pick(verbs) + " " + pick(objects) + ". ";
  }
  return text + "\n";
}

class ChainTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new test::TemporaryFolder;  // for all cases of the suite: the chain is made once
    fs::create_directories(*folder_ / "text");
    for (int i = 0; i < 40; ++i) {
      std::ofstream(*folder_ / ("text/" + std::to_string(i) + ".txt"))
          << sentences(60, static_cast<unsigned>(i));
    }
    run("tokenizer train --input " + at("text") + " --vocab-size 320 --out " + at("tokenizer"));
    run("prepare --input " + at("text") + " --tokenizer " + at("tokenizer") + " --out " +
        at("tokens/all"));
    run("train " + train_options() + " --out " + at("run"));
  }
  static void TearDownTestSuite() { delete folder_; }

  static std::string at(const std::string& name) { return (*folder_ / name).string(); }
  static std::string train_options() {
    return "--recipe recipes/smoke/kda.yaml --set data.train=" + at("tokens/all") +
           " --set data.tokenizer=" + at("tokenizer") +
           " --set model.vocab_size=320 --set model.hidden_size=64 --set model.num_hidden_layers=2"
           " --set train.seq_length=64 --set train.train_iters=60 --set schedule.lr_warmup_iters=5 --set schedule.lr_decay_iters=100";
  }
  static test::ProgramResult run(const std::string& arguments) {
    test::ProgramResult result = test::run_program(arguments);
    EXPECT_EQ(result.exit_code, 0) << arguments << "\n" << result.err;
    return result;
  }
  // The last line on stderr of a command that must fail, without the program's name.
  static std::string failure(const std::string& arguments, int exit_code) {
    const test::ProgramResult result = test::run_program(arguments);
    EXPECT_EQ(result.exit_code, exit_code) << arguments << "\n" << result.err;
    std::istringstream lines(result.err);
    std::string line, last;
    while (std::getline(lines, line)) last = line;
    const std::string name = "deltatrain: ";
    EXPECT_EQ(last.substr(0, name.size()), name) << last;
    return last.substr(std::min(last.size(), name.size()));
  }

  // The f32 scalar "loss" of a dump, whose place the header tells.
  static double dumped_loss(const std::string& path) {
    const std::string dumped = read(path);
    const size_t entry = dumped.find("\"loss\"");
    const size_t offsets = dumped.find("\"data_offsets\":[", entry) + 16;
    const size_t begin = 8 +
                         static_cast<size_t>(*reinterpret_cast<const uint64_t*>(dumped.data())) +
                         std::stoul(dumped.substr(offsets));
    float value = 0;
    std::copy_n(dumped.data() + begin, sizeof value, reinterpret_cast<char*>(&value));
    return value;
  }
  static double first_loss(const std::string& path) {
    const std::string metrics = read(path);
    const size_t loss = metrics.find("\"loss\":");
    return loss == std::string::npos ? -1 : std::stod(metrics.substr(loss + 7));
  }

  static test::TemporaryFolder* folder_;
};

test::TemporaryFolder* ChainTest::folder_ = nullptr;

TEST_F(ChainTest, ConvertVerifyGenerateAndPlot) {
  run("convert --from " + at("run") + " --to " + at("hf") +
      " --format hf --dtype f32 --round-trip");
  const auto verified = run("verify " + at("hf") + " --against " + at("run") + " --row-length 200");
  EXPECT_NE(verified.out.find("ALL CHECKS PASSED"), std::string::npos);
  const auto text =
      run("generate --model " + at("hf") + " --prompt 'The kernel' --max-new-tokens 40");
  EXPECT_EQ(text.out.substr(0, 10), "The kernel");
  // Sixty steps are enough to learn that sentences end with a full stop and a space.
  EXPECT_NE(text.out.find(". "), std::string::npos) << text.out;
  run("plot " + at("run") + " --out " + at("loss.svg"));
  EXPECT_EQ(read(at("loss.svg")).substr(0, 4), "<svg");
}

TEST_F(ChainTest, SamplesOfTextAreWrittenAndChangeNothing) {
  const std::string options =
      "train " + train_options() + " --set train.train_iters=4 --set train.eval_interval=2 --out ";
  const auto lines_of = [](const std::string& folder, const std::string& kind) {
    std::istringstream file(read(at(folder) + "/metrics.jsonl"));
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);) {
      // Up to the times.
      if (line.find("\"kind\":\"" + kind + "\"") != std::string::npos)
        lines.push_back(line.substr(0, line.find(",\"seconds\"")));
    }
    return lines;
  };
  run(options + at("without"));
  run(options + at("with") + " --sample-prompt 'The kernel'");
  run(options + at("again") + " --sample-prompt 'The kernel'");
  const auto samples = lines_of("with", "sample");
  ASSERT_EQ(samples.size(), 2U);
  EXPECT_EQ(samples[0].find("{\"kind\":\"sample\",\"step\":2,\"prompt\":\"The kernel\",\"text\":\""), 0U);
  EXPECT_GT(samples[1].size(), samples[0].find("\"text\"") + 20);
  EXPECT_EQ(lines_of("again", "sample"), samples);
  EXPECT_EQ(lines_of("with", "step"), lines_of("without", "step"));
  EXPECT_EQ(lines_of("without", "sample").size(), 0U);

  EXPECT_EQ(failure(options + at("x") + " --set data.tokenizer= --sample-prompt The", 2),
            "train: --sample-prompt: expected data.tokenizer in the recipe, got none");
  EXPECT_NE(failure(options + at("x") + " --sample-prompt \"$(printf '\\377')\"", 2)
                .find("expected a text in UTF-8, got other bytes from offset 0 on"),
            std::string::npos);
  EXPECT_FALSE(fs::exists(at("x")));
}

// The block of commands under "By hand", line by line as it stands, where the reader would type it: in a folder with
// recipes/ and texts/. Only the recipe's steps are fewer.
TEST_F(ChainTest, TheReadmesCommandsRunAsWritten) {
  const fs::path source = test::golden_path("x").parent_path().parent_path().parent_path();
  const std::string readme = read(source / "README.md");
  const size_t begin = readme.find("```\n", readme.find("## By hand")) + 4;
  const std::string commands = readme.substr(begin, readme.find("```", begin) - begin);
  for (const char* command :
       {"tokenizer train", "prepare", "train", "convert", "verify", "generate", "plot"})
    ASSERT_NE(commands.find("deltatrain " + std::string(command) + " "), std::string::npos)
        << command;

  const fs::path folder = at("readme");
  fs::create_directories(folder);
  fs::copy(source / "recipes", folder / "recipes", fs::copy_options::recursive);
  fs::copy(at("text"), folder / "texts");
  std::string smoke = read(folder / "recipes/base/smoke.yaml");
  for (const auto& [key, value] : {std::pair{"train_iters: 150", "train_iters: 3"},
                                   {"lr_warmup_iters: 20", "lr_warmup_iters: 1"}}) {
    ASSERT_NE(smoke.find(key), std::string::npos);
    smoke.replace(smoke.find(key), std::string(key).size(), value);
  }
  std::ofstream(folder / "recipes/base/smoke.yaml") << smoke;
  const std::string script = "set -e\ncd " + folder.string() +
                             "\nPATH=" + fs::path(DELTATRAIN_TEST_PROGRAM).parent_path().string() +
                             ":$PATH\n" + commands;
  std::ofstream(folder / "commands.sh") << script;
  const int status = std::system(
      ("sh " + (folder / "commands.sh").string() + " >" + (folder / "out").string() + " 2>&1 </dev/null")
          .c_str());
  EXPECT_EQ(status, 0) << read(folder / "out");
  EXPECT_TRUE(fs::exists(folder / "loss.svg"));
}

TEST_F(ChainTest, VerifyFindsADamagedWeight) {
  run("convert --from " + at("run") + " --to " + at("damaged") + " --format hf --dtype f32");
  std::fstream file(at("damaged") + "/model.safetensors",
                    std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-4000, std::ios::end);
  const float wrong = 3;
  file.write(reinterpret_cast<const char*>(&wrong), sizeof wrong);
  file.close();
  failure("verify " + at("damaged") + " --against " + at("run") + " --row-length 100", 4);
}

TEST_F(ChainTest, VerifyNamesSettingsThatDiffer) {
  run("convert --from " + at("run") + " --to " + at("eps") + " --format hf --dtype f32");
  std::string config = read(at("eps/config.json"));
  const std::string eps = "\"norm_eps\": 1e-06";
  ASSERT_NE(config.find(eps), std::string::npos) << config;
  config.replace(config.find(eps), eps.size(), "\"norm_eps\": 1.5e-06");
  std::ofstream(at("eps/config.json")) << config;
  const auto result = test::run_program("verify " + at("eps") + " --against " + at("run") +
                                        " --row-length 20 --max-difference 1");
  EXPECT_NE(result.err.find("warning: config.json: norm_eps 1.5e-06 against 1e-06\n"),
            std::string::npos)
      << result.err;
}

// Logits of zeros have no cosine with any others.
TEST_F(ChainTest, VerifyTellsZerosFromOthersByTheCosine) {
  run("convert --from " + at("run") + " --to " + at("zeros") + " --format hf --dtype f32");
  const std::string weights = at("zeros") + "/model.safetensors";
  const std::string bytes = read(weights);
  const std::string end = std::to_string(
      bytes.size() - 8 - static_cast<size_t>(*reinterpret_cast<const uint64_t*>(bytes.data())));
  const size_t entry = bytes.find("\"model.norm.weight\"");
  ASSERT_NE(bytes.substr(entry, 200).find("," + end + "]"), std::string::npos);  // the last tensor
  std::fstream file(weights, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-256, std::ios::end);  // 64 f32
  file.write(std::string(256, '\0').data(), 256);
  file.close();
  EXPECT_NE(failure("verify " + at("zeros") + " --against " + at("run") +
                        " --row-length 20 --max-difference 1e9 --min-top1 0 --min-top5 0",
                    4)
                .find("cosine"),
            std::string::npos);
}

TEST_F(ChainTest, DumpOfAStepTakesTheDataThatTheStepTook) {
  // Of a run on a part of the data, with labels masked.
  const std::string part = " --set data.split=50,50,0 --set train.eval_iters=1"
                           " --set data.eod_mask_loss=true --set model.eos_token_id=1"
                           " --set train.train_iters=1 --set schedule.lr_decay_iters=100";
  run("train " + train_options() + part + " --out " + at("part"));
  run("dump --model " + at("part") + " --recipe " + at("part/recipe.yaml") + " --step 1 --out " +
      at("part.safetensors"));
  EXPECT_NEAR(dumped_loss(at("part.safetensors")), first_loss(at("part/metrics.jsonl")), 1e-5);
}

TEST_F(ChainTest, DumpOfTheFirstStepRepeatsItsLoss) {
  run("train " + train_options() + " --set train.train_iters=1 --out " + at("first"));
  // The rate of the first warm-up step is 0: the checkpoint still holds the weights that the step used.
  run("dump --model " + at("first") + " --recipe " + at("first/recipe.yaml") + " --step 1 --out " +
      at("d.safetensors"));
  run("dump --model " + at("first") + " --recipe " + at("first/recipe.yaml") + " --step 1 --out " +
      at("r.safetensors") + " --device reference");
  run("diff " + at("d.safetensors") + " " + at("r.safetensors") + " --tolerance 1e-5");
  EXPECT_NEAR(dumped_loss(at("d.safetensors")), first_loss(at("first/metrics.jsonl")), 1e-5);
}

// What `recipe plan` promises: the memory of a run within a tenth of what it takes.
TEST_F(ChainTest, ThePlannedMemoryIsWhatARunTakes) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer's own memory counts";
#endif
  const std::string plan = run("recipe plan recipes/smoke/gdn_1b.yaml --json").out;
  const size_t total = plan.find("\"total\": ");
  ASSERT_NE(total, std::string::npos) << plan;
  const double planned = std::stod(plan.substr(total + 9));
  const std::string command =
      "exec " + std::string(DELTATRAIN_TEST_PROGRAM) +
      " train --recipe recipes/smoke/gdn_1b.yaml --set data.train=" + at("tokens/all") +
      " --set train.train_iters=2 --set schedule.lr_warmup_iters=1 --out " + at("measured") +
      " >/dev/null 2>&1";
  const pid_t child = ::fork();
  if (child == 0) {
    ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    ::_exit(127);
  }
  int status = 0;
  rusage usage{};
  ASSERT_EQ(::wait4(child, &status, 0, &usage), child);
  ASSERT_EQ(status, 0);
  const double peak = 1024.0 * static_cast<double>(usage.ru_maxrss);
  EXPECT_NEAR(planned / peak, 1, 0.1) << planned << " planned, " << peak << " measured";
}

TEST_F(ChainTest, RecipePlanAndTrainCountTheSameMemory) {
  for (const char* packed : {"false", "true"}) {
    const std::string options =
        train_options() + " --set train.train_iters=1" + " --set data.packed_documents=" + packed;
    const std::string folder = at(std::string("planned-") + packed);
    run("train " + options + " --out " + folder);
    const std::string metrics = read(folder + "/metrics.jsonl");
    const size_t counted = metrics.find("\"memory_bytes\":");
    ASSERT_NE(counted, std::string::npos);
    const std::string plan = run("recipe plan " + folder + "/recipe.yaml --json").out;
    const long long bytes = std::stoll(metrics.substr(counted + 15));
    EXPECT_NE(plan.find("\"total\": " + std::to_string(bytes) + "\n"), std::string::npos)
        << plan << bytes;
  }
}

// On a terminal of 80 columns, and on one too narrow for all of it.
TEST_F(ChainTest, TheBarWithItsEtaFitsTheTerminal) {
  for (const unsigned short columns : {80, 40}) {
    const std::string folder = at("bar" + std::to_string(columns));
    const std::string command = "exec " + std::string(DELTATRAIN_TEST_PROGRAM) + " train " +
                                train_options() + " --out " + folder;
    winsize size{24, columns, 0, 0};
    int terminal = -1;
    const pid_t child = ::forkpty(&terminal, nullptr, nullptr, &size);
    if (child == 0) {
      ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
      ::_exit(127);
    }
    std::string shown;
    char buffer[4096];
    for (ssize_t n = 0; (n = ::read(terminal, buffer, sizeof buffer)) > 0;)
      shown.append(buffer, static_cast<size_t>(n));
    ::close(terminal);
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_EQ(status, 0) << shown;
    const std::string clear = "\r\x1b[2K[train] ";
    int bars = 0, etas = 0, marks = 0;
    for (size_t begin = shown.find(clear); begin != std::string::npos;
         begin = shown.find(clear, begin + 1)) {
      const size_t from = begin + 5;  // behind what clears the line
      const std::string line = shown.substr(from, shown.find_first_of("\r\n", from) - from);
      if (line.find(" steps ") == std::string::npos) continue;  // a message
      EXPECT_LT(line.size(), columns) << line;
      ++bars;
      etas += line.find(" ETA 0:") != std::string::npos ? 1 : 0;
      marks += line.find("#...") != std::string::npos ? 1 : 0;
    }
    EXPECT_GE(bars, 3);
    EXPECT_EQ(etas > 0, columns == 80);
    EXPECT_EQ(marks > 0, columns == 80);
  }
}

// A request as it stands, and all that comes back until the other side closes; "" where nothing does.
std::string http(int port, const std::string& request) {
  const int connection = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const timeval patience{30, 0};
  ::setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  std::string answer;
  if (::connect(connection, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
      ::send(connection, request.data(), request.size(), MSG_NOSIGNAL) ==
          static_cast<ssize_t>(request.size())) {
    char buffer[65536];
    for (ssize_t n = 0; (n = ::recv(connection, buffer, sizeof buffer, 0)) > 0;)
      answer.append(buffer, static_cast<size_t>(n));
  }
  ::close(connection);
  return answer;
}

std::string get(int port, const std::string& path) {
  return http(port, "GET " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
}

std::string body_of(const std::string& answer) {
  const size_t end = answer.find("\r\n\r\n");
  return end == std::string::npos ? "" : answer.substr(end + 4);
}

TEST_F(ChainTest, TheDashboardServesTheRunWhileItGoesOn) {
  const std::string command = "exec " + std::string(DELTATRAIN_TEST_PROGRAM) + " train " +
                              train_options() +
                              " --set train.train_iters=100000 --dashboard 0 --out " + at("live") +
                              " >/dev/null 2>" + at("live.txt");
  const pid_t child = ::fork();
  if (child == 0) {
    ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    ::_exit(127);
  }
  const std::string metrics = at("live") + "/metrics.jsonl";
  for (int i = 0; i < 600 && read(metrics).find("\"step\":3,") == std::string::npos; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const std::string said = read(at("live.txt")), url = "[dashboard] http://127.0.0.1:";
  const size_t at_url = said.find(url);
  ASSERT_NE(at_url, std::string::npos) << said;
  const int port = std::stoi(said.substr(at_url + url.size()));

  const std::string page = get(port, "/");
  EXPECT_EQ(page.substr(0, 15), "HTTP/1.1 200 OK");
  EXPECT_EQ(body_of(page).substr(0, 15), "<!DOCTYPE html>");
  EXPECT_NE(page.find("\"live\":true"), std::string::npos);
  const std::string first = body_of(get(port, "/metrics.jsonl/0"));
  EXPECT_EQ(first.substr(0, 13), "{\"kind\":\"run\"");
  EXPECT_EQ(first.back(), '\n');
  EXPECT_EQ(read(metrics).substr(0, first.size()), first);
  // What has been written since.
  std::string rest;
  for (int i = 0; i < 300 && rest.empty(); ++i) {
    rest = body_of(get(port, "/metrics.jsonl/" + std::to_string(first.size())));
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  EXPECT_EQ(read(metrics).substr(first.size(), rest.size()), rest);
  EXPECT_EQ(rest.substr(0, 9), "{\"kind\":\"");
  EXPECT_EQ(body_of(get(port, "/metrics.jsonl/999999999999")), "");

  for (const char* path : {"/recipe.yaml", "/../recipe.yaml", "/metrics.jsonl", "/metrics.jsonl/-1",
                           "/metrics.jsonl/1x", "/metrics.jsonl/99999999999999999999"})
    EXPECT_EQ(get(port, path).substr(0, 12), "HTTP/1.1 404") << path;
  EXPECT_EQ(
      http(port, "POST / HTTP/1.1\r\nConnection: close\r\nContent-Length: 0\r\n\r\n").substr(0, 12),
      "HTTP/1.1 405");
  // Not HTTP, and more header than is read.
  EXPECT_EQ(http(port, "\x16\x03\x01 hello\r\n\r\n").substr(0, 12), "HTTP/1.1 400");
  EXPECT_EQ(http(port, "GET /" + std::string(100000, 'x') + " HTTP/1.1\r\n\r\n").substr(0, 12),
            "HTTP/1.1 431");

  // The port is taken: the second run says so before it makes its folder.
  EXPECT_NE(failure("train " + train_options() + " --out " + at("second") + " --dashboard " +
                        std::to_string(port),
                    5)
                .find(std::to_string(port) + ": expected an address to listen on, got "),
            std::string::npos);
  EXPECT_FALSE(fs::exists(at("second")));
  for (const char* address : {"65536", "x", ":80", "127.0.0.1:"})
    EXPECT_NE(
        failure("train " + train_options() + " --out " + at("second") + " --dashboard " + address,
                2)
            .find("--dashboard: expected PORT or HOST:PORT"),
        std::string::npos);

  ::kill(child, SIGTERM);
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 128 + SIGTERM);
  EXPECT_EQ(get(port, "/"), "");
}

TEST_F(ChainTest, ATermSignalSavesAndResumeGoesOn) {
  const std::string command = std::string(DELTATRAIN_TEST_PROGRAM) + " train " + train_options() +
                              " --set train.train_iters=100000 --out " + at("stopped") +
                              " >/dev/null 2>&1";
  const pid_t child = ::fork();
  if (child == 0) {
    ::execl("/bin/sh", "sh", "-c", ("exec " + command).c_str(), nullptr);
    ::_exit(127);
  }
  for (int i = 0;
       i < 600 && read(at("stopped") + "/metrics.jsonl").find("\"step\":3,") == std::string::npos;
       ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  ::kill(child, SIGTERM);
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 128 + SIGTERM);
  const int step =
      std::stoi(read(at("stopped") + "/checkpoints/latest_checkpointed_iteration.txt"));
  EXPECT_GE(step, 3);
  run("train " + train_options() + " --set train.train_iters=" + std::to_string(step + 2) +
      " --out " + at("stopped") + " --resume");
  EXPECT_EQ(std::stoi(read(at("stopped") + "/checkpoints/latest_checkpointed_iteration.txt")),
            step + 2);
}

// A run whose products were too small to time, or that ran on the CPU, has no file of choices; neither may the run
// that goes on from its checkpoint on cuda, whether this machine has such a device or not.
TEST_F(ChainTest, ResumingWithoutTimedProductsInventsNoFileOfThem) {
  fs::copy(at("run"), at("on_cuda"), fs::copy_options::recursive);
  const std::string command = std::string(DELTATRAIN_TEST_PROGRAM) + " train " + train_options() + " --out " +
                              at("on_cuda") + " --resume --device cuda >/dev/null 2>&1";
  const int status = std::system(command.c_str());
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_TRUE(WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 5) << WEXITSTATUS(status);
  EXPECT_FALSE(fs::exists(at("on_cuda") + "/gemm_algorithms.json"));
}

TEST_F(ChainTest, BadInputIsOneLineAndTheRightCode) {
  EXPECT_NE(failure("train " + train_options() + " --set model.num_head=3 --out " + at("x"), 2)
                .find("did you mean model.num_heads"),
            std::string::npos);
  EXPECT_NE(failure("train " + train_options() + " --out " + at("run"), 2)
                .find("expected an empty or new folder"),
            std::string::npos);
  EXPECT_NE(failure("train " + train_options() + " --set data.train=" + at("nothing") + " --out " +
                        at("x"),
                    2)
                .find(at("nothing")),
            std::string::npos);
  EXPECT_NE(failure("train " + train_options() + " --set model.vocab_size=50 --out " + at("x"), 2)
                .find("vocab"),
            std::string::npos);
  EXPECT_NE(failure("verify " + at("text"), 2).find(at("text")), std::string::npos);
  EXPECT_NE(failure("generate --model " + at("run") + " --temperature -1", 2).find("--temperature"),
            std::string::npos);
  EXPECT_NE(failure("train " + train_options() + " --device moon --out " + at("x"), 2).find("moon"),
            std::string::npos);
  EXPECT_NE(failure("train " + train_options() + " --precision bf16 --out " + at("x"), 2)
                .find("precision on device cpu"),
            std::string::npos);
  EXPECT_EQ(failure("generate --model " + at("run") + " --prompt \"$(printf 'ab\\377')\"", 2),
            "--prompt: byte 2: expected UTF-8, got byte value 255");
  EXPECT_NE(failure("tokenizer train --input " + at("nothing") + " --out " + at("x"), 2)
                .find(at("nothing")),
            std::string::npos);
  EXPECT_NE(failure("plot " + at("text") + " --out " + at("x.svg"), 2).find("metrics.jsonl"),
            std::string::npos);
  failure("frobnicate", 2);
  EXPECT_FALSE(fs::exists(at("x")));
}

TEST_F(ChainTest, ATruncatedTokenFileAndCheckpointAreNamed) {
  fs::create_directories(at("cut"));
  for (const char* extension : {".bin", ".idx"}) {
    fs::copy_file(at("tokens/all_text_document") + extension, at("cut/all") + extension);
  }
  fs::resize_file(at("cut/all.bin"), fs::file_size(at("cut/all.bin")) - 10);
  EXPECT_NE(failure("train " + train_options() + " --set data.train=" + at("cut/all") + " --out " +
                        at("y"),
                    2)
                .find("cut/all"),
            std::string::npos);

  fs::copy(at("run"), at("short"), fs::copy_options::recursive);
  const std::string weights = at("short/checkpoints/iter_0000060/model.safetensors");
  fs::resize_file(weights, fs::file_size(weights) - 1);
  EXPECT_NE(failure("verify " + at("short"), 2).find("model.safetensors"), std::string::npos);
  EXPECT_NE(failure("train " + train_options() + " --set train.train_iters=61 --out " +
                        at("short") + " --resume",
                    2)
                .find("model.safetensors"),
            std::string::npos);
}

}  // namespace
}  // namespace deltatrain
