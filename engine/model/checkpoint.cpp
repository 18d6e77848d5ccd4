#include "model/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/digest.h"
#include "base/mapped_file.h"
#include "model/model.h"

namespace deepinfer::model {
namespace {

constexpr const char* kTokenMapFile = "engram_token_map.i32";
constexpr size_t kSampledBytes = 64;  // of every tensor of a checkpoint that is too large to read whole
constexpr size_t kNamedTensors = 5;   // in a message about unexpected ones

Result<std::vector<int32_t>> read_token_map(const std::filesystem::path& path, int vocab) {
  DI_ASSIGN(const std::string bytes, read_small_file(path));
  const size_t expected = static_cast<size_t>(vocab) * sizeof(int32_t);
  if (bytes.size() != expected) {
    return make_error(ErrorKind::kFormat,
                      fmt::format("{} has {} bytes, expected {} (vocab_size {}, four bytes an id)",
                                  path.string(), bytes.size(), expected, vocab),
                      "make the map with the tokenizer of this checkpoint");
  }
  std::vector<int32_t> map(static_cast<size_t>(vocab));
  std::memcpy(map.data(), bytes.data(), expected);
  return map;
}

Result<void> check_token_map(std::span<const int32_t> map, const Config& config, const std::string& origin) {
  const int canonical = config.engram.compressed_vocab;
  if (map.size() != static_cast<size_t>(config.vocab)) {
    return make_error(ErrorKind::kFormat,
                      fmt::format("{} maps {} ids, expected vocab_size {}", origin, map.size(), config.vocab),
                      "use the token map of this checkpoint's tokenizer");
  }
  std::vector<bool> seen(static_cast<size_t>(canonical));
  for (size_t id = 0; id < map.size(); ++id) {
    if (map[id] < 0 || map[id] >= canonical) {
      return make_error(ErrorKind::kFormat,
                        fmt::format("{} maps id {} to {}, expected 0..{} (engram_compressed_vocab_size)",
                                    origin, id, map[id], canonical - 1),
                        "use the token map of this checkpoint's tokenizer");
    }
    seen[static_cast<size_t>(map[id])] = true;
  }
  const auto count = std::count(seen.begin(), seen.end(), true);
  if (count != canonical) {
    return make_error(
        ErrorKind::kFormat,
        fmt::format("{} has {} canonical ids, expected engram_compressed_vocab_size {}", origin, count,
                    canonical),
        "another count hashes every n-gram to another row: use the token map of this checkpoint's tokenizer");
  }
  return {};
}

}  // namespace

bool has_token_map(const std::filesystem::path& directory) {
  std::error_code code;
  return std::filesystem::exists(directory / kTokenMapFile, code);
}

bool is_known_unused(std::string_view name) {
  constexpr std::string_view kPrefixes[] = {"vision.", "aligner.", "image_", "mtp."};
  const auto starts = [&](std::string_view prefix) { return name.starts_with(prefix); };
  // bias_vl: V4's vision variant has image biases in every router; V4.1 takes its own before this list is asked.
  return std::any_of(std::begin(kPrefixes), std::end(kPrefixes), starts) ||
         name.ends_with(".ffn.gate.bias_vl");
}

Result<std::shared_ptr<Checkpoint>> Checkpoint::open(const std::filesystem::path& directory,
                                                     const Config& config,
                                                     std::span<const int32_t> token_map) {
  DI_ASSIGN(tensor::TensorTable table, tensor::TensorTable::open_folder(directory));
  std::shared_ptr<Checkpoint> checkpoint(new Checkpoint(std::move(table)));
  if (!config.engram.layers.empty()) DI_TRY(checkpoint->find_token_map(directory, config, token_map));
  return checkpoint;
}

Result<void> Checkpoint::find_token_map(const std::filesystem::path& directory, const Config& config,
                                        std::span<const int32_t> token_map) {
  const std::filesystem::path sidecar = directory / kTokenMapFile;
  std::string origin = sidecar.string();
  if (has_token_map(directory)) {
    DI_ASSIGN(token_map_, read_token_map(sidecar, config.vocab));
  } else if (!token_map.empty()) {
    token_map_.assign(token_map.begin(), token_map.end());
    origin = "the token map of this program";
  } else {
    return make_error(
        ErrorKind::kNotFound,
        fmt::format("the model has Engram layers, but {} does not exist and its tokenizer is none that "
                    "this program knows a token map for",
                    sidecar.string()),
        "put the token map of the checkpoint's tokenizer beside its weights");
  }
  return check_token_map(token_map_, config, origin);
}

Result<void> Checkpoint::refuse_unexpected() const {
  std::vector<std::string> unexpected = table_.unconsumed();
  std::erase_if(unexpected, [](const std::string& name) { return is_known_unused(name); });
  if (unexpected.empty()) return {};
  const size_t count = unexpected.size();
  unexpected.resize(std::min(count, kNamedTensors));
  return make_error(
      ErrorKind::kFormat,
      fmt::format("{} of {} tensors have no place in this configuration: {}{}", count, table_.size(),
                  fmt::join(unexpected, ", "), count > kNamedTensors ? ", ..." : ""),
      "config.json and the shards disagree: check that both come from the same release");
}

std::string Checkpoint::fingerprint(std::string_view config_text) const {
  const bool whole = table_.data_bytes() <= kHashedBytes;
  std::string text = fmt::format("config {} token map {:016x}\n", hex_text(sha256(config_text)),
                                 fast_digest(std::as_bytes(std::span(token_map_))));
  for (const std::string_view name : table_.names()) {
    const tensor::TensorView& view = *table_.peek(name);
    const size_t bytes = whole ? view.bytes : std::min(view.bytes, kSampledBytes);
    text += fmt::format("{} {} {} {:016x}\n", name, tensor::element_name(view.element),
                        tensor::shape_text(view.shape), fast_digest({view.data, bytes}));
  }
  return hex_text(sha256(text));
}

}  // namespace deepinfer::model
