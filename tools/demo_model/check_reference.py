"""Compares reference.py with the golden values of tiny41 (transformers, float32): logits of every prompt, units of the
quantisers. Usage: check_reference.py GOLDEN_FOLDER (the folder that holds checkpoint/ and golden/)."""

import sys
from pathlib import Path

import numpy as np
import torch

import checkpoint
import formats
from config import Config
from reference import Reference


def main(folder):
    folder = Path(folder)
    model = folder / "checkpoint"
    c = Config.from_json(model / "config.json")
    token_map = np.fromfile(model / "engram_token_map.i32", "<i4")
    ref = Reference(c, checkpoint.read(model, c), token_map)
    golden = checkpoint.read_plain(folder / "golden" / "prompts.safetensors")
    failed = 0
    for key in sorted(k for k in golden if k.endswith(".ids") and "img" not in k):
        name = key.removesuffix(".ids")
        got = ref.forward(golden[key])
        diff = (got - golden[f"{name}.logits"]).abs().amax(-1)
        short = len(golden[key]) <= 17
        ok = diff.max() <= (1e-3 if short else 1e-2) and diff.median() <= (5e-5 if short else 1e-4)
        failed += not ok
        print(f"{name:6} max {diff.max():.1e} median {diff.median():.1e} {'ok' if ok else 'FAILED'}")
    units = folder / "golden" / "units.safetensors"
    if units.exists():
        failed += check_quantisers(checkpoint.read_plain(units))
    return 1 if failed else 0


def check_quantisers(units):
    x, failed = units["quant.x"], 0
    for name, rule in (("window_fp8", formats.fp8_rows_qdq), ("index_fp4", formats.mxfp4_rows_qdq),
                       ("rows_fp4", formats.nvfp4_rows_qdq)):
        same = torch.equal(rule(x), units[f"quant.{name}"])
        failed += not same
        print(f"units quant.{name:10} {'ok' if same else 'FAILED'}")
    return failed


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    sys.exit(main(sys.argv[1]))
