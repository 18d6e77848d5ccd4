#include <fmt/format.h>

#include "backend/cuda/kernels/common/records.h"
#include "backend/cuda/ops.h"
#include "base/check.h"

namespace deepinfer::backend::cuda {

using graph::Node;
using graph::Op;

namespace {

Result<DeviceOp> rope_op(const Prepare& prepare, const Node& node) {
  const auto& attributes = std::get<graph::RopeAttributes>(node.attributes);
  const DeviceRope& table = prepare.ropes[static_cast<std::size_t>(attributes.table)];
  DI_CHECK(table.pairs * 2 == attributes.rope_channels);
  const Rotation rotation{table.angles, table.frequencies, table.pairs, attributes.inverse};
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

}  // namespace

Result<DeviceOp> prepare_record(const Prepare& prepare, const Node& node) {
  const StepBuffers* step = &prepare.step;
  switch (node.op) {
    case Op::kRope: return rope_op(prepare, node);
    case Op::kHadamard: return hadamard_op(prepare, node);
    case Op::kCompress: return compress_op(prepare, node);
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
      write_window(step->data(), launch.most[kSequenceCount], rows.axis, record, first, launch.stream);
    });
  if (node.op == Op::kCompressorWrite) {
    const Values second = prepare.values(node.inputs[1]);
    return DeviceOp([=](const Launch& launch) {
      write_compressor(step->data(), launch.most[kSequenceCount], record.place, first, second, launch.stream);
    });
  }
  return DeviceOp([=](const Launch& launch) {
    write_blocks(step->data(), launch.sized(rows), record, first, launch.stream);
  });
}

}  // namespace deepinfer::backend::cuda
