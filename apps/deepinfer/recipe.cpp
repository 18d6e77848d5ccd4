// deepinfer recipe: the recipe layer on many cases.
#include <fstream>
#include <iostream>
#include <memory>

#include "command.h"
#include "dialects/recipe_runner.h"

namespace deepinfer::app {

namespace {

struct Options {
  std::string kind;
  std::string tokenizer;
  std::string input;
  std::string profile = "ours";
  std::vector<std::string> skip_tags;
  bool check = false;
};

Result<int> recipe(const Options& options) {
  if (options.profile != "ours" && options.profile != "package") {
    return make_error(ErrorKind::kInvalidArgument, "cannot set --profile to \"" + options.profile + "\"",
                      "known: ours, package");
  }
  DI_ASSIGN(const auto tokenizers, dialects::RecipeTokenizers::load(options.tokenizer));
  dialects::RecipeRun run;
  run.kind = options.kind;
  run.profile = options.profile == "package" ? text::Profile::kPackage : text::Profile::kOurs;
  run.check = options.check;
  run.skip_tags = options.skip_tags;
  std::ifstream file;
  if (!options.input.empty()) {
    file.open(options.input, std::ios::binary);
    if (!file) return make_error(ErrorKind::kNotFound, "cannot read " + options.input, "check the path");
  }
  DI_ASSIGN(const auto report,
            dialects::run_recipe(run, tokenizers, options.input.empty() ? std::cin : file, std::cout));
  std::cout.flush();
  if (!options.check) return static_cast<int>(kDone);
  std::fprintf(stderr, "%zu cases, %zu left out by tag, %zu differ\n", report.cases, report.skipped,
               report.different);
  return static_cast<int>(report.different == 0 ? kDone : kFailed);
}

}  // namespace

void add_recipe(Context& context) {
  auto options = std::make_shared<Options>();
  CLI::App* command = context.app.add_subcommand(
      "recipe",
      "The recipe layer on many cases: lines of the conformance data in, our lines or differences out");
  command
      ->add_option("kind", options->kind,
                   "tokenizer, decode, render, parse, stream, events, errors, limits or images")
      ->required();
  command->add_option("input", options->input, "File of JSON lines; without it standard input");
  command
      ->add_option("--tokenizer", options->tokenizer, "Folder with v4/tokenizer.json and v41/tokenizer.json")
      ->required();
  command->add_flag(
      "--check", options->check,
      "Print the id or line number of each case that differs and what differs; exit 1 if any does");
  command
      ->add_option("--profile", options->profile,
                   "ours, or package: follow deepseek-recipe 0.2.0 wherever ours differs on purpose")
      ->capture_default_str();
  command->add_option("--skip-tags", options->skip_tags, "Leave out cases with one of these tags: a,b")
      ->delimiter(',');
  command->callback([&context, options] {
    context.action = [options] {
      const auto code = recipe(*options);
      return code ? *code : fail(code.error());
    };
  });
}

}  // namespace deepinfer::app
