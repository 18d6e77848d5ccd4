// Names of tools that come in namespaces (Responses). recipe.md 3.4. Private to the dialects.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "dialects/request.h"

namespace deepinfer::dialects {

// Gives each namespaced tool the name it has in the prompt: `ns::tool` in V4.1, `ns__tool` in V4, with _1, _2, ... when the
// name is taken. Names of plain tools must all be reserved before the first is given.
class NamespaceNames {
 public:
  explicit NamespaceNames(text::ModelVersion version)
      : separator_(version == text::ModelVersion::kV4 ? "__" : "::") {}

  void reserve(std::string name) { taken_.insert(std::move(name)); }
  std::string give(const std::string& space, const std::string& local);
  // The prompt name of a call in the history; a pair that was not declared gets the plain joined name.
  std::string find(const std::string& space, const std::string& local) const;
  const std::vector<NamespacedTool>& given() const { return given_; }

 private:
  std::string joined(const std::string& space, const std::string& local) const;

  std::string_view separator_;
  std::set<std::string> taken_;
  std::vector<NamespacedTool> given_;
};

}  // namespace deepinfer::dialects
