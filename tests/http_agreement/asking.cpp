#include "http_agreement/asking.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <stdexcept>

namespace deepinfer::http_agreement {
namespace {

using text::JsonValue;

Answer exchange(Connection& connection, Dialect dialect, JsonValue body, const Way& way) {
  if (way.stream) {
    body.set("stream", true);
    if (dialect == Dialect::kChat || dialect == Dialect::kCompletions)
      body.set("stream_options", JsonValue::object({{"include_usage", true}}));
  }
  connection.ask("POST", path_of(dialect), text::write_json(body), way.key);
  const RawAnswer raw = connection.read();
  return way.stream ? read_stream(dialect, raw) : read_whole(dialect, raw);
}

// A file of the test's own, gone at its end.
class KeyFile {
 public:
  KeyFile() {
    const int file = ::mkstemp(path_.data());
    std::string text;
    for (int tenant = 0; tenant < kTenants; ++tenant) {
      const std::string name = "tenant=t" + std::to_string(tenant);
      text += patient_key(tenant) + " " + name + " priority=0\n";
      text += urgent_key(tenant) + " " + name + " priority=7\n";
    }
    if (file < 0 || ::write(file, text.data(), text.size()) != static_cast<ssize_t>(text.size()))
      throw std::runtime_error("cannot write " + path_);
    ::close(file);
  }
  ~KeyFile() { ::unlink(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_ = testing::TempDir() + "deepinfer-keys-XXXXXX";
};

Reference make_reference() {
  const test::ServedProgram program = serve("exact", {"--prefix-cache", "off"});
  const Way way{false, patient_key(0)};
  Reference made;
  made.catalogue = make_catalogue(program.port(), way.key);
  Connection connection(program.port(), fast());
  for (const Question& question : made.catalogue.questions)
    made.answers[question.name] = ask(connection, question, way);
  for (const Chain& chain : made.catalogue.chains)
    made.chains[chain.name] = ask_chain(connection, chain, way);
  return made;
}

}  // namespace

Answer ask(Connection& connection, const Question& question, const Way& way) {
  return exchange(connection, question.dialect, question.body, way);
}

JsonValue input_of(const JsonValue& step, const std::vector<Answer>& before) {
  if (const JsonValue* input = step.find("input")) return *input;
  JsonValue results = JsonValue::array();
  const auto output = text::read_json(before.back().output);
  for (std::size_t i = 0; output.ok() && i < output->size(); ++i) {
    const JsonValue* call = output->items()[i].find("call_id");
    if (call == nullptr) continue;
    results.push(JsonValue::object(
        {{"type", "function_call_output"}, {"call_id", *call}, {"output", R"({"weather": "sunny"})"}}));
  }
  return results;
}

Answer ask_step(Connection& connection, const JsonValue& step, const std::vector<Answer>& before,
                const Way& way) {
  JsonValue body = step;
  body.set("input", input_of(step, before));
  if (!before.empty()) body.set("previous_response_id", before.back().id);
  return exchange(connection, Dialect::kResponses, body, way);
}

std::vector<Answer> ask_chain(Connection& connection, const Chain& chain, const Way& way) {
  std::vector<Answer> answers;
  for (const JsonValue& step : chain.steps)
    answers.push_back(ask_step(connection, step, answers, way));
  return answers;
}

std::string patient_key(int tenant) {
  return "patient-key-of-" + std::to_string(tenant);
}

std::string urgent_key(int tenant) {
  return "urgent-key-of-" + std::to_string(tenant);
}

int setting(const char* variable, int absent) {
  const char* text = std::getenv(variable);
  return text == nullptr ? absent : std::atoi(text);
}

test::ServedProgram serve(const std::string& mode, const std::vector<std::string>& more, int blocks) {
  static const KeyFile keys;
  std::vector<std::string> options = {
      "--mode", mode, "--api-key-file", keys.path(), "--max-model-len", std::to_string(128 * blocks)};
  options.insert(options.end(), more.begin(), more.end());
  return test::ServedProgram(options);
}

double sum_of(const test::ServedProgram& program, const std::string& metric) {
  double sum = 0;
  for (const auto& [sample, value] : program.metrics())
    if (sample.starts_with(metric + "{")) sum += value;
  return sum;
}

double preemptions(const test::ServedProgram& program) {
  return sum_of(program, "vllm:num_preemptions_total");
}

double hits(const test::ServedProgram& program) {
  return sum_of(program, "vllm:prefix_cache_hits_total");
}

const Reference& reference() {
  static const Reference made = make_reference();
  return made;
}

}  // namespace deepinfer::http_agreement
