#include "tensor/tensor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <cstring>

namespace deepinfer::tensor {
namespace {

constexpr std::int64_t kLargestCount = std::int64_t{1} << 62;
constexpr std::size_t kAlignment = 64;

}  // namespace

std::optional<std::int64_t> element_count(std::span<const std::int64_t> shape) {
  std::int64_t count = 1;
  bool empty = false;
  for (const std::int64_t size : shape) {
    if (size < 0) return std::nullopt;
    if (size == 0) {
      empty = true;
      continue;
    }
    if (size > kLargestCount / count) return std::nullopt;
    count *= size;
  }
  return empty ? 0 : count;
}

std::optional<std::size_t> byte_count(Element element, std::span<const std::int64_t> shape) {
  const std::optional<std::int64_t> count = element_count(shape);
  if (!count) return std::nullopt;
  if (element == Element::kE2m1) {
    if (shape.empty() || shape.back() % 2 != 0) return std::nullopt;
    return static_cast<std::size_t>(*count / 2);
  }
  const std::int64_t size = element_bits(element) / 8;
  if (*count > kLargestCount / size) return std::nullopt;
  return static_cast<std::size_t>(*count * size);
}

std::string shape_text(std::span<const std::int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

void HostTensor::Free::operator()(std::byte* pointer) const {
  std::free(pointer);
}

Result<HostTensor> HostTensor::create(Element element, Shape shape) {
  const std::optional<std::size_t> bytes = byte_count(element, shape);
  if (!bytes) {
    return make_error(ErrorKind::kShape,
                      fmt::format("cannot make a {} tensor of shape {}: its size is not a number of bytes",
                                  element_name(element), shape_text(shape)));
  }
  const std::size_t rounded = (std::max(*bytes, std::size_t{1}) + kAlignment - 1) / kAlignment * kAlignment;
  HostTensor tensor;
  tensor.data_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded)));
  if (tensor.data_ == nullptr) {
    return make_error(ErrorKind::kOutOfMemory,
                      fmt::format("cannot make a {} tensor of shape {}: no {} bytes of memory",
                                  element_name(element), shape_text(shape), *bytes));
  }
  std::memset(tensor.data_.get(), 0, rounded);
  tensor.view_ = {element, std::move(shape), tensor.data_.get(), *bytes};
  return tensor;
}

Result<HostTensor> HostTensor::from_f32(Shape shape, std::span<const float> values) {
  DI_ASSIGN(HostTensor tensor, create(Element::kF32, std::move(shape)));
  DI_CHECK(tensor.as<float>().size() == values.size());
  if (!values.empty()) std::memcpy(tensor.data(), values.data(), values.size_bytes());
  return tensor;
}

Result<std::vector<float>> to_f32(const TensorView& tensor) {
  std::vector<float> values(static_cast<std::size_t>(tensor.count()));
  if (tensor.element == Element::kF32) {
    const auto source = tensor.as<float>();
    std::copy(source.begin(), source.end(), values.begin());
  } else if (tensor.element == Element::kBf16) {
    const auto source = tensor.as<Bf16>();
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = bf16_to_f32(source[i]);
  } else {
    return make_error(ErrorKind::kShape,
                      fmt::format("cannot read a {} tensor as F32: it has no values without its scales",
                                  element_name(tensor.element)));
  }
  return values;
}

}  // namespace deepinfer::tensor
