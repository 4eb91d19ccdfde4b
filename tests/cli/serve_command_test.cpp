// `serve` as a program: how it starts, and how it ends. What it answers is tested in tests/serve.

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/files.h"
#include "support/test_files.h"

namespace deltatrain::test {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

class ServeCommandTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TemporaryFolder;
    std::ofstream(*folder_ / "text.txt") << "the miller counts the boats and the boats\n";
    ASSERT_EQ(run_program("tokenizer train --vocab-size 270 --input " + at("text.txt") + " --out " +
                          at("tokenizer"))
                  .exit_code,
              0);
    ASSERT_EQ(run_program("init --recipe recipes/smoke/gdn.yaml --set model.vocab_size=320 --out " +
                          at("model"))
                  .exit_code,
              0);
  }
  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
  }
  static std::string at(const std::string& name) { return (*folder_ / name).string(); }
  static std::string serve() {
    return "serve --model " + at("model") + " --tokenizer " + at("tokenizer") + " ";
  }
  static void expect_line(const std::string& arguments, int exit_code, const std::string& message) {
    const ProgramResult result = run_program(arguments);
    EXPECT_EQ(result.exit_code, exit_code) << result.err;
    EXPECT_THAT(result.err, HasSubstr("deltatrain: " + message));
    EXPECT_EQ(result.err.find('\n'), result.err.size() - 1) << result.err;
    EXPECT_EQ(result.out, "");
  }

  static TemporaryFolder* folder_;
};

TemporaryFolder* ServeCommandTest::folder_ = nullptr;

TEST_F(ServeCommandTest, SignalsEndIt) {
  for (const auto& [signal, exit_code] : {std::pair{"TERM", 143}, std::pair{"INT", 130}}) {
    // One of an earlier round would pass for this one's, whose program does not yet await signals.
    std::filesystem::remove(at("address"));
    // In the background of the shell, with its own redirections; those of run_program become a
    // comment. The address comes when it is ready.
    const ProgramResult result = run_program(serve() + "--port 0 >" + at("address") + " 2>" +
                                             at("err") + " & pid=$!; until [ -s " + at("address") +
                                             " ] || ! kill -0 $pid; do sleep 0.05; done; kill -" +
                                             signal + " $pid; wait $pid; exit $? #");
    EXPECT_EQ(result.exit_code, exit_code) << read_file(at("err"));
    EXPECT_THAT(read_file(at("address")), MatchesRegex("http://127\\.0\\.0\\.1:[0-9]+\n"));
    EXPECT_THAT(read_file(at("err")), HasSubstr("[serve] stopping: 0 answers are under way"));
  }
}

TEST_F(ServeCommandTest, ATakenPortIsTheEnvironments) {
  const int taken = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(::bind(taken, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(taken, 1), 0);
  ASSERT_EQ(::getsockname(taken, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const std::string port = std::to_string(ntohs(address.sin_port));
  expect_line(serve() + "--port " + port, 5,
              "serve: 127.0.0.1:" + port +
                  ": expected an address to listen on, got Address already in use");
  ::close(taken);
  expect_line(serve() + "--host 192.0.2.1 --port 0", 5, "serve: 192.0.2.1:0: expected an address");
}

TEST_F(ServeCommandTest, BadInputIsOneLine) {
  expect_line("serve --model " + at("model"), 2, at("model"));
  expect_line("serve --model " + at("nothing"), 2, at("nothing"));
  expect_line(serve() + "--port 65536", 2, "--port: expected a whole number from 0 to 65535");
  expect_line(serve() + "--api-key-file " + at("nothing"), 2, at("nothing"));
  std::ofstream(at("empty")).close();
  expect_line(serve() + "--api-key-file " + at("empty"), 2,
              at("empty") + ": first line: expected an API key, got nothing");
}

}  // namespace
}  // namespace deltatrain::test
