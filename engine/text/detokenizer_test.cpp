#include "text/detokenizer.h"

#include <random>

#include <gtest/gtest.h>

#include "text/utf8.h"

namespace deepinfer::text {
namespace {

TEST(ToValidUtf8, OneReplacementPerMaximalSubpart) {
  EXPECT_EQ(to_valid_utf8("plain é 日 🦀"), "plain é 日 🦀");
  EXPECT_EQ(to_valid_utf8("\xC0\x80"), "\uFFFD\uFFFD");                      // overlong: no byte can begin it
  EXPECT_EQ(to_valid_utf8("\xE0\x80\x80"), "\uFFFD\uFFFD\uFFFD");            // overlong
  EXPECT_EQ(to_valid_utf8("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");            // a surrogate
  EXPECT_EQ(to_valid_utf8("\xF0\x9F\xA6z"), "\uFFFDz");                      // one subpart of three bytes
  EXPECT_EQ(to_valid_utf8("\xF0\x9F\xA6"), "\uFFFD");                        // cut by the end
  EXPECT_EQ(to_valid_utf8("\xF4\x90\x80\x80"), "\uFFFD\uFFFD\uFFFD\uFFFD");  // above U+10FFFF
  EXPECT_EQ(to_valid_utf8("\xE3\xE3\x81\x82"), "\uFFFDあ");
}

TEST(Utf8Stream, DoesNotDependOnTheCuts) {
  std::mt19937_64 random(23);
  const std::string_view kBytes =
      "a\x80\xBF\xC2\xC3\xE0\xA0\xE3\x81\x82\xED\x9F\xF0\x9F\xA6\x80\xF4\x8F\xFF\n";
  for (int round = 0; round < 2000; ++round) {
    std::string bytes;
    for (std::size_t i = random() % 24; i > 0; --i)
      bytes += kBytes[random() % kBytes.size()];
    const std::string whole = to_valid_utf8(bytes);
    ASSERT_TRUE(valid_utf8_prefix(whole) == whole.size());
    for (std::size_t cut = 0; cut <= bytes.size(); ++cut) {
      std::string text;
      Utf8Stream stream;
      stream.push(std::string_view(bytes).substr(0, cut), text);
      ASSERT_TRUE(valid_utf8_prefix(text) == text.size());  // never half a character
      ASSERT_LE(stream.held(), 3U);
      stream.push(std::string_view(bytes).substr(cut), text);
      stream.finish(text);
      ASSERT_EQ(text, whole);
    }
    std::string text;
    Utf8Stream stream;
    for (const char byte : bytes)
      stream.push({&byte, 1}, text);
    stream.finish(text);
    ASSERT_EQ(text, whole);
  }
}

}  // namespace
}  // namespace deepinfer::text
