// deltatrain: one program from raw text to a trained, exported and verified language model.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <functional>
#include <new>
#include <string>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/stderr_reporter.h"

namespace {

// One line, whatever names and values of the user's are in it.
std::string on_one_line(const std::string& message) {
  std::string line;
  for (const char c : message) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte != 0x7f) {
      line += c;
    } else {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\x%02x", byte);
      line += c == '\n' ? "\\n" : escaped;
    }
  }
  return line;
}

int fail(const std::string& message, deltatrain::ExitCode code) {
  std::fprintf(stderr, "deltatrain: %s\n", on_one_line(message).c_str());
  return static_cast<int>(code);
}

// What the standard library says of a path that cannot
// be looked at: the name's fault, or the disk's.
deltatrain::ExitCode code_of(const std::filesystem::filesystem_error& error) {
  const std::error_condition condition = error.code().default_error_condition();
  for (const std::errc of_the_name :
       {std::errc::filename_too_long, std::errc::no_such_file_or_directory,
        std::errc::not_a_directory, std::errc::permission_denied,
        std::errc::too_many_symbolic_link_levels}) {
    if (condition == of_the_name) return deltatrain::ExitCode::kBadInput;
  }
  return deltatrain::ExitCode::kEnvironment;
}

// CLI11 would say that a command is missing.
void refuse_unknown_command(const CLI::App& app, int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "-";
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands(std::function<bool(const CLI::App*)>()))
    names.push_back(command->get_name());
  if (name.starts_with("-") || std::find(names.begin(), names.end(), name) != names.end()) return;
  const std::string nearest = deltatrain::nearest_name(name, names);
  throw deltatrain::ConfigError(
      name + ": unknown command" +
      (nearest.empty() ? " (see --help)" : "; did you mean " + nearest + "?"));
}

int fail_on_output(int error) {
  return fail(std::string("standard output: cannot be written: ") + std::strerror(error),
              deltatrain::ExitCode::kEnvironment);
}

}  // namespace

// NOLINTNEXTLINE(bugprone-exception-escape): before the try stands only the definition of the options
int main(int argc, char** argv) {
  using namespace deltatrain;  // NOLINT(google-build-using-namespace): the program's own namespace
  const auto reporter = cli::make_stderr_reporter();
  cli::Environment environment{*reporter, argc, argv};

  CLI::App app{"Pretraining of delta-rule language models, from raw text to a verified model.", "deltatrain"};
  app.require_subcommand(1);
  app.set_version_flag("--version", DELTATRAIN_VERSION);
  app.get_formatter()->column_width(36);

  // In the order of a model's life.
  cli::add_tokenizer_command(app, environment);
  cli::add_prepare_command(app, environment);
  cli::add_recipe_command(app, environment);
  cli::add_init_command(app, environment);
  cli::add_train_command(app, environment);
  cli::add_convert_command(app, environment);
  cli::add_verify_command(app, environment);
  cli::add_dump_command(app, environment);
  cli::add_diff_command(app, environment);
  cli::add_generate_command(app, environment);
  cli::add_serve_command(app, environment);
  cli::add_eval_command(app, environment);
  cli::add_compare_command(app, environment);
  cli::add_plot_command(app, environment);
  cli::add_bench_command(app, environment);
  cli::add_selftest_command(app, environment);

  try {
    refuse_unknown_command(app, argc, argv);
    app.parse(argc, argv);
    // A table on a full disk is no result.
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) return fail_on_output(errno);
    return environment.exit_code;
  } catch (const CLI::Success& success) {
    return app.exit(success);  // --help and --version
  } catch (const CLI::Error& error) {
    return fail(std::string(error.what()) + " (see --help)", ExitCode::kBadInput);
  } catch (const Error& error) {
    return fail(error.what(), error.code());
  } catch (const std::bad_alloc&) {
    return fail("host memory: not enough", ExitCode::kEnvironment);
  } catch (const std::filesystem::filesystem_error& error) {
    return fail(error.path1().string() + ": " + error.code().message(), code_of(error));
  } catch (const std::system_error& error) {
    if (std::ferror(stdout) != 0) return fail_on_output(error.code().value());
    return fail(std::string("internal error: ") + error.what(), ExitCode::kInternal);
  } catch (const std::exception& error) {
    return fail(std::string("internal error: ") + error.what(), ExitCode::kInternal);
  }
}
