// Rules about the text of the sources and the flags they are compiled with.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "tree.h"

namespace deepinfer::house {
namespace {

constexpr std::size_t kMostLines = 800;

TEST(Sources, NoFileIsTooLong) {
  const auto files = source_files();
  EXPECT_GT(files.size(), 50u);
  for (const SourceFile& file : files) {
    EXPECT_LE(file.lines.size(), kMostLines)
        << file.path.string() << " has " << file.lines.size() << " lines: split it by idea";
  }
}

// Functions of the C library whose last bit differs between machines and versions. base/math.h has ours.
const std::regex kLibraryMaths(
    R"((^|[^A-Za-z0-9_:.>])(std::|::)?(exp|exp2|expm1|log|log2|log10|log1p|pow|sin|cos|tan|sincos|tanh|sinh|cosh|erf|erfc|cbrt|hypot|tgamma|lgamma)[fl]?\s*\()");
const std::set<std::string> kRoomsOfNumbers = {"tensor", "state", "graph", "backend",
                                               "model",  "cache", "sched", "runtime"};

std::string without_comment(const std::string& line) {
  return line.substr(0, line.find("//"));
}

// Device code gets its functions from the compiler, the same on every machine; those that the host repeats bit for bit are ours
// there too (kernels/common/device.cuh).
bool is_device_code(const SourceFile& file) {
  return file.path.string().find("backend/cuda/kernels/") != std::string::npos;
}

bool calls_library_maths(const std::string& line) {
  return std::regex_search(without_comment(line), kLibraryMaths);
}

TEST(Sources, NothingThatReachesALogitCallsTheLibrarysMaths) {
  for (const SourceFile& file : source_files()) {
    if (!is_cpp(file) || is_test(file) || is_device_code(file) || !kRoomsOfNumbers.contains(room_of(file)))
      continue;
    for (std::size_t i = 0; i < file.lines.size(); ++i) {
      EXPECT_FALSE(calls_library_maths(file.lines[i]))
          << file.path.string() << ":" << i + 1 << ": " << file.lines[i];
    }
  }
}

TEST(Sources, LibraryMathsIsFound) {
  for (const char* line :
       {"x = std::exp(y);", "return expf(y);", "a + pow (b, c)", "::log2f(x)", "(std::tanh(x))"}) {
    EXPECT_TRUE(calls_library_maths(line)) << line;
  }
  for (const char* line : {"x = exp_f32(y);", "// std::exp(y)", "writer.log(text);", "deepinfer::log(x)",
                           "std::sqrt(x)", "catalog(x)"}) {
    EXPECT_FALSE(calls_library_maths(line)) << line;
  }
}

// Ways to let the compiler change results behind the build's back.
const std::regex kLoosening(
    R"(-ffast-math|-Ofast|-funsafe-math|-fassociative-math|-freciprocal-math|-ffp-contract=(fast|on)|FP_CONTRACT\s+ON|GCC\s+optimize|__attribute__\s*\(\(\s*optimize|reassociate\s*\(\s*on)");

TEST(Sources, NobodyLoosensFloatingPoint) {
  for (const SourceFile& file : source_files()) {
    const std::string path = file.path.string();
    if (file.path.extension() == ".md" || path == "tests/house/source_test.cpp" ||
        path == "tests/house/tidy.sh")
      continue;
    for (std::size_t i = 0; i < file.lines.size(); ++i) {
      EXPECT_FALSE(std::regex_search(file.lines[i], kLoosening))
          << path << ":" << i + 1 << ": " << file.lines[i];
    }
  }
}

TEST(Flags, EveryCompilationIsStrict) {
  std::ifstream stream(DEEPINFER_BINARY_DIR "/compile_commands.json");
  ASSERT_TRUE(stream) << "no compile_commands.json";
  const auto commands = nlohmann::json::parse(stream);
  int checked = 0;
  for (const auto& entry : commands) {
    const std::string command = entry.at("command");
    const std::string file = entry.at("file");
    ++checked;
    EXPECT_FALSE(std::regex_search(command, kLoosening)) << file;
    EXPECT_NE(command.find("-ffp-contract=off"), std::string::npos)
        << file << " is compiled without -ffp-contract=off";
    if (file.ends_with(".cu"))
      EXPECT_NE(command.find("-fmad=false"), std::string::npos) << file << " lets products and sums fuse";
  }
  EXPECT_GT(checked, 20);
}

// The flag does what it says: with fused multiply-add at hand, a * b + c still rounds twice.
__attribute__((target("fma"), noinline)) float multiply_add(float a, float b, float c) {
  return a * b + c;
}

TEST(Flags, ProductsAreRoundedBeforeTheyAreAdded) {
  volatile float a = 1.0f + 0x1p-12f;
  const float product = a * a;
  EXPECT_EQ(a * a - product, 0.0f);
  EXPECT_NE(std::fma(a, a, -product), 0.0f);  // what contraction would give
  if (__builtin_cpu_supports("fma")) EXPECT_EQ(multiply_add(a, a, -product), 0.0f);
}

}  // namespace
}  // namespace deepinfer::house
