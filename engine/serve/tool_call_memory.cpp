#include "serve/tool_call_memory.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "text/json_value.h"

namespace deepinfer::serve {
namespace {

using text::JsonValue;

bool same_value(const JsonValue& a, const JsonValue& b);

bool same_members(const JsonValue& a, const JsonValue& b) {
  std::map<std::string_view, const JsonValue*> members;
  for (std::size_t i = 0; i < b.size(); ++i)
    members.emplace(b.keys()[i], &b.items()[i]);
  for (std::size_t i = 0; i < a.size(); ++i) {
    const auto other = members.find(a.keys()[i]);
    if (other == members.end() || !same_value(a.items()[i], *other->second)) return false;
  }
  return true;
}

// Integers count digit by digit: as doubles, large ones that differ would be equal.
bool same_number(const JsonValue& a, const JsonValue& b) {
  if (a.text() == b.text()) return true;
  return !(a.is_integer() && b.is_integer()) && a.as_double() == b.as_double();
}

bool same_value(const JsonValue& a, const JsonValue& b) {
  if (a.type() != b.type() || a.size() != b.size()) return false;
  switch (a.type()) {
    case JsonValue::Type::kNull: return true;
    case JsonValue::Type::kBoolean: return a.boolean() == b.boolean();
    case JsonValue::Type::kNumber: return same_number(a, b);
    case JsonValue::Type::kString: return a.text() == b.text();
    case JsonValue::Type::kArray:
      return std::equal(a.items().begin(), a.items().end(), b.items().begin(), same_value);
    case JsonValue::Type::kObject: return same_members(a, b);
  }
  return false;
}

}  // namespace

bool same_json(const std::string& a, const std::string& b) {
  if (a == b) return true;
  const auto left = text::read_json(a), right = text::read_json(b);
  return left.ok() && right.ok() && same_value(*left, *right);
}

std::size_t ToolCallMemory::Call::bytes() const {
  std::size_t size = name.size() + arguments.size();
  for (const text::PromptPiece& piece : written)
    size += sizeof(piece) + piece.bytes.size();
  return size;
}

void ToolCallMemory::remember(const std::string& tenant, const std::string& id,
                              const text::ParsedCall& call) {
  if (!call.written.empty()) calls_.put(tenant, id, {call.name, call.arguments, call.written});
}

ToolCallMemory::Recalled ToolCallMemory::recall(const std::string& tenant, text::Conversation& conversation) {
  Recalled recalled;
  for (text::Message& message : conversation.messages) {
    for (text::ToolCall& call : message.tool_calls) {
      auto known = calls_.find(tenant, call.id);
      if (known && known->name == call.name && same_json(known->arguments, call.arguments)) {
        call.written = std::move(known->written);
        ++recalled.replays;
      } else {
        ++recalled.misses;
      }
    }
  }
  return recalled;
}

}  // namespace deepinfer::serve
