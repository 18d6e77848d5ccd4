#!/usr/bin/env bash
# usage: run.sh PYTHON FOLDER PROGRAM MODEL. Exits with 77 when the SDKs cannot be installed.
set -euo pipefail
python=$1 folder=$2 program=$3 model=$4
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
packages="openai anthropic trustme"
if [[ $(cat "$folder/ready" 2>/dev/null) != "$packages" ]]; then
  rm -rf "$folder"
  "$python" -m venv "$folder" || {
    echo "no virtual environment can be made: apt-get install python3-venv" >&2
    exit 77
  }
  "$folder/bin/pip" install --quiet --disable-pip-version-check $packages || {
    echo "the SDKs cannot be installed from PyPI" >&2
    exit 77
  }
  echo "$packages" >"$folder/ready"
fi
"$folder/bin/pip" list --disable-pip-version-check 2>/dev/null | grep -E '^(openai|anthropic|trustme) '
exec "$folder/bin/python" "$here/sdk_test.py" "$program" "$model"
