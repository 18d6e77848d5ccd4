// Broken and foreign tokenizer.json files: each is refused with the field, the value and a remedy.
#include "text/tokenizer_file.h"

#include <gtest/gtest.h>

#include "text/small_tokenizer.h"
#include "text/tokenizer.h"

namespace deepinfer::text {
namespace {

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

struct BrokenFile {
  const char* name;
  std::string_view from, to;
  ErrorKind kind;
  std::string_view message;  // a part of it
};

const BrokenFile kBroken[] = {
    {"no_model", "\"model\":{", "\"modell\":{", ErrorKind::kFormat, "model is missing"},
    {"no_vocab", "\"vocab\":", "\"vocabulary\":", ErrorKind::kFormat, "model.vocab is missing"},
    {"no_merges", "\"merges\":", "\"merge\":", ErrorKind::kFormat, "model.merges is missing"},
    {"model_type", "\"type\":\"BPE\"", "\"type\":\"Unigram\"", ErrorKind::kUnsupported,
     "model.type is \"Unigram\""},
    {"byte_fallback", "\"type\":\"BPE\"", "\"byte_fallback\":true,\"type\":\"BPE\"", ErrorKind::kUnsupported,
     "byte_fallback"},
    {"dropout", "\"type\":\"BPE\"", "\"dropout\":0.1,\"type\":\"BPE\"", ErrorKind::kUnsupported,
     "model.dropout is 0.1"},
    {"unknown_in_merge", "\"h e\"", "\"h q\"", ErrorKind::kFormat,
     "model.merges[0] joins \"h\" and \"q\", but model.vocab has no \"hq\""},
    {"half_merge", "\"h e\"", "\"he\"", ErrorKind::kFormat, "model.merges[0] is not a pair"},
    {"number_as_merge", "\"h e\"", "7", ErrorKind::kFormat, "model.merges[0] is not a pair"},
    {"repeated_merge", "\"l l\"", "\"h e\"", ErrorKind::kFormat, "model.merges[1] repeats"},
    {"duplicate_id", "\"ll\":257", "\"ll\":256", ErrorKind::kFormat, "id 256 twice"},
    {"duplicate_entry", "\"ll\":257", "\"he\":257", ErrorKind::kFormat, "id 257 twice"},
    {"negative_id", "\"ll\":257", "\"ll\":-1", ErrorKind::kFormat, "is -1, ids run from 0"},
    {"huge_id", "\"ll\":257", "\"ll\":99999999999", ErrorKind::kFormat, "is 99999999999, ids run from 0"},
    {"text_id", "\"ll\":257", "\"ll\":\"x\"", ErrorKind::kFormat, "\"ll\" is not an integer"},
    {"missing_byte", "\"A\":", "\"AAAA\":", ErrorKind::kFormat, "no entry for the single byte 65"},
    {"outside_alphabet", "\"ll\":257", "\"日\":257", ErrorKind::kFormat, "outside the byte alphabet"},
    {"added_collides", "\"id\":1000", "\"id\":257", ErrorKind::kFormat,
     "id 257 is \"ll\" in model.vocab and"},
    {"added_twice", "\"id\":1001", "\"id\":1000", ErrorKind::kFormat, "added_tokens gives id 1000 to both"},
    {"added_repeats", "<think>", "</think>", ErrorKind::kFormat, "repeats the spelling \"</think>\""},
    {"added_strips", "\"lstrip\":false", "\"lstrip\":true", ErrorKind::kUnsupported, "lstrip = true"},
    {"added_empty", "<think>", "", ErrorKind::kFormat, ".content is empty"},
    {"no_user", "<｜User｜>", "<｜Usr｜>", ErrorKind::kFormat, "lacks the required token <｜User｜>"},
    {"no_added", "\"added_tokens\":[", "\"added\":[", ErrorKind::kFormat, "added_tokens is missing"},
    {"normalizer", "\"normalizer\":null", "\"normalizer\":{\"type\":\"NFC\"}", ErrorKind::kUnsupported,
     "normalizer is"},
    {"other_regex", "\\\\p{N}{1,3}", "\\\\p{N}{1,4}", ErrorKind::kUnsupported,
     "unknown Split regex: \\p{N}{1,4}"},
    {"other_step", "\"type\":\"Split\"", "\"type\":\"Digits\"", ErrorKind::kUnsupported,
     "pretokenizers[0].type is \"Digits\""},
    {"other_behaviour", "Isolated", "Removed", ErrorKind::kUnsupported, "behavior \"Removed\""},
    {"prefix_space", "\"add_prefix_space\":false", "\"add_prefix_space\":true", ErrorKind::kUnsupported,
     "add_prefix_space = true"},
    {"decoder", "\"decoder\":{\"type\":\"ByteLevel\"}", "\"decoder\":{\"type\":\"WordPiece\"}",
     ErrorKind::kUnsupported, "decoder.type"},
    {"not_utf8", "<think>", "<th\xFFink>", ErrorKind::kFormat, "not a JSON document"},
};

class BrokenFiles : public testing::TestWithParam<BrokenFile> {};

TEST_P(BrokenFiles, AreRefusedByName) {
  const BrokenFile& broken = GetParam();
  const auto result =
      Tokenizer::parse(replaced(SmallTokenizer().json(), broken.from, broken.to), "dir/tokenizer.json");
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().kind, broken.kind) << result.error().message();
  EXPECT_NE(result.error().what.find(broken.message), std::string::npos) << result.error().message();
  EXPECT_EQ(result.error().what.find("cannot load dir/tokenizer.json: "), 0U) << result.error().message();
  EXPECT_FALSE(result.error().remedy.empty());
}

INSTANTIATE_TEST_SUITE_P(All, BrokenFiles, testing::ValuesIn(kBroken),
                         [](const auto& suite) { return std::string(suite.param.name); });

TEST(TokenizerFile, EveryTruncationIsRefused) {
  const std::string json = SmallTokenizer().json();
  for (std::size_t size = 0; size < json.size(); size += 7) {
    ASSERT_FALSE(Tokenizer::parse(std::string_view(json).substr(0, size), "cut").ok()) << size;
  }
}

TEST(TokenizerFile, MissingFileAndFolder) {
  const auto missing = Tokenizer::load("no/such/tokenizer.json");
  ASSERT_FALSE(missing.ok());
  EXPECT_NE(missing.error().what.find("no/such/tokenizer.json"), std::string::npos);
  EXPECT_FALSE(Tokenizer::load("/").ok());
}

}  // namespace
}  // namespace deepinfer::text
