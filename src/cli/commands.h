// The subcommands of the program, one thin file each: options in, library call, result out.
#pragma once

#include "base/reporter.h"

namespace CLI {
class App;
}  // namespace CLI

namespace deltatrain::cli {

// What every command gets. Results go to stdout; people are spoken to through the reporter, on stderr.
struct Environment {
  Reporter& reporter;
  int argc = 0;
  char** argv = nullptr;
  int exit_code = 0;  // what the program returns when nothing throws
};

// Each adds its subcommand to `app` with all options, defaults and one example; its callback does the work
// and throws deltatrain::Error on failure.
void add_tokenizer_command(CLI::App& app, Environment& environment);
void add_prepare_command(CLI::App& app, Environment& environment);
void add_recipe_command(CLI::App& app, Environment& environment);
void add_init_command(CLI::App& app, Environment& environment);
void add_train_command(CLI::App& app, Environment& environment);
void add_convert_command(CLI::App& app, Environment& environment);
void add_verify_command(CLI::App& app, Environment& environment);
void add_dump_command(CLI::App& app, Environment& environment);
void add_diff_command(CLI::App& app, Environment& environment);
void add_generate_command(CLI::App& app, Environment& environment);
void add_serve_command(CLI::App& app, Environment& environment);
void add_eval_command(CLI::App& app, Environment& environment);
void add_compare_command(CLI::App& app, Environment& environment);
void add_selftest_command(CLI::App& app, Environment& environment);
void add_bench_command(CLI::App& app, Environment& environment);
void add_plot_command(CLI::App& app, Environment& environment);

}  // namespace deltatrain::cli
