// Fuzz target: bytes as a tokenizer.json, and as text for a small tokenizer.
//
// The first byte chooses. What loads must encode and decode without loss; what does not must say why.
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "text/detokenizer.h"
#include "text/small_tokenizer.h"
#include "text/tokenizer.h"

namespace deepinfer::text {
namespace {

void check_round_trip(const Tokenizer& tokenizer, std::string_view bytes) {
  const std::vector<TokenId> ids = tokenizer.encode(bytes);
  for (const TokenId id : ids)
    DI_CHECK(!tokenizer.is_special(id));
  const std::string text = to_valid_utf8(bytes);
  DI_CHECK(decode(tokenizer, ids) == text);
  DI_CHECK(decode(tokenizer, tokenizer.encode_with_specials(bytes)) == text);
}

}  // namespace
}  // namespace deepinfer::text

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace deepinfer::text;
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 2 == 0) {
    const auto loaded = Tokenizer::parse(bytes, "input");
    if (loaded.ok()) {
      check_round_trip(*loaded, "hello 123 日本語 \xFF<think>\n\n");
    } else {
      DI_CHECK(!loaded.error().what.empty());
    }
  } else {
    static const Tokenizer small = Tokenizer::parse(SmallTokenizer().json(), "small").value();
    check_round_trip(small, bytes);
  }
  return 0;
}
