// A model on a backend, driven step by step without scheduler or cache: each sequence has its own blocks, filled
// with garbage before use, so that reading a row that was never written shows.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "model/model.h"

namespace deepinfer::test {

struct DeviceOptions {
  std::string set;  // "tiny41"
  std::string backend = "reference";
  graph::Precision precision = graph::Precision::kF32;
  model::Activations activations = model::Activations::kBf16;
  bool kv_quant = true;
  bool seams = false;
  int tokens = 1024;  // of a step
  int sequences = 1;  // of a step
  int64_t context = 1024;
  int threads = 0;
  std::string kernels;  // BackendOptions::kernels
  backend::EngramTables engram_tables = backend::EngramTables::kAuto;
};

// Why a GPU's backend cannot be had here, for tests that skip loudly; empty when it can, and for backends of the host.
std::string why_absent(const std::string& backend);

class Device {
 public:
  // Whatever fails throws std::runtime_error with the message of the Result.
  explicit Device(const DeviceOptions& options);

  const model::Model& model() const { return model_; }
  const backend::StepLimits& limits() const { return limits_; }
  backend::Backend& backend() { return *backend_; }
  backend::Executable& executable() { return *executable_; }
  // Runs later steps with another executable of the same graph shape (tests that change a graph or its kernels).
  void replace_executable(std::unique_ptr<backend::Executable> executable) {
    executable_ = std::move(executable);
  }

 private:
  model::Model model_;
  backend::StepLimits limits_;
  std::unique_ptr<backend::Backend> backend_;
  std::unique_ptr<backend::Executable> executable_;
};

class Sequence {
 public:
  Sequence(Device& device, std::vector<int32_t> ids);
  ~Sequence();
  Sequence(Sequence&& other) noexcept;
  Sequence(const Sequence&) = delete;

  // A sequence that starts at `hit` - 128 with copies of this one's blocks below `hit` (attention.md 9.2).
  Sequence replay_from(int64_t hit) const;

  std::vector<int32_t> ids;
  std::vector<uint8_t> image;                    // empty: no images
  std::map<int64_t, std::vector<float>> embeds;  // by position: rows in place of embeddings
  int64_t length = 0;
  int64_t decoder_from = 0;
  int64_t window_floor = 0;
  int64_t decoder_window_floor = 0;
  int64_t write_floor = 0;

  std::span<std::byte* const> blocks() const { return blocks_; }
  std::byte* private_state() const { return private_; }

 private:
  void take_memory();

  Device* device_;
  int64_t capacity_;
  std::vector<std::byte*> blocks_;
  std::byte* private_ = nullptr;
};

// Part of a step: the sequence's next `tokens` tokens; logits of its last `logit_rows` decoder rows.
struct Part {
  Sequence* sequence = nullptr;
  int tokens = 0;
  int logit_rows = 0;
};

// Runs one step and moves the lengths on. Logits of all parts in order, [rows, vocab].
std::vector<float> run_step(Device& device, std::span<const Part> parts);

// Runs a sequence to the end of its ids in steps of `chunk` tokens (0: one step). Logits of every decoder row.
std::vector<float> run_all(Device& device, Sequence& sequence, int64_t chunk = 0);

// Greedy continuation: `count` times the best id of the last row (lower id first), appended and run. `rows` gets the
// logits rows that the ids were taken from.
std::vector<int32_t> run_greedy(Device& device, Sequence& sequence, std::vector<float> last_row, int count,
                                std::vector<float>& rows);

}  // namespace deepinfer::test
