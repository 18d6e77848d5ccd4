// A progress bar on standard error, for work that takes more than a moment: loading, benches, evaluation.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace deepinfer {

class Progress {
 public:
  // Draws only if `wanted` and standard error is a terminal: --json and pipes stay quiet. `unit` "" counts things, "B" bytes.
  Progress(std::string title, std::int64_t total, bool wanted = true, std::string unit = {});
  // Removes the bar.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // `done` of `total`; draws at most ten times a second. From one thread at a time.
  void update(std::int64_t done);

  // One line of the bar, without control characters: "loading  [#####-----]  50 %  1.50 GiB of 3.00 GiB  4 s left".
  static std::string line(const std::string& title, std::int64_t done, std::int64_t total, double seconds,
                          const std::string& unit);

 private:
  std::string title_;
  std::int64_t total_;
  std::string unit_;
  bool drawing_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point next_;
};

}  // namespace deepinfer
