// What run and chat share: the options of a conversation, and one exchange with the model, tools included.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "command.h"
#include "dialects/request.h"
#include "engine_options.h"
#include "sampling_options.h"
#include "service/request_turn.h"
#include "text/json_value.h"

namespace deepinfer::app {

struct TurnChoice {
  EngineChoice engine;
  SamplingChoice sampling;
  std::string thinking;      // --thinking; empty: off
  std::string tools;         // --tools FILE
  std::string tool_command;  // --tool-command CMD
  std::string system;        // --system TEXT
  std::vector<std::string> stops;
  std::int64_t max_tokens = 1024;

  void declare(CLI::App& command);

  // A Chat-Completions body with these options around `messages` (a JSON list) and what `base` already says; options win.
  Result<text::JsonValue> body(text::JsonValue base, text::JsonValue messages) const;
  // The body read as a server would read it. kInvalidArgument with the reason of a rejection.
  Result<dialects::Request> request(const text::JsonValue& body, const service::Service& service) const;
  Result<std::unique_ptr<service::Service>> open_service() const;
};

// Sees what the model writes, as it comes.
class TurnWatcher {
 public:
  virtual ~TurnWatcher() = default;
  virtual void delta(const text::ParserEvent& event) = 0;
  virtual void tool_result(const std::string& name, const std::string& result) = 0;
  virtual bool cancelled() { return false; }
};

struct Exchange {
  service::TurnResult last;  // of the final answer
  int rounds = 0;            // answers, those that called tools included
};

inline constexpr int kMaxToolRounds = 8;  // answers that may call tools before the exchange is cut off
inline constexpr std::size_t kMaxToolOutput = 1 << 20;  // bytes taken of a tool's output

// Runs the request; as long as the answer calls tools and there is a tool command, runs it for each call, appends the
// results and goes on. The conversation of `request` grows by everything that was said.
Result<Exchange> converse(service::Service& service, dialects::Request& request,
                          const std::string& tool_command, TurnWatcher& watcher);

// Id of call `index` of the answer that is message `message` of its conversation.
std::string answer_call_id(std::size_t message, std::size_t index);

}  // namespace deepinfer::app
