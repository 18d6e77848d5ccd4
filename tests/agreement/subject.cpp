#include "agreement/subject.h"

#include <fmt/format.h>

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "backend/cpu/kernels/kernel_set.h"

namespace deepinfer::agreement {
namespace {

// Where variants of the cpu backend really run: DEEPINFER_AGREEMENT_BACKEND, for machines with a GPU (the kernels of a variant are
// the cpu backend's then, and say nothing). The program ends with 77, which CTest shows as skipped, where there is none.
const std::string& fast_backend() {
  static const std::string name = [] {
    const char* given = std::getenv("DEEPINFER_AGREEMENT_BACKEND");
    const std::string chosen = given == nullptr ? "cpu" : given;
    const auto made = backend::create(chosen, {});
    if (made.ok()) return chosen;
    // Only the lack of a GPU is a reason to skip; a name that does not exist, or a GPU that fails, is not.
    const bool absent = chosen == "cuda" && made.error().kind == ErrorKind::kUnsupported;
    std::fprintf(stderr, "%s: %s\n", absent ? "SKIPPED" : "FAILED", made.error().message().c_str());
    std::exit(absent ? 77 : 1);
  }();
  return name;
}

// An image span that a hit at 128 cuts: its first part is replayed, its rest is new.
constexpr std::int32_t kImageBegin = 105;
constexpr std::int32_t kImageEnd = 133;

template <class T>
T must(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.error().message());
  return std::move(result).value();
}

void must(const Result<void>& result) {
  if (!result.ok()) throw std::runtime_error(result.error().message());
}

std::filesystem::path checkpoint_of(const std::string& set) {
  return std::filesystem::path(DEEPINFER_SOURCE_DIR) / "../shared/golden" / set / "checkpoint";
}

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// A folder that is gone with this object.
class Folder {
 public:
  Folder() : path_((std::filesystem::temp_directory_path() / "agreement_XXXXXX").string()) {
    if (::mkdtemp(path_.data()) == nullptr) throw std::runtime_error("cannot make the folder " + path_);
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::filesystem::path path() const { return path_; }

 private:
  std::string path_;
};

// The same weights with windows of another length: no tensor has it as a dimension.
void write_with_window(const std::filesystem::path& checkpoint, int window,
                       const std::filesystem::path& folder) {
  std::string config = text_of(checkpoint / "config.json");
  const std::string field = "\"sliding_window\":";
  const auto at = config.find(field);
  if (at == std::string::npos) throw std::runtime_error("no sliding_window in " + checkpoint.string());
  const auto value = at + field.size();
  config.replace(value, config.find_first_of(",\n", value) - value, std::to_string(window));
  std::ofstream(folder / "config.json") << config;
  for (const auto& entry : std::filesystem::directory_iterator(checkpoint)) {
    if (entry.path().filename() == "config.json") continue;
    std::filesystem::create_symlink(std::filesystem::canonical(entry.path()),
                                    folder / entry.path().filename());
  }
}

// Opened once a process: reading and hashing the weights takes longer than compiling a step.
const model::Model& model_of(const Variant& variant) {
  static std::map<std::tuple<std::string, int, graph::Precision, model::Activations>, model::Model> models;
  const std::tuple key{variant.set, variant.window, variant.precision, variant.activations};
  const auto known = models.find(key);
  if (known != models.end()) return known->second;
  model::BuildOptions build;
  build.precision = variant.precision;
  build.activations = variant.activations;
  const std::filesystem::path checkpoint = checkpoint_of(variant.set);
  if (variant.window == 0) return models.emplace(key, must(model::load(checkpoint, build))).first->second;
  const Folder folder;
  write_with_window(checkpoint, variant.window, folder.path());
  return models.emplace(key, must(model::load(folder.path(), build))).first->second;
}

}  // namespace

runtime::Core make_core(const Variant& variant, const Sizes& sizes) {
  runtime::LoadOptions options;
  const bool host = variant.backend != "cpu" || fast_backend() == "cpu";
  options.backend = host ? variant.backend : fast_backend();
  options.backend_options.threads = variant.threads;
  if (host) options.backend_options.kernels = variant.kernels;
  options.max_model_len = sizes.context;
  options.max_sequences = sizes.sequences;
  options.step_tokens = sizes.step_tokens;
  options.logit_rows = std::max(sizes.step_tokens, sizes.sequences);
  options.blocks = sizes.blocks;
  options.poison_freed = true;
  return std::move(must(runtime::load(model_of(variant), options)).core);
}

std::string Variant::name() const {
  std::string text = set;
  if (window != 0) text += fmt::format("_window{}", window);
  text += "_" + backend;
  if (!kernels.empty()) text += "_" + kernels;
  text += precision == graph::Precision::kF32 ? "_f32" : "_bf16";
  if (activations == model::Activations::kFp8) text += "_fp8";
  std::replace_if(
      text.begin(), text.end(), [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return text;
}

void PrintTo(const Variant& variant, std::ostream* out) {
  *out << variant.name();
}

std::vector<Variant> variants_of(const std::string& set, bool all_kernels) {
  std::vector<Variant> variants;
  using graph::Precision;
  using model::Activations;
  for (const auto& [precision, activations] : {std::pair{Precision::kF32, Activations::kBf16},
                                               {Precision::kBf16, Activations::kBf16},
                                               {Precision::kBf16, Activations::kFp8}}) {
    if (!all_kernels) {
      variants.push_back({set, "cpu", "", precision, 1, 0, activations});
      continue;
    }
    for (const auto* kernels : backend::cpu::available_sets())
      variants.push_back({set, "cpu", kernels->name, precision, 1, 0, activations});
    variants.push_back({set, "reference", "", precision, 1, 0, activations});
  }
  return variants;
}

Subject::Subject(const Variant& variant, const Sizes& sizes)
    : core_(make_core(variant, sizes)), runner_(core_.info, *core_.executable) {}

std::vector<Case> Subject::cases(int tokens, std::uint32_t seed) const {
  std::mt19937 random(seed);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens));
  for (auto& id : ids)
    id = static_cast<std::int32_t>(random() % static_cast<unsigned>(core_.info.vocab - 2));
  std::vector<Case> list = cases(ids);
  if (!core_.info.replay) return list;
  runtime::EmbedRows image;
  for (std::int32_t position = kImageBegin; position < kImageEnd; ++position)
    image.positions.push_back(position);
  for (std::size_t i = 0; i < image.positions.size() * static_cast<std::size_t>(core_.info.hidden); ++i)
    image.rows.push_back(static_cast<float>(random() % 2001) / 1000.0f - 1.0f);
  for (const auto& [mode, hit] :
       {std::pair{sched::Mode::kExact, 0}, {sched::Mode::kReplay, state::kBlockTokens}}) {
    list.push_back({mode == sched::Mode::kExact ? "exact with an image" : "replay from 128 with an image",
                    ids, sched::make_start(mode, tokens, hit, sched::kDecoderTokens), image});
  }
  return list;
}

std::vector<Case> Subject::cases(const std::vector<std::int32_t>& ids) const {
  const auto tokens = static_cast<std::int64_t>(ids.size());
  std::vector<Case> list = {
      {"exact", ids, sched::make_start(sched::Mode::kExact, tokens, 0, sched::kDecoderTokens)}};
  if (!core_.info.replay) return list;
  for (std::int64_t hit = 0; hit < tokens; hit += state::kBlockTokens) {
    list.push_back({fmt::format("replay from {}", hit), ids,
                    sched::make_start(sched::Mode::kReplay, tokens, hit, sched::kDecoderTokens)});
  }
  return list;
}

cache::Sequence Subject::open(const Case& request, std::int64_t prefix_chunk) {
  const auto count = static_cast<std::int64_t>(request.ids.size());
  std::vector<std::uint8_t> image(request.has_image() ? request.ids.size() : 0);
  for (const std::int32_t position : request.embeds.positions)
    image[static_cast<std::size_t>(position)] = 1;
  // Room for drafts that are rolled back.
  const cache::SequenceOptions options{request.ids, image,
                                       std::min(core_.info.max_model_len, count + state::kMaxDrafts)};
  cache::Sequence cold = must(core_.store->start(options));
  if (request.start.hit == 0) return cold;
  const Case prefix{request.name, request.ids,
                    sched::make_start(sched::Mode::kReplay, request.start.hit, 0, 1), request.embeds};
  advance(cold, prefix, request.start.hit, prefix_chunk, nullptr);
  return must(core_.store->adopt(cold, request.start.hit, options));
}

void Subject::advance(cache::Sequence& sequence, const Case& request, std::int64_t end, std::int64_t chunk,
                      Rows* rows) {
  while (sequence.length() < end) {
    const std::int64_t tokens =
        std::min({end - sequence.length(), chunk, std::int64_t{core_.info.limits.tokens}});
    const std::int64_t decoder = runtime::decoder_rows_of(sequence.length(), tokens, request.start);
    const runtime::StepPart part{&sequence, static_cast<int>(tokens), request.start,
                                 rows == nullptr ? 0 : static_cast<int>(decoder), &request.embeds};
    must(runner_.run({&part, 1}));
    const auto logits = runner_.logits(0);
    if (rows != nullptr) rows->insert(rows->end(), logits.begin(), logits.end());
  }
}

const Rows& Subject::expected(const Case& request) {
  const auto [at, added] = expected_.try_emplace({request.name, request.ids});
  if (added) {
    cache::Sequence sequence = open(request);
    advance(sequence, request, static_cast<std::int64_t>(request.ids.size()), core_.info.limits.tokens,
            &at->second);
  }
  return at->second;
}

std::span<const float> Subject::expected(const Case& request, std::int64_t from, std::int64_t to) {
  const std::span<const float> all = expected(request);
  const auto vocab = static_cast<std::size_t>(core_.info.vocab);
  const auto first = static_cast<std::size_t>(from - request.start.decoder_from);
  return all.subspan(first * vocab, static_cast<std::size_t>(to - from) * vocab);
}

Subject& subject(const Variant& variant) {
  static std::map<std::pair<std::string, int>, std::unique_ptr<Subject>> subjects;
  auto& entry = subjects[{variant.name(), variant.threads}];
  if (entry == nullptr) entry = std::make_unique<Subject>(variant);
  return *entry;
}

std::string difference(std::span<const float> expected, std::span<const float> actual,
                       std::int64_t first_position, int vocab) {
  if (expected.size() != actual.size())
    return fmt::format("{} values instead of {}", actual.size(), expected.size());
  if (expected.empty()) return "no values to compare";
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (std::bit_cast<std::uint32_t>(expected[i]) == std::bit_cast<std::uint32_t>(actual[i])) continue;
    const auto width = static_cast<std::size_t>(vocab);
    return fmt::format("position {}, id {}: {} instead of {}",
                       first_position + static_cast<std::int64_t>(i / width), i % width, actual[i],
                       expected[i]);
  }
  return {};
}

}  // namespace deepinfer::agreement
