#include "support/device.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "backend/common/record.h"
#include "support/golden_file.h"

namespace deepinfer::test {

namespace {

constexpr uint8_t kGarbage = 0xff;  // NaN as E4M3, UE8M0, bf16 and f32; -1 as an id

template <class T>
T must(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.error().message());
  return std::move(result).value();
}

void must(Result<void> result) {
  if (!result.ok()) throw std::runtime_error(result.error().message());
}

model::Model load(const DeviceOptions& options) {
  model::BuildOptions build;
  build.precision = options.precision;
  build.activations = options.activations;
  build.kv_quant = options.kv_quant;
  build.seams = options.seams;
  return must(model::load(golden_folder(options.set) / "checkpoint", build));
}

}  // namespace

std::string why_absent(const std::string& backend) {
  if (backend != "cuda") return "";
  const auto made = backend::create(backend, {});
  return !made.ok() && made.error().kind == ErrorKind::kUnsupported ? made.error().message() : "";
}

Device::Device(const DeviceOptions& options) : model_(load(options)) {
  limits_.tokens = options.tokens;
  limits_.decoder_rows = options.tokens;
  limits_.logit_rows = options.tokens;
  limits_.sequences = options.sequences;
  limits_.context = options.context;
  backend::BackendOptions backend_options;
  backend_options.threads = options.threads;
  backend_options.kernels = options.kernels;
  backend_options.engram_tables = options.engram_tables;
  backend_ = must(backend::create(options.backend, backend_options));
  executable_ = must(backend_->compile(model_.graph, model_.registry, limits_));
}

Sequence::Sequence(Device& device, std::vector<int32_t> given)
    : ids(std::move(given)), device_(&device), capacity_(device.limits().context) {
  take_memory();
}

Sequence::Sequence(Sequence&& other) noexcept
    : ids(std::move(other.ids)),
      image(std::move(other.image)),
      embeds(std::move(other.embeds)),
      length(other.length),
      decoder_from(other.decoder_from),
      window_floor(other.window_floor),
      decoder_window_floor(other.decoder_window_floor),
      write_floor(other.write_floor),
      device_(other.device_),
      capacity_(other.capacity_),
      blocks_(std::exchange(other.blocks_, {})),
      private_(std::exchange(other.private_, nullptr)) {}

void Sequence::take_memory() {
  const state::Registry& registry = device_->model().registry;
  const auto take = [&](size_t bytes) {
    std::byte* memory = must(device_->backend().allocate(std::max<size_t>(bytes, 64), "test state"));
    device_->backend().fill(memory, kGarbage, bytes);
    return memory;
  };
  for (int64_t first = 0; first < capacity_; first += state::kBlockTokens)
    blocks_.push_back(take(registry.block_bytes()));
  private_ = take(registry.sequence_bytes());
}

Sequence::~Sequence() {
  const state::Registry& registry = device_->model().registry;
  for (std::byte* block : blocks_)
    device_->backend().release(block, std::max<size_t>(registry.block_bytes(), 64), "test state");
  if (private_ != nullptr)
    device_->backend().release(private_, std::max<size_t>(registry.sequence_bytes(), 64), "test state");
}

Sequence Sequence::replay_from(int64_t hit) const {
  Sequence result(*device_, ids);
  result.image = image;
  result.embeds = embeds;
  for (int64_t b = 0; b < hit / state::kBlockTokens; ++b)
    device_->backend().copy(result.blocks_[static_cast<size_t>(b)], blocks_[static_cast<size_t>(b)],
                            device_->model().registry.block_bytes());
  result.length = hit - state::kBlockTokens;
  result.window_floor = result.length;
  result.decoder_window_floor = result.length;
  result.write_floor = hit;
  const state::ClassId history = device_->model().registry.find(state::Kind::kTokenHistory, -1);
  if (history < 0) return result;
  const state::StateClass& entry = device_->model().registry.at(history);
  backend::SequenceSlice slice;
  slice.private_state = result.private_;
  for (int64_t p = std::max<int64_t>(0, result.length - 3); p < result.length; ++p) {
    const bool in_image = !image.empty() && image[static_cast<size_t>(p)] != 0;
    const int32_t kept = ids[static_cast<size_t>(p)] | (in_image ? state::kImageFlag : 0);
    device_->backend().write(backend::ring_row(entry, slice, p).codes, std::as_bytes(std::span(&kept, 1)));
  }
  return result;
}

std::vector<float> run_step(Device& device, std::span<const Part> parts) {
  std::vector<int32_t> ids, positions, sequence_of, decoder_rows, logit_rows, embed_rows;
  std::vector<uint8_t> image;
  std::vector<float> embeds;
  std::vector<backend::SequenceSlice> slices;
  for (const Part& part : parts) {
    const Sequence& sequence = *part.sequence;
    backend::SequenceSlice slice;
    slice.start = sequence.length;
    slice.first_token_row = static_cast<int>(ids.size());
    slice.tokens = part.tokens;
    slice.first_decoder_row = static_cast<int>(decoder_rows.size());
    slice.decoder_from = sequence.decoder_from;
    slice.window_floor = sequence.window_floor;
    slice.decoder_window_floor = sequence.decoder_window_floor;
    slice.write_floor = sequence.write_floor;
    slice.blocks = sequence.blocks();
    slice.private_state = sequence.private_state();
    for (int64_t p = sequence.length; p < sequence.length + part.tokens; ++p) {
      const int row = static_cast<int>(ids.size());
      if (p >= sequence.decoder_from) decoder_rows.push_back(row);
      if (const auto given = sequence.embeds.find(p); given != sequence.embeds.end()) {
        embed_rows.push_back(row);
        embeds.insert(embeds.end(), given->second.begin(), given->second.end());
      }
      ids.push_back(sequence.ids.at(static_cast<size_t>(p)));
      positions.push_back(static_cast<int32_t>(p));
      sequence_of.push_back(static_cast<int32_t>(slices.size()));
      image.push_back(sequence.image.empty() ? uint8_t{0} : sequence.image.at(static_cast<size_t>(p)));
    }
    slice.decoder_rows = static_cast<int>(decoder_rows.size()) - slice.first_decoder_row;
    if (part.logit_rows > slice.decoder_rows) throw std::runtime_error("logits of rows without a decoder");
    for (int i = part.logit_rows; i > 0; --i)
      logit_rows.push_back(static_cast<int32_t>(decoder_rows.size()) - i);
    slices.push_back(slice);
  }
  backend::StepInputs inputs;
  inputs.ids = ids;
  inputs.positions = positions;
  inputs.sequence_of = sequence_of;
  inputs.image = image;
  inputs.decoder_rows = decoder_rows;
  inputs.logit_rows = logit_rows;
  inputs.sequences = slices;
  inputs.embed_rows = embed_rows;
  inputs.embeds = embeds;
  must(device.executable().run(inputs));
  for (const Part& part : parts)
    part.sequence->length += part.tokens;
  const auto logits = device.executable().logits(0, static_cast<int>(logit_rows.size()));
  return {logits.begin(), logits.end()};
}

std::vector<float> run_all(Device& device, Sequence& sequence, int64_t chunk) {
  std::vector<float> logits;
  const auto end = static_cast<int64_t>(sequence.ids.size());
  while (sequence.length < end) {
    const int64_t left = end - sequence.length;
    const int64_t tokens = chunk == 0 ? left : std::min(chunk, left);
    const int64_t decoded = std::clamp<int64_t>(sequence.length + tokens - sequence.decoder_from, 0, tokens);
    const Part part{&sequence, static_cast<int>(tokens), static_cast<int>(decoded)};
    const std::vector<float> rows = run_step(device, {&part, 1});
    logits.insert(logits.end(), rows.begin(), rows.end());
  }
  return logits;
}

std::vector<int32_t> run_greedy(Device& device, Sequence& sequence, std::vector<float> last_row, int count,
                                std::vector<float>& rows) {
  std::vector<int32_t> taken;
  for (int step = 0; step < count; ++step) {
    rows.insert(rows.end(), last_row.begin(), last_row.end());
    const auto best =
        static_cast<int32_t>(std::max_element(last_row.begin(), last_row.end()) - last_row.begin());
    taken.push_back(best);
    sequence.ids.push_back(best);
    if (!sequence.image.empty()) sequence.image.push_back(0);
    if (step + 1 == count) break;
    const Part part{&sequence, 1, 1};
    last_row = run_step(device, {&part, 1});
  }
  return taken;
}

}  // namespace deepinfer::test
