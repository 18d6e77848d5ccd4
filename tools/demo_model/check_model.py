"""The training forward pass (plain twins, float32) against reference.py on packed documents: logits with selection,
candidates and fake quantisation on, before and after a trip through the release files."""

import sys
import tempfile

import numpy as np
import torch

import checkpoint
import model as M
import ops
from config import Config
from reference import Reference


def main():
    torch.manual_seed(3)
    ops.use_kernels = False
    c = Config(vocab_size=512, hidden_size=128, moe_intermediate_size=32, engram_compressed_vocab_size=300, index_topk=8,
               candidate_topk_blocks=4, engram_vocab_size=97, q_lora_rank=64, o_lora_rank=32, index_head_dim=128)
    token_map = np.arange(512) % 300
    m = M.Model(c, token_map, "cpu", torch.float32)
    for name, w in m.P.items():  # away from the symmetric start, so that every parameter matters
        if name in ("hc_base", "hc_scale", "sink", "eq", "ek") or "norm" in name:
            w += 0.3 * torch.randn_like(w)
    m.bias += 0.1 * torch.randn_like(m.bias)
    m.P["hc_fn"] = m.P["hc_fn"].to(torch.bfloat16).float()
    lengths = [[160, 96], [112, 144]]
    ids = torch.randint(3, 512, (512,))
    start, pos = [], []
    for row in lengths:
        at = 0
        for n in row:
            start += [at] * n
            pos += list(range(n))
            at += n
    lay = ops.Layout(2, 256, torch.tensor(pos, dtype=torch.int32), torch.tensor(start, dtype=torch.int32))
    failed = 0
    for quant, select, rounded in ((False, False, False), (False, True, False), (True, True, False), (True, True, True)):
        mode = M.Mode(quant_kv=quant, select=select, quant_weights=rounded)
        with torch.no_grad():
            w = m.working(mode)
            x, _, _ = m.forward(w, ids.int(), lay, mode)
            logits = x @ w["head"].t()
            weights = M.export_weights(m)
            if rounded:
                with tempfile.TemporaryDirectory() as folder:
                    checkpoint.write(folder, c, weights)
                    weights = checkpoint.read(folder, c)
            ref = Reference(c, weights, token_map, quant)
            at = worst = 0
            for n in sum(lengths, []):
                got = ref.forward(ids[at : at + n], None if select else 10**6, select)
                diff = (got - logits[at : at + n]).abs().amax(-1)
                worst = max(worst, diff.median().item())
                print(f"quant {quant} select {select} rounded {rounded} tokens {n}: logits std {got.std():.2f}, max {diff.max():.1e}, median {diff.median():.1e}")
                at += n
        # One flipped FP4 code or selected row moves the logits after it; without any, they agree to float32 noise.
        failed += not worst < (5e-6 if not select else 5e-3)
    # Gradients exist for every parameter and the index loss reaches index parameters only.
    mode = M.Mode(quant_kv=True, select=True, index_loss=True)
    w = m.working(mode)
    x, index_loss, _ = m.forward(w, ids.int(), lay, mode, torch.arange(15, 256, 16).repeat(2, 1))
    grads = torch.autograd.grad(index_loss, list(w.values()), allow_unused=True, retain_graph=True)
    reached = {k for k, g in zip(w, grads) if g is not None and g.abs().sum() > 0}
    print("index loss", index_loss.item(), "reaches", sorted(reached))
    failed += reached != {"iwq", "iwk", "iproj", "k_norm"}
    loss = ops.head_loss(x, w["head"], ids.int(), torch.ones(512))[0]
    grads = torch.autograd.grad(loss + index_loss, list(w.values()), allow_unused=True)
    missing = {k for k, g in zip(w, grads) if g is None or not g.abs().sum() > 0}
    print("without gradient:", sorted(missing))
    failed += bool(missing)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
