#include "tree.h"

#include <algorithm>
#include <fstream>
#include <set>

namespace deepinfer::house {
namespace {

const std::set<std::string> kExtensions = {".h",  ".hpp", ".cpp",   ".cu", ".cuh",
                                           ".py", ".sh",  ".cmake", ".md", ".txt"};
const std::set<std::string> kNames = {"build.sh", "run"};
const std::set<std::string> kFoldersLeftOut = {".git", ".cache", ".venv", "__pycache__", "models", "data"};

bool left_out(const std::filesystem::path& folder) {
  const std::string name = folder.filename().string();
  return kFoldersLeftOut.contains(name) || name.starts_with("build");
}

SourceFile read(const std::filesystem::path& root, const std::filesystem::path& path) {
  SourceFile file{std::filesystem::relative(path, root), {}};
  std::ifstream stream(path);
  for (std::string line; std::getline(stream, line);)
    file.lines.push_back(line);
  return file;
}

}  // namespace

std::vector<SourceFile> source_files() {
  const std::filesystem::path root = std::filesystem::canonical(DEEPINFER_SOURCE_DIR);
  std::vector<SourceFile> files;
  for (auto entry = std::filesystem::recursive_directory_iterator(root);
       entry != std::filesystem::recursive_directory_iterator(); ++entry) {
    if (entry->is_directory() && left_out(entry->path())) entry.disable_recursion_pending();
    const std::filesystem::path& path = entry->path();
    if (!entry->is_regular_file()) continue;
    if (kExtensions.contains(path.extension().string()) || kNames.contains(path.filename().string()))
      files.push_back(read(root, path));
  }
  std::sort(files.begin(), files.end(),
            [](const SourceFile& a, const SourceFile& b) { return a.path < b.path; });
  return files;
}

bool is_cpp(const SourceFile& file) {
  const std::string extension = file.path.extension().string();
  return extension == ".h" || extension == ".hpp" || extension == ".cpp" || extension == ".cu" ||
         extension == ".cuh";
}

bool is_test(const SourceFile& file) {
  const std::string name = file.path.filename().string();
  return name.ends_with("_test.cpp") || name.ends_with("_fuzz.cpp") || file.path.begin()->string() == "tests";
}

std::string room_of(const SourceFile& file) {
  auto part = file.path.begin();
  if (part == file.path.end() || part->string() != "engine") return "";
  return (++part)->string();
}

}  // namespace deepinfer::house
