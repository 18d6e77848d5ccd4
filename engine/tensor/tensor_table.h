// All tensors of a checkpoint: every shard mapped, every tensor handed out exactly once.
//
// A loader takes the tensors that its configuration asks for, with the shape it expects. What is left over, it asks for by
// unconsumed() and either refuses or lists: no tensor is overlooked in silence.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "base/result.h"
#include "tensor/tensor.h"

namespace deepinfer::tensor {

// What a tensor must look like. `why` names the configuration fields the shape comes from, for the message:
// "hidden 5120, moe_intermediate_size 2304, two codes a byte".
struct Expected {
  std::vector<Element> elements;  // any of these
  Shape shape;
  std::string why;
};

class TensorTable {
 public:
  // A checkpoint folder: model.safetensors.index.json and its shards, or one model.safetensors. kNotFound when neither is
  // there or a shard is absent; kFormat when index and shards disagree (a tensor in neither, or in another shard).
  static Result<TensorTable> open_folder(const std::filesystem::path& folder);
  // One file.
  static Result<TensorTable> open_file(const std::filesystem::path& path);

  std::size_t size() const { return entries_.size(); }
  std::size_t data_bytes() const { return data_bytes_; }
  const std::filesystem::path& path() const { return path_; }
  // In the order of names.
  std::vector<std::string_view> names() const;
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  bool contains(std::string_view name) const { return entries_.contains(name); }
  // The element type and shape of a tensor without consuming it; nothing if there is no such tensor.
  const TensorView* peek(std::string_view name) const;

  // Hands out a tensor whose element type and shape must be as expected. The view lives as long as the table. kNotFound if
  // it is missing, kShape if it looks different, kInternal if somebody took it before.
  Result<TensorView> take(std::string_view name, const Expected& expected);
  // The same without an expectation.
  Result<TensorView> take(std::string_view name);

  // Names never taken, in order.
  std::vector<std::string> unconsumed() const;
  // kFormat naming the first tensors nobody took and how many there are; success if there are none.
  Result<void> refuse_unconsumed() const;

 private:
  struct Entry {
    TensorView view;
    std::size_t shard = 0;
    bool taken = false;
  };

  explicit TensorTable(std::filesystem::path path) : path_(std::move(path)) {}
  Result<void> add_shard(const std::filesystem::path& path);
  Result<void> check_against_index(const std::vector<std::pair<std::string, std::string>>& index) const;
  Result<Entry*> find_untaken(std::string_view name);

  std::filesystem::path path_;
  std::vector<MappedFile> shards_;
  std::deque<HostTensor> realigned_;  // copies of tensors that their file places at an odd address
  std::map<std::string, Entry, std::less<>> entries_;
  std::map<std::string, std::string> metadata_;
  std::size_t data_bytes_ = 0;
};

}  // namespace deepinfer::tensor
