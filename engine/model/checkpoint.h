// A checkpoint folder while its weights are in use: mapped shards, and the Engram token map.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/config.h"
#include "tensor/tensor_table.h"

namespace deepinfer::model {

class Checkpoint {
 public:
  // Maps the shards of `directory` and finds the token map that `config` needs: engram_token_map.i32 of the directory
  // (little-endian int32, one a raw id), else `token_map`. kNotFound without either; kFormat for a map of the wrong
  // length, with ids out of range, or whose number of canonical ids differs from engram_compressed_vocab_size.
  static Result<std::shared_ptr<Checkpoint>> open(const std::filesystem::path& directory,
                                                  const Config& config, std::span<const int32_t> token_map);

  tensor::TensorTable& table() { return table_; }
  std::span<const int32_t> token_map() const { return token_map_; }

  // Tensors that the forward graph has no use for: the vision tower and draft stages, which later loaders bind.
  // kFormat names any other tensor that nobody took.
  Result<void> refuse_unexpected() const;

  // Hex digest of the configuration text, every tensor's name, type and shape, the token map, and contents: every byte
  // up to kHashedBytes of payload, beyond that the first bytes of every tensor.
  std::string fingerprint(std::string_view config_text) const;

  static constexpr size_t kHashedBytes = 256u << 20;

 private:
  explicit Checkpoint(tensor::TensorTable table) : table_(std::move(table)) {}
  Result<void> find_token_map(const std::filesystem::path& directory, const Config& config,
                              std::span<const int32_t> token_map);

  tensor::TensorTable table_;
  std::vector<int32_t> token_map_;
};

// True for the tensors that a text graph leaves alone by design.
bool is_known_unused(std::string_view tensor_name);

}  // namespace deepinfer::model
