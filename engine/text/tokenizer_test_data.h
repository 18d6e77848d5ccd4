// What the tests of this room share: the shipped tokenizers and the conformance cases.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include "text/tokenizer.h"

namespace deepinfer::text::test_data {

inline std::filesystem::path shared(std::string_view name) {
  return std::filesystem::path(DEEPINFER_SOURCE_DIR "/../shared") / name;
}

// The shipped tokenizers, unpacked once a process into a temporary folder that goes away after loading.
struct ShippedTokenizers {
  Tokenizer v4, v41;
};

inline const ShippedTokenizers& shipped() {
  static const ShippedTokenizers tokenizers = [] {
    std::string folder = (std::filesystem::temp_directory_path() / "deepinfer-text-XXXXXX").string();
    if (mkdtemp(folder.data()) == nullptr) throw std::runtime_error("cannot make " + folder);
    const std::string archive = shared("recipe/tokenizer/tokenizers.tar.xz").string();
    if (std::system(("tar -xJf '" + archive + "' -C '" + folder + "'").c_str()) != 0)
      throw std::runtime_error("cannot unpack " + archive);
    const std::filesystem::path root(folder);
    ShippedTokenizers result{Tokenizer::load(root / "v4/tokenizer.json").value(),
                             Tokenizer::load(root / "v41/tokenizer.json").value()};
    std::filesystem::remove_all(root);
    return result;
  }();
  return tokenizers;
}

inline std::vector<nlohmann::ordered_json> cases(std::string_view kind) {
  std::ifstream file(shared("recipe/cases") / (std::string(kind) + ".jsonl"));
  std::vector<nlohmann::ordered_json> rows;
  for (std::string line; std::getline(file, line);)
    rows.push_back(nlohmann::ordered_json::parse(line));
  return rows;
}

}  // namespace deepinfer::text::test_data
