#include "runtime/golden_form.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <string>
#include <utility>

namespace deepinfer::runtime {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();

class GoldenForm {
 public:
  GoldenForm(std::vector<SeamRows> seams, const model::Config& config) : config_(config) {
    for (SeamRows& seam : seams) {
      order_.push_back(seam.tensor.name);
      seams_[order_.back()] = std::move(seam);
    }
  }

  std::vector<SeamRows> run() {
    // Masks need the id lists of other layers, differences the streams: those are read before they are replaced.
    for (int i = 0; i < config_.layers; ++i)
      convert_layer(i);
    for (const std::string& name : lists_)
      seams_.at(name) = std::move(flags_.at(name));
    std::vector<SeamRows> result;
    for (const std::string& name : order_)
      result.push_back(std::move(seams_.at(name)));
    return result;
  }

 private:
  using Tensor = backend::SeamTensor;

  SeamRows* find(const std::string& name) {
    const auto found = seams_.find(name);
    return found == seams_.end() || found->second.tensor.shape.empty() ? nullptr : &found->second;
  }

  void convert_layer(int index) {
    const std::string layer = std::to_string(index);
    if (SeamRows* window = find("window." + layer)) keep_last_rows(*window, config_.window - 1);
    const SeamRows* scores = find("index." + layer + ".scores");
    if (scores != nullptr) {
      add_flags("index." + layer + ".selected", scores->tensor, 1);
      add_flags("index." + layer + ".candidates", scores->tensor, config_.candidate_block_size);
      mask_scores(index);
    }
    if (index > 0) subtract_streams(index);
    sort_experts("L" + layer + ".");
    if (SeamRows* o = find("L" + layer + ".attn_o"); o != nullptr && o->tensor.shape.size() == 3) {
      o->tensor.shape = {o->tensor.shape[0], o->tensor.shape[1] * o->tensor.shape[2]};
    }
  }

  static void keep_last_rows(SeamRows& seam, int64_t count) {
    Tensor& tensor = seam.tensor;
    const int64_t rows = tensor.shape[0];
    if (rows <= count || rows == 0) return;
    const auto width = static_cast<int64_t>(tensor.f32.size()) / rows;
    tensor.f32.erase(tensor.f32.begin(), tensor.f32.begin() + (rows - count) * width);
    tensor.shape[0] = count;
    seam.first_position += rows - count;
  }

  // Flags of the rows that an id list names, `width` rows an id.
  void add_flags(const std::string& name, const Tensor& scores, int width) {
    const SeamRows* list = find(name);
    if (list == nullptr || width < 1) return;
    SeamRows flags;
    flags.first_position = list->first_position;
    flags.tensor.name = name;
    flags.tensor.type = graph::ElementType::kU8;
    flags.tensor.shape = scores.shape;
    flags.tensor.i32.assign(scores.f32.size(), 0);
    const int64_t columns = list->tensor.shape[1];
    const int64_t rows = scores.shape[1];
    for (int64_t query = 0; query < std::min(list->tensor.shape[0], scores.shape[0]); ++query) {
      for (int64_t i = 0; i < columns; ++i) {
        const int64_t id = list->tensor.i32[static_cast<size_t>(query * columns + i)];
        for (int64_t row = id * width; id >= 0 && row < std::min((id + 1) * width, rows); ++row) {
          flags.tensor.i32[static_cast<size_t>(query * rows + row)] = 1;
        }
      }
    }
    flags_[name] = std::move(flags);
    lists_.push_back(name);
  }

  void mask_scores(int index) {
    if (config_.layer[static_cast<size_t>(index)].candidates != model::CandidateRole::kConsumes) return;
    for (int source = 0; source < index; ++source) {
      const auto found = flags_.find(fmt::format("index.{}.candidates", source));
      if (found == flags_.end()) continue;
      Tensor& scores = seams_.at(fmt::format("index.{}.scores", index)).tensor;
      const Tensor& allowed = found->second.tensor;
      if (scores.shape != allowed.shape) continue;
      for (size_t i = 0; i < scores.f32.size(); ++i) {
        if (allowed.i32[i] == 0) scores.f32[i] = kMasked;
      }
    }
  }

  void subtract_streams(int index) {
    const std::string name = fmt::format("engram.{}.after", index);
    SeamRows* after = find(name);
    const SeamRows* before = find(fmt::format("h.{}", index - 1));
    if (after == nullptr || before == nullptr || after->tensor.shape != before->tensor.shape) return;
    for (size_t i = 0; i < after->tensor.f32.size(); ++i)
      after->tensor.f32[i] -= before->tensor.f32[i];
    after->tensor.name = fmt::format("engram.{}.delta", index);
  }

  void sort_experts(const std::string& prefix) {
    SeamRows* ids = find(prefix + "router_ids");
    SeamRows* weights = find(prefix + "router_weights");
    if (ids == nullptr || weights == nullptr || ids->tensor.shape != weights->tensor.shape) return;
    const auto k = static_cast<size_t>(ids->tensor.shape[1]);
    std::vector<size_t> order(k);
    for (size_t row = 0; row + k <= ids->tensor.i32.size(); row += k) {
      const std::vector<int32_t> old_ids(ids->tensor.i32.begin() + static_cast<std::ptrdiff_t>(row),
                                         ids->tensor.i32.begin() + static_cast<std::ptrdiff_t>(row + k));
      const std::vector<float> old_weights(
          weights->tensor.f32.begin() + static_cast<std::ptrdiff_t>(row),
          weights->tensor.f32.begin() + static_cast<std::ptrdiff_t>(row + k));
      std::iota(order.begin(), order.end(), size_t{0});
      std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return old_ids[a] < old_ids[b]; });
      for (size_t i = 0; i < k; ++i) {
        ids->tensor.i32[row + i] = old_ids[order[i]];
        weights->tensor.f32[row + i] = old_weights[order[i]];
      }
    }
  }

  const model::Config& config_;
  std::vector<std::string> order_;
  std::map<std::string, SeamRows> seams_;
  std::map<std::string, SeamRows> flags_;  // by the name of the list that they replace
  std::vector<std::string> lists_;
};

}  // namespace

std::vector<SeamRows> golden_form(std::vector<SeamRows> seams, const model::Config& config) {
  return GoldenForm(std::move(seams), config).run();
}

}  // namespace deepinfer::runtime
