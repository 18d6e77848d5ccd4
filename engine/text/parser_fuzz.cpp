// Fuzz target: bytes as sampled ids for the output parser, whole and cut in two.
//
// Arguments must be JSON objects when calls are the finish, all text must be UTF-8, and the cut must not show.
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "text/detokenizer.h"
#include "text/json_text.h"
#include "text/parser.h"
#include "text/small_tokenizer.h"

namespace deepinfer::text {
namespace {

// A byte is itself as an id, but the rarest ones stand for the control tokens and for pieces of tags.
std::vector<TokenId> ids_of(const Tokenizer& tokenizer, std::string_view bytes) {
  static const std::vector<std::string> kPieces = {"</think>",
                                                   "<｜DSML｜ calls>\n",
                                                   "<｜DSML｜ invoke name=\"f\">\n",
                                                   "<｜DSML｜ parameter name=\"a\" string=\"true\">",
                                                   "<｜DSML｜ parameter name=\"b\" string=\"false\">",
                                                   "</｜DSML｜ parameter>\n",
                                                   "</｜DSML｜ invoke>\n",
                                                   "</｜DSML｜ calls>",
                                                   "｜DSML｜",
                                                   "<think>",
                                                   "<｜User｜>",
                                                   "</",
                                                   "parameter name=",
                                                   "```json\n"};
  std::vector<TokenId> ids;
  for (const char c : bytes) {
    const auto byte = static_cast<std::size_t>(static_cast<unsigned char>(c));
    if (byte < 256 - kPieces.size()) {
      ids.push_back(tokenizer.encode(std::string_view(&c, 1)).front());
    } else {
      const auto piece = tokenizer.encode_with_specials(kPieces[byte - (256 - kPieces.size())]);
      ids.insert(ids.end(), piece.begin(), piece.end());
    }
  }
  return ids;
}

}  // namespace
}  // namespace deepinfer::text

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace deepinfer::text;
  if (size < 2) return 0;
  static const Tokenizer tokenizer = Tokenizer::parse(SmallTokenizer().json(), "small").value();
  ParserOptions options;
  options.tools_enabled = (data[0] & 1) != 0;
  options.json_mode = (data[0] & 2) != 0;
  options.match_text = (data[0] & 4) != 0;
  options.start = static_cast<ParserStart>((data[0] >> 3) % 5);
  if ((data[0] & 128) != 0) options.stops = {"\n\n", "ab"};
  if (options.start == ParserStart::kCalls) options.tools_enabled = true;
  options.tools = {
      {"f", R"({"properties":{"a":{"type":"integer"},"b":{"type":"string"}},"required":["a"]})"}};
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 2, size - 2);
  const std::vector<TokenId> ids = ids_of(tokenizer, bytes);
  const std::size_t cut = ids.empty() ? 0 : data[1] % (ids.size() + 1);
  for (const FinishReason reason : {FinishReason::kStop, FinishReason::kLength}) {
    const ParsedOutput whole = parse_output(tokenizer, options, ids, reason);
    ParsedOutput parts;
    std::vector<ParserEvent> events;
    OutputParser parser(tokenizer, options);
    parser.push(std::span(ids).first(cut), events);
    parser.push(std::span(ids).subspan(cut), events);
    parts.outcome = parser.finish(reason, events);
    accumulate(events, parts);
    DI_CHECK(parts.reasoning == whole.reasoning && parts.content == whole.content);
    DI_CHECK(parts.calls.size() == whole.calls.size());
    DI_CHECK(to_valid_utf8(whole.reasoning) == whole.reasoning &&
             to_valid_utf8(whole.content) == whole.content);
    for (std::size_t i = 0; i < whole.calls.size(); ++i) {
      DI_CHECK(parts.calls[i].arguments == whole.calls[i].arguments);
      DI_CHECK(reason == FinishReason::kLength || json_types(whole.calls[i].arguments) == kJsonObject);
      DI_CHECK(reason == FinishReason::kLength || is_json(whole.calls[i].arguments));
    }
  }
  return 0;
}
