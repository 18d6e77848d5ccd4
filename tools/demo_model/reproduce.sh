#!/bin/sh
# Trains the demo model from nothing and evaluates it: reproduce.sh CORPUS_FOLDER OUT_FOLDER [ENGINE]
# One NVIDIA H200, PyTorch 2.11, Triton 3.6, tokenizers, numpy, zstd (a slower GPU of 24 GB and more: longer legs).
# OUT_FOLDER/export is the release, OUT_FOLDER/log.jsonl the losses; the second leg prints the evaluation on the GPU.
# ENGINE: the deepinfer program; then the release is measured through it as well.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
python3 "$here/prepare.py" "$1" "$2/tokenizer"
# Two legs of one schedule, because one command on the machine that was used ends after ten minutes.
python3 "$here/train.py" --data "$1" --tokenizer "$2/tokenizer" --work "$2" --minutes 8.9 --begin 0 --end 0.56 --evaluate 0
python3 "$here/train.py" --data "$1" --tokenizer "$2/tokenizer" --work "$2" --minutes 7.2 --begin 0.56 --end 1
if [ $# -gt 2 ]; then
  jobs=$(nproc)
  python3 "$here/evaluate" --engine "$3" --model "$2/export" --data "$1" --jobs "$jobs" --one-pass -- --threads 1
  python3 "$here/evaluate" --engine "$3" --model "$2/export" --data "$1" --jobs "$jobs" -- --threads 1
fi
