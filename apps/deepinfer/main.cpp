// The deepinfer program: one subcommand a task. Names, options and exit codes are an outer interface.
#include "command.h"

int main(int argc, char** argv) {
  using namespace deepinfer::app;
  CLI::App app("DeepInfer: inference for DeepSeek-V4.1 and V4", "deepinfer");
  app.set_version_flag("--version", std::string("deepinfer ") + DEEPINFER_VERSION);
  app.require_subcommand(1);
  app.get_formatter()->column_width(34);

  if (const auto armed = arm_faults_of_environment(); !armed) return fail(armed.error());

  Context context{app, {}};
  add_run(context);
  add_chat(context);
  add_serve(context);
  add_plan(context);
  add_bench(context);
  add_doctor(context);
  add_score(context);
  add_generate(context);
  add_tokenize(context);
  add_detokenize(context);
  add_render(context);
  add_recipe(context);

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);  // prints help, version or the message
    return code == 0 ? kDone : kUsage;
  }
  return context.action();
}
