// deltatrain: one program from raw text to a trained, exported and verified language model.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <new>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/stderr_reporter.h"

namespace {

int fail(const std::string& message, deltatrain::ExitCode code) {
  std::fprintf(stderr, "deltatrain: %s\n", message.c_str());
  return static_cast<int>(code);
}

}  // namespace

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
  cli::add_plot_command(app, environment);
  cli::add_bench_command(app, environment);
  cli::add_selftest_command(app, environment);

  try {
    app.parse(argc, argv);
    return environment.exit_code;
  } catch (const CLI::Success& success) {
    return app.exit(success);  // --help and --version
  } catch (const CLI::Error& error) {
    return fail(std::string(error.what()) + " (see --help)", ExitCode::kBadInput);
  } catch (const Error& error) {
    return fail(error.what(), error.code());
  } catch (const std::bad_alloc&) {
    return fail("host memory: not enough", ExitCode::kEnvironment);
  } catch (const std::exception& error) {
    return fail(std::string("internal error: ") + error.what(), ExitCode::kInternal);
  }
}
