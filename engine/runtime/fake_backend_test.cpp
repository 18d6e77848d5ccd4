#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <limits>

#include "base/math.h"
#include "runtime/backend_storage.h"
#include "runtime/fake_backend.h"

namespace deepinfer::runtime::fake {
namespace {

using Hash = std::uint32_t;

constexpr int kRingRows = kWindow + state::kMaxDrafts;

Hash mix(Hash hash, std::uint64_t value) {
  std::uint64_t x =
      (std::uint64_t{hash} << 32 | (value & 0xffffffffU)) * 0x9E3779B97F4A7C15ULL ^ (value >> 32);
  x ^= x >> 29;
  x *= 0xBF58476D1CE4E5B9ULL;
  return static_cast<Hash>(x >> 32);
}

// A stored row: whose position it is, and a hash.
struct Row {
  std::int32_t position = 0;
  Hash hash = 0;
};

enum Class : int { kHistory, kEncoderWindow, kDecoderWindow, kOpenGroup, kPairs, kSingles };

// The maths, over any source of rows; used by the executable (rows from state) and by expected_logits (from vectors).
template <class EncoderRow>
Hash encoder_hash(Hash look_back, std::int64_t p, std::int64_t floor, Hash visible_blocks, EncoderRow&& row) {
  Hash hash = mix(look_back, static_cast<std::uint64_t>(p));
  for (std::int64_t q = std::max(floor, p - kWindow + 1); q < p; ++q)
    hash = mix(hash, row(q));
  return mix(hash, visible_blocks);
}

float logit_of(Hash hash, int id) {
  return static_cast<float>(mix(hash, static_cast<std::uint64_t>(id)) >> 8) * 0x1p-21f - 4.0f;
}

// What backend/sampling.h asks for, from its definition.
backend::Sampled sample_sorted(std::vector<float> logits, const std::vector<std::uint8_t>& never,
                               const backend::SampleRow& asked) {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  backend::Sampled sampled;
  std::vector<std::int32_t> ids;
  for (std::size_t id = 0; id < logits.size(); ++id) {
    if (never[id] != 0) logits[id] = kNone;
    if (!(logits[id] < -kNone)) {
      sampled.outcome = backend::SampleOutcome::kNotFinite;
      sampled.id = static_cast<std::int32_t>(id);
      sampled.logit = logits[id];
      return sampled;
    }
    ids.push_back(static_cast<std::int32_t>(id));
  }
  const auto logit = [&](std::int32_t id) { return logits[static_cast<std::size_t>(id)]; };
  std::stable_sort(ids.begin(), ids.end(),
                   [&](std::int32_t a, std::int32_t b) { return logit(a) > logit(b); });
  sampled.top = logit(ids[0]);
  if (sampled.top == kNone) {
    sampled.outcome = backend::SampleOutcome::kNoneLeft;
    return sampled;
  }
  if (asked.wants_exp_sum != 0)
    for (const float each : logits)
      sampled.exp_sum += static_cast<double>(exp_f32(each - sampled.top));
  if (asked.temperature == 0) {
    sampled.id = ids[0];
    sampled.logit = sampled.top;
    return sampled;
  }
  const auto weight = [&](std::int32_t id) {
    return static_cast<double>(exp_f32(static_cast<float>(
        (static_cast<double>(logit(id)) - static_cast<double>(sampled.top)) / asked.temperature)));
  };
  std::erase_if(ids, [&](std::int32_t id) { return weight(id) == 0 || weight(id) < asked.min_p; });
  if (asked.top_k > 0 && static_cast<std::size_t>(asked.top_k) < ids.size())
    ids.resize(static_cast<std::size_t>(asked.top_k));
  std::vector<std::int32_t> ascending = ids;
  std::sort(ascending.begin(), ascending.end());
  const auto sum_of = [&](const std::vector<std::int32_t>& of) {
    double sum = 0;
    for (const std::int32_t id : of)
      sum += weight(id);
    return sum;
  };
  if (asked.top_p < 1) {
    const double target = asked.top_p * sum_of(ascending);
    double reached = 0;
    std::size_t kept = 0;
    while (kept < ids.size() && reached < target)
      reached += weight(ids[kept++]);
    ids.resize(kept);
    std::sort(ids.begin(), ids.end());
    ascending = ids;
  }
  const double drawn = asked.uniform * sum_of(ascending);
  double reached = 0;
  for (const std::int32_t id : ascending) {
    sampled.id = id;
    reached += weight(id);
    if (drawn < reached) break;
  }
  sampled.logit = logit(sampled.id);
  return sampled;
}

class FakeExecutable : public backend::Executable {
 public:
  FakeExecutable(state::Registry registry, const CoreOptions& options)
      : registry_(std::move(registry)), options_(options) {}

  Result<void> run(const backend::StepInputs& in) override {
    DI_CHECK(under_way_.empty());
    DI_TRY(run_step(in));
    last_sampled_ = sampled_;
    return {};
  }
  Result<void> launch(const backend::StepInputs& in) override {
    DI_CHECK(options_.ahead != CoreOptions::Ahead::kNo && under_way_.size() < kMostUnderWay);
    if (options_.launched_ahead != nullptr && !under_way_.empty()) ++*options_.launched_ahead;
    UnderWay& step = under_way_.emplace_back(in);
    if (options_.ahead == CoreOptions::Ahead::kAtOnce) run_launched(step);
    return {};
  }
  bool ended() override {
    DI_CHECK(!under_way_.empty());
    // Long enough for another to be launched, if somebody means to.
    return under_way_.size() == kMostUnderWay || ++asked_ % kAskedInVain == 0;
  }
  Result<void> finish() override {
    DI_CHECK(!under_way_.empty());
    if (options_.ahead == CoreOptions::Ahead::kLate) run_launched(under_way_.front());
    UnderWay step = std::move(under_way_.front());
    under_way_.pop_front();
    last_sampled_ = std::move(step.sampled);
    return step.outcome;
  }
  std::span<const float> logits(int first_row, int rows) const override {
    for (int row = first_row; row < first_row + rows; ++row)
      DI_CHECK(unread_.at(static_cast<std::size_t>(row)) == 0);
    return std::span(logits_).subspan(static_cast<std::size_t>(first_row) * kVocab,
                                      static_cast<std::size_t>(rows) * kVocab);
  }
  void never_sample(std::span<const std::uint8_t> flags) override {
    DI_CHECK(options_.samples && flags.size() == kVocab);
    never_.assign(flags.begin(), flags.end());
  }
  std::span<const backend::Sampled> sampled() const override { return last_sampled_; }
  Result<backend::SeamTensor> seam(const std::string& name) const override {
    if (name != "decoder hash") return make_error(ErrorKind::kNotFound, "no seam " + name);
    backend::SeamTensor tensor;
    tensor.name = name;
    tensor.type = graph::ElementType::kI32;
    tensor.shape = {static_cast<std::int64_t>(decoder_hash_.size())};
    for (const Hash hash : decoder_hash_)
      tensor.i32.push_back(static_cast<std::int32_t>(hash));
    return tensor;
  }
  std::vector<Memory> memory() const override { return {{"weights", 1}}; }

 private:
  static constexpr int kAskedInVain = 2000;
  struct UnderWay {
    explicit UnderWay(const backend::StepInputs& given) : in(given) {}
    backend::StepInputs in;
    Result<void> outcome;
    std::vector<backend::Sampled> sampled;
  };
  // `sampled_` is of the step before until then.
  void run_launched(UnderWay& step) {
    std::vector<std::int32_t> ids(step.in.ids.begin(), step.in.ids.end());
    for (std::int32_t& id : ids)
      if (id < 0) id = std::max(0, sampled_.at(static_cast<std::size_t>(backend::sampled_id(id))).id);
    step.in.ids = ids;
    step.outcome = run_step(step.in);
    if (!step.outcome.ok()) sampled_.assign(step.in.sample_rows.size(), {});
    step.sampled = sampled_;
    for (const state::StateCopy& copy : step.in.copies)
      std::memcpy(copy.to, copy.from, copy.bytes);
  }

  Result<void> run_step(const backend::StepInputs& in) {
    const std::int64_t step = steps_++;
    if (options_.before_step) DI_TRY(options_.before_step(step));
    DI_TRY(check_layout(in));
    DI_TRY(check_samples(in));
    fault_.clear();
    decoder_hash_.assign(in.decoder_rows.size(), 0);
    for (const backend::SequenceSlice& slice : in.sequences)
      run_slice(in, slice);
    if (!fault_.empty()) return make_error(ErrorKind::kInternal, "fake backend: " + fault_);
    logits_.clear();
    for (const std::int32_t row : in.logit_rows) {
      for (int id = 0; id < kVocab; ++id)
        logits_.push_back(logit_of(decoder_hash_[static_cast<std::size_t>(row)], id));
      if (options_.change_logits) {
        const auto token = in.decoder_rows[static_cast<std::size_t>(row)];
        options_.change_logits(in.positions[static_cast<std::size_t>(token)],
                               std::span(logits_).last(kVocab));
      }
    }
    sampled_.clear();
    for (const backend::SampleRow& asked : in.sample_rows) {
      const auto row = std::span(logits_).subspan(static_cast<std::size_t>(asked.row) * kVocab, kVocab);
      sampled_.push_back(sample_sorted({row.begin(), row.end()}, never_, asked));
    }
    unread_.assign(in.unread_logits.begin(), in.unread_logits.end());
    unread_.resize(in.logit_rows.size(), 0);
    if (options_.after_step) options_.after_step(in);
    return {};
  }
  // The step's own tables must agree with each other.
  Result<void> check_layout(const backend::StepInputs& in) {
    const auto broken = [](const std::string& what) {
      return make_error(ErrorKind::kInternal, "fake backend: the step's layout is broken: " + what);
    };
    int tokens = 0;
    int decoder = 0;
    std::set<std::byte*> areas;
    std::map<std::byte*, int> written_by;
    for (std::size_t s = 0; s < in.sequences.size(); ++s) {
      const backend::SequenceSlice& slice = in.sequences[s];
      if (slice.first_token_row != tokens || slice.first_decoder_row != decoder) return broken("first rows");
      if (!areas.insert(slice.private_state).second) return broken("two sequences share a private area");
      int expected_decoder = 0;
      for (int i = 0; i < slice.tokens; ++i) {
        const auto row = static_cast<std::size_t>(tokens + i);
        if (in.positions[row] != slice.start + i) return broken("positions");
        if (in.sequence_of[row] != static_cast<std::int32_t>(s)) return broken("sequence_of");
        if (slice.start + i < slice.decoder_from) continue;
        if (in.decoder_rows[static_cast<std::size_t>(decoder + expected_decoder)] !=
            static_cast<std::int32_t>(row)) {
          return broken("decoder_rows");
        }
        ++expected_decoder;
      }
      if (expected_decoder != slice.decoder_rows) return broken("the count of decoder rows");
      tokens += slice.tokens;
      decoder += slice.decoder_rows;
      const std::int64_t end = slice.start + slice.tokens;
      if (static_cast<std::int64_t>(slice.blocks.size()) * state::kBlockTokens < end)
        return broken("too few blocks");
      for (std::int64_t p = std::max(slice.start, slice.write_floor); p < end; ++p) {
        std::byte* const block = slice.blocks[static_cast<std::size_t>(p / state::kBlockTokens)];
        const auto [at, first] = written_by.emplace(block, static_cast<int>(s));
        if (!first && at->second != static_cast<int>(s)) return broken("two sequences write one block");
      }
    }
    for (const backend::SequenceSlice& slice : in.sequences) {
      for (std::size_t b = 0; b < slice.blocks.size(); ++b) {
        const auto writer = written_by.find(slice.blocks[b]);
        if (writer != written_by.end() && &in.sequences[static_cast<std::size_t>(writer->second)] != &slice) {
          return broken("a block is written while another sequence reads it");
        }
      }
    }
    if (tokens != static_cast<int>(in.ids.size()) || decoder != static_cast<int>(in.decoder_rows.size())) {
      return broken("row counts");
    }
    for (const std::int32_t row : in.logit_rows) {
      if (row < 0 || row >= decoder) return broken("logit_rows");
    }
    return {};
  }

  Result<void> check_samples(const backend::StepInputs& in) const {
    const auto broken = [](const std::string& what) {
      return make_error(ErrorKind::kInternal, "fake backend: " + what);
    };
    if (!options_.samples && !in.sample_rows.empty()) return broken("it does not sample");
    if (!in.unread_logits.empty() && in.unread_logits.size() != in.logit_rows.size())
      return broken("flags of unread logits");
    std::int32_t before = -1;
    for (const backend::SampleRow& asked : in.sample_rows) {
      if (asked.row <= before || static_cast<std::size_t>(asked.row) >= in.logit_rows.size())
        return broken("sampled rows");
      before = asked.row;
    }
    return {};
  }

  std::byte* ring(const backend::SequenceSlice& slice, Class id, std::int64_t p) const {
    const state::StateClass& c = registry_.at(id);
    return slice.private_state + c.code_offset +
           static_cast<std::size_t>(p % c.rows) * 4U * static_cast<std::size_t>(c.record.channels);
  }
  std::byte* block(const backend::SequenceSlice& slice, Class id, std::int64_t row) const {
    const state::StateClass& c = registry_.at(id);
    std::byte* base = slice.blocks[static_cast<std::size_t>(row / c.rows)];
    return base + c.code_offset +
           static_cast<std::size_t>(row % c.rows) * 4U * static_cast<std::size_t>(c.record.channels);
  }
  Hash read(const std::byte* from, std::int64_t position, const char* what) {
    Row row;
    std::memcpy(&row, from, sizeof(row));
    if (row.position != position && fault_.empty()) {
      fault_ = std::string(what) + " of position " + std::to_string(position) + " holds position " +
               std::to_string(row.position);
    }
    return row.hash;
  }
  static void write(std::byte* to, std::int64_t position, Hash hash) {
    const Row row{static_cast<std::int32_t>(position), hash};
    std::memcpy(to, &row, sizeof(row));
  }

  std::int32_t history(const backend::SequenceSlice& slice, std::int64_t p) const {
    if (p < 0) return -1;
    std::int32_t id = 0;
    std::memcpy(&id, ring(slice, kHistory, p), sizeof(id));
    return id;
  }

  void run_slice(const backend::StepInputs& in, const backend::SequenceSlice& slice) {
    for (int i = 0; i < slice.tokens; ++i) {
      const std::int64_t p = slice.start + i;
      const auto row = static_cast<std::size_t>(slice.first_token_row + i);
      const bool image = !in.image.empty() && in.image[row] != 0;
      const std::int32_t entry = in.ids[row] | (image ? state::kImageFlag : 0);
      std::memcpy(ring(slice, kHistory, p), &entry, sizeof(entry));
      Hash look_back = 1;
      for (std::int64_t back = 0; back < 4; ++back)
        look_back = mix(look_back, static_cast<std::uint32_t>(history(slice, p - back)));
      const auto rows_before = [&](Class id, std::int64_t count, const char* what) {
        Hash hash = 7;
        for (std::int64_t j = 0; j < count; ++j)
          hash = mix(hash, read(block(slice, id, j), j, what));
        return hash;
      };
      const Hash pairs = rows_before(kPairs, p / 2, "pair row");
      const Hash encoder = encoder_hash(look_back, p, slice.window_floor, pairs, [&](std::int64_t q) {
        return read(ring(slice, kEncoderWindow, q), q, "encoder window row");
      });
      write(ring(slice, kEncoderWindow, p), p, encoder);
      write(ring(slice, kOpenGroup, p), p, mix(encoder, 11));
      if (p % 2 == 1 && p >= slice.write_floor) {
        const Hash a = read(ring(slice, kOpenGroup, p - 1), p - 1, "open group row");
        write(block(slice, kPairs, p / 2), p / 2, mix(a, mix(encoder, 11)));
      }
      if (p >= slice.write_floor) write(block(slice, kSingles, p), p, mix(encoder, 13));
      if (p < slice.decoder_from) continue;
      const Hash singles = rows_before(kSingles, p + 1, "single row");
      const Hash decoder = encoder_hash(
          mix(encoder, 17), p, slice.decoder_window_floor, singles,
          [&](std::int64_t q) { return read(ring(slice, kDecoderWindow, q), q, "decoder window row"); });
      write(ring(slice, kDecoderWindow, p), p, decoder);
      decoder_hash_[static_cast<std::size_t>(slice.first_decoder_row + slice.decoder_rows -
                                             (slice.tokens - i))] = decoder;
    }
  }

  state::Registry registry_;
  CoreOptions options_;
  std::int64_t steps_ = 0;
  std::string fault_;
  std::vector<Hash> decoder_hash_;
  std::vector<float> logits_;
  std::vector<std::uint8_t> unread_;
  std::vector<std::uint8_t> never_;
  std::vector<backend::Sampled> sampled_;       // by the step that ran last
  std::vector<backend::Sampled> last_sampled_;  // by the one that ended last
  std::deque<UnderWay> under_way_;
  int asked_ = 0;
};

class FakeBackend : public backend::Backend {
 public:
  explicit FakeBackend(const CoreOptions& options) : options_(options) {}
  backend::Capabilities capabilities() const override {
    return {"fake", "hash", "a toy", options_.samples, options_.ahead != CoreOptions::Ahead::kNo};
  }
  Result<std::unique_ptr<backend::Executable>> compile(std::shared_ptr<const graph::Graph>,
                                                       const state::Registry& registry,
                                                       const backend::StepLimits&) override {
    return std::unique_ptr<backend::Executable>(std::make_unique<FakeExecutable>(registry, options_));
  }
  Result<std::byte*> allocate(std::size_t bytes, const std::string& tag) override {
    allocated()[tag] += static_cast<std::int64_t>(bytes);
    auto* address = static_cast<std::byte*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64));
    std::memset(address, 0, bytes);
    return address;
  }
  void release(std::byte* address, std::size_t bytes, const std::string& tag) override {
    allocated()[tag] -= static_cast<std::int64_t>(bytes);
    std::free(address);
  }

 private:
  CoreOptions options_;
};

}  // namespace

std::map<std::string, std::int64_t>& allocated() {
  static std::map<std::string, std::int64_t> bytes;
  return bytes;
}

state::Registry registry() {
  state::Registry registry;
  const auto add = [&](Class id, state::Kind kind, int layer, state::Placement placement, int ratio,
                       int rows) {
    state::StateClass entry;
    entry.kind = kind;
    entry.layer = layer;
    if (kind == state::Kind::kWindow) entry.exact = state::Persistence::kSnapshotted;
    entry.placement = placement;
    entry.record = {state::RecordFormat::kI32, kind == state::Kind::kTokenHistory ? 1 : 2};
    entry.ratio = ratio;
    entry.rows = rows;
    const auto added = registry.add(entry);
    DI_CHECK(added.ok() && *added == static_cast<state::ClassId>(id));
  };
  using state::Kind;
  using state::Placement;
  add(kHistory, Kind::kTokenHistory, -1, Placement::kRing, 1, state::kHistoryRows);
  add(kEncoderWindow, Kind::kWindow, 0, Placement::kRing, 1, kRingRows);
  add(kDecoderWindow, Kind::kWindow, 1, Placement::kRing, 1, kRingRows);
  add(kOpenGroup, Kind::kCompressor, 0, Placement::kRing, 1, 2 + state::kMaxDrafts);
  add(kPairs, Kind::kGlobalRows, 0, Placement::kBlock, 2, 0);
  add(kSingles, Kind::kGlobalRows, 1, Placement::kBlock, 1, 0);
  return registry;
}

Core make_core(const CoreOptions& options) {
  Core core;
  core.info.model = "fake";
  core.info.precision = "f32";
  core.info.activations = "bf16";
  core.info.vocab = kVocab;
  core.info.hidden = kHidden;
  core.info.replay = options.replay;
  core.info.cut_layer = options.replay ? 1 : -1;
  core.info.max_model_len = options.limits.context;
  core.info.limits = options.limits;
  core.device = std::make_shared<FakeBackend>(options);
  core.info.backend = core.device->capabilities();
  auto executable = core.device->compile(nullptr, registry(), options.limits);
  DI_CHECK(executable.ok());
  core.executable = std::move(*executable);
  auto store = cache::Store::create(std::make_unique<BackendStorage>(core.device), registry(),
                                    {options.blocks, options.limits.sequences, true});
  DI_CHECK(store.ok());
  core.store = std::move(*store);
  return core;
}

std::vector<std::vector<float>> expected_logits(const std::vector<std::int32_t>& ids,
                                                const sched::Start& start, std::vector<std::int64_t> recipe) {
  if (recipe.empty()) recipe = {start.hit};
  DI_CHECK(recipe.back() == start.hit);
  const auto count = static_cast<std::int64_t>(ids.size());
  std::vector<Hash> encoder(ids.size()), decoder(ids.size()), pair_rows, single_rows;
  std::vector<std::vector<float>> logits;
  const auto look_back_at = [&](std::int64_t p) {
    Hash hash = 1;
    for (std::int64_t back = 0; back < 4; ++back) {
      hash =
          mix(hash, static_cast<std::uint32_t>(p - back < 0 ? -1 : ids[static_cast<std::size_t>(p - back)]));
    }
    return hash;
  };
  const auto fold = [](const std::vector<Hash>& rows, std::int64_t end) {
    Hash hash = 7;
    for (std::int64_t j = 0; j < end; ++j)
      hash = mix(hash, rows[static_cast<std::size_t>(j)]);
    return hash;
  };
  const auto at = [](const std::vector<Hash>& rows) {
    return [&rows](std::int64_t q) { return rows[static_cast<std::size_t>(q)]; };
  };
  const auto run_encoder = [&](std::int64_t p, std::int64_t floor, bool write) {
    const auto i = static_cast<std::size_t>(p);
    encoder[i] = encoder_hash(look_back_at(p), p, floor, fold(pair_rows, p / 2), at(encoder));
    if (!write) return;
    if (p % 2 == 1) pair_rows.push_back(mix(mix(encoder[i - 1], 11), mix(encoder[i], 11)));
    single_rows.push_back(mix(encoder[i], 13));
  };
  std::int64_t from = 0;
  for (const std::int64_t to : recipe) {
    const std::int64_t first = std::max<std::int64_t>(0, from - sched::kReplayTokens);
    for (std::int64_t p = first; p < to; ++p)
      run_encoder(p, first, p >= from);
    from = to;
  }
  for (std::int64_t p = start.first; p < count; ++p) {
    run_encoder(p, start.window_floor, p >= start.write_floor);
    if (p < start.decoder_from) continue;
    const auto i = static_cast<std::size_t>(p);
    decoder[i] = encoder_hash(mix(encoder[i], 17), p, start.decoder_window_floor, fold(single_rows, p + 1),
                              at(decoder));
    std::vector<float> row;
    for (int id = 0; id < kVocab; ++id)
      row.push_back(logit_of(decoder[i], id));
    logits.push_back(std::move(row));
  }
  return logits;
}

TEST(FakeBackend, SeesWhatIsBehindAPosition) {
  std::vector<std::int32_t> ids(300, 5);
  const auto start = sched::make_start(sched::Mode::kExact, 300, 0, 128);
  const auto plain = expected_logits(ids, start);
  ids[2] = 6;
  const auto changed = expected_logits(ids, start);
  EXPECT_EQ(plain[1], changed[1]);
  EXPECT_NE(plain[2], changed[2]);
  EXPECT_NE(plain[299], changed[299]);
  EXPECT_NE(expected_logits(ids, sched::make_start(sched::Mode::kReplay, 300, 128, 128)).back(),
            changed.back());
}

}  // namespace deepinfer::runtime::fake
