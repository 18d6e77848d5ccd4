// The JSON text of a call's arguments while it streams. Private to the dialects.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace deepinfer::dialects {

// Cuts argument text where the package cuts it: at the marks of the outermost object (brackets, quotes, ": ", ", "), so
// that the package profile gives its deltas one for one. What lies between comes as it was pushed.
class ArgumentCutter {
 public:
  std::vector<std::string> push(std::string_view text);

 private:
  enum class Place {
    kStart,
    kOpen,
    kKey,
    kAfterKey,
    kValueStart,
    kString,
    kOther,
    kOtherString,
    kOtherEscape
  };
  Place place_ = Place::kStart;
  int depth_ = 0;  // of brackets inside a value
};

// The text of the one string of {"input": "..."}: what a free-form tool gets. Works on any cut of the JSON.
class InputDecoder {
 public:
  // Appends what `text` completes.
  void push(std::string_view text, std::string& out);

 private:
  void escape(char c, std::string& out);
  void code_unit(std::uint32_t unit, std::string& out);

  int quotes_ = 0;  // seen outside escapes; the value lies between the third and the fourth
  bool escaped_ = false;
  int hex_due_ = 0;
  std::uint32_t hex_ = 0;
  std::uint32_t high_ = 0;  // first half of a surrogate pair
};

}  // namespace deepinfer::dialects
