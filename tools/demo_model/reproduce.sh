#!/bin/sh
# Trains the demo model from nothing and evaluates it: reproduce.sh CORPUS_FOLDER OUT_FOLDER [MINUTES]
# One NVIDIA H200 (or a GPU of 40 GB and more; scale MINUTES), PyTorch 2.11, Triton 3.6, tokenizers, numpy, zstd.
# OUT_FOLDER/export is the release; OUT_FOLDER/log.jsonl the losses.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
python3 "$here/check_kernels.py"
python3 "$here/prepare.py" "$1" "$2/tokenizer"
python3 "$here/train.py" --data "$1" --tokenizer "$2/tokenizer" --work "$2" --minutes "${3:-11}"
