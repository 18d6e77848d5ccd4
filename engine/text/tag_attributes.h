// Attributes of a DSML tag that is not written as the template writes it: other order, more blanks, single quotes.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace deepinfer::text {

class TagAttributes {
 public:
  // `inside` is the tag from behind its name to before its '>'. Nothing unless it is a list of name="value" or
  // name='value' with blanks between.
  static std::optional<TagAttributes> parse(std::string_view inside);

  std::optional<std::string_view> find(std::string_view name) const;

 private:
  std::vector<std::pair<std::string, std::string>> list_;
};

}  // namespace deepinfer::text
