// Shapes, views of tensors in somebody's memory, and tensors that own their memory on the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/result.h"
#include "tensor/element.h"

namespace deepinfer::tensor {

// Sizes of the dimensions, slowest first. An empty shape is a scalar: one element.
using Shape = std::vector<std::int64_t>;

// Product of the dimensions; nothing if one is negative or the product exceeds 2^62.
std::optional<std::int64_t> element_count(std::span<const std::int64_t> shape);
// Bytes of a dense tensor; nothing on overflow, or if an E2M1 tensor has an odd last dimension.
std::optional<std::size_t> byte_count(Element element, std::span<const std::int64_t> shape);
// "[5120, 1152]".
std::string shape_text(std::span<const std::int64_t> shape);

template <class T>
struct ElementOf;
template <>
struct ElementOf<float> {
  static constexpr Element value = Element::kF32;
};
template <>
struct ElementOf<Bf16> {
  static constexpr Element value = Element::kBf16;
};
template <>
struct ElementOf<std::int32_t> {
  static constexpr Element value = Element::kI32;
};
template <>
struct ElementOf<std::int64_t> {
  static constexpr Element value = Element::kI64;
};
template <>
struct ElementOf<std::int8_t> {
  static constexpr Element value = Element::kI8;
};

// A dense row-major tensor in memory that somebody else owns (a mapped checkpoint, a HostTensor). `data` is aligned to
// the element's size.
struct TensorView {
  Element element = Element::kU8;
  Shape shape;
  const std::byte* data = nullptr;
  std::size_t bytes = 0;

  std::int64_t count() const { return *element_count(shape); }
  // The elements as T; the element type must be T's (checked). Byte-sized elements may all be read as uint8_t.
  template <class T>
  std::span<const T> as() const {
    if constexpr (std::is_same_v<T, std::uint8_t>) {
      DI_CHECK(element_bits(element) <= 8);
    } else {
      DI_CHECK(element == ElementOf<T>::value);
    }
    return {reinterpret_cast<const T*>(data), bytes / sizeof(T)};
  }
};

// A tensor that owns its memory: 64-byte aligned, zeroed. Movable, not copyable.
class HostTensor {
 public:
  HostTensor() = default;
  // kShape if the shape overflows, kOutOfMemory if the memory cannot be had.
  static Result<HostTensor> create(Element element, Shape shape);
  // A tensor of f32 values; the count must be the shape's (checked).
  static Result<HostTensor> from_f32(Shape shape, std::span<const float> values);

  Element element() const { return view_.element; }
  const Shape& shape() const { return view_.shape; }
  std::size_t bytes() const { return view_.bytes; }
  const TensorView& view() const { return view_; }
  std::byte* data() { return data_.get(); }
  template <class T>
  std::span<T> as() {
    const auto elements = view_.as<T>();
    return {const_cast<T*>(elements.data()), elements.size()};
  }
  template <class T>
  std::span<const T> as() const {
    return view_.as<T>();
  }

 private:
  struct Free {
    void operator()(std::byte* pointer) const;
  };
  std::unique_ptr<std::byte[], Free> data_;
  TensorView view_;
};

// The values of an F32 or BF16 tensor in fp32; kShape for other element types.
Result<std::vector<float>> to_f32(const TensorView& tensor);

}  // namespace deepinfer::tensor
