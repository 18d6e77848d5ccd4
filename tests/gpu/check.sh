#!/usr/bin/env bash
# Everything that is checked on a machine with a GPU, in one run: tests side by side, then the sanitizer's tools one by one.
#
# usage: check.sh BUILD LOGS [MODEL]
#   BUILD  the build's folder, or any that has the test programs
#   LOGS   a folder: one log a check, kept whole
#   MODEL  for the sanitizer's runs of a whole model; default: the demo model
# Prints a line a check; exits with 1 where one failed, with 77 where there is no GPU. What a machine lacks (golden sets, compute-sanitizer) is said and not run.
# SCHEDULES (default 200): random schedules of the agreement test, of steps and through the engine each.
# LIMIT (default 600): seconds of one check.
set -uo pipefail
build=$(cd "$1" && pwd) || exit 2
mkdir -p "$2" && logs=$(cd "$2" && pwd) || exit 2
project=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
model=${3:-$project/models/demo}
schedules=${SCHEDULES:-200} limit=${LIMIT:-600}
shards=6
failed=0

program() {  # by name
  find "$build" -name "$1" -type f -perm -u+x -print -quit
}

# check NAME COMMAND...: into its log, then the verdict.
check() {
  local name=$1 begin=$SECONDS status=0
  shift
  timeout "$limit" "$@" >"$logs/$name.log" 2>&1 || status=$?
  local last skipped
  last=$(grep -E 'PASSED|FAILED TEST|ERROR SUMMARY|RACECHECK SUMMARY' "$logs/$name.log" | tail -1)
  skipped=$(grep -c '^\[  SKIPPED \] .* (' "$logs/$name.log")
  echo "$status" >"$logs/$name.status"
  printf '%-28s exit %3d  %4d s  %s%s\n' "$name" "$status" $((SECONDS - begin)) "$last" \
    "$([[ $skipped == 0 ]] || echo ", $skipped SKIPPED")"
}
missing() {
  printf '%-28s NOT RUN: %s\n' "$1" "$2"
}

if ! "$(program deepinfer)" doctor 2>/dev/null | grep 'backend cuda' | grep -qv 'cannot use'; then
  echo "NOT RUN: no GPU that can be used; deepinfer doctor says why" >&2
  exit 77
fi
rm -f "$logs"/*.status
export DEEPINFER_AGREEMENT_BACKEND=${DEEPINFER_AGREEMENT_BACKEND:-cuda}
export DEEPINFER_AGREEMENT_SCHEDULES=$schedules DEEPINFER_AGREEMENT_ENGINE_SCHEDULES=$schedules
if [[ -d $project/../shared/golden/tiny41 ]]; then
  for ((shard = 0; shard < shards; ++shard)); do
    GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$shard check "agreement-$shard" "$(program agreement_test)" \
      --gtest_filter='-*mini*' &
  done
  check golden "$(program golden_test)" --gtest_filter='*uda*' &
  check faults "$(program faults_test)" --gtest_filter='Cuda*' &
else
  missing "agreement, golden, faults" "no $project/../shared/golden/tiny41"
fi
check kernels "$(program backend_test)" &
check sampling "$(program runtime_test)" --gtest_filter='*Gpu*' &
check engram-tables "$(program graph_equality_test)" &
wait

# The tools slow programs down by orders of magnitude, so a few kernels of each kind stand for all.
kernels='LinearMany.PartsShareALaunch:LinearMany.NoRows:LinearFewParts.*:ExpertsMany.APairAlone*:Cases/RowChainTest.*short_rows'
kernels+=':Cases/RowChainTest.*window_rows:RoutingTest.PairsAreGroupedByExpert:HcSite*'
if command -v compute-sanitizer >/dev/null; then
  ids=$(seq -s, 5 52)
  for tool in memcheck racecheck; do
    check "$tool-model" compute-sanitizer --tool "$tool" --error-exitcode 1 "$(program deepinfer)" generate --model "$model" \
      --backend cuda --ids "$ids" --max-tokens 12 --chunk 12 --ignore-eos
    check "$tool-kernels" compute-sanitizer --tool "$tool" --error-exitcode 1 "$(program backend_test)" --gtest_filter="$kernels"
    check "$tool-sampling" compute-sanitizer --tool "$tool" --error-exitcode 1 "$(program runtime_test)" \
      --gtest_filter='*SamplerGpuTest.ACapturedLaunch*'
  done
else
  missing sanitizer "no compute-sanitizer"
fi

for status in "$logs"/*.status; do
  [[ $(cat "$status") == 0 ]] || failed=1
done
exit $failed
