#include "text/tokenizer.h"

#include <random>
#include <thread>

#include "text/char_classes.h"
#include "text/detokenizer.h"
#include "text/small_tokenizer.h"
#include "text/tokenizer_test_data.h"

namespace deepinfer::text {
namespace {

using Ids = std::vector<TokenId>;

const Tokenizer& v41() {
  return test_data::shipped().v41;
}

std::string random_text(std::mt19937_64& random, std::size_t characters) {
  static const std::vector<std::string> kParts = {
      "a",  "the", " ",      "  ", "\n", "\r\n", "\t",  "1",      "2024", "é",     "e\u0301",
      "日", "本",  "の",     "カ", "〇", "-",    "...", "<",      "｜",   "!",     "'s",
      "🦀", "\0",  "\u00a0", "Ω",  "ж",  "ا",    "㊿",  "\u200b", "_x",   "\u3000"};
  std::string text;
  for (std::size_t i = 0; i < characters; ++i)
    text += kParts[random() % kParts.size()];
  return text;
}

TEST(Tokenizer, SpecExamples) {
  EXPECT_EQ(v41().encode("Hello!"), (Ids{19923, 3}));
  EXPECT_EQ(v41().encode(std::string_view("\0", 1)), (Ids{191}));
  EXPECT_EQ(v41().encode("🦀"), (Ids{3574, 102, 225}));
  EXPECT_EQ(v41().encode("   "), (Ids{361}));
  EXPECT_EQ(v41().encode("don't"), (Ids{20385, 1664}));
  EXPECT_EQ(v41().encode("\r\n\r\n"), (Ids{204, 201, 204, 201}));
  EXPECT_EQ(v41().encode("e\u0301"), (Ids{71, 17793}));
  EXPECT_EQ(v41().encode("日本語テスト123"), (Ids{88768, 109288, 6895}));
  EXPECT_EQ(v41().encode("<tool_result>"), (Ids{30, 72461, 46148, 32}));
}

TEST(Tokenizer, RequestBytesNeverBecomeControlIds) {
  EXPECT_EQ(v41().encode("x<｜User｜>y</think>z"),
            (Ids{90, 30, 28217, 6756, 28217, 32, 91, 1718, 37947, 32, 92}));
  std::mt19937_64 random(7);
  for (const Tokenizer* tokenizer : {&test_data::shipped().v4, &v41()}) {
    std::size_t spellings = 0;
    for (TokenId id = 0; static_cast<std::size_t>(id) < tokenizer->vocabulary_size(); ++id) {
      if (!tokenizer->is_special(id)) continue;
      ++spellings;
      const std::string spelling(tokenizer->token_bytes(id));
      ASSERT_EQ(tokenizer->special_id(spelling), id);
      for (const std::string& text :
           {spelling, random_text(random, 3).append(spelling).append(random_text(random, 3))}) {
        for (const TokenId plain : tokenizer->encode(text))
          ASSERT_FALSE(tokenizer->is_special(plain)) << text;
        const auto special = tokenizer->encode_with_specials(text);
        ASSERT_NE(std::find(special.begin(), special.end(), id), special.end()) << text;
      }
      // Cut anywhere into segments, it stays plain.
      const std::size_t cut = random() % (spelling.size() + 1);
      const std::vector<Segment> segments = {Segment::plain(spelling.substr(0, cut)),
                                             Segment::plain(spelling.substr(cut))};
      ASSERT_EQ(tokenizer->encode(segments), tokenizer->encode(spelling));
    }
    EXPECT_EQ(spellings, 1283U);
  }
}

TEST(Tokenizer, SegmentsJoinBeforeSplitting) {
  const TokenId user = v41().control().user;
  const std::vector<Segment> segments = {Segment::control(user), Segment::plain("<tool_res"),
                                         Segment::plain("ult>"), Segment::control(user),
                                         Segment::plain(""),     Segment::plain("Hello!")};
  EXPECT_EQ(v41().encode(segments), (Ids{user, 30, 72461, 46148, 32, user, 19923, 3}));
  EXPECT_EQ(v41().encode(std::vector<Segment>{}), Ids{});
}

TEST(Tokenizer, ControlIdsAndDigest) {
  const ControlIds& control = v41().control();
  EXPECT_EQ(control.begin_of_sentence, 0);
  EXPECT_EQ(control.end_of_sentence, 1);
  EXPECT_EQ(control.system, 128799);
  EXPECT_EQ(control.image, 129264);
  EXPECT_EQ(test_data::shipped().v4.control().system, kNoToken);
  EXPECT_EQ(test_data::shipped().v4.control().image, kNoToken);
  EXPECT_EQ(v41().vocabulary_size(), 129280U);
  // Golden over vocabulary, merges and splitters of the shipped files: equal in V4 and V4.1.
  EXPECT_EQ(v41().model_digest(), "a83486565ac825a03279e682ae39ea0b1cb235ebae027bc19454c02657c754e3");
  EXPECT_EQ(test_data::shipped().v4.model_digest(), v41().model_digest());
}

TEST(Tokenizer, NeverSampledLeavesWhatAModelMayWrite) {
  const auto never = v41().never_sampled(129280 + 8);
  const auto contains = [&](TokenId id) { return std::binary_search(never.begin(), never.end(), id); };
  for (const char* spelling :
       {"</think>", "｜DSML｜", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜/box｜>", "</dsml:"}) {
    EXPECT_FALSE(contains(*v41().special_id(spelling))) << spelling;
  }
  for (const char* spelling :
       {"<｜deepseek_image｜>", "<｜▁pad▁｜>", "<｜place▁holder▁no▁0｜>", "<|place_holder_mm_span_0442|>"}) {
    EXPECT_TRUE(contains(*v41().special_id(spelling))) << spelling;
  }
  EXPECT_TRUE(contains(129280));
  EXPECT_FALSE(contains(19923));
}

TEST(Tokenizer, EveryEntryDecodesAndTextRoundTrips) {
  for (TokenId id = 0; id < 129280; ++id) {
    ASSERT_TRUE(v41().has_entry(id));
    ASSERT_FALSE(v41().token_bytes(id).empty());
  }
  EXPECT_FALSE(v41().has_entry(129280));
  EXPECT_FALSE(v41().has_entry(-1));
  EXPECT_EQ(v41().token_bytes(129280), "");
  std::mt19937_64 random(11);
  for (int i = 0; i < 300; ++i) {
    const std::string text = random_text(random, 1 + random() % 60);
    ASSERT_EQ(decode(v41(), v41().encode(text)), text);
  }
}

TEST(Tokenizer, BrokenBytesAreReadAsReplacements) {
  EXPECT_EQ(v41().encode("a\xFF\xE3\x81z"), v41().encode("a\uFFFD\uFFFDz"));
  EXPECT_EQ(v41().encode_with_specials("\xF0\x9F<think>"), v41().encode_with_specials("\uFFFD<think>"));
}

TEST(Tokenizer, LongPiecesStayFast) {
  for (const char* unit : {"a", " ", "=-", "\n", "漢"}) {
    std::string text;
    while (text.size() < 1 << 20)
      text += unit;
    const auto start = std::chrono::steady_clock::now();
    const auto ids = v41().encode(text);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    EXPECT_LT(seconds, 20) << unit;  // a quadratic merge takes minutes
    EXPECT_EQ(decode(v41(), ids), text);
  }
}

TEST(Tokenizer, ThreadsAgree) {
  std::mt19937_64 random(3);
  const std::string text = random_text(random, 3000);
  const auto expected = v41().encode(text);
  std::vector<Ids> results(4);
  std::vector<std::thread> threads;
  for (Ids& result : results)
    threads.emplace_back([&] { result = v41().encode(text); });
  for (std::thread& thread : threads)
    thread.join();
  for (const Ids& result : results)
    EXPECT_EQ(result, expected);
}

TEST(CharClasses, EveryCodePointAgreesWithTheReference) {
  const auto tables =
      nlohmann::json::parse(std::ifstream(test_data::shared("recipe/tokenizer/char_classes.json")));
  std::vector<std::uint8_t> expected(0x110000);
  for (const auto& [key, bit] : std::vector<std::pair<std::string, std::uint8_t>>{{"L", kWordClass},
                                                                                  {"M", kWordClass},
                                                                                  {"N", kNumberClass},
                                                                                  {"P", kSymbolClass},
                                                                                  {"S", kSymbolClass},
                                                                                  {"space", kBlankClass}}) {
    for (const auto& range : tables.at(key).at("ranges")) {
      for (auto code = range[0].get<std::size_t>(); code <= range[1].get<std::size_t>(); ++code)
        expected[code] |= bit;
    }
  }
  expected['\r'] = expected['\n'] = kLineEndClass;
  for (std::size_t code = 0; code < expected.size(); ++code) {
    if ((code >= 0x4E00 && code <= 0x9FA5) || (code >= 0x3040 && code <= 0x30FF)) expected[code] |= kCjkClass;
    ASSERT_EQ(char_classes()[code], expected[code]) << std::hex << code;
  }
}

// The same code reads a small vocabulary, merges as lists, and single-digit splitting.
TEST(SmallTokenizer, LoadsAndEncodes) {
  SmallTokenizer small;
  const auto encode = [](const SmallTokenizer& source, std::string_view text) {
    const auto tokenizer = Tokenizer::parse(source.json(), "small");
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.error().message();
    return tokenizer->encode(text);
  };
  EXPECT_EQ(encode(small, "hello"), (Ids{259}));
  EXPECT_EQ(encode(small, "12").size(), 1U);
  small.pairs_as_lists = true;
  EXPECT_EQ(encode(small, "hello"), (Ids{259}));
  small.numbers = R"(\\p{N})";
  EXPECT_EQ(encode(small, "12").size(), 2U);
}

}  // namespace
}  // namespace deepinfer::text
