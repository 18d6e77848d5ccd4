// The device interface: compile a graph, run a step. One virtual call a segment, not one an operation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/sampling.h"
#include "base/check.h"
#include "base/result.h"
#include "graph/graph.h"
#include "state/state_copy.h"

namespace deepinfer::backend {

// The largest step an executable will be asked to run; buffers are planned for it once.
struct StepLimits {
  int tokens = 0;        // T
  int decoder_rows = 0;  // D (exact mode: = tokens)
  int logit_rows = 0;    // L
  int sequences = 0;     // S
  int64_t context = 0;   // longest sequence in tokens (index scores, selections)
};

// One sequence's part of a step. Rows of a sequence are consecutive in T, in D and in L.
struct SequenceSlice {
  int64_t start = 0;          // absolute position of the first token in this step
  int first_token_row = 0;    // its row in T
  int tokens = 0;             // rows in T
  int first_decoder_row = 0;  // row in D of the first position >= decoder_from
  int decoder_rows = 0;       // rows in D: the step's tokens at positions >= decoder_from
  int64_t decoder_from = 0;   // first position that runs the decoder half (exact mode: 0)
  int64_t window_floor = 0;  // no window row below this position exists (attention.md 9.2 rule 2); 0 normally
  int64_t decoder_window_floor =
      0;  // the same for layers that run on decoder rows: max(window_floor, decoder_from) when trimmed
  int64_t write_floor = 0;  // block rows whose group ends below this position are not written (9.2 rule 4)
  std::span<std::byte* const>
      blocks;  // base address of block b of this sequence (positions [128 b, 128 b + 128))
  std::byte* private_state = nullptr;  // the sequence's private area (Registry::sequence_bytes)
};

// Everything that varies between steps.
struct StepInputs {
  // [T]. With Capabilities::runs_ahead an id may be sampled_id(k).
  std::span<const int32_t> ids;
  std::span<const int32_t> positions;     // [T] absolute
  std::span<const int32_t> sequence_of;   // [T] index into `sequences`
  std::span<const uint8_t> image;         // [T] 1 = position in an image span; may be empty (no images)
  std::span<const int32_t> decoder_rows;  // [D] rows of T
  std::span<const int32_t> logit_rows;    // [L] rows of D
  std::span<const SequenceSlice> sequences;
  // Rows given in place of embeddings: row `embed_rows[i]` of T becomes embeds[i * hidden ...], f32.
  std::span<const int32_t> embed_rows;
  std::span<const float> embeds;
  // Rows of L from which the executable chooses ids, ascending (Capabilities::samples).
  std::span<const SampleRow> sample_rows;
  // [L] 1 = nobody asks for this row with Executable::logits(); may be empty (any may be asked for).
  std::span<const uint8_t> unread_logits;
  // With Capabilities::runs_ahead: made when the step has run and before the next one does.
  std::span<const state::StateCopy> copies;
};

// In StepInputs::ids: what the step launched right before chooses for its sample row k. Where that chooses none, 0.
constexpr int32_t sampled_id(int32_t k) {
  return -1 - k;
}

// A value read back after a step. Index scores, selections and candidates are ragged: `columns` is the
// widest row, absent entries are -inf or -1.
struct SeamTensor {
  std::string name;
  graph::ElementType type = graph::ElementType::kF32;
  std::vector<int64_t> shape;
  std::vector<float> f32;
  std::vector<int32_t> i32;
};

class Executable {
 public:
  virtual ~Executable() = default;
  // Runs every segment of the step in order. A failed step leaves the sequences' states undefined.
  virtual Result<void> run(const StepInputs& inputs) = 0;
  // Logits of the last run, of rows [first_row, first_row + rows) of L: [rows, vocab] f32, valid until the next run. A row that the
  // step did not have, or said to be unread, is a broken invariant.
  virtual std::span<const float> logits(int first_row, int rows) const = 0;
  // With Capabilities::samples; else broken invariants.
  // `flags` [vocab], 1 = an id that is sampled in no step from now on. What goes wrong on a device fails the next step.
  virtual void never_sample([[maybe_unused]] std::span<const uint8_t> flags) {
    DI_CHECK_MSG(false, "an executable that does not sample");
  }
  // What the last run chose, one a row of StepInputs::sample_rows. Valid until the next run.
  virtual std::span<const Sampled> sampled() const {
    DI_CHECK_MSG(false, "an executable that does not sample");
    return {};
  }
  // With Capabilities::runs_ahead; else broken invariants. run() in two halves, so that a step can be on its way before the one
  // before it has ended: at most kMostUnderWay are. By one thread. What launch() refuses has not begun, and is not under way.
  // The inputs stay where they are until the step is finished.
  static constexpr int kMostUnderWay = 2;
  virtual Result<void> launch([[maybe_unused]] const StepInputs& inputs) {
    DI_CHECK_MSG(false, "an executable that does not run ahead");
    return {};
  }
  // Has the oldest step under way ended, or failed?
  virtual bool ended() {
    DI_CHECK_MSG(false, "an executable that does not run ahead");
    return true;
  }
  // Takes the oldest step under way off, and waits for its end. It is the last run from now on; its logits are valid only if no
  // other had been launched before.
  virtual Result<void> finish() {
    DI_CHECK_MSG(false, "an executable that does not run ahead");
    return {};
  }
  // A seam of the graph by name, copied out. kNotFound names the known ones.
  virtual Result<SeamTensor> seam(const std::string& name) const = 0;
  // Bytes taken, by tag: weights, arena, tables.
  struct Memory {
    std::string tag;
    int64_t bytes = 0;
    bool on_host = false;  // of the host, where steps run in another memory
  };
  virtual std::vector<Memory> memory() const = 0;
};

struct Capabilities {
  std::string backend;      // "reference", "cpu", "cuda"
  std::string kernel_set;   // "plain", "avx2", ...: part of cache keys and fingerprints
  std::string description;  // for doctor: processor, threads
  bool samples = false;     // its executables take StepInputs::sample_rows
  bool runs_ahead = false;  // its executables launch() a step while another runs; they sample, too
};

// Where Engram tables lie, for a backend whose steps run in memory of their own; others read them from the mapped files.
//   kDevice  in that memory
//   kHost    in memory of the host that the device reads
//   kAuto    kDevice where they fit beside the rest of the executable and MemoryRoom::beside, else kHost
enum class EngramTables : uint8_t { kAuto, kDevice, kHost };

struct BackendOptions {
  int threads = 0;      // 0 = all cores
  std::string kernels;  // empty = best available; a name pins the instruction set
  EngramTables engram_tables = EngramTables::kAuto;
};

// The memory that an executable and what comes beside it are to share: it decides what lies where.
struct MemoryRoom {
  int64_t budget = 0;  // bytes of the memory that steps run in; 0: memory_budget()
  int64_t beside = 0;  // of them, for blocks, private areas and snapshots
  int64_t host = 0;    // bytes of the host's memory, where that is another; 0: not known
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual Capabilities capabilities() const = 0;
  // Refuses (kUnsupported, by operation name) a graph it cannot run, and (kOutOfMemory) one that does not fit.
  virtual Result<std::unique_ptr<Executable>> compile(std::shared_ptr<const graph::Graph> graph,
                                                      const state::Registry& registry,
                                                      const StepLimits& limits) = 0;
  // The same with all of the room known; a backend that has no choice of places takes none of it.
  virtual Result<std::unique_ptr<Executable>> compile_within(std::shared_ptr<const graph::Graph> graph,
                                                             const state::Registry& registry,
                                                             const StepLimits& limits, const MemoryRoom&) {
    return compile(std::move(graph), registry, limits);
  }
  // Memory for blocks and private state, zeroed, huge pages where the system has them.
  virtual Result<std::byte*> allocate(size_t bytes, const std::string& tag) = 0;
  // Bytes that a program may plan with in the memory that steps run in; 0: that is the host's, ask there.
  virtual int64_t memory_budget() const { return 0; }
  // Bytes of memory that this many take: allocations come in whole pages.
  virtual size_t taken_by(size_t bytes) const { return bytes; }
  virtual void release(std::byte* address, size_t bytes, const std::string& tag) = 0;
  // Bytes within that memory, into it, out of it; done when they return, and not while a step uses the bytes. What goes
  // wrong on a device fails the next step. As they stand here they are for memory of the host.
  virtual void copy(std::byte* to, const std::byte* from, size_t bytes) { std::memcpy(to, from, bytes); }
  virtual void write(std::byte* to, std::span<const std::byte> from) {
    std::memcpy(to, from.data(), from.size());
  }
  virtual void read(std::span<std::byte> to, const std::byte* from) {
    std::memcpy(to.data(), from, to.size());
  }
  virtual void fill(std::byte* to, uint8_t value, size_t bytes) { std::memset(to, value, bytes); }
};

// The one that computes fastest here: "cuda" where this build has it and a GPU can be used, else "cpu".
std::string best_available();
// "reference", "cpu" or, in a build with CUDA, "cuda". kUnsupported names the ones this build has, or says what the device
// lacks.
Result<std::unique_ptr<Backend>> create(const std::string& name, const BackendOptions& options);

}  // namespace deepinfer::backend
