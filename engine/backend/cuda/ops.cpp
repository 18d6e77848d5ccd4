#include "backend/cuda/ops.h"

#include <fmt/format.h>

#include "base/check.h"

namespace deepinfer::backend::cuda {

using graph::Axis;
using graph::Node;
using graph::Op;
using state::RecordFormat;

Values Prepare::values(graph::ValueId id) const {
  DI_CHECK(value(id).type != graph::ElementType::kI32);
  return {addresses[static_cast<std::size_t>(id)], value(id).type == graph::ElementType::kBf16,
          columns_of(value(id))};
}

std::int32_t* Prepare::ints(graph::ValueId id) const {
  DI_CHECK(value(id).type == graph::ElementType::kI32);
  return reinterpret_cast<std::int32_t*>(addresses[static_cast<std::size_t>(id)]);
}

float* Prepare::floats(graph::ValueId id) const {
  DI_CHECK(value(id).type == graph::ElementType::kF32);
  return reinterpret_cast<float*>(addresses[static_cast<std::size_t>(id)]);
}

RowSpace Prepare::space(graph::Dim dim) const {
  switch (dim.axis) {
    case Axis::kTokens: return {RowAxis::kTokens, kTokenCount, 1, 0};
    case Axis::kDecoder: return {RowAxis::kDecoder, kDecoderCount, 1, 0};
    case Axis::kLogits: return {RowAxis::kLogits, kLogitCount, 1, 0};
    case Axis::kGroups: {
      const int list = step.list_of(static_cast<int>(dim.value));
      DI_CHECK(list >= 0);
      return {RowAxis::kGroups, kGroupCount + list, static_cast<int>(dim.value), 0};
    }
    default: break;
  }
  DI_CHECK_MSG(false, "rows of an axis that no operation runs over");
  return {};
}

Rotation rotation_of(const Prepare& prepare, const Node& rope) {
  const auto& attributes = std::get<graph::RopeAttributes>(rope.attributes);
  const DeviceRope& table = prepare.ropes[static_cast<std::size_t>(attributes.table)];
  DI_CHECK(table.pairs * 2 == attributes.rope_channels);
  return {table.angles, table.frequencies, table.pairs, attributes.inverse};
}

RecordShape record_shape(const state::RecordLayout& layout) {
  RecordShape shape;
  shape.channels = layout.channels;
  shape.quantised = layout.quantised;
  shape.group = layout.group;
  shape.tail_f32 = layout.tail_f32;
  switch (layout.format) {
    case RecordFormat::kF32: shape.code = RecordCode::kF32; break;
    case RecordFormat::kBf16: shape.code = RecordCode::kBf16; break;
    case RecordFormat::kFp8Block: shape.code = RecordCode::kFp8; break;
    case RecordFormat::kNvfp4:
      shape.code = RecordCode::kNvfp4;
      shape.group = 16;
      break;
    case RecordFormat::kMxfp4:
      shape.code = RecordCode::kMxfp4;
      shape.group = 32;
      break;
    case RecordFormat::kI32: shape.code = RecordCode::kF32; break;  // raw words
  }
  return shape;
}

Record Prepare::record(const state::StateClass& entry) const {
  Record record;
  record.shape = record_shape(entry.record);
  record.place = {
      entry.code_offset,         entry.tail_offset,          entry.scale_offset, entry.record.code_bytes(),
      entry.record.tail_bytes(), entry.record.scale_bytes(), entry.rows};
  return record;
}

const state::StateClass* Prepare::reads(const Node& node, state::Kind kind) const {
  for (const state::ClassId id : node.reads)
    if (registry.at(id).kind == kind) return &registry.at(id);
  return nullptr;
}

Result<std::byte*> Prepare::keep_bytes(const void* content, std::size_t bytes) const {
  DI_ASSIGN(DeviceBuffer buffer, DeviceBuffer::create(device, "tables", std::max<std::size_t>(bytes, 16)));
  device->upload(buffer.data(), content, bytes, "took tables");
  DI_TRY(device->healthy());
  tables.push_back(std::move(buffer));
  return tables.back().data();
}

bool has_op(Op op, bool wide) {
  if (op < Op::kFusedHcSite || op == Op::kFusedLinears) return true;
  return !wide;
}

Result<DeviceOp> prepare_node(const Prepare& prepare, const ScheduledNode& item) {
  const Node& node = *item.node;
  switch (node.op) {
    case Op::kLinear:
    case Op::kGroupedLinear:
    case Op::kFusedLinears: return prepare_linear(prepare, node);
    case Op::kRope:
    case Op::kHadamard:
    case Op::kFakeQuantise:
    case Op::kWindowRows:
    case Op::kWindowWrite:
    case Op::kCompress:
    case Op::kCompressorWrite:
    case Op::kGlobalWrite:
    case Op::kKeyWrite:
    case Op::kFusedRows:
    case Op::kFusedBlockWrite: return prepare_record(prepare, node);
    case Op::kFusedHcSite: return prepare_residual_site(prepare, node);
    case Op::kIndexScores: return prepare_index(prepare, node, item.site);
    case Op::kSelectAllRows:
    case Op::kSparseAttention:
    case Op::kFusedAttention: return prepare_attention(prepare, node);
    case Op::kRouterScores:
    case Op::kGateTopK:
    case Op::kHashRoute:
    case Op::kExpertGateUp:
    case Op::kSwiGlu:
    case Op::kFusedGate:
    case Op::kFusedExperts:
    case Op::kExpertDown:
    case Op::kExpertSum: return prepare_experts(prepare, node);
    default: return prepare_stream(prepare, node);
  }
}

}  // namespace deepinfer::backend::cuda
