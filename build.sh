#!/usr/bin/env bash
# Builds DeepInfer. `./build.sh --help` explains.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

readonly DEMO_PROMPT="How is the weather in Berlin today?"
readonly DEMO_TOOLS="examples/tools/weather"  # .json: what the model may call; .sh: what runs when it does

# What a build needs, and what the tests need beside it. Debian 12 names; docs/dependencies.md says why each is here.
readonly BUILD_PACKAGES=(g++ cmake ninja-build libcli11-dev libfmt-dev libspdlog-dev nlohmann-json3-dev libssl-dev libedit-dev
                         libxxhash-dev libboost1.81-dev libsqlite3-dev libgtest-dev python3)  # the last two: configuring looks for what tests need
readonly TEST_PACKAGES=(clang-16 clang-format-16 clang-tidy-16 libclang-rt-16-dev zstd python3-venv)

usage() {
  cat <<'HELP'
usage: ./build.sh [default | demo | test | clean] [options]

  default         build build/deepinfer (also what no command means)
  demo            build, then answer a question with the demo model, a tool call included
  test            build everything, run every test, print the closing line of the test runner
  clean           remove the build folders

options
  --cuda-arch LIST  GPU architectures to compile for, e.g. 90a,100a (CUDA backend only)
  --jobs N          parallel compilations and tests (default: the number of processors)
  --debug           unoptimised build with symbols, in build-debug/
  --sanitize        build with AddressSanitizer and UndefinedBehaviorSanitizer, in build-sanitize/
  --help            this text

environment
  DEEPINFER_ACCELERATOR  cpu, nvidia (or cuda) or ascend: what it names is built, or the build fails

Debian packages that are missing are installed with apt-get (as root, or with sudo). Nothing else is downloaded.
HELP
}

say() { printf 'build.sh: %s\n' "$*" >&2; }

# fail CODE MESSAGE...: 1 the work failed, 2 usage
fail() {
  local code=$1
  shift
  say "$@"
  exit "$code"
}

command=default
preset=release
jobs=$(nproc)
cuda_arch=
configure=()

parse_arguments() {
  local named=
  while (($# > 0)); do
    case $1 in
      default | demo | test | clean)
        [[ -z $named ]] || fail 2 "two commands: $named and $1"
        named=$1
        command=$1
        ;;
      --debug) preset=debug ;;
      --sanitize) preset=sanitize ;;
      --jobs=* | --cuda-arch=*) set -- "${1%%=*}" "${1#*=}" "${@:2}"; continue ;;
      --jobs)
        [[ ${2-} =~ ^[1-9][0-9]*$ ]] || fail 2 "--jobs takes a number, not '${2-}'"
        jobs=$2
        shift
        ;;
      --cuda-arch)
        [[ ${2-} =~ ^[0-9]+[af]?(,[0-9]+[af]?)*$ ]] || fail 2 "--cuda-arch takes a list such as 90a,100a, not '${2-}'"
        cuda_arch=$2
        shift
        ;;
      --help | -h)
        usage
        exit 0
        ;;
      *)
        usage >&2
        fail 2 "unknown argument: $1"
        ;;
    esac
    shift
  done
}

# Which backends this build gets. A named accelerator must build or the build fails; without a name, what is there.
choose_backends() {
  local cuda=AUTO
  case ${DEEPINFER_ACCELERATOR-} in
    '') ;;
    cpu) cuda=OFF ;;
    nvidia | cuda) cuda=ON ;;
    ascend)
      fail 1 "DEEPINFER_ACCELERATOR=ascend: this version has no Ascend backend yet; unset it or set it to cpu" ;;
    *) fail 2 "DEEPINFER_ACCELERATOR=$DEEPINFER_ACCELERATOR is unknown; known values: cpu, nvidia, cuda, ascend" ;;
  esac
  [[ -z $cuda_arch || $cuda != OFF ]] || fail 2 "--cuda-arch $cuda_arch, but DEEPINFER_ACCELERATOR=cpu builds no CUDA backend"
  if [[ $cuda != OFF ]] && ! command -v nvcc >/dev/null; then
    [[ $cuda == AUTO && -z $cuda_arch ]] ||
      fail 1 "the CUDA backend needs nvcc of CUDA 13 on the PATH; without it, unset DEEPINFER_ACCELERATOR and --cuda-arch"
    cuda=OFF
  fi
  configure=("-DDEEPINFER_CUDA=$cuda")
  # 90a -> 90a-real: machine code alone, nothing is compiled when the program starts.
  [[ -z $cuda_arch ]] || configure+=("-DDEEPINFER_CUDA_ARCHITECTURES=$(sed 's/,/-real;/g; s/$/-real/' <<<"$cuda_arch")")
  if [[ $cuda == OFF ]]; then
    say "backends: reference, cpu"
  else
    say "backends: reference, cpu, cuda (for ${cuda_arch:-90a})"
  fi
}

# install_missing PACKAGE...: apt-get, and only if something is missing.
install_missing() {
  command -v dpkg-query >/dev/null || {
    say "this is no Debian system: the packages must be there already ($*)"
    return 0
  }
  local missing=() package
  for package in "$@"; do
    [[ $(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || missing+=("$package")
  done
  ((${#missing[@]} > 0)) || return 0
  say "installing: ${missing[*]}"
  local root=()
  if ((EUID != 0)); then
    command -v sudo >/dev/null || fail 1 "missing packages, and neither root nor sudo: apt-get install ${missing[*]}"
    root=(sudo)
  fi
  "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -qq >&2 || say "apt-get update failed; trying with the lists at hand"
  "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2 ||
    fail 1 "apt-get could not install: ${missing[*]}"
}

build_folder() {
  case $preset in
    release) echo build ;;
    *) echo "build-$preset" ;;
  esac
}

# compile TARGET...: configures with what choose_backends chose; that takes a second where nothing changed.
compile() {
  local folder
  folder=$(build_folder)
  cmake --preset "$preset" "${configure[@]}" >&2
  cmake --build "$folder" --parallel "$jobs" --target "$@" >&2
}

build_program() {
  install_missing "${BUILD_PACKAGES[@]}"
  compile deepinfer
  say "built $(build_folder)/deepinfer"
}

# The demonstration: a question that needs a tool, answered by the model in the tree.
run_demo() {
  printf '> %s\n' "$DEMO_PROMPT"
  "$(build_folder)/deepinfer" run --prompt "$DEMO_PROMPT" --tools "$DEMO_TOOLS.json" --tool-command "$DEMO_TOOLS.sh"
}

run_tests() {
  install_missing "${BUILD_PACKAGES[@]}" "${TEST_PACKAGES[@]}"
  compile all
  ctest --test-dir "$(build_folder)" --output-on-failure --parallel "$jobs" --no-tests=error
}

parse_arguments "$@"
case $command in
  clean) rm -rf build build-debug build-sanitize ;;
  default)
    choose_backends
    build_program
    ;;
  demo)
    choose_backends
    build_program
    run_demo
    ;;
  test)
    choose_backends
    run_tests
    ;;
esac
