#include "dialects/namespaces.h"

#include <fmt/format.h>

namespace deepinfer::dialects {

std::string NamespaceNames::joined(const std::string& space, const std::string& local) const {
  return fmt::format("{}{}{}", space, separator_, local);
}

std::string NamespaceNames::give(const std::string& space, const std::string& local) {
  const std::string base = joined(space, local);
  std::string name = base;
  for (int i = 1; !taken_.insert(name).second; ++i)
    name = fmt::format("{}_{}", base, i);
  given_.push_back({name, space, local});
  return name;
}

std::string NamespaceNames::find(const std::string& space, const std::string& local) const {
  for (const NamespacedTool& tool : given_) {
    if (tool.space == space && tool.local == local) return tool.name;
  }
  return joined(space, local);
}

}  // namespace deepinfer::dialects
