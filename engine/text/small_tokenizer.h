// A tokenizer.json of 256 bytes and a few merges, for tests and fuzzers.
#pragma once

#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace deepinfer::text {

struct SmallTokenizer {
  // Left and right in the byte alphabet; each makes one entry, in order, from id 256 on.
  std::vector<std::pair<std::string, std::string>> merges = {{"h", "e"},    {"l", "l"}, {"he", "ll"},
                                                             {"hell", "o"}, {"Ġ", "w"}, {"Ġw", "o"},
                                                             {"o", "r"},    {"Ġ", "Ġ"}, {"1", "2"}};
  // Added tokens, from id 1000 on.
  std::vector<std::string> added = {"<｜begin▁of▁sentence｜>",
                                    "<｜end▁of▁sentence｜>",
                                    "<｜▁pad▁｜>",
                                    "<｜User｜>",
                                    "<｜Assistant｜>",
                                    "<｜System｜>",
                                    "<think>",
                                    "</think>",
                                    "｜DSML｜",
                                    "<｜latest_reminder｜>"};
  std::string numbers = R"(\\p{N}{1,3})";  // regex of the number splitter, as in JSON
  bool pairs_as_lists = false;             // newer files write merges as ["a", "b"]

  std::string json() const {
    std::ostringstream out;
    out << R"({"version":"1.0","added_tokens":[)";
    for (std::size_t i = 0; i < added.size(); ++i) {
      out << (i == 0 ? "" : ",") << R"({"id":)" << 1000 + i << R"(,"content":")" << added[i]
          << R"(","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true})";
    }
    out << R"(],"normalizer":null,"pre_tokenizer":{"type":"Sequence","pretokenizers":[)";
    for (const std::string_view regex : {std::string_view(numbers), kCjk, kGeneral}) {
      out << R"({"type":"Split","pattern":{"Regex":")" << regex
          << R"("},"behavior":"Isolated","invert":false},)";
    }
    out << R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false}]},)"
        << R"("decoder":{"type":"ByteLevel"},"model":{"type":"BPE","vocab":{)";
    for (int byte = 0, shifted = 256; byte < 256; ++byte) {
      const bool itself = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
      out << (byte == 0 ? "\"" : ",\"");
      write_code(itself ? byte : shifted++, out);
      out << "\":" << byte;
    }
    for (std::size_t i = 0; i < merges.size(); ++i) {
      out << ",\"" << merges[i].first << merges[i].second << "\":" << 256 + i;
    }
    out << R"(},"merges":[)";
    for (std::size_t i = 0; i < merges.size(); ++i) {
      out << (i == 0 ? "" : ",") << (pairs_as_lists ? "[\"" : "\"") << merges[i].first
          << (pairs_as_lists ? "\",\"" : " ") << merges[i].second << (pairs_as_lists ? "\"]" : "\"");
    }
    out << "]}}";
    return out.str();
  }

 private:
  static constexpr std::string_view kCjk = "[\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+";
  static constexpr std::string_view kGeneral =
      R"([!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|)"
      R"( ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+)";

  // A code point below U+0800 as UTF-8 inside a JSON string.
  static void write_code(int code, std::ostringstream& out) {
    if (code == '"' || code == '\\') out << '\\';
    if (code < 0x80) {
      out << static_cast<char>(code);
    } else {
      out << static_cast<char>(0xC0 | code >> 6) << static_cast<char>(0x80 | (code & 0x3F));
    }
  }
};

}  // namespace deepinfer::text
