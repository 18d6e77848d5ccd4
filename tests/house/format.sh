#!/usr/bin/env bash
# Fails when a C++ file of the tree is not as clang-format 16 would write it; `format.sh --fix` writes it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
command -v clang-format-16 >/dev/null || {
  echo "clang-format-16 is missing: apt-get install clang-format-16" >&2
  exit 1
}
mode=(--dry-run -Werror)
[[ ${1-} == --fix ]] && mode=(-i)
folders=()
for folder in engine apps tests bench examples fuzz tools; do [[ -d $folder ]] && folders+=("$folder"); done
find "${folders[@]}" \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) -print0 |
  xargs -0 -P "$(nproc)" -n 16 clang-format-16 "${mode[@]}"
