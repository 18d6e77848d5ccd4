#include "text/arguments_builder.h"

#include <algorithm>

#include "base/check.h"

namespace deepinfer::text {

void ArgumentsBuilder::begin_parameter(std::string& out) {
  if (wrapping_) {
    out += held_;
    held_.clear();
    wrapping_ = false;
  }
  stage_ = Stage::kBegun;
}

void ArgumentsBuilder::key(std::string_view bytes, std::string& out) {
  DI_CHECK(stage_ == Stage::kBegun);
  stage_ = Stage::kKey;
  std::string name = to_valid_utf8(bytes);
  dropped_ = std::find(keys_.begin(), keys_.end(), name) != keys_.end();
  if (dropped_) {
    ++repairs_;
    return;
  }
  wrapping_ = schema_ != nullptr && schema_->known() && keys_.empty() &&
              (name == "arguments" || name == "input") && !schema_->has(name);
  sink(out) += separator();
  sink(out) += json_string(name);
  keys_.push_back(std::move(name));
}

void ArgumentsBuilder::after_key(std::string& out) {
  DI_CHECK(stage_ == Stage::kKey);
  stage_ = Stage::kAfterKey;
  if (!dropped_) sink(out) += ": ";
}

void ArgumentsBuilder::begin_value(Kind kind, std::string& out) {
  DI_CHECK(stage_ == Stage::kAfterKey);
  stage_ = Stage::kValue;
  kind_ = kind;
  value_.clear();
  if (dropped_) return;
  const bool no_string = schema_ != nullptr && (schema_->types(keys_.back()) & kJsonString) == 0;
  buffered_ = kind == Kind::kJson || no_string || wrapping_;
  if (!buffered_) out += '"';
}

void ArgumentsBuilder::value(std::string_view bytes, std::string& out) {
  DI_CHECK(stage_ == Stage::kValue);
  if (dropped_) return;
  if (buffered_) {
    utf8_.push(bytes, value_);
    return;
  }
  piece_.clear();
  utf8_.push(bytes, piece_);
  append_json_escaped(piece_, out);
}

std::string ArgumentsBuilder::finished_json_value() {
  if (is_json(value_)) return value_;
  ++repairs_;
  const std::uint8_t types = schema_ == nullptr ? kAnyJsonType : schema_->types(keys_.back());
  if (types != kAnyJsonType && (types & kJsonString) != 0) return json_string(value_);
  if (auto mended = mend_json(value_)) return *std::move(mended);
  return json_string(value_);
}

std::string ArgumentsBuilder::finished_string_value() {
  const std::uint8_t types = schema_ == nullptr ? kAnyJsonType : schema_->types(keys_.back());
  if ((types & kJsonString) == 0 && is_json(value_) && (json_types(value_) & types) != 0) {
    ++repairs_;
    return value_;
  }
  return json_string(value_);
}

void ArgumentsBuilder::end_value(std::string& out) {
  DI_CHECK(stage_ == Stage::kValue);
  stage_ = Stage::kBetween;
  if (dropped_) return;
  if (!buffered_) {
    piece_.clear();
    utf8_.finish(piece_);
    out += piece_;
    out += '"';
    return;
  }
  utf8_.finish(value_);
  if (wrapping_) wrapped_ = value_;
  sink(out) += kind_ == Kind::kJson ? finished_json_value() : finished_string_value();
}

void ArgumentsBuilder::no_value(std::string& out) {
  if (stage_ == Stage::kKey) after_key(out);
  DI_CHECK(stage_ == Stage::kAfterKey);
  stage_ = Stage::kBetween;
  if (dropped_) return;
  ++repairs_;
  wrapped_.clear();
  sink(out) += "null";
}

void ArgumentsBuilder::close(std::string& out) {
  if (stage_ == Stage::kValue) {
    ++repairs_;
    end_value(out);
  } else if (stage_ == Stage::kKey || stage_ == Stage::kAfterKey) {
    no_value(out);
  } else if (stage_ == Stage::kBegun) {
    ++repairs_;
  }
  stage_ = Stage::kBetween;
  if (wrapping_ && is_json(wrapped_) && schema_->fits(wrapped_)) {
    ++repairs_;
    out += wrapped_;
  } else {
    out += held_;
    out += keys_.empty() ? "{}" : "}";
  }
  wrapping_ = false;
}

void ArgumentsBuilder::cut(std::string_view key, bool quoted, std::string& out) {
  out += held_;
  held_.clear();
  if (stage_ == Stage::kBegun) {
    out += separator();
    if (quoted) {
      out += '"';
      append_json_escaped(to_valid_utf8(key), out);
    }
  } else if (stage_ == Stage::kValue && !dropped_) {
    utf8_.finish(value_);  // empty but for what is held of a character, when the value was streamed
    if (buffered_ && kind_ == Kind::kJson) {
      out += value_;
    } else {
      if (buffered_) out += '"';
      append_json_escaped(value_, out);
    }
  }
  stage_ = Stage::kBetween;
}

}  // namespace deepinfer::text
