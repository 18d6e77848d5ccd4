#include "backend/cuda/plan/choices.h"

#include <fmt/format.h>

#include <cstddef>

#include "base/check.h"

namespace deepinfer::backend::cuda {

const KernelChoices& choices_for(int capability) {
  const std::span<const KernelChoices> table = choices_table();
  for (const KernelChoices& row : table)
    if (row.capability == capability) return row;
  return table.back();
}

std::string choices_source(std::span<const KernelChoices> table) {
  std::string source = R"(// Written by `deepinfer bench tune --write`: data of choices.h.
#include "backend/cuda/plan/choices.h"

namespace deepinfer::backend::cuda {

std::span<const KernelChoices> choices_table() {
  // Capability, many rows, many pairs, fused queries, fused queries over NVFP4, shared index queries, measured.
  static constexpr KernelChoices kTable[] = {
)";
  for (const KernelChoices& row : table)
    source += fmt::format("      {{{}, {}, {}, {}, {}, {}, \"{}\"}},\n", row.capability, row.many_rows,
                          row.many_pairs, row.fused_queries, row.fused_queries_nvfp4,
                          row.shared_index_queries, row.measured);
  return source + R"(  };
  return kTable;
}

}  // namespace deepinfer::backend::cuda
)";
}

int crossing(std::span<const int> sizes, std::span<const double> first, std::span<const double> second) {
  DI_CHECK(!sizes.empty() && first.size() == sizes.size() && second.size() == sizes.size());
  std::size_t from = sizes.size();
  while (from > 0 && second[from - 1] <= first[from - 1])
    --from;
  return from < sizes.size() ? sizes[from] : sizes.back() + 1;
}

}  // namespace deepinfer::backend::cuda
