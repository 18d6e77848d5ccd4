// The source tree as the house tests see it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace deepinfer::house {

struct SourceFile {
  std::filesystem::path path;  // relative to the project's root: "engine/base/math.h"
  std::vector<std::string> lines;
};

// All hand-written files of the tree in the order of their paths: sources, scripts, build files and pages; not data, not
// what a build makes, not the demo model.
std::vector<SourceFile> source_files();

bool is_cpp(const SourceFile& file);
bool is_test(const SourceFile& file);  // *_test.cpp, *_fuzz.cpp, and everything under tests/
// "base" for engine/base/math.h; "" outside engine/.
std::string room_of(const SourceFile& file);

}  // namespace deepinfer::house
