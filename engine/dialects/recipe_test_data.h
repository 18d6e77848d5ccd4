// What the tests of this room share: the conformance data and the shipped tokenizers.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <unistd.h>

#include "dialects/recipe_runner.h"

namespace deepinfer::dialects::test_data {

inline std::filesystem::path recipe_folder() {
  return DEEPINFER_SOURCE_DIR "/../shared/recipe";
}

// Unpacked once a process into a temporary folder that goes away after loading.
inline const RecipeTokenizers& tokenizers() {
  static const RecipeTokenizers loaded = [] {
    std::string folder = (std::filesystem::temp_directory_path() / "deepinfer-dialects-XXXXXX").string();
    if (mkdtemp(folder.data()) == nullptr) throw std::runtime_error("cannot make " + folder);
    const std::string archive = (recipe_folder() / "tokenizer/tokenizers.tar.xz").string();
    if (std::system(("tar -xJf '" + archive + "' -C '" + folder + "'").c_str()) != 0)
      throw std::runtime_error("cannot unpack " + archive);
    RecipeTokenizers result = RecipeTokenizers::load(folder).value();
    std::filesystem::remove_all(folder);
    return result;
  }();
  return loaded;
}

inline std::vector<std::string> lines_of(const std::filesystem::path& path) {
  std::vector<std::string> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);)
    lines.push_back(line);
  return lines;
}

}  // namespace deepinfer::dialects::test_data
