#include "dialects/argument_stream.h"

#include "text/utf8.h"

namespace deepinfer::dialects {

std::vector<std::string> ArgumentCutter::push(std::string_view text) {
  std::vector<std::string> pieces;
  if (place_ == Place::kStart && text == "{}") return {std::string(text)};
  std::string run;  // value bytes since the last cut
  const auto cut = [&] {
    if (!run.empty()) pieces.push_back(std::move(run));
    run.clear();
  };
  const auto mark = [&](std::string_view bytes) {
    cut();
    pieces.emplace_back(bytes);
  };
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const std::string_view pair = text.substr(i, 2);
    switch (place_) {
      case Place::kStart:
        mark("{");
        place_ = Place::kOpen;
        break;
      case Place::kOpen:  // a key follows, or the end
        mark(std::string_view(&c, 1));
        if (c == '"') place_ = Place::kKey;
        break;
      case Place::kKey:
      case Place::kString:
        if (c == '"') {
          mark("\"");
          place_ = place_ == Place::kKey ? Place::kAfterKey : Place::kOther;
          depth_ = 0;
        } else {
          run += c;
          if (c == '\\' && i + 1 < text.size()) run += text[++i];
        }
        break;
      case Place::kAfterKey:
        mark(pair == ": " ? pair : std::string_view(&c, 1));
        if (pair == ": ") ++i;
        place_ = Place::kValueStart;
        break;
      case Place::kValueStart:
        if (c == '"') {
          mark("\"");
          place_ = Place::kString;
          break;
        }
        place_ = Place::kOther;
        depth_ = 0;
        [[fallthrough]];
      case Place::kOther:
        if (depth_ == 0 && pair == ", ") {
          mark(pair);
          ++i;
          place_ = Place::kOpen;
        } else if (depth_ == 0 && c == '}') {
          mark("}");
        } else {
          if (c == '{' || c == '[') ++depth_;
          if (c == '}' || c == ']') --depth_;
          if (c == '"') place_ = Place::kOtherString;
          run += c;
        }
        break;
      case Place::kOtherString:
        run += c;
        if (c == '\\') place_ = Place::kOtherEscape;
        if (c == '"') place_ = Place::kOther;
        break;
      case Place::kOtherEscape:
        run += c;
        place_ = Place::kOtherString;
        break;
    }
  }
  cut();
  return pieces;
}

void InputDecoder::push(std::string_view text, std::string& out) {
  constexpr int kOpening = 3;  // two quotes of the key, one of the value
  for (const char c : text) {
    if (hex_due_ > 0) {
      const int digit = c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10;
      hex_ = hex_ << 4 | static_cast<std::uint32_t>(digit & 15);
      if (--hex_due_ == 0 && quotes_ == kOpening) code_unit(hex_, out);
    } else if (escaped_) {
      escaped_ = false;
      if (c == 'u') {
        hex_due_ = 4;
        hex_ = 0;
      } else if (quotes_ == kOpening) {
        escape(c, out);
      }
    } else if (c == '\\') {
      escaped_ = true;
    } else if (c == '"') {
      ++quotes_;
    } else if (quotes_ == kOpening) {
      out += c;
    }
  }
}

void InputDecoder::escape(char c, std::string& out) {
  constexpr std::string_view kLetters = "bfnrt", kMeanings = "\b\f\n\r\t";
  const std::size_t letter = kLetters.find(c);
  out += letter == std::string_view::npos ? c : kMeanings[letter];
}

void InputDecoder::code_unit(std::uint32_t unit, std::string& out) {
  if (unit >= 0xD800 && unit < 0xDC00) {
    high_ = unit;
    return;
  }
  std::uint32_t code = unit;
  if (unit >= 0xDC00 && unit < 0xE000)
    code = high_ == 0 ? 0xFFFD : 0x10000 + ((high_ - 0xD800) << 10) + (unit - 0xDC00);
  high_ = 0;
  text::append_utf8(code, out);
}

}  // namespace deepinfer::dialects
