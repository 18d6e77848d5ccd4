#include <fmt/format.h>

#include <algorithm>

#include "backend/cuda/kernels/common/records.h"
#include "backend/cuda/kernels/common/row_chain.h"
#include "backend/cuda/ops.h"
#include "base/check.h"

namespace deepinfer::backend::cuda {

using graph::Node;
using graph::Op;

namespace {

Result<DeviceOp> rope_op(const Prepare& prepare, const Node& node) {
  const auto& attributes = std::get<graph::RopeAttributes>(node.attributes);
  const Rotation rotation = rotation_of(prepare, node);
  const Values v = prepare.values(node.inputs[0]), y = prepare.values(node.outputs[0]);
  const int vectors = static_cast<int>(v.columns) / prepare.last_dimension(node.inputs[0]);
  const RowSpace rows = prepare.space_of(node.outputs[0]);
  DI_CHECK((rows.axis == RowAxis::kGroups) == attributes.group_start);
  return DeviceOp([=, step = &prepare.step](const Launch& launch) {
    rope(step->data(), launch.sized(rows), rotation, v, vectors, y, launch.stream);
  });
}

Result<DeviceOp> hadamard_op(const Prepare& prepare, const Node& node) {
  const int size = prepare.last_dimension(node.inputs[0]);
  if (size > 512 || (size & (size - 1)) != 0)
    return make_error(
        ErrorKind::kUnsupported,
        fmt::format("cannot compile hadamard of {} channels; the cuda backend takes powers of two up to 512",
                    size));
  const Values v = prepare.values(node.inputs[0]), y = prepare.values(node.outputs[0]);
  const RowSpace rows = prepare.space_of(node.outputs[0]);
  return DeviceOp([=, step = &prepare.step](const Launch& launch) {
    hadamard(step->data(), launch.sized(rows), v, size, y, launch.stream);
  });
}

Result<DeviceOp> compress_op(const Prepare& prepare, const Node& node) {
  const auto& attributes = std::get<graph::CompressAttributes>(node.attributes);
  Compression compression;
  compression.ratio = attributes.ratio;
  compression.overlap = attributes.overlap;
  compression.channels = attributes.channels;
  if (!node.weights.empty()) {
    DI_ASSIGN(compression.ape, prepare.weights.values(node.weights[0]));
  }
  if (attributes.ring >= 0) compression.ring = prepare.record(prepare.registry.at(attributes.ring)).place;
  const Values u = prepare.values(node.inputs[0]);
  const Values g = node.inputs.size() > 1 ? prepare.values(node.inputs[1]) : Values{};
  const Values pooled = prepare.values(node.outputs[0]);
  const RowSpace rows = prepare.space_of(node.outputs[0]);
  return DeviceOp([=, step = &prepare.step](const Launch& launch) {
    compress(step->data(), launch.sized(rows), compression, u, g, pooled, launch.stream);
  });
}

// What the parts of a fused chain do to a vector. The last part of a block write is the write itself.
Result<RowChain> chain_of(const Prepare& prepare, const std::vector<const Node*>& parts) {
  RowChain chain;
  chain.size = prepare.last_dimension(parts.front()->inputs[0]);
  if (chain.size > kMostChainChannels)
    return make_error(ErrorKind::kUnsupported,
                      fmt::format("cannot compile rows of {} channels; the cuda backend takes up to {}",
                                  chain.size, kMostChainChannels));
  for (const Node* part : parts) {
    switch (part->op) {
      case Op::kRmsNorm:
      case Op::kHeadRmsNorm:
        chain.norm = true;
        chain.norm_eps = std::get<graph::NormAttributes>(part->attributes).eps;
        if (part->op == Op::kRmsNorm) {
          DI_ASSIGN(chain.norm_weight, prepare.weights.values(part->weights[0]));
        }
        break;
      case Op::kRope:
        chain.rotates = true;
        chain.rotation = rotation_of(prepare, *part);
        break;
      case Op::kHadamard: chain.hadamard = true; break;
      case Op::kFakeQuantise:
      case Op::kWindowRows:
        chain.quantises = true;
        chain.shape = record_shape(std::get<graph::QuantiseAttributes>(part->attributes).record);
        break;
      case Op::kGlobalWrite:
      case Op::kKeyWrite: break;
      default: DI_CHECK_MSG(false, "a part that is no operation on rows");
    }
    for (const graph::ValueId made : part->outputs)
      DI_CHECK(prepare.value(made).type == graph::ElementType::kBf16);
  }
  return chain;
}

// The norm that a fused chain takes along, moved out of `parts`; null: it has none. It makes a value of its own, no other norm does.
const Node* take_norm_beside(const Node& node, std::vector<const Node*>& parts) {
  const auto found = std::find_if(parts.begin(), parts.end(), [&](const Node* part) {
    return part->op == Op::kRmsNorm &&
           std::find(node.outputs.begin(), node.outputs.end(), part->outputs[0]) != node.outputs.end();
  });
  if (found == parts.end()) return nullptr;
  const Node* const norm = *found;
  parts.erase(found);
  return norm;
}

Result<DeviceOp> chain_op(const Prepare& prepare, const Node& node) {
  std::vector<const Node*> parts;
  for (const int part : std::get<graph::FusedAttributes>(node.attributes).parts)
    parts.push_back(&prepare.graph.fused_parts[static_cast<std::size_t>(part)]);
  const Node* const beside = take_norm_beside(node, parts);
  DI_ASSIGN(const RowChain chain, chain_of(prepare, parts));
  const Values v = prepare.values(parts.front()->inputs[0]);
  const StepBuffers* step = &prepare.step;
  if (node.op == Op::kFusedRows) {
    const Values y = prepare.values(parts.back()->outputs[0]);
    const RowSpace rows = prepare.space_of(parts.back()->outputs[0]);
    NormBeside norm;
    if (beside != nullptr) {
      norm = {prepare.values(beside->inputs[0]), prepare.values(beside->outputs[0]), nullptr,
              std::get<graph::NormAttributes>(beside->attributes).eps};
      DI_ASSIGN(norm.weight, prepare.weights.values(beside->weights[0]));
    }
    return DeviceOp([=](const Launch& launch) {
      row_chain(step->data(), launch.sized(rows), chain, v, y, norm, launch.stream);
    });
  }
  const auto& target = prepare.registry.at(std::get<graph::StateAttributes>(parts.back()->attributes).target);
  const Record record = prepare.record(target);
  const RowSpace rows = prepare.space_of(node.inputs[0]);
  return DeviceOp([=](const Launch& launch) {
    row_chain_to_blocks(step->data(), launch.sized(rows), chain, v, record, launch.stream);
  });
}

}  // namespace

Result<DeviceOp> prepare_record(const Prepare& prepare, const Node& node) {
  const StepBuffers* step = &prepare.step;
  switch (node.op) {
    case Op::kRope: return rope_op(prepare, node);
    case Op::kHadamard: return hadamard_op(prepare, node);
    case Op::kCompress: return compress_op(prepare, node);
    case Op::kFusedRows:
    case Op::kFusedBlockWrite: return chain_op(prepare, node);
    case Op::kFakeQuantise:
    case Op::kWindowRows: {
      const RecordShape shape = record_shape(std::get<graph::QuantiseAttributes>(node.attributes).record);
      const Values v = prepare.values(node.inputs[0]), y = prepare.values(node.outputs[0]);
      const RowSpace rows = prepare.space_of(node.outputs[0]);
      return DeviceOp([=](const Launch& launch) {
        fake_quantise(step->data(), launch.sized(rows), shape, v, y, launch.stream);
      });
    }
    default: break;
  }
  const auto& target = prepare.registry.at(std::get<graph::StateAttributes>(node.attributes).target);
  const Record record = prepare.record(target);
  const Values first = prepare.values(node.inputs[0]);
  const RowSpace rows = prepare.space_of(node.inputs[0]);
  if (node.op == Op::kWindowWrite)
    return DeviceOp([=](const Launch& launch) {
      write_window(step->data(), launch.sized(rows), record, first, launch.stream);
    });
  if (node.op == Op::kCompressorWrite) {
    const Values second = prepare.values(node.inputs[1]);
    return DeviceOp([=](const Launch& launch) {
      write_compressor(step->data(), launch.sized(rows), record.place, first, second, launch.stream);
    });
  }
  return DeviceOp([=](const Launch& launch) {
    write_blocks(step->data(), launch.sized(rows), record, first, launch.stream);
  });
}

}  // namespace deepinfer::backend::cuda
