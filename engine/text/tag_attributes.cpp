#include "text/tag_attributes.h"

#include <algorithm>

namespace deepinfer::text {

std::optional<TagAttributes> TagAttributes::parse(std::string_view inside) {
  constexpr std::string_view kBlanks = " \t\r\n";
  TagAttributes attributes;
  const auto skip_blanks = [&] {
    inside.remove_prefix(std::min(inside.find_first_not_of(kBlanks), inside.size()));
  };
  for (skip_blanks(); !inside.empty(); skip_blanks()) {
    const std::size_t name_end = inside.find_first_of(" \t\r\n=\"'<>");
    if (name_end == 0 || name_end == std::string_view::npos) return std::nullopt;
    std::string name(inside.substr(0, name_end));
    inside.remove_prefix(name_end);
    skip_blanks();
    if (inside.empty() || inside.front() != '=') return std::nullopt;
    inside.remove_prefix(1);
    skip_blanks();
    if (inside.empty() || (inside.front() != '"' && inside.front() != '\'')) return std::nullopt;
    const std::size_t value_end = inside.find(inside.front(), 1);
    if (value_end == std::string_view::npos) return std::nullopt;
    attributes.list_.emplace_back(std::move(name), inside.substr(1, value_end - 1));
    inside.remove_prefix(value_end + 1);
  }
  return attributes;
}

std::optional<std::string_view> TagAttributes::find(std::string_view name) const {
  for (const auto& [key, value] : list_) {
    if (key == name) return value;
  }
  return std::nullopt;
}

}  // namespace deepinfer::text
