#include "model/binder.h"

#include <fmt/format.h>

#include <utility>

namespace deepinfer::model {

using graph::Weight;
using graph::WeightFormat;
using graph::WeightId;
using graph::WeightPart;

namespace {

Weight make_weight(std::string name, WeightFormat format, int64_t n, int64_t k, int tile = 0) {
  Weight weight;
  weight.name = std::move(name);
  weight.format = format;
  weight.n = n;
  weight.k = k;
  weight.tile = tile;
  weight.parts.resize(1);
  return weight;
}

}  // namespace

WeightId Binder::push(Weight weight) {
  weights_.push_back(std::move(weight));
  return static_cast<WeightId>(weights_.size()) - 1;
}

WeightPart Binder::take_part(const std::string& stem, tensor::WeightKind kind, int64_t n, int64_t k,
                             std::string_view why, tensor::ScaleCheck check, int64_t tile_rows,
                             WeightFormat* format) {
  if (table_ == nullptr || failed()) return {};
  Result<tensor::WeightView> view = tensor::take_weight(*table_, stem, kind, n, k, why, check);
  if (!view.ok()) {
    fault_ = view.error();
    return {};
  }
  // Where a matrix is smaller than both tile sizes its scale fits either, and both mean the same.
  const int64_t tile_columns = tile_rows == 1 ? 32 : tile_rows;
  const bool fits = tile_rows == 0 || (view->scale_rows() == (n + tile_rows - 1) / tile_rows &&
                                       view->scale_columns() == (k + tile_columns - 1) / tile_columns);
  if (!fits) {
    fault_ = make_error(
        ErrorKind::kShape,
        fmt::format("{}.scale is laid out for tiles of {} x {}, expected {} x {}", stem, view->tile_rows,
                    view->tile_columns, tile_rows, tile_columns),
        "quantization_config.weight_block_size and the shards disagree: check that both come from the "
        "same release");
    return {};
  }
  if (format != nullptr)
    *format = view->element == tensor::Element::kF32 ? WeightFormat::kF32 : WeightFormat::kBf16;
  return {reinterpret_cast<const std::byte*>(view->data), reinterpret_cast<const std::byte*>(view->scales)};
}

WeightId Binder::fp8(const std::string& stem, int64_t n, int64_t k, std::string_view why) {
  Weight weight = make_weight(stem + ".weight", WeightFormat::kFp8Tile, n, k, config_.fp8_tile);
  weight.parts[0] = take_part(stem, tensor::WeightKind::kFp8, n, k, why, tensor::ScaleCheck::kAll,
                              config_.fp8_tile, nullptr);
  return push(std::move(weight));
}

WeightId Binder::plain(const std::string& stem, int64_t n, int64_t k, std::string_view why) {
  Weight weight = make_weight(stem + ".weight", WeightFormat::kBf16, n, k);
  weight.parts[0] =
      take_part(stem, tensor::WeightKind::kPlain, n, k, why, tensor::ScaleCheck::kAll, 0, &weight.format);
  return push(std::move(weight));
}

WeightId Binder::take_tensor(const std::string& name, const tensor::Shape& shape, bool f32_only,
                             std::string_view why, int64_t n, int64_t k) {
  Weight weight = make_weight(name, f32_only ? WeightFormat::kF32 : WeightFormat::kBf16, n, k);
  if (table_ != nullptr && !failed()) {
    std::vector<tensor::Element> elements = {tensor::Element::kF32};
    if (!f32_only) elements.push_back(tensor::Element::kBf16);
    Result<tensor::TensorView> view = table_->take(name, {std::move(elements), shape, std::string(why)});
    if (view.ok()) {
      weight.format = view->element == tensor::Element::kF32 ? WeightFormat::kF32 : WeightFormat::kBf16;
      weight.parts[0].data = view->data;
    } else {
      fault_ = view.error();
    }
  }
  return push(std::move(weight));
}

WeightId Binder::vector(const std::string& name, int64_t k, bool f32_only, std::string_view why) {
  return take_tensor(name, {k}, f32_only, why, 1, k);
}

WeightId Binder::matrix(const std::string& name, int64_t n, int64_t k, bool f32_only, std::string_view why) {
  return take_tensor(name, {n, k}, f32_only, why, n, k);
}

WeightId Binder::experts(const std::string& prefix, std::string_view name, int64_t n, int64_t k) {
  Weight weight = make_weight(fmt::format("{}.*.{}.weight", prefix, name), WeightFormat::kFp4Rows, n, k);
  weight.parts.resize(static_cast<size_t>(config_.experts));
  const std::string why = fmt::format("hidden_size {}, moe_intermediate_size {}, two codes a byte",
                                      config_.hidden, config_.intermediate);
  for (size_t e = 0; e < weight.parts.size(); ++e) {
    weight.parts[e] = take_part(fmt::format("{}.{}.{}", prefix, e, name), tensor::WeightKind::kFp4, n, k, why,
                                tensor::ScaleCheck::kAll, 1, nullptr);
  }
  return push(std::move(weight));
}

WeightId Binder::engram_table(const std::string& stem, int64_t rows, int64_t dim) {
  Weight weight = make_weight(stem + ".weight", WeightFormat::kFp8Rows, rows, dim);
  const tensor::ScaleCheck check =
      rows * (dim / 32) <= kScannedScaleBytes ? tensor::ScaleCheck::kAll : tensor::ScaleCheck::kNone;
  weight.parts[0] = take_part(stem, tensor::WeightKind::kFp8, rows, dim,
                              "engram_num_embeddings, engram_head_dim", check, 1, nullptr);
  return push(std::move(weight));
}

WeightId Binder::token_map() {
  for (size_t i = 0; i < weights_.size(); ++i) {
    if (weights_[i].name == "engram_token_map") return static_cast<WeightId>(i);
  }
  Weight weight = make_weight("engram_token_map", WeightFormat::kI32, 1, config_.vocab);
  weight.parts[0].data = token_map_.empty() ? nullptr : reinterpret_cast<const std::byte*>(token_map_.data());
  return push(std::move(weight));
}

WeightId Binder::routes(const std::string& name) {
  const int64_t n = config_.vocab;
  const int64_t k = config_.experts_per_token;
  Weight weight = make_weight(name, WeightFormat::kI64, n, k);
  if (table_ == nullptr || failed()) return push(std::move(weight));
  Result<tensor::TensorView> view = table_->take(
      name, {{tensor::Element::kI64, tensor::Element::kI32}, {n, k}, "vocab_size, num_experts_per_tok"});
  if (!view.ok()) {
    fault_ = view.error();
    return push(std::move(weight));
  }
  const bool wide = view->element == tensor::Element::kI64;
  weight.format = wide ? WeightFormat::kI64 : WeightFormat::kI32;
  weight.parts[0].data = view->data;
  for (int64_t i = 0; i < n * k && !failed(); ++i) {
    const auto index = static_cast<size_t>(i);
    const int64_t expert = wide ? view->as<int64_t>()[index] : view->as<int32_t>()[index];
    if (expert < 0 || expert >= config_.experts) {
      fault_ = make_error(ErrorKind::kFormat,
                          fmt::format("{} sends token {} to expert {}, expected 0..{}", name, i / k, expert,
                                      config_.experts - 1),
                          "the table is damaged or belongs to another configuration");
    }
  }
  return push(std::move(weight));
}

int64_t Binder::bytes() const {
  int64_t total = 0;
  for (const Weight& weight : weights_)
    total += weight.bytes();
  return total;
}

}  // namespace deepinfer::model
