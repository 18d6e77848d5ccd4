#include "service/turn.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "text/engram_token_map.h"

namespace deepinfer::service {
namespace {

text::FinishReason text_reason(runtime::FinishReason reason) {
  switch (reason) {
    case runtime::FinishReason::kStop: return text::FinishReason::kStop;
    case runtime::FinishReason::kLength: return text::FinishReason::kLength;
    case runtime::FinishReason::kCancelled:
    case runtime::FinishReason::kFailed: return text::FinishReason::kAborted;
  }
  return text::FinishReason::kNone;
}

Result<void> check_stops(const std::vector<std::string>& stops) {
  if (stops.size() > text::kMaxStops) {
    return make_error(ErrorKind::kInvalidArgument,
                      fmt::format("{} stop strings, at most {} are taken", stops.size(), text::kMaxStops));
  }
  if (std::any_of(stops.begin(), stops.end(), [](const std::string& stop) { return stop.empty(); })) {
    return make_error(ErrorKind::kInvalidArgument, "a stop string is empty", "leave it out");
  }
  return {};
}

// What ends an answer, and what does not.
void set_ends(const TurnRequest& request, text::ParserOptions& options) {
  options.stops = request.stops;
  options.stop_ids = request.stop_ids;
  options.ignore_eos = request.ignore_eos;
  options.min_tokens = static_cast<std::size_t>(request.sampling.min_tokens);
}

}  // namespace

struct Turn::State {
  State(const text::Tokenizer& words, runtime::Stream ids, text::ParserOptions options, std::int64_t prompt)
      : tokenizer(words), stream(std::move(ids)), stops(options.stops), parser(words, std::move(options)) {
    usage.prompt_tokens = prompt;
  }

  void take_token(runtime::Token token, std::vector<text::ParserEvent>& events) {
    const text::TokenId id = token.id;
    parser.push({&id, 1}, events);
    if (report_tokens) {
      TokenReport report;
      report.bytes = tokenizer.token_bytes(id);
      for (const runtime::TokenLogprob& other : token.top)
        report.top_bytes.emplace_back(tokenizer.token_bytes(other.id));
      report.token = std::move(token);
      reports.push_back(std::move(report));
    }
    // A stop string, or the end of the calls block: the engine does not know of it yet.
    if (parser.ended()) {
      stream.cancel();
      close(text::FinishReason::kStop, events);
    }
  }

  void take_finish(const runtime::Finish& finish, std::vector<text::ParserEvent>& events) {
    error = finish.error;
    close(text_reason(finish.reason), events);
  }

  void close(text::FinishReason reason, std::vector<text::ParserEvent>& events) {
    output.outcome = parser.finish(reason, events);
    usage.cached_tokens = stream.cached_tokens();
    usage.unrestored_tokens = stream.unrestored_tokens();
    usage.queue_ns = stream.queue_ns();
    usage.completion_tokens = static_cast<std::int64_t>(output.outcome.completion_tokens);
    usage.reasoning_tokens = static_cast<std::int64_t>(output.outcome.reasoning_tokens);
    ended = true;
  }

  const text::Tokenizer& tokenizer;
  runtime::Stream stream;
  std::vector<std::string> stops;
  text::OutputParser parser;
  bool report_tokens = false;
  bool ended = false;
  text::ParsedOutput output;
  std::vector<TokenReport> reports;
  TurnUsage usage;
  std::optional<Error> error;
};

Turn::Turn(std::unique_ptr<State> state) : state_(std::move(state)) {}
Turn::Turn(Turn&&) noexcept = default;
Turn& Turn::operator=(Turn&&) noexcept = default;
Turn::~Turn() = default;

std::int64_t Turn::prompt_tokens() const {
  return state_->usage.prompt_tokens;
}

const std::vector<TokenReport>& Turn::reports() const {
  return state_->reports;
}

void Turn::take_shown(std::vector<text::ShownToken>& tokens) {
  state_->parser.take_shown(tokens);
}

void Turn::cancel() {
  state_->stream.cancel();
}

void Turn::on_progress(std::function<void()> called) {
  state_->stream.on_event(std::move(called));
}

bool Turn::advance(std::vector<text::ParserEvent>& events, std::int64_t timeout_ms) {
  if (state_->ended) return false;
  const std::size_t first = events.size();
  std::optional<runtime::Event> event =
      timeout_ms < 0 ? state_->stream.next() : state_->stream.next_within(timeout_ms);
  for (; event.has_value() && !state_->ended; event = state_->stream.try_next()) {
    if (auto* token = std::get_if<runtime::Token>(&*event)) {
      state_->take_token(std::move(*token), events);
    } else {
      state_->take_finish(std::get<runtime::Finish>(*event), events);
    }
  }
  text::accumulate(std::span(events).subspan(first), state_->output);
  return !state_->ended;
}

Result<TurnResult> Turn::result() {
  DI_CHECK_MSG(state_->ended, "the result of a turn was asked for before its end");
  if (state_->error.has_value()) return *state_->error;
  TurnResult result;
  result.output = state_->output;
  result.usage = state_->usage;
  result.tokens = state_->reports;
  for (std::size_t i = 0; i < result.output.calls.size(); ++i)
    result.output.calls[i].written = state_->parser.written_calls()[i];
  if (result.output.outcome.stop.has_value()) result.stop = state_->stops[*result.output.outcome.stop];
  return result;
}

Result<TurnResult> Turn::run(const Deltas& deltas) {
  std::vector<text::ParserEvent> events;
  for (bool more = true; more;) {
    events.clear();
    more = advance(events);
    if (deltas && !events.empty()) deltas(events);
  }
  return result();
}

Result<text::Tokenizer> load_tokenizer(const std::filesystem::path& model_directory) {
  return text::Tokenizer::load(model_directory / "tokenizer.json");
}

Result<std::span<const std::int32_t>> token_map_for(const std::filesystem::path& model_directory) {
  std::error_code code;
  const std::filesystem::path tokenizer_file = model_directory / "tokenizer.json";
  const auto config = model::read_config(model_directory / "config.json");
  const bool needed = config.ok() && !config->engram.layers.empty();
  if (!needed || model::has_token_map(model_directory) || !std::filesystem::exists(tokenizer_file, code)) {
    return std::span<const std::int32_t>();
  }
  DI_ASSIGN(const auto tokenizer, load_tokenizer(model_directory));
  return text::engram_token_map(tokenizer);
}

runtime::EngineOptions engine_options(const text::Tokenizer& tokenizer, const model::Config& config) {
  runtime::EngineOptions options;
  const text::ControlIds& control = tokenizer.control();
  for (const text::TokenId id : {control.end_of_sentence, control.begin_of_sentence, control.user,
                                 control.assistant, control.system, control.latest_reminder}) {
    if (id != text::kNoToken) options.eos_ids.push_back(id);
  }
  options.never_sampled = tokenizer.never_sampled(static_cast<std::size_t>(config.vocab));
  options.mode = config.replayable() ? runtime::Mode::kReplay : runtime::Mode::kExact;
  return options;
}

Service::~Service() = default;

Result<std::unique_ptr<Service>> Service::open(ServiceOptions options) {
  DI_ASSIGN(auto tokenizer, load_tokenizer(options.load.model_directory));
  if (options.load.token_map.empty()) options.load.token_map = text::engram_token_map(tokenizer);
  options.load.prefix = {options.prefix.enabled, options.prefix.snapshots, options.mode};
  DI_ASSIGN(auto loaded, runtime::load(options.load));
  if (tokenizer.vocabulary_size() > static_cast<std::size_t>(loaded.config.vocab)) {
    return make_error(
        ErrorKind::kFormat,
        fmt::format("cannot serve {}: tokenizer.json has {} ids, the model's head has {} rows",
                    options.load.model_directory.string(), tokenizer.vocabulary_size(), loaded.config.vocab),
        "the tokenizer and the weights come from different releases");
  }
  const auto version = text::model_version_from_name(loaded.config.family);
  DI_CHECK_MSG(version.has_value(), "a model family without a prompt format");
  runtime::EngineOptions engine = engine_options(tokenizer, loaded.config);
  engine.mode = options.mode.value_or(engine.mode);
  engine.decoder_tokens = options.decoder_tokens;
  engine.prefill_chunk = options.prefill_chunk;
  engine.max_waiting = options.max_waiting;
  engine.step_log = options.step_log;
  engine.prefix = options.prefix;
  engine.on_failure = std::move(options.on_failure);

  std::unique_ptr<Service> service(new Service());
  service->tokenizer_ = std::make_unique<text::Tokenizer>(std::move(tokenizer));
  service->encoding_ = options.encoding;
  service->encoding_.version = *version;
  service->config_ = std::move(loaded.config);
  service->plan_ = std::move(loaded.plan);
  DI_ASSIGN(service->engine_, runtime::Engine::create(std::move(loaded.core), std::move(engine)));
  return service;
}

Result<text::ParserOptions> Service::parser_options(const TurnRequest& request,
                                                    const text::RenderedPrompt& prompt) const {
  using Format = text::ResponseFormat::Kind;
  const text::Conversation& conversation = request.conversation;
  if (conversation.response_format.kind == Format::kRegex) {
    return make_error(ErrorKind::kUnsupported,
                      "the answer is to follow a regular expression, which this build cannot enforce",
                      "ask for text or JSON");
  }
  DI_TRY(check_stops(request.stops));
  text::ParserOptions options = text::parser_options(conversation, prompt, encoding_.profile);
  options.stop_in_reasoning = request.stop_in_reasoning;
  options.include_stop = request.include_stop;
  options.surface_stray_calls = request.surface_stray_calls;
  set_ends(request, options);
  return options;
}

Result<EncodedTurn> Service::encode(const TurnRequest& request) const {
  const text::RenderedPrompt prompt = text::render(request.conversation, encoding_);
  if (!prompt.images.empty()) {
    return make_error(
        ErrorKind::kUnsupported,
        fmt::format("the conversation holds {} images, this build reads text only", prompt.images.size()),
        "describe the image in words");
  }
  EncodedTurn encoded;
  DI_ASSIGN(encoded.parser, parser_options(request, prompt));
  DI_ASSIGN(encoded.prompt, text::encode(prompt, *tokenizer_));
  return encoded;
}

Result<EncodedTurn> Service::encode(const RawPrompt& raw, const TurnRequest& request) const {
  DI_TRY(check_stops(request.stops));
  std::vector<std::int32_t> ids;
  if (raw.ids) {
    ids = *raw.ids;
    const auto vocabulary = static_cast<std::int32_t>(tokenizer_->vocabulary_size());
    const auto outside =
        std::find_if(ids.begin(), ids.end(), [&](std::int32_t id) { return id < 0 || id >= vocabulary; });
    if (outside != ids.end()) {
      return make_error(ErrorKind::kInvalidArgument,
                        fmt::format("the prompt holds {}, ids are 0 to {}", *outside, vocabulary - 1));
    }
  } else {
    ids = raw.read_specials ? tokenizer_->encode_with_specials(raw.text) : tokenizer_->encode(raw.text);
  }
  const std::int32_t bos = tokenizer_->control().begin_of_sentence;
  const bool has_bos = !ids.empty() && ids.front() == bos;
  EncodedTurn encoded;
  if (has_bos || raw.add_bos) encoded.prompt.push_back(bos);
  if (has_bos) ids.erase(ids.begin());
  if (raw.suffix) {
    // The layout of V3, whose three tokens V4 and V4.1 still have: the gap is filled behind the last of them.
    const auto begin = tokenizer_->special_id("<｜fim▁begin｜>");
    const auto hole = tokenizer_->special_id("<｜fim▁hole｜>");
    const auto end = tokenizer_->special_id("<｜fim▁end｜>");
    if (!begin || !hole || !end) {
      return make_error(ErrorKind::kUnsupported,
                        "a suffix is given, and this model's tokenizer has no fill-in-the-middle tokens",
                        "leave suffix out");
    }
    encoded.prompt.push_back(*begin);
    encoded.prompt.insert(encoded.prompt.end(), ids.begin(), ids.end());
    encoded.prompt.push_back(*hole);
    tokenizer_->encode(*raw.suffix, encoded.prompt);
    encoded.prompt.push_back(*end);
  } else {
    encoded.prompt.insert(encoded.prompt.end(), ids.begin(), ids.end());
  }
  if (encoded.prompt.empty()) {
    return make_error(ErrorKind::kInvalidArgument, "the prompt is empty",
                      "give a prompt, or add_special_tokens");
  }
  encoded.parser.start = text::ParserStart::kContentContinuation;
  encoded.parser.raw = true;
  set_ends(request, encoded.parser);
  return encoded;
}

Result<Turn> Service::start(const TurnRequest& request, EncodedTurn encoded) {
  runtime::Request ids;
  ids.prompt = std::move(encoded.prompt);
  const auto prompt_tokens = static_cast<std::int64_t>(ids.prompt.size());
  ids.sampling = request.sampling;
  ids.max_tokens = request.max_tokens;
  ids.stop_ids = request.stop_ids;
  ids.ignore_eos = request.ignore_eos;
  ids.mode = request.mode;
  ids.tenant = request.tenant;
  ids.priority = request.priority;
  DI_ASSIGN(auto stream, engine_->submit(std::move(ids)));
  auto state =
      std::make_unique<Turn::State>(*tokenizer_, std::move(stream), std::move(encoded.parser), prompt_tokens);
  state->report_tokens = request.sampling.logprobs;
  return Turn(std::move(state));
}

Result<Turn> Service::start(const TurnRequest& request) {
  DI_ASSIGN(auto encoded, encode(request));
  return start(request, std::move(encoded));
}

}  // namespace deepinfer::service
