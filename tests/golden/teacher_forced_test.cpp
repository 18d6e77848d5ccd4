// Each sub-layer in bf16, fed with the streams that a correct f32 model has before it: the golden ones where the set holds all
// positions, else the reference backend's in f32, which logits_test.cpp and seams_test.cpp hold to the golden values.
// Window rows, global rows, index keys and index queries are computed from the layer's streams, and compared code by code. Since one
// code that falls otherwise is a matter of its own, selections and attention start from the streams and the teacher's codes, and
// the FFN from the streams and the teacher's attention. Random weights are chaotic (README41.md): this is where bf16 can be told
// from wrong.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string>

#include "backend/common/weights.h"
#include "golden/forced_graph.h"
#include "golden/stored_rows.h"
#include "support/device.h"
#include "support/golden_file.h"

namespace deepinfer::test {

namespace {

constexpr double kMostError = 1.0 / 128;  // rms(error) / rms(value) of a sub-layer
constexpr double kMostSteps = 1.001;      // a code is at most one step from the reference's
constexpr double kMostShare = 1.5;        // codes that differ, against the cpu backend's
constexpr int64_t kFewCodes = 16;         // fewer than these are chance
// A choice in bf16 may fall otherwise where the f32 values of the two lie this close: for experts in units of score + bias,
// for rows and blocks of the rms of a query's scores. What was seen is printed.
constexpr double kNearExpert = 1.0 / 64;
constexpr double kNearRow = 1.0 / 64;

struct Case {
  std::string name;
  std::string set;  // its checkpoint
  std::string prompt;
  bool kv_quant = true;
  bool narrow = false;  // mini41's weights, selection and candidates narrowed until both act
};

void PrintTo(const Case& entry, std::ostream* out) {
  *out << entry.name;
}

bool is_v4(const Case& entry) {
  return entry.set.ends_with("4");
}

// --- names of seams in either family

enum class Part {
  kStreams,
  kMix,
  kAttention,
  kWindow,
  kQuery,
  kFfn,
  kExperts,
  kSelected,
  kCandidates,
  kScores
};
constexpr Part kGiven[] = {Part::kStreams, Part::kMix, Part::kAttention, Part::kWindow, Part::kQuery};

std::string seam_name(const Case& entry, Part part, int layer) {
  const std::string n = std::to_string(layer);
  const bool v4 = is_v4(entry);
  switch (part) {
    case Part::kStreams: return v4 ? "L" + n + ".streams" : "h." + n;
    case Part::kMix: return "P." + n;
    case Part::kAttention: return v4 ? "L" + n + ".attn_out" : "attn." + n;
    case Part::kWindow: return "window." + n;
    case Part::kQuery: return "query." + n;
    case Part::kFfn: return v4 ? "L" + n + ".moe_out" : "moe." + n;
    case Part::kExperts: return v4 ? "L" + n + ".router_ids" : "router." + n + ".ids";
    case Part::kSelected: return v4 ? "L" + n + ".index_sel" : "index." + n + ".selected";
    case Part::kCandidates: return "index." + n + ".candidates";
    case Part::kScores: return v4 ? "L" + n + ".index_scores" : "index." + n + ".scores";
  }
  return "";
}

// Seams that keep a backend from its fused and fast kernels, and that this test does not read in bf16.
bool stands_in_the_way(const std::string& name) {
  for (const char* kind : {"rows.", "keys."})
    if (name.starts_with(kind)) return true;
  for (const char* end :
       {".scores", ".rows", ".index_keys", ".index_q", ".index_scores", ".kv_normed", ".attn_in", ".ffn_in"})
    if (name.ends_with(end) && !name.starts_with("engram.")) return true;
  return name.starts_with("gate.");
}

// --- one run

struct Run {
  std::map<std::string, backend::SeamTensor> seams;
  std::map<std::string, StoredRows> stored;
};

std::filesystem::path checkpoint_of(const Case& entry) {
  if (!entry.narrow) return golden_folder(entry.set);
  // The same weights with a configuration in which a query selects 32 of up to 400 rows, within 8 blocks of 8.
  const std::filesystem::path made = std::filesystem::path(testing::TempDir()) / ("teacher_" + entry.name);
  std::filesystem::remove_all(made);
  std::filesystem::create_directories(made / "checkpoint");
  for (const auto& file : std::filesystem::directory_iterator(golden_folder(entry.set) / "checkpoint"))
    if (file.path().filename() != "config.json")
      std::filesystem::create_symlink(std::filesystem::absolute(file.path()),
                                      made / "checkpoint" / file.path().filename());
  std::ifstream in(golden_folder(entry.set) / "checkpoint" / "config.json");
  nlohmann::json config = nlohmann::json::parse(in);
  nlohmann::json& text = config["text_config"];
  text["index_topk"] = 32;
  text["candidate_topk_blocks"] = 8;
  text["candidate_block_size"] = 8;
  std::ofstream(made / "checkpoint" / "config.json") << config;
  return made;
}

// The model's graph with seams that it does not have itself: window rows of V4, index queries as they are scored, and what experts
// are chosen by.
graph::Graph with_more_seams(const graph::Graph& graph) {
  graph::Graph more = graph;
  for (const graph::Node& node : graph.nodes) {
    const std::string layer = std::to_string(node.layer);
    if (node.op == graph::Op::kWindowRows && graph.model == "v4")
      more.seams.push_back({"window." + layer, node.outputs[0]});
    if (node.op == graph::Op::kIndexScores) more.seams.push_back({"query." + layer, node.inputs[0]});
    if (node.op == graph::Op::kGateTopK) more.seams.push_back({"gate." + layer, node.inputs[0]});
  }
  return more;
}

Device make_device(const std::filesystem::path& folder, const Case& entry, const std::string& backend,
                   graph::Precision precision) {
  DeviceOptions options;
  options.set = folder.string();
  options.backend = backend;
  options.precision = precision;
  options.kv_quant = entry.kv_quant;
  options.seams = true;
  options.tokens = 448;
  options.context = 512;
  return Device(options);
}

// Runs a graph in place of the device's own. `stored`: rows and keys that another made, in place of those of this run.
Run run_graph(Device& device, const ForcedGraph& forced, const std::shared_ptr<const graph::Graph>& graph,
              const std::map<std::string, StoredRows>* stored = nullptr) {
  Sequence sequence(device, forced.ids());
  if (stored != nullptr) {
    fill_blocks(device, sequence, *stored);
    sequence.write_floor = static_cast<int64_t>(sequence.ids.size());
  }
  run_all(device, sequence);
  Run run;
  for (const graph::Seam& seam : graph->seams) {
    auto tensor = device.executable().seam(seam.name);
    if (!tensor.ok()) throw std::runtime_error(tensor.error().message());
    run.seams[seam.name] = std::move(tensor).value();
  }
  run.stored = stored_rows(device, sequence);
  return run;
}

void compile_graph(Device& device, const std::shared_ptr<const graph::Graph>& graph) {
  auto compiled = device.backend().compile(graph, device.model().registry, device.limits());
  if (!compiled.ok()) throw std::runtime_error(compiled.error().message());
  device.replace_executable(std::move(compiled).value());
}

// --- the teacher

class Teacher {
 public:
  explicit Teacher(const Case& entry)
      : entry_(entry),
        folder_(checkpoint_of(entry)),
        device_(make_device(folder_, entry, "reference", graph::Precision::kF32)) {
    if (entry.narrow) {
      for (int i = 0; i < 400; ++i)
        ids_.push_back(3 + (i * i * 31 + i * 7) % 500);
    } else {
      ids_ = GoldenFile(golden_folder(entry.set) / "golden" /
                        (is_v4(entry) ? "logits.safetensors" : "prompts.safetensors"))
                 .ints(entry.prompt + ".ids");
      if (!is_v4(entry))
        golden_ = std::make_unique<GoldenFile>(golden_folder(entry.set) / "golden" /
                                               ("seams_" + entry.prompt + ".safetensors"));
    }
    GivenValues golden;
    for (int layer = 0; layer < layers(); ++layer)
      for (const Part part : {Part::kStreams, Part::kMix, Part::kAttention})
        if (const std::string name = seam_name(entry, part, layer); golden_ != nullptr && golden_->has(name))
          golden[name] = golden_->floats(name);
    const graph::Graph graph = with_more_seams(*device_.model().graph);
    keep_biases(graph);
    ForcedGraph forced(graph, ids_, golden);
    compile_graph(device_, forced.graph());
    run_ = run_graph(device_, forced, forced.graph());
    for (int layer = 0; layer < layers(); ++layer)
      for (const Part part : kGiven)
        if (const std::string name = seam_name(entry, part, layer); run_.seams.contains(name))
          given_[name] = golden.contains(name) ? golden[name] : run_.seams[name].f32;
  }

  int layers() const { return device_.model().config.layers; }
  const model::Config& config() const { return device_.model().config; }
  const state::Registry& registry() const { return device_.model().registry; }
  const Run& run() const { return run_; }
  const std::vector<int32_t>& ids() const { return ids_; }
  const GivenValues& given() const { return given_; }
  const std::filesystem::path& folder() const { return folder_; }

  // The golden value where the set has all of it, else the reference's.
  std::vector<float> floats(const std::string& name) const {
    return golden_ != nullptr && golden_->has(name) ? golden_->floats(name) : run_.seams.at(name).f32;
  }
  const std::vector<float>& bias(int layer) const { return bias_.at(layer); }
  bool has_bias(int layer) const { return bias_.contains(layer); }
  int from_golden() const {
    int count = 0;
    for (const auto& [name, values] : given_)
      count += golden_ != nullptr && golden_->has(name);
    return count;
  }

 private:
  // Score + bias says how near a choice of experts was.
  void keep_biases(const graph::Graph& graph) {
    for (const graph::Node& node : graph.nodes) {
      if (node.op != graph::Op::kGateTopK) continue;
      const graph::Weight& weight = graph.weights[static_cast<size_t>(node.weights[0])];
      std::vector<float>& bias = bias_[node.layer];
      bias.resize(static_cast<size_t>(weight.k));
      backend::decode_weight_row(weight, 0, 0, bias);
    }
  }

  Case entry_;
  std::filesystem::path folder_;
  Device device_;
  std::unique_ptr<GoldenFile> golden_;
  std::vector<int32_t> ids_;
  Run run_;
  GivenValues given_;
  std::map<int, std::vector<float>> bias_;
};

// --- comparisons

struct Choices {
  int64_t made = 0;
  int64_t rows_with_others = 0;
  double widest_gap = 0;
};

using RowFlags = std::vector<bool>;

std::set<int32_t> row_set(const backend::SeamTensor& tensor, size_t row) {
  const auto width = static_cast<size_t>(tensor.shape[1]);
  std::set<int32_t> ids;
  for (size_t i = row * width; i < (row + 1) * width; ++i)
    if (tensor.i32[i] >= 0) ids.insert(tensor.i32[i]);
  return ids;
}

// Compares sets a row. `value(row, id)` is the f32 value that a choice went by; `skip` rows follow from another choice.
template <class ValueOf>
RowFlags compare_choices(const backend::SeamTensor& mine, const backend::SeamTensor& expected, ValueOf value,
                         const RowFlags& skip, Choices& choices) {
  const auto rows = static_cast<size_t>(expected.shape[0]);
  RowFlags others(rows, false);
  for (size_t row = 0; row < rows; ++row) {
    const std::set<int32_t> a = row_set(mine, row), b = row_set(expected, row);
    choices.made += static_cast<int64_t>(b.size());
    others[row] = a != b;
    if (!others[row]) continue;
    ++choices.rows_with_others;
    if (!skip.empty() && skip[row]) continue;
    double missed = -INFINITY, taken = INFINITY;
    for (const int32_t id : b)
      if (!a.contains(id)) missed = std::max<double>(missed, value(row, id));
    for (const int32_t id : a)
      if (!b.contains(id)) taken = std::min<double>(taken, value(row, id));
    // Another number of choices is never near.
    choices.widest_gap = std::max(choices.widest_gap, a.size() == b.size() ? missed - taken : INFINITY);
  }
  return others;
}

// rms(error) / rms(value) over rows that are not left out.
double relative_error(std::span<const float> mine, std::span<const float> expected, const RowFlags& left_out,
                      size_t rows) {
  if (mine.size() != expected.size()) throw std::runtime_error("values of other shapes");
  const size_t width = expected.size() / rows;
  double error = 0, value = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (!left_out.empty() && left_out[i / width]) continue;
    const double difference = static_cast<double>(mine[i]) - expected[i];
    error += difference * difference;
    value += static_cast<double>(expected[i]) * expected[i];
  }
  return std::sqrt(error / value);
}

struct Figures {
  std::map<int, double> attention, ffn;          // by layer, rows with equal choices
  std::map<int, double> attention_all, ffn_all;  // every row
  Choices experts, selected, candidates;
  std::map<std::string, CodeDistance> codes;  // "rows", "keys", "window"
};

class Student {
 public:
  Student(const Case& entry, const Teacher& teacher, const std::string& backend)
      : entry_(entry), teacher_(teacher) {
    Device device = make_device(teacher.folder(), entry, backend, graph::Precision::kBf16);
    ForcedGraph forced(with_more_seams(*device.model().graph), teacher.ids(), teacher.given());
    const auto graph = without_seams(*forced.graph(), stands_in_the_way);
    compile_graph(device, graph);
    stored_ = run_graph(device, forced, graph).stored;
    run_ = run_graph(device, forced, graph, &teacher.run().stored);
  }

  Figures compare() {
    Figures figures;
    std::map<int, RowFlags> other_rows;
    RowFlags other_blocks;
    const size_t rows = teacher_.ids().size();
    for (int layer = 0; layer < teacher_.layers(); ++layer) {
      const model::LayerConfig& data = teacher_.config().layer[static_cast<size_t>(layer)];
      if (data.candidates == model::CandidateRole::kProduces)
        other_blocks = compare_candidates(layer, figures.candidates);
      if (data.has_index_query)
        other_rows[layer] = compare_selected(
            layer, data.candidates == model::CandidateRole::kConsumes ? other_blocks : RowFlags(),
            figures.selected);
      const RowFlags unequal = data.sel_owner >= 0 ? other_rows[data.sel_owner] : RowFlags();
      const RowFlags experts = compare_experts(layer, figures.experts);
      const std::string attention = seam_name(entry_, Part::kAttention, layer);
      const std::string ffn = seam_name(entry_, Part::kFfn, layer);
      figures.attention[layer] = error_of(attention, unequal, rows);
      figures.attention_all[layer] = error_of(attention, {}, rows);
      figures.ffn[layer] = error_of(ffn, experts, rows);
      figures.ffn_all[layer] = error_of(ffn, {}, rows);
    }
    compare_queries(figures.codes["queries"]);
    for (const auto& [name, expected] : teacher_.run().stored)
      figures.codes[name.substr(0, name.find('.'))] += code_distance(stored_.at(name), expected);
    return figures;
  }

 private:
  const backend::SeamTensor& mine(Part part, int layer) const {
    return run_.seams.at(seam_name(entry_, part, layer));
  }
  const backend::SeamTensor& expected(Part part, int layer) const {
    return teacher_.run().seams.at(seam_name(entry_, part, layer));
  }
  double error_of(const std::string& name, const RowFlags& left_out, size_t rows) const {
    return relative_error(run_.seams.at(name).f32, teacher_.floats(name), left_out, rows);
  }

  // Where there is KV quantisation: codes as index keys have them.
  void compare_queries(CodeDistance& distance) const {
    for (const state::StateClass& entry : teacher_.registry().classes()) {
      if (entry.kind != state::Kind::kIndexKeys || entry.record.format != state::RecordFormat::kMxfp4)
        continue;
      for (int layer = 0; layer < teacher_.layers(); ++layer) {
        const std::string name = seam_name(entry_, Part::kQuery, layer);
        if (teacher_.config().layer[static_cast<size_t>(layer)].key_owner == entry.layer &&
            run_.seams.contains(name))
          distance += code_distance(as_stored(entry.record, run_.seams.at(name).f32),
                                    as_stored(entry.record, teacher_.floats(name)));
      }
    }
  }

  RowFlags compare_experts(int layer, Choices& choices) const {
    if (!teacher_.has_bias(layer)) {  // by token id: nothing is near
      return compare_choices(
          mine(Part::kExperts, layer), expected(Part::kExperts, layer),
          [](size_t, int32_t) { return INFINITY; }, {}, choices);
    }
    const backend::SeamTensor& scores = teacher_.run().seams.at("gate." + std::to_string(layer));
    const std::vector<float>& bias = teacher_.bias(layer);
    return compare_choices(
        mine(Part::kExperts, layer), expected(Part::kExperts, layer),
        [&](size_t row, int32_t id) {
          const auto expert = static_cast<size_t>(id);
          return static_cast<double>(scores.f32[row * bias.size() + expert]) + bias[expert];
        },
        {}, choices);
  }

  static double row_rms(std::span<const float> scores) {
    double sum = 0;
    int64_t count = 0;
    for (const float score : scores) {
      if (!std::isfinite(score)) continue;
      sum += static_cast<double>(score) * score;
      ++count;
    }
    return count == 0 ? 1 : std::max(std::sqrt(sum / static_cast<double>(count)), 1e-30);
  }

  std::span<const float> scores_of(int layer, size_t row) const {
    const backend::SeamTensor& scores = expected(Part::kScores, layer);
    const auto width = static_cast<size_t>(scores.shape[1]);
    return std::span(scores.f32).subspan(row * width, width);
  }

  RowFlags compare_selected(int layer, const RowFlags& other_blocks, Choices& choices) const {
    return compare_choices(
        mine(Part::kSelected, layer), expected(Part::kSelected, layer),
        [&](size_t row, int32_t id) {
          const auto scores = scores_of(layer, row);
          return scores[static_cast<size_t>(id)] / row_rms(scores);
        },
        other_blocks, choices);
  }

  // A block is as good as its best row.
  RowFlags compare_candidates(int layer, Choices& choices) const {
    const auto size = static_cast<size_t>(teacher_.config().candidate_block_size);
    return compare_choices(
        mine(Part::kCandidates, layer), expected(Part::kCandidates, layer),
        [&](size_t row, int32_t id) {
          const auto scores = scores_of(layer, row);
          const auto first = static_cast<size_t>(id) * size;
          const auto block = scores.subspan(first, std::min(size, scores.size() - first));
          return *std::max_element(block.begin(), block.end()) / row_rms(scores);
        },
        {}, choices);
  }

  Case entry_;
  const Teacher& teacher_;
  std::map<std::string, StoredRows> stored_;  // of its own
  Run run_;                                   // with the teacher's
};

// --- the report

std::string join(const std::map<int, double>& by_layer) {
  std::string text;
  char number[32];
  for (const auto& [layer, value] : by_layer) {
    std::snprintf(number, sizeof number, "%s%.2e", text.empty() ? "" : " ", value);
    text += number;
  }
  return text;
}

void print(const std::string& who, const Choices& choices, const std::string& kind) {
  if (choices.made == 0) return;
  std::cout << "[ values   ] " << who << " " << kind << ": " << choices.made << " choices, "
            << choices.rows_with_others << " rows with others, widest gap " << choices.widest_gap << "\n";
}

void print(const std::string& who, const Figures& figures) {
  std::cout << "[ values   ] " << who << " attention, a layer: " << join(figures.attention)
            << "\n[ values   ] " << who << "   with other selections: " << join(figures.attention_all)
            << "\n[ values   ] " << who << " FFN, a layer:       " << join(figures.ffn) << "\n[ values   ] "
            << who << "   with other experts:    " << join(figures.ffn_all) << "\n";
  print(who, figures.experts, "experts");
  print(who, figures.selected, "rows");
  print(who, figures.candidates, "blocks");
  for (const auto& [kind, codes] : figures.codes)
    if (codes.codes > 0)
      std::cout << "[ values   ] " << who << " codes of " << kind << ": " << codes.differing << " of "
                << codes.codes << " differ ("
                << 100.0 * static_cast<double>(codes.differing) / static_cast<double>(codes.codes)
                << " %), at most " << codes.most_steps << " steps\n";
}

void gate(const Figures& figures) {
  for (const auto& [layer, error] : figures.attention)
    EXPECT_LE(error, kMostError) << "attention of layer " << layer;
  for (const auto& [layer, error] : figures.ffn)
    EXPECT_LE(error, kMostError) << "FFN of layer " << layer;
  EXPECT_LE(figures.experts.widest_gap, kNearExpert);
  EXPECT_LE(figures.selected.widest_gap, kNearRow);
  EXPECT_LE(figures.candidates.widest_gap, kNearRow);
  for (const auto& [kind, codes] : figures.codes)
    EXPECT_LE(codes.most_steps, kMostSteps) << kind;
}

// The cpu backend's figures, by case: what another backend's share of differing codes is held against.
Figures cpu_figures(const Case& entry, const Teacher& teacher) {
  Figures figures = Student(entry, teacher, "cpu").compare();
  print("cpu", figures);
  return figures;
}

Teacher teacher_of(const Case& entry) {
  Teacher teacher(entry);
  std::cout << "[ values   ] " << entry.name << ": " << teacher.ids().size() << " tokens, "
            << teacher.from_golden() << " of " << teacher.given().size() << " given values are golden\n";
  return teacher;
}

class TeacherForced : public testing::TestWithParam<Case> {};

TEST_P(TeacherForced, Cpu) {
  const Teacher teacher = teacher_of(GetParam());
  gate(cpu_figures(GetParam(), teacher));
}

TEST_P(TeacherForced, Cuda) {
  if (const std::string absent = why_absent("cuda"); !absent.empty()) GTEST_SKIP() << "NOT RUN: " << absent;
  const Teacher teacher = teacher_of(GetParam());
  const Figures cpu = cpu_figures(GetParam(), teacher);
  const Figures cuda = Student(GetParam(), teacher, "cuda").compare();
  print("cuda", cuda);
  gate(cuda);
  for (const auto& [kind, codes] : cuda.codes)
    EXPECT_LE(static_cast<double>(codes.differing),
              std::max(kMostShare * static_cast<double>(cpu.codes.at(kind).differing),
                       static_cast<double>(kFewCodes)))
        << kind;
}

INSTANTIATE_TEST_SUITE_P(All, TeacherForced,
                         testing::Values(Case{"tiny41", "tiny41", "p200"}, Case{"mini41", "mini41", "p129"},
                                         Case{"tiny4", "tiny4", "p300", false},
                                         Case{"tiny4_quantised", "tiny4", "p300"},
                                         Case{"mini4", "mini4", "p129", false},
                                         Case{"mini4_quantised", "mini4", "p129"},
                                         Case{"narrow41", "mini41", "", true, true}),
                         [](const auto& of) { return of.param.name; });

}  // namespace

}  // namespace deepinfer::test
