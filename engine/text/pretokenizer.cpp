#include "text/pretokenizer.h"

#include <cstdint>
#include <string>

#include "text/char_classes.h"
#include "text/utf8.h"

namespace deepinfer::text {
namespace {

constexpr std::string_view kNumberGroups = R"(\p{N}{1,3})";
constexpr std::string_view kSingleNumbers = R"(\p{N})";
constexpr std::string_view kCjkRuns = "[\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+";
constexpr std::string_view kGeneral = R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|)"
                                      "[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|"
                                      " ?[\\p{P}\\p{S}]+[\r\n]*|"
                                      "\\s*[\r\n]+|"
                                      R"(\s+(?!\S)|\s+)";

bool is_ascii_letter(unsigned char byte) {
  return static_cast<unsigned char>((byte | 0x20) - 'a') < 26;
}

// A position in the run: the class bits of its character and where the next one starts.
struct Cursor {
  std::uint8_t classes;
  const unsigned char* next;
};

// The part of the text that the general splitter sees as a string of its own: it ends where a character belongs to
// an earlier splitter (a number, the other side of a CJK boundary) or where the text ends.
class Stretch {
 public:
  Stretch(const std::uint8_t* table, const unsigned char* end, std::uint8_t relevant, std::uint8_t same)
      : table_(table), end_(end), relevant_(relevant), same_(same) {}

  // False at the end of the stretch.
  bool read(const unsigned char* p, Cursor& cursor) const {
    if (p == end_) return false;
    const Utf8Char c = read_valid_utf8(p);
    cursor.classes = table_[c.code];
    cursor.next = p + c.size;
    return (cursor.classes & relevant_) == same_;
  }

  // End of the longest run from `p` of characters with one of `classes`.
  const unsigned char* skip(const unsigned char* p, std::uint8_t classes) const {
    Cursor cursor{};
    while (read(p, cursor) && (cursor.classes & classes) != 0)
      p = cursor.next;
    return p;
  }

 private:
  const std::uint8_t* table_;
  const unsigned char* end_;
  std::uint8_t relevant_, same_;
};

// Alternatives d, e and f: white space from `p`, whose first character is white space.
const unsigned char* blank_piece(const Stretch& stretch, const unsigned char* p) {
  const unsigned char* after_line_end = nullptr;
  const unsigned char* last = p;
  const unsigned char* at = p;
  Cursor cursor{};
  bool more = stretch.read(at, cursor);
  while (more && (cursor.classes & (kBlankClass | kLineEndClass)) != 0) {
    if ((cursor.classes & kLineEndClass) != 0) after_line_end = cursor.next;
    last = at;
    at = cursor.next;
    more = stretch.read(at, cursor);
  }
  if (after_line_end != nullptr) return after_line_end;  // d: up to the last line end
  if (!more || last == p) return at;  // e at the end of the stretch, or f for a single blank
  return last;                        // e: the last blank is left to the next word
}

// One piece of the general splitter from `p`, not at the end of the stretch.
const unsigned char* general_piece(const Stretch& stretch, const unsigned char* p, const unsigned char* end) {
  Cursor first{};
  stretch.read(p, first);
  const unsigned char* second = first.next;
  if ((first.classes & kWordClass) != 0)
    return stretch.skip(second, kWordClass);  // b without its optional character
  if ((first.classes & kSymbolClass) != 0) {
    if (*p < 0x80 && second != end && is_ascii_letter(*second)) {  // a
      do
        ++second;
      while (second != end && is_ascii_letter(*second));
      return second;
    }
    return stretch.skip(stretch.skip(second, kSymbolClass), kLineEndClass);  // c
  }
  Cursor following{};
  bool more = stretch.read(second, following);
  if ((first.classes & kLineEndClass) == 0) {
    if (more && (following.classes & kWordClass) != 0) return stretch.skip(following.next, kWordClass);  // b
    if (*p == ' ' && more && (following.classes & kSymbolClass) != 0) {
      return stretch.skip(stretch.skip(following.next, kSymbolClass), kLineEndClass);  // c with its blank
    }
  }
  if ((first.classes & (kBlankClass | kLineEndClass)) != 0) return blank_piece(stretch, p);
  // No alternative matches at a character that is none of these, unless a word follows it: the text up to the next
  // match is a piece.
  const unsigned char* at = second;
  while (more) {
    constexpr std::uint8_t kMatching = kWordClass | kSymbolClass | kBlankClass | kLineEndClass;
    if ((following.classes & kMatching) != 0) return at;
    Cursor after{};
    const bool more_after = stretch.read(following.next, after);
    if (more_after && (after.classes & kWordClass) != 0) return at;
    at = following.next;
    following = after;
    more = more_after;
  }
  return at;
}

}  // namespace

Result<Pretokenizer> Pretokenizer::from_regexes(const std::vector<std::string_view>& regexes) {
  Pretokenizer result;
  result.classes_ = char_classes();
  bool general = false;
  for (const std::string_view regex : regexes) {
    const bool number = regex == kNumberGroups || regex == kSingleNumbers;
    const bool cjk = regex == kCjkRuns;
    if (!number && !cjk && regex != kGeneral) {
      return make_error(ErrorKind::kUnsupported,
                        "pre_tokenizer has an unknown Split regex: " + std::string(regex),
                        "this build knows the number, CJK and general splitters of DeepSeek-V3/V4/V4.1 only");
    }
    const bool repeated = (number && result.number_group_ != 0) || (cjk && result.cjk_runs_);
    if (general || repeated) {
      return make_error(
          ErrorKind::kUnsupported,
          "pre_tokenizer repeats a splitter or has one behind the general splitter: " + std::string(regex),
          "expected number groups and CJK runs at most once each, then the general splitter");
    }
    if (number) result.number_group_ = regex == kNumberGroups ? 3 : 1;
    if (cjk) result.cjk_runs_ = true;
    general = general || (!number && !cjk);
  }
  if (!general) {
    return make_error(
        ErrorKind::kUnsupported,
        "pre_tokenizer has " + std::to_string(regexes.size()) + " Split steps but not the general splitter",
        "expected number groups and CJK runs at most once each, then the general splitter");
  }
  return result;
}

const char* Pretokenizer::piece_end(const char* begin, const char* end) const {
  const auto* p = reinterpret_cast<const unsigned char*>(begin);
  const auto* e = reinterpret_cast<const unsigned char*>(end);
  const Utf8Char first = read_valid_utf8(p);
  const std::uint8_t classes = classes_[first.code];
  if (number_group_ != 0 && (classes & kNumberClass) != 0) {
    p += first.size;
    for (std::size_t count = 1; count < number_group_ && p != e; ++count) {
      const Utf8Char next = read_valid_utf8(p);
      if ((classes_[next.code] & kNumberClass) == 0) break;
      p += next.size;
    }
    return reinterpret_cast<const char*>(p);
  }
  const std::uint8_t relevant =
      static_cast<std::uint8_t>((number_group_ != 0 ? kNumberClass : 0) | (cjk_runs_ ? kCjkClass : 0));
  const Stretch stretch(classes_, e, relevant, static_cast<std::uint8_t>(classes & relevant));
  return reinterpret_cast<const char*>(general_piece(stretch, p, e));
}

}  // namespace deepinfer::text
