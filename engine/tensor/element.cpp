#include "tensor/element.h"

#include "base/check.h"

namespace deepinfer::tensor {
namespace {

struct ElementRow {
  Element element;
  int bits;
  std::string_view name;
  std::string_view dtype;
};

constexpr ElementRow kElements[] = {
    {Element::kF32, 32, "F32", "F32"},
    {Element::kBf16, 16, "BF16", "BF16"},
    {Element::kE4m3, 8, "E4M3", "F8_E4M3"},
    {Element::kE2m1, 4, "E2M1", "I8"},
    {Element::kUe8m0, 8, "UE8M0", "F8_E8M0"},
    {Element::kI8, 8, "I8", "I8"},
    {Element::kI32, 32, "I32", "I32"},
    {Element::kI64, 64, "I64", "I64"},
    {Element::kU8, 8, "U8", "U8"},
};

const ElementRow& row_of(Element element) {
  for (const ElementRow& row : kElements) {
    if (row.element == element) return row;
  }
  check_failed(__FILE__, __LINE__, "element", "not an element type");
}

}  // namespace

int element_bits(Element element) {
  return row_of(element).bits;
}

std::string_view element_name(Element element) {
  return row_of(element).name;
}

std::string_view safetensors_dtype(Element element) {
  return row_of(element).dtype;
}

std::optional<Element> element_of_safetensors_dtype(std::string_view dtype) {
  for (const ElementRow& row : kElements) {
    if (row.element != Element::kE2m1 && row.dtype == dtype) return row.element;
  }
  return std::nullopt;
}

}  // namespace deepinfer::tensor
