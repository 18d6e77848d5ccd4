#include "service/turn.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <regex>

#include "text/detokenizer.h"
#include "text/small_tokenizer.h"

namespace deepinfer::service {
namespace {

namespace fs = std::filesystem;

// The random tiny41 weights (512 ids) with a tokenizer of 256 bytes and a few merges beside them.
class ModelDirectory {
 public:
  explicit ModelDirectory(int first_added_id = 400) {
    std::string name = (fs::temp_directory_path() / "deepinfer-service-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make " + name);
    path_ = name;
    const fs::path source =
        fs::absolute(fs::path(DEEPINFER_SOURCE_DIR) / "../shared/golden/tiny41/checkpoint");
    for (const auto& entry : fs::directory_iterator(source)) {
      fs::create_symlink(entry.path(), path_ / entry.path().filename());
    }
    // The small tokenizer numbers its added tokens from 1000 on, past the rows of tiny41's head.
    std::string json = text::SmallTokenizer().json();
    for (int i = 0; i < 10; ++i) {
      json = std::regex_replace(json, std::regex("\"id\":" + std::to_string(1000 + i) + ","),
                                "\"id\":" + std::to_string(first_added_id + i) + ",");
    }
    std::ofstream(path_ / "tokenizer.json") << json;
  }
  ~ModelDirectory() { fs::remove_all(path_); }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

ServiceOptions options_for(const fs::path& directory) {
  ServiceOptions options;
  options.load.model_directory = directory;
  options.load.backend_options.threads = 1;
  options.load.max_model_len = 512;
  options.load.max_sequences = 4;
  options.load.step_tokens = 64;
  return options;
}

class TurnTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    directory_ = new ModelDirectory();
    auto opened = Service::open(options_for(directory_->path()));
    ASSERT_TRUE(opened.ok()) << opened.error().message();
    service_ = opened->release();
  }
  static void TearDownTestSuite() {
    delete service_;
    delete directory_;
  }
  // A request whose answer is noise, but the same noise every time; control ids are banned so that it does not stop.
  static TurnRequest request(std::int64_t max_tokens = 80, bool controls = false) {
    TurnRequest made;
    made.conversation.thinking = false;
    made.conversation.messages = {text::Message::of_text(text::Role::kUser, "hello world 123")};
    made.sampling.temperature = 1;
    made.sampling.seed = 4;
    made.max_tokens = max_tokens;
    if (!controls) {
      for (std::int32_t id = 400; id < 410; ++id)
        made.sampling.banned_ids.push_back(id);
    }
    return made;
  }
  static TurnResult run(const TurnRequest& request) {
    auto turn = service_->start(request);
    EXPECT_TRUE(turn.ok()) << turn.error().message();
    text::ParsedOutput streamed;
    const auto result = turn->run([&](std::span<const text::ParserEvent> deltas) {
      EXPECT_FALSE(deltas.empty());
      for (const text::ParserEvent& delta : deltas)
        EXPECT_EQ(text::to_valid_utf8(delta.text), delta.text) << "half a character";
      text::accumulate(deltas, streamed);
    });
    EXPECT_TRUE(result.ok()) << result.error().message();
    EXPECT_EQ(streamed.content, result->output.content);
    EXPECT_EQ(streamed.reasoning, result->output.reasoning);
    EXPECT_EQ(streamed.calls.size(), result->output.calls.size());
    return *result;
  }
  // The ids that the engine samples for the same prompt.
  static std::vector<std::int32_t> ids_of(const TurnRequest& request) {
    runtime::Request ids;
    auto encoded =
        text::encode(text::render(request.conversation, service_->encoding()), service_->tokenizer());
    EXPECT_TRUE(encoded.ok());
    ids.prompt = *encoded;
    ids.sampling = request.sampling;
    ids.max_tokens = request.max_tokens;
    auto stream = service_->engine().submit(ids);
    EXPECT_TRUE(stream.ok());
    std::vector<std::int32_t> list;
    for (auto event = stream->next(); std::holds_alternative<runtime::Token>(event); event = stream->next()) {
      list.push_back(std::get<runtime::Token>(event).id);
    }
    return list;
  }

  static ModelDirectory* directory_;
  static Service* service_;
};
ModelDirectory* TurnTest::directory_ = nullptr;
Service* TurnTest::service_ = nullptr;

TEST_F(TurnTest, KnowsItsModel) {
  EXPECT_EQ(service_->version(), text::ModelVersion::kV41);
  EXPECT_EQ(service_->engine().options().mode, runtime::Mode::kReplay);
  const auto& options = service_->engine().options();
  // EOS, BOS, user, assistant, system, reminder end an answer; rows without a token are never sampled.
  EXPECT_EQ(options.eos_ids.size(), 6U);
  EXPECT_TRUE(std::find(options.never_sampled.begin(), options.never_sampled.end(), 511) !=
              options.never_sampled.end());
}

TEST_F(TurnTest, EndsThatAreIgnoredOrComeTooSoon) {
  // EOS is made the likeliest id, so that it comes first wherever it may.
  const std::int32_t eos = service_->tokenizer().control().end_of_sentence;
  TurnRequest made = request(12, true);
  made.sampling.temperature = 0;
  made.sampling.logit_bias = {{eos, 1000.0F}};
  EXPECT_EQ(run(made).usage.completion_tokens, 1);
  made.ignore_eos = true;
  TurnResult result = run(made);
  EXPECT_EQ(result.usage.completion_tokens, 12);
  EXPECT_EQ(result.output.outcome.finish, text::FinishReason::kLength);
  EXPECT_EQ(result.output.content, "");
  made.ignore_eos = false;
  made.sampling.min_tokens = 7;
  result = run(made);
  EXPECT_EQ(result.usage.completion_tokens, 8);
  EXPECT_EQ(result.output.outcome.finish, text::FinishReason::kStop);
  EXPECT_NE(result.output.content, "");
}

TEST_F(TurnTest, AnswersWithTheTextOfItsIds) {
  const TurnRequest made = request();
  const TurnResult result = run(made);
  const auto ids = ids_of(made);
  EXPECT_EQ(ids.size(), 80U);
  const auto parsed = text::parse_output(service_->tokenizer(), {}, ids, text::FinishReason::kLength);
  EXPECT_EQ(result.output.content, parsed.content);
  EXPECT_FALSE(result.output.content.empty());
  EXPECT_EQ(result.output.outcome.finish, text::FinishReason::kLength);
  EXPECT_EQ(result.usage.completion_tokens, 80);
  EXPECT_GT(result.usage.prompt_tokens, 10);
  EXPECT_EQ(result.usage.reasoning_tokens, 0);
  EXPECT_TRUE(result.tokens.empty());
}

TEST_F(TurnTest, ThinkingIsReasoningUntilItsEnd) {
  TurnRequest made = request();
  made.conversation.thinking = true;
  const TurnResult result = run(made);
  EXPECT_FALSE(result.output.reasoning.empty());
  EXPECT_TRUE(result.output.content.empty());
  EXPECT_EQ(result.usage.reasoning_tokens, 80);
  // With </think> likely, the rest is content.
  made.sampling.banned_ids.clear();
  const auto end_think = service_->tokenizer().control().end_think;
  for (std::int32_t id = 400; id < 410; ++id) {
    if (id != end_think) made.sampling.banned_ids.push_back(id);
  }
  made.sampling.logit_bias = {{end_think, 4.0F}};
  const TurnResult both = run(made);
  EXPECT_FALSE(both.output.content.empty());
  EXPECT_LT(both.usage.reasoning_tokens, 80);
}

TEST_F(TurnTest, StopStringsCutAcrossTokens) {
  TurnRequest made = request();
  for (std::int32_t id = 0; id < 300; ++id) {
    const std::string_view bytes = service_->tokenizer().token_bytes(id);
    const bool printable =
        std::all_of(bytes.begin(), bytes.end(), [](char c) { return c >= ' ' && c <= '~'; });
    if (!bytes.empty() && printable) made.sampling.allowed_ids.push_back(id);
  }
  const std::string whole = run(made).output.content;
  ASSERT_GE(whole.size(), 80U);
  // A stop of eight bytes from the middle spans several tokens of one to five bytes.
  for (const std::size_t at : {whole.size() / 3, whole.size() / 2}) {
    const std::string stop = whole.substr(at, 8);
    made.stops = {"never written by it", stop};
    made.include_stop = false;
    const TurnResult cut = run(made);
    EXPECT_EQ(cut.output.content, whole.substr(0, whole.find(stop)));
    EXPECT_EQ(cut.output.outcome.finish, text::FinishReason::kStop);
    EXPECT_EQ(cut.stop, stop);
    EXPECT_LT(cut.usage.completion_tokens, 80);
    made.include_stop = true;
    EXPECT_EQ(run(made).output.content, whole.substr(0, whole.find(stop)) + stop);
  }
}

TEST_F(TurnTest, StopIdsEndIt) {
  TurnRequest made = request();
  const auto ids = ids_of(made);
  made.stop_ids = {ids[20]};
  const TurnResult result = run(made);
  EXPECT_EQ(result.output.outcome.finish, text::FinishReason::kStop);
  EXPECT_EQ(result.output.outcome.stop_id, ids[20]);
  const auto first = std::find(ids.begin(), ids.end(), ids[20]) - ids.begin();
  EXPECT_EQ(result.usage.completion_tokens, first + 1);
}

TEST_F(TurnTest, ControlIdsNeverShow) {
  TurnRequest made = request(120, true);
  for (std::int32_t id = 400; id < 410; ++id)
    made.sampling.logit_bias.push_back({id, 2.0F});
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    made.sampling.seed = seed;
    const TurnResult result = run(made);
    for (const auto* shown : {&result.output.content, &result.output.reasoning}) {
      EXPECT_EQ(shown->find("<｜"), std::string::npos);
      EXPECT_EQ(shown->find("</think>"), std::string::npos);
    }
  }
}

TEST_F(TurnTest, ReportsTokensAndLogprobs) {
  TurnRequest made = request(12);
  made.sampling.logprobs = true;
  made.sampling.top_logprobs = 2;
  const TurnResult result = run(made);
  ASSERT_EQ(result.tokens.size(), 12U);
  std::string bytes;
  for (const TokenReport& report : result.tokens) {
    EXPECT_LE(report.token.logprob, 0);
    ASSERT_EQ(report.top_bytes.size(), 2U);
    EXPECT_EQ(report.top_bytes[0], service_->tokenizer().token_bytes(report.token.top[0].id));
    bytes += report.bytes;
  }
  EXPECT_EQ(text::to_valid_utf8(bytes).find(result.output.content), 0U);
}

TEST_F(TurnTest, CancelKeepsWhatCame) {
  auto turn = service_->start(request(400));
  ASSERT_TRUE(turn.ok());
  std::vector<text::ParserEvent> events;
  ASSERT_TRUE(turn->advance(events));
  turn->cancel();
  while (turn->advance(events)) {
  }
  const auto result = turn->result();
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->output.outcome.finish, text::FinishReason::kAborted);
  EXPECT_LT(result->usage.completion_tokens, 400);
  {
    auto dropped = service_->start(request(400));
    ASSERT_TRUE(dropped.ok());
  }
  for (int i = 0; i < 20000 && service_->engine().stats().running > 0; ++i)
    usleep(500);
  EXPECT_EQ(service_->engine().stats().free_blocks, service_->engine().stats().blocks);
}

TEST_F(TurnTest, RefusesWhatItCannotDo) {
  const auto refused = [](const TurnRequest& made, ErrorKind kind) {
    const auto turn = service_->start(made);
    ASSERT_FALSE(turn.ok());
    EXPECT_EQ(turn.error().kind, kind) << turn.error().message();
  };
  TurnRequest made = request();
  made.stops.assign(text::kMaxStops + 1, "x");
  refused(made, ErrorKind::kInvalidArgument);
  made.stops = {""};
  refused(made, ErrorKind::kInvalidArgument);
  made = request();
  made.conversation.response_format.kind = text::ResponseFormat::Kind::kRegex;
  refused(made, ErrorKind::kUnsupported);
  made = request();
  made.conversation.messages[0].parts.push_back(
      text::Part::of_image({text::ImageSource::Kind::kUrl, "http://x/y.png", {}, {}}));
  refused(made, ErrorKind::kUnsupported);
  made = request(1000);
  refused(made, ErrorKind::kInvalidArgument);
  made = request();
  made.conversation.messages[0] = text::Message::of_text(text::Role::kUser, std::string(3000, 'x'));
  refused(made, ErrorKind::kInvalidArgument);
}

TEST(Service, RefusesDirectoriesThatDoNotFit) {
  const ModelDirectory too_many(600);
  const auto opened = Service::open(options_for(too_many.path()));
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().kind, ErrorKind::kFormat);
  const ModelDirectory without;
  fs::remove(without.path() / "tokenizer.json");
  EXPECT_EQ(Service::open(options_for(without.path())).error().kind, ErrorKind::kNotFound);
}

}  // namespace
}  // namespace deepinfer::service
