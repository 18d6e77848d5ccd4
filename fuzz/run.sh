#!/usr/bin/env bash
# Builds the libFuzzer programs (every engine/<room>/*_fuzz.cpp) with clang 16, AddressSanitizer and
# UndefinedBehaviorSanitizer, and runs them one after another.
#
# usage: fuzz/run.sh [--seconds N] [--build FOLDER] [NAME...]
#   --seconds N     time of all programs together (default 600; CI takes 60)
#   --build FOLDER  where to build and keep the inputs found so far (default build-fuzz)
#   NAME            only these, e.g. safetensors_fuzz
# Start inputs: fuzz/seeds/NAME/. An input that fails stays in FOLDER/failures/NAME/; mend the fault and add it to the seeds.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
seconds=600
build=build-fuzz
names=()
while (($# > 0)); do
  case $1 in
    --seconds) seconds=${2:?--seconds takes a number}; shift ;;
    --build) build=${2:?--build takes a folder}; shift ;;
    --help | -h) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
    -*) echo "fuzz/run.sh: unknown option $1" >&2; exit 2 ;;
    *) names+=("$1") ;;
  esac
  shift
done
command -v clang++-16 >/dev/null || {
  echo "clang++-16 is missing: apt-get install clang-16 libclang-rt-16-dev" >&2
  exit 1
}
cmake -S . -B "$build" -G Ninja -DCMAKE_CXX_COMPILER=clang++-16 -DCMAKE_BUILD_TYPE=None -DDEEPINFER_FUZZ=ON >/dev/null
if ((${#names[@]} == 0)); then
  while read -r source; do names+=("$(basename "$source" .cpp)"); done < <(find engine -name '*_fuzz.cpp' | sort)
fi
((${#names[@]} > 0)) || {
  echo "fuzz/run.sh: there are no fuzz programs" >&2
  exit 1
}
cmake --build "$build" --target "${names[@]}"
each=$((seconds / ${#names[@]}))
((each > 0)) || each=1
failed=()
for name in "${names[@]}"; do
  mkdir -p "$build/inputs/$name" "$build/failures/$name"
  seeds=("$build/inputs/$name")
  [[ -d fuzz/seeds/$name ]] && seeds+=("fuzz/seeds/$name")
  options=(-max_total_time="$each" -timeout=10 -rss_limit_mb=2048 -max_len=65536 -artifact_prefix="$build/failures/$name/")
  [[ -f fuzz/seeds/$name.dict ]] && options+=(-dict="fuzz/seeds/$name.dict")
  echo "== $name: $each s"
  if "$build/$name" "${options[@]}" -print_final_stats=1 "${seeds[@]}" >"$build/$name.log" 2>&1; then
    grep -E 'number_of_executed_units|average_exec_per_sec' "$build/$name.log" || true
  else
    tail -n 60 "$build/$name.log"
    failed+=("$name")
  fi
done
((${#failed[@]} == 0)) || {
  echo "fuzz/run.sh: failures in ${failed[*]}" >&2
  exit 1
}
echo "fuzz/run.sh: ${#names[@]} programs, $each s each, no failure"
