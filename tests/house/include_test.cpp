// Who may include whom (docs of the design: "The rooms"). An arrow that is not listed here is an error, and so is a room.
#include <gtest/gtest.h>

#include <map>
#include <regex>
#include <set>

#include "tree.h"

namespace deepinfer::house {
namespace {

// Each room and the rooms it stands on; what those stand on is open to it too. `base` is open to all.
const std::map<std::string, std::vector<std::string>> kStandsOn = {
    {"base", {}},
    {"tensor", {}},
    {"state", {"tensor"}},
    {"graph", {"state"}},
    {"backend", {"graph"}},
    {"model", {"graph"}},
    {"text", {}},
    {"dialects", {"text"}},
    {"grammar", {"text"}},
    {"cache", {"state"}},
    {"transfer", {"cache"}},
    {"sched", {"cache"}},
    {"draft", {"sched"}},
    {"runtime", {"backend", "model", "cache", "transfer", "draft", "grammar", "sched"}},
    {"service", {"text", "dialects", "grammar", "runtime"}},
    {"serve", {"service"}},
    {"route", {"cache", "text"}},
};

// What the scheduler must not know about: it runs in a simulator.
const std::set<std::string> kClosedToSched = {"chrono",       "ctime",        "thread",      "random",
                                              "sys/socket.h", "netinet/in.h", "base/clock.h"};

void add_reachable(const std::string& room, std::set<std::string>& reachable) {
  if (!reachable.insert(room).second) return;
  for (const std::string& below : kStandsOn.at(room))
    add_reachable(below, reachable);
}

std::set<std::string> open_to(const std::string& room) {
  std::set<std::string> reachable = {"base"};
  add_reachable(room, reachable);
  return reachable;
}

struct Include {
  std::string target;
  std::size_t line = 0;
};

std::vector<Include> includes_of(const SourceFile& file) {
  static const std::regex kPattern(R"(^\s*#\s*include\s*[<"]([^>"]+)[>"])");
  std::vector<Include> includes;
  for (std::size_t i = 0; i < file.lines.size(); ++i) {
    std::smatch match;
    if (std::regex_search(file.lines[i], match, kPattern)) includes.push_back({match[1].str(), i + 1});
  }
  return includes;
}

// The room that an include leads to; "" for system headers and files beside the includer.
std::string room_of_include(const std::string& target) {
  const std::string first = target.substr(0, target.find('/'));
  return first.size() < target.size() && kStandsOn.contains(first) ? first : "";
}

// What is wrong with the includes of one file; one line an error.
std::vector<std::string> wrong_includes(const SourceFile& file) {
  std::vector<std::string> wrong;
  const std::string room = room_of(file);
  if (room.empty()) return wrong;
  if (!kStandsOn.contains(room))
    return {file.path.string() + ": the room " + room + " is not in the list of rooms"};
  const std::set<std::string> open = open_to(room);
  for (const Include& include : includes_of(file)) {
    const std::string where = file.path.string() + ":" + std::to_string(include.line) + ": ";
    const std::string target = room_of_include(include.target);
    if (!target.empty() && !open.contains(target))
      wrong.push_back(where + room + " may not include " + include.target);
    if (include.target.starts_with("../") || include.target.find("/../") != std::string::npos) {
      wrong.push_back(where + "includes are relative to engine/, not " + include.target);
    }
    if (room == "sched" && !is_test(file) && kClosedToSched.contains(include.target)) {
      wrong.push_back(where + "the scheduler is pure: no " + include.target);
    }
  }
  return wrong;
}

TEST(Includes, FollowTheArrows) {
  int checked = 0;
  for (const SourceFile& file : source_files()) {
    if (!is_cpp(file) || room_of(file).empty()) continue;
    ++checked;
    for (const std::string& error : wrong_includes(file))
      ADD_FAILURE() << error;
  }
  EXPECT_GT(checked, 20);
}

TEST(Includes, WrongOnesAreFound) {
  const auto check = [](const std::string& path, const std::string& line) {
    return wrong_includes({std::filesystem::path(path), {"#pragma once", line}});
  };
  EXPECT_EQ(check("engine/tensor/a.h", "#include \"state/registry.h\"").size(), 1u);
  EXPECT_EQ(check("engine/sched/a.cpp", "#include \"backend/backend.h\"").size(), 1u);
  EXPECT_EQ(check("engine/text/a.cpp", "#include \"tensor/tensor.h\"").size(), 1u);
  EXPECT_EQ(check("engine/model/a.cpp", "# include <backend/backend.h>").size(), 1u);
  EXPECT_EQ(check("engine/model/a.cpp", "#include \"../backend/backend.h\"").size(), 1u);
  EXPECT_EQ(check("engine/sched/a.cpp", "#include <chrono>").size(), 1u);
  EXPECT_EQ(check("engine/cellar/a.cpp", "#include <vector>").size(), 1u);
  EXPECT_TRUE(check("engine/sched/a_test.cpp", "#include <random>").empty());
  EXPECT_TRUE(check("engine/backend/cpu/a.cpp", "#include \"tensor/quantise.h\"").empty());
  EXPECT_TRUE(check("engine/service/a.cpp", "#include \"runtime/engine.h\"").empty());
  EXPECT_TRUE(check("engine/base/a.cpp", "#include <sys/mman.h>").empty());
}

}  // namespace
}  // namespace deepinfer::house
