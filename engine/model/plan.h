// What a model takes of a device's memory and what fits beside it, before anything is loaded: from a graph with or
// without weights. Every block of memory is a row with a tag, a place and a reason.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "graph/arena.h"
#include "model/model.h"

namespace deepinfer::model {

enum class PlanPlace : uint8_t {
  kDevice,
  kHost,       // memory of the host, where that is not the device
  kHostMapped  // file pages, taken and given back by the system
};

struct PlanRow {
  std::string tag;  // "weights fp4", "step buffers", ...
  PlanPlace place = PlanPlace::kDevice;
  int64_t bytes = 0;  // on each device; on the host in all
  std::string detail;
};

struct PlanRequest {
  std::string device = "cpu";  // names the device in texts
  int devices = 1;             // of one host, the model sharded over them
  int64_t memory_bytes = 0;    // of one device, all of it for this model
  graph::StepExtents step;  // the largest step; step.sequences run at a time, none longer than step.context
  int workers = 1;          // threads that hold one row of index scores each
  bool device_is_host = false;  // a CPU: what lies on the host takes of the same memory
  // What the device's backend says that weights, tables and the values of a step take, which this room does not know either. Empty:
  // estimated from the graph.
  std::vector<PlanRow> executable;
  // Of a prefix cache, which this room does not know: rows beside the blocks, and the host's bytes for an index over so many
  // blocks (not falling; empty: no index).
  std::vector<PlanRow> more;
  std::function<int64_t(int64_t blocks)> index_bytes;
  std::vector<int64_t> contexts = {4096, 32768, 131072, 1048576};  // lengths to count sequences for
};

struct PlanFit {
  int64_t context = 0;
  int64_t blocks = 0;          // of 128 tokens, one sequence
  int64_t sequence_bytes = 0;  // its blocks and its private state
  int64_t sequences = 0;       // such sequences that fit at a time
};

struct Plan {
  PlanRequest request;
  std::string model;          // "v4.1, 40 layers, precision bf16"
  std::vector<PlanRow> rows;  // without the blocks; the index is the one over all of them
  int64_t used_bytes = 0;     // of kDevice rows
  int64_t left_bytes = 0;     // for blocks; negative when the rows alone do not fit
  int64_t block_bytes = 0;
  int64_t private_bytes = 0;  // of a sequence, already in the rows for step.sequences of them
  int64_t blocks = 0;         // that fit into left_bytes
  std::vector<PlanFit> fits;  // for the asked contexts that the model has positions for
  bool fits_one() const;      // one sequence of step.context tokens fits
  std::string text() const;
};

// Bytes of the weights that stay in memory: all but Engram tables, which are read from their mapped files.
int64_t resident_weight_bytes(const graph::Graph& graph);

// With more than one device, experts, the large projections, embedding and head are divided by their number where it
// divides them; everything else, state too, is on each (backbone.md 9.3, attention.md 12.3). kInvalidArgument for sizes
// that are not positive.
Result<Plan> plan(const Model& model, const PlanRequest& request);

}  // namespace deepinfer::model
