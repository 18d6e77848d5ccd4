// deepinfer generate: continue given token ids, one request or a batch.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <thread>

#include "base/log.h"
#include "base/progress.h"
#include "command.h"
#include "engine_options.h"
#include "sampling_options.h"

namespace deepinfer::app {

namespace {

struct Options {
  EngineChoice engine;
  SamplingChoice sampling;
  std::string ids;
  std::string batch;
  std::int64_t max_tokens = 16;
  std::int64_t chunk = 0;
  bool ignore_eos = false;
  bool json = false;
};

constexpr std::size_t kMaxBatchRequests = 100'000;
constexpr int kBatchSequences = 16;
constexpr std::int64_t kMaxArrivalMs = 24LL * 3600 * 1000;

struct Asked {
  runtime::Request request;
  std::int64_t arrival_ms = 0;  // after the first moment of the batch, by the real clock
};

struct Answer {
  std::vector<std::int32_t> ids;
  std::vector<runtime::Token> tokens;
  runtime::Finish finish;
};

Result<std::int64_t> read_arrival(const nlohmann::json& value) {
  if (!value.is_number_integer() || value < 0 || value > kMaxArrivalMs) {
    return make_error(ErrorKind::kInvalidArgument,
                      "field arrival_ms is " + value.dump() + ", expected an integer of 0 to " +
                          std::to_string(kMaxArrivalMs),
                      "it is the time after the start at which the request is made");
  }
  return value.get<std::int64_t>();
}

// One line of --batch: the fields of the options, {"ids": [...], "max_tokens": N, "temperature": ...}.
Result<Asked> request_of_line(const std::string& line, std::size_t number, const Options& options,
                              const runtime::Request& defaults) {
  const std::string where = options.batch + " line " + std::to_string(number);
  nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
  if (!json.is_object() || !json.contains("ids")) {
    return make_error(ErrorKind::kInvalidArgument,
                      "cannot read " + where + ": not a JSON object with \"ids\"",
                      "write one request a line: {\"ids\": [1, 2, 3], \"max_tokens\": 16}");
  }
  Asked asked{defaults};
  runtime::Request& request = asked.request;
  if (const auto arrival = json.find("arrival_ms"); arrival != json.end() && !arrival->is_null()) {
    const auto read = read_arrival(*arrival);
    if (!read) return within(read.error(), where);
    asked.arrival_ms = *read;
    json.erase(arrival);
  }
  const auto ids = parse_ids(json["ids"].is_array() && json["ids"].size() > 0
                                 ? json["ids"].dump().substr(1, json["ids"].dump().size() - 2)
                                 : std::string());
  if (!ids) return within(ids.error(), where);
  request.prompt = *ids;
  const auto applied = apply_request_fields(json, request);
  if (!applied) return within(applied.error(), where);
  return asked;
}

const char* reason_name(runtime::FinishReason reason) {
  switch (reason) {
    case runtime::FinishReason::kStop: return "stop";
    case runtime::FinishReason::kLength: return "length";
    case runtime::FinishReason::kCancelled: return "cancelled";
    case runtime::FinishReason::kFailed: return "failed";
  }
  return "failed";
}

nlohmann::json answer_json(const Answer& answer, bool logprobs) {
  const auto& usage = answer.finish.usage;
  nlohmann::json json{{"ids", answer.ids},
                      {"finish_reason", reason_name(answer.finish.reason)},
                      {"usage",
                       {{"prompt_tokens", usage.prompt_tokens},
                        {"completion_tokens", usage.completion_tokens},
                        {"cached_tokens", usage.cached_tokens}}}};
  if (usage.unrestored_tokens > 0) json["usage"]["unrestored_tokens"] = usage.unrestored_tokens;
  if (logprobs) {
    nlohmann::json list = nlohmann::json::array();
    for (const auto& token : answer.tokens) {
      nlohmann::json top = nlohmann::json::array();
      for (const auto& other : token.top)
        top.push_back({{"id", other.id}, {"logprob", other.logprob}});
      list.push_back({{"id", token.id}, {"logprob", token.logprob}, {"top", top}});
    }
    json["logprobs"] = list;
  }
  if (answer.finish.error) json["error"] = answer.finish.error->message();
  return json;
}

Answer collect(runtime::Stream& stream) {
  Answer answer;
  for (;;) {
    auto event = stream.next();
    if (auto* token = std::get_if<runtime::Token>(&event)) {
      answer.ids.push_back(token->id);
      answer.tokens.push_back(std::move(*token));
    } else {
      answer.finish = std::get<runtime::Finish>(std::move(event));
      return answer;
    }
  }
}

Result<std::vector<Asked>> read_requests(const Options& options, const runtime::Request& defaults) {
  std::vector<Asked> requests;
  if (options.batch.empty()) {
    Asked& asked = requests.emplace_back();
    asked.request = defaults;
    DI_ASSIGN(asked.request.prompt, parse_ids(options.ids));
    return requests;
  }
  std::ifstream file(options.batch);
  if (!file)
    return make_error(ErrorKind::kNotFound, "cannot read " + options.batch, "check the path of --batch");
  std::string line;
  for (std::size_t number = 1; std::getline(file, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    if (requests.size() == kMaxBatchRequests) {
      return make_error(ErrorKind::kInvalidArgument,
                        options.batch + " has more than " + std::to_string(kMaxBatchRequests) + " requests",
                        "split the file");
    }
    DI_ASSIGN(auto request, request_of_line(line, number, options, defaults));
    requests.push_back(std::move(request));
  }
  return requests;
}

Result<void> print(const Answer& answer, bool as_json, bool logprobs) {
  if (as_json) return write_output(answer_json(answer, logprobs).dump() + "\n");
  std::string text;
  for (const auto id : answer.ids)
    text += (text.empty() ? "" : " ") + std::to_string(id);
  return write_output(text + "\n");
}

// Each at its time, those of one time in input order; the streams in input order.
Result<std::vector<runtime::Stream>> submit(runtime::Engine& engine, std::vector<Asked> requests) {
  std::vector<std::size_t> order(requests.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return requests[a].arrival_ms < requests[b].arrival_ms;
  });
  std::vector<std::optional<runtime::Stream>> submitted(requests.size());
  const auto start = std::chrono::steady_clock::now();
  for (const std::size_t number : order) {
    std::this_thread::sleep_until(start + std::chrono::milliseconds(requests[number].arrival_ms));
    auto stream = engine.submit(std::move(requests[number].request));
    if (!stream) {
      return requests.size() == 1
                 ? std::move(stream).error()
                 : within(std::move(stream).error(), "request " + std::to_string(number + 1));
    }
    submitted[number].emplace(std::move(*stream));
  }
  std::vector<runtime::Stream> streams;
  streams.reserve(submitted.size());
  for (auto& stream : submitted)
    streams.push_back(std::move(*stream));
  return streams;
}

std::string cache_text(const runtime::EngineStats& stats) {
  std::string text = "prefix cache:";
  for (const auto mode : {runtime::Mode::kExact, runtime::Mode::kReplay}) {
    const cache::ModeStats& counts = stats.prefix.modes[static_cast<std::size_t>(mode)];
    text += std::string(mode == runtime::Mode::kExact ? " exact " : ", replay ") +
            std::to_string(counts.hit_tokens) + " of " + std::to_string(counts.prompt_tokens) +
            " prompt tokens hit";
    if (counts.cached_tokens > counts.hit_tokens) {
      text +=
          " (" + std::to_string(counts.cached_tokens - counts.hit_tokens) + " more cached, not restorable)";
    }
  }
  return text;
}

Result<void> generate(const Options& options) {
  if (options.ids.empty() == options.batch.empty()) {
    return make_error(ErrorKind::kInvalidArgument, "generate needs either --ids or --batch");
  }
  runtime::Request defaults;
  DI_ASSIGN(defaults.sampling, options.sampling.params());
  DI_ASSIGN(defaults.mode, options.engine.requested_mode());
  if (options.max_tokens > 0) defaults.max_tokens = options.max_tokens;
  defaults.ignore_eos = options.ignore_eos;
  DI_ASSIGN(auto requests, read_requests(options, defaults));

  DI_ASSIGN(runtime::LoadOptions load_options, options.engine.load_options());
  load_options.max_sequences = requests.size() > 1 ? kBatchSequences : 1;
  // Lines may ask for exact mode where the others run in replay mode: their hits need snapshots.
  const bool exact = std::any_of(requests.begin(), requests.end(), [](const Asked& asked) {
    return asked.request.mode == runtime::Mode::kExact;
  });
  if (exact) load_options.prefix.mode = runtime::Mode::kExact;
  DI_ASSIGN(auto loaded, runtime::load(load_options));
  DI_ASSIGN(auto engine_options, options.engine.engine_options(loaded.config));
  engine_options.prefill_chunk = static_cast<int>(options.chunk);
  engine_options.max_waiting = static_cast<int>(kMaxBatchRequests);
  engine_options.on_failure = fail_at_once;
  DI_ASSIGN(auto engine, runtime::Engine::create(std::move(loaded.core), engine_options));

  DI_ASSIGN(auto streams, submit(*engine, std::move(requests)));
  Progress progress("requests", static_cast<std::int64_t>(streams.size()),
                    !options.json && streams.size() > 1);
  std::int64_t done = 0;
  bool failed = false;
  for (auto& stream : streams) {
    const Answer answer = collect(stream);
    DI_TRY(print(answer, options.json, options.sampling.logprobs));
    failed |= answer.finish.reason == runtime::FinishReason::kFailed;
    progress.update(++done);
  }
  log_info(cache_text(engine->stats()));
  if (failed) return make_error(ErrorKind::kInternal, "a request failed; its line says why");
  return {};
}

}  // namespace

void add_generate(Context& context) {
  auto options = std::make_shared<Options>();
  CLI::App* command = context.app.add_subcommand("generate", "Continue given token ids");
  options->engine.declare(*command);
  options->sampling.declare(*command);
  command->add_option("--ids", options->ids, "Token ids: 1,2,3 or @FILE.json (a list, or {\"ids\": [...]})");
  command->add_option(
      "--batch", options->batch,
      "JSON lines, one request a line: {\"ids\": [...], \"max_tokens\": N, \"temperature\": T, ...};\n"
      "all run in one continuous batch, results come in input order. \"arrival_ms\": N makes a request N ms\n"
      "after the start instead of at once");
  command
      ->add_option("--max-tokens", options->max_tokens,
                   "Most tokens to produce; 0 = as many as the context has room for")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command
      ->add_option("--chunk", options->chunk,
                   "Most prompt tokens of a sequence in one step; 0 = the step's budget")
      ->check(CLI::NonNegativeNumber);
  command->add_flag("--ignore-eos", options->ignore_eos, "Go on after an end-of-sentence token");
  command->add_flag(
      "--json", options->json,
      "One JSON object an answer: ids, finish_reason, usage (cached_tokens: taken from the prefix cache;\n"
      "unrestored_tokens, exact mode: cached too, but computed again for want of a kept state)");
  command->callback([&context, options] {
    context.action = [options] {
      const auto done = generate(*options);
      return done ? kDone : fail(done.error());
    };
  });
}

}  // namespace deepinfer::app
