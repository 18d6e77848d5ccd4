#include "backend/cpu/kernels/kernel_set.h"

namespace deepinfer::backend::cpu {

namespace baseline {
extern const KernelSet kSet;
}
namespace avx2 {
extern const KernelSet kSet;
}
namespace avx512 {
extern const KernelSet kSet;
}
namespace avx512bf16 {
extern const KernelSet kSet;
}

namespace {

bool runs_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
bool runs_avx512() {
  return runs_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
bool runs_avx512bf16() {
  return runs_avx512() && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi");
}

}  // namespace

std::vector<const KernelSet*> compiled_sets() {
  return {&baseline::kSet, &avx2::kSet, &avx512::kSet, &avx512bf16::kSet};
}

std::vector<const KernelSet*> available_sets() {
  __builtin_cpu_init();
  std::vector<const KernelSet*> sets = {&baseline::kSet};
  if (runs_avx2()) sets.push_back(&avx2::kSet);
  if (runs_avx512()) sets.push_back(&avx512::kSet);
  if (runs_avx512bf16()) sets.push_back(&avx512bf16::kSet);
  return sets;
}

Result<const KernelSet*> choose(std::string_view name) {
  const std::vector<const KernelSet*> available = available_sets();
  if (name.empty() || name == "auto") return available.back();
  std::string names;
  for (const KernelSet* set : available) {
    if (name == set->name) return set;
    names += names.empty() ? set->name : std::string(", ") + set->name;
  }
  bool compiled = false;
  for (const KernelSet* set : compiled_sets())
    compiled = compiled || name == set->name;
  return make_error(ErrorKind::kUnsupported,
                    "cannot use kernel set '" + std::string(name) + "': " +
                        (compiled ? "this processor lacks its instructions" : "this build has no such set"),
                    "choose one of: auto, " + names);
}

}  // namespace deepinfer::backend::cpu
