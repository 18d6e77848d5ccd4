// Offline inference in C++: several conversations at once on one model, no server.
//
//   offline_inference MODEL_DIRECTORY ["question" ...]
//
// MODEL_DIRECTORY is a checkpoint in the published Hugging Face layout, for example models/demo. The directory may also
// come from DEEPINFER_HF_MODEL_DIR.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "service/turn.h"

namespace {

int fail(const deepinfer::Error& error) {
  std::fprintf(stderr, "offline_inference: %s\n", error.message().c_str());
  return 1;
}

deepinfer::service::TurnRequest question(const std::string& text) {
  deepinfer::service::TurnRequest request;
  request.conversation.messages = {deepinfer::text::Message::of_text(deepinfer::text::Role::kUser, text)};
  request.conversation.thinking = false;
  request.sampling.temperature = 0;  // greedy: the same answer every time
  request.max_tokens = 128;
  return request;
}

}  // namespace

int main(int count, char** arguments) {
  const char* from_environment = std::getenv("DEEPINFER_HF_MODEL_DIR");
  const std::string directory = count > 1                     ? arguments[1]
                                : from_environment != nullptr ? from_environment
                                                              : "models/demo";
  std::vector<std::string> questions(arguments + std::min(count, 2), arguments + count);
  if (questions.empty())
    questions = {"Hello! What can you do?", "What is 17 plus 25?",
                 "The code of the red box is 4711. What is the code of the red box?"};

  deepinfer::service::ServiceOptions options;
  options.load.model_directory = directory;
  options.load.max_model_len = 4096;
  auto service = deepinfer::service::Service::open(options);
  if (!service.ok()) return fail(service.error());

  // All turns are submitted before the first is read: the engine runs them in one continuous batch.
  std::vector<deepinfer::service::Turn> turns;
  for (const std::string& text : questions) {
    auto turn = (*service)->start(question(text));
    if (!turn.ok()) return fail(turn.error());
    turns.push_back(std::move(*turn));
  }
  for (std::size_t i = 0; i < turns.size(); ++i) {
    std::printf("> %s\n", questions[i].c_str());
    const auto result = turns[i].run([](std::span<const deepinfer::text::ParserEvent> deltas) {
      for (const auto& delta : deltas) {
        if (delta.kind == deepinfer::text::ParserEvent::Kind::kContent)
          std::fputs(delta.text.c_str(), stdout);
      }
      std::fflush(stdout);
    });
    if (!result.ok()) return fail(result.error());
    std::printf("\n  [%lld prompt tokens, %lld produced]\n\n",
                static_cast<long long>(result->usage.prompt_tokens),
                static_cast<long long>(result->usage.completion_tokens));
  }
  return 0;
}
