#include "bench/probe.h"

#include <atomic>
#include <chrono>
#include <cstring>

namespace deepinfer::bench {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

Result<MachineProbe> MachineProbe::create(backend::Parallel& parallel, const backend::cpu::KernelSet& set,
                                          std::size_t bytes) {
  MachineProbe probe(parallel, set);
  DI_ASSIGN(probe.buffer_, HugeBuffer::create(host_ledger(), "bench", bytes));
  std::memset(probe.buffer_.data(), 1, bytes);
  return probe;
}

double MachineProbe::read() {
  constexpr int kStreams = 4;
  const std::size_t part = buffer_.size() / static_cast<std::size_t>(parallel_->workers());
  std::atomic<std::uint64_t> sum{0};
  const auto start = Clock::now();
  parallel_->pool().run([&](int member) {
    sum += set_->probe_read(buffer_.data() + static_cast<std::size_t>(member) * part, part, kStreams);
  });
  const double seconds = seconds_since(start);
  return static_cast<double>(part) * parallel_->workers() / seconds;
}

double MachineProbe::multiply_add(backend::cpu::Operand operand) {
  constexpr std::int64_t kIterations = 1000000;
  std::atomic<double> sum{0};
  const auto start = Clock::now();
  parallel_->pool().run(
      [&](int) { sum += static_cast<double>(set_->probe_multiply_add(operand, kIterations)); });
  const double seconds = seconds_since(start);
  return static_cast<double>(kIterations * set_->probe_multiply_adds(operand)) * parallel_->workers() /
         seconds;
}

}  // namespace deepinfer::bench
