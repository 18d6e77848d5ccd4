#!/usr/bin/env bash
# Lints the sources of engine/ and apps/ with clang-tidy 16 (checks: .clang-tidy). usage: tidy.sh BUILD_FOLDER [FILE...]
# A file that passed is remembered by the digest of everything it depends on, in BUILD_FOLDER/tidy/, so that a second run
# looks only at what changed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
build=${1:?usage: tidy.sh BUILD_FOLDER [FILE...]}
shift
command -v clang-tidy-16 >/dev/null || {
  echo "clang-tidy-16 is missing: apt-get install clang-tidy-16" >&2
  exit 1
}
[[ -f $build/compile_commands.json ]] || {
  echo "$build has no compile_commands.json" >&2
  exit 1
}
mkdir -p "$build/tidy"

# All headers together: coarse, but never stale.
headers=$(find engine apps -name '*.h' -print0 | sort -z | xargs -0 cat .clang-tidy | sha256sum | cut -c1-32)

check_one() {
  local file=$1 key
  key=$( (echo "$headers"; cat "$file") | sha256sum | cut -c1-32)
  [[ -e $build/tidy/$key ]] && return 0
  clang-tidy-16 --quiet -p "$build" --extra-arg=-Wno-unknown-warning-option --extra-arg=-Wno-error "$file" 2>/dev/null || return 1
  : >"$build/tidy/$key"
}
export -f check_one
export build headers

if (($# > 0)); then
  printf '%s\0' "$@"
else
  # Only what the build compiles: without nvcc there is no cuda backend.
  optional=()
  grep -q backend/cuda/executor.cpp "$build/compile_commands.json" || optional=(! -path '*/backend/cuda/*')
  find engine apps -name '*.cpp' ! -name '*_test.cpp' ! -name '*_fuzz.cpp' "${optional[@]}" -print0
fi | sort -z | xargs -0 -P "$(nproc)" -n 1 bash -c 'check_one "$0"'
