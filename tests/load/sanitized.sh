#!/usr/bin/env bash
# Builds the program and the load test with sanitizers, in a folder of their own, and runs the load test at small counts.
#
# usage: sanitized.sh address|thread FOLDER
#   address  AddressSanitizer and UndefinedBehaviorSanitizer
#   thread   ThreadSanitizer
#   FOLDER   where to build; reports of the program go to FOLDER/reports
# DEEPINFER_LOAD_CLIENTS (default 64) and DEEPINFER_LOAD_REQUESTS (default 300) set the counts; CXXFLAGS=-g1 adds lines to
# the functions that reports name. Exits with 77 where the kernel gives programs addresses that ThreadSanitizer cannot use.
set -euo pipefail
folder=$2
case $1 in
  # Of UndefinedBehaviorSanitizer all but the checks of every pointer: they are most of its cost, and AddressSanitizer sees
  # the access itself.
  address) sanitizers=address,bounds,bool,builtin,enum,integer-divide-by-zero,nonnull-attribute,pointer-overflow,return,returns-nonnull-attribute,shift,signed-integer-overflow,unreachable ;;
  thread) sanitizers=thread ;;
  *) echo "sanitized.sh: address or thread, not '$1'" >&2; exit 2 ;;
esac
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
mkdir -p "$folder"

# ThreadSanitizer wants the layout of addresses that kernels give with few random bits; without any it works, too.
run=()
if [[ $sanitizers == thread ]]; then
  echo 'int main() {}' >"$folder/probe.cpp"
  c++ -fsanitize=thread "$folder/probe.cpp" -o "$folder/probe"
  if ! "$folder/probe" 2>/dev/null; then
    run=(setarch "$(uname -m)" --addr-no-randomize)
    "${run[@]}" "$folder/probe" || {
      echo "NOT TESTED FOR RACES: ThreadSanitizer cannot run here, neither with random addresses (vm.mmap_rnd_bits is" \
        "$(cat /proc/sys/vm/mmap_rnd_bits 2>/dev/null || echo unknown), 28 works) nor without." >&2
      exit 77
    }
  fi
fi

# These builds cost CI minutes: no optimisation compiles fastest, and the kernels are fast all the same.
cmake -S . -B "$folder" -G Ninja -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS="-O0 ${CXXFLAGS-}" \
  -DDEEPINFER_SANITIZE="$sanitizers" -DDEEPINFER_SANITIZE_KERNELS=OFF >/dev/null
cmake --build "$folder" --target deepinfer load_test

reports=$(realpath "$folder")/reports
rm -rf "$reports"
mkdir "$reports"
export DEEPINFER_TEST_PROGRAM=$folder/deepinfer DEEPINFER_TEST_MODEL=models/demo
export DEEPINFER_LOAD_CLIENTS=${DEEPINFER_LOAD_CLIENTS:-64} DEEPINFER_LOAD_REQUESTS=${DEEPINFER_LOAD_REQUESTS:-300}
# Into files: the program's standard error is a pipe that the test reads one line of.
export ASAN_OPTIONS=log_path=$reports/program UBSAN_OPTIONS=log_path=$reports/program:print_stacktrace=1
export TSAN_OPTIONS=log_path=$reports/program:second_deadlock_stack=1
code=0
"${run[@]}" "$folder/tests/load/load_test" || code=$?
for report in "$reports"/*; do
  [[ -e $report ]] || break
  cat "$report" >&2
  code=1
done
exit "$code"
