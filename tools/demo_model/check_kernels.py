"""Each fused operation of ops.py against its plain twin: values and gradients, random inputs.

On a CPU run with TRITON_INTERPRET=1 (small shapes, minutes); on a GPU as it is. Exit code 1 if anything differs."""

import sys

import torch

import ops

DEV = "cuda" if torch.cuda.is_available() else "cpu"
failed = []


def rand(*shape, scale=1.0, dtype=torch.float32):
    return (torch.randn(*shape, device=DEV) * scale).to(dtype)


def compare(name, fn, inputs, tolerance=2e-4):
    """fn(*inputs) -> tensors; runs both twins and compares outputs and gradients of all float inputs."""
    results = []
    for fused in (False, True):
        ops.use_kernels = fused
        leaves = [t.clone().requires_grad_(True) if torch.is_tensor(t) and t.is_floating_point() else t for t in inputs]
        args = [t * 1 if torch.is_tensor(t) and t.is_floating_point() else t for t in leaves]
        out = [o for o in fn(*args) if o is not None]
        torch.manual_seed(7)
        seeds = [torch.randn(o.shape, device=DEV) if o.is_floating_point() and o.requires_grad else None for o in out]
        total = sum((o.float() * s).sum() for o, s in zip(out, seeds) if s is not None)
        floats = [t for t in leaves if torch.is_tensor(t) and t.is_floating_point()]
        grads = torch.autograd.grad(total, floats, allow_unused=True) if torch.is_tensor(total) else []
        results.append(([o.detach().float() for o in out], [g.float() if g is not None else None for g in grads]))
    ops.use_kernels = True
    worst = 0.0
    for part in (0, 1):
        for k, (a, b) in enumerate(zip(results[0][part], results[1][part])):
            if a is None and b is None:
                continue
            a = torch.zeros_like(b) if a is None else a
            b = torch.zeros_like(a) if b is None else b
            error = ((a - b).norm() / a.norm().clamp(min=1e-12)).item()
            worst = max(worst, error if error == error else 9.0)
            if not error <= tolerance:
                failed.append(name)
                print(f"  {name} {'output' if part == 0 else 'gradient'} {k}: {error:.2e}")
    print(f"{name:24} {worst:.1e} {'ok' if name not in failed else 'FAILED'}", flush=True)


def layout(b, s, window):
    start = torch.zeros(b, s, dtype=torch.int32)
    for k in range(b):
        for cut in sorted(torch.randperm(s // 16)[:2].tolist()):
            start[k, cut * 16 :] = cut * 16
    start = start.to(DEV)
    pos = torch.arange(s, dtype=torch.int32, device=DEV)[None] - start
    return ops.Layout(b, s, pos.flatten().contiguous(), start.flatten().contiguous(), window=window)


def tables(n=8192):
    angle = torch.arange(n)[:, None] * (1.0 / 10000 ** (torch.arange(32) / 32))
    return torch.cos(angle).to(DEV), torch.sin(angle).to(DEV)


def main():
    torch.manual_seed(0)
    n, d = 16, 512
    h, y = rand(n, 4, d), rand(n, d)
    post, comb, p = rand(n, 4).abs(), rand(n, 4, 4).abs(), rand(n, 4).abs()
    w, fn = 1 + rand(d, scale=0.1), torch.cat([rand(24, 4 * d, scale=0.02), torch.zeros(8, 4 * d, device=DEV)])
    compare("seam", ops.seam, [h, y, post, comb, p, w, fn])
    compare("seam, last", lambda *a: ops.seam(*a)[:2], [h, y, post, comb, p, w])
    compare("seam, expand only", ops.seam, [h, y, post, comb])
    compare("seam, collapse only", lambda h, p, w, fn: ops.seam(h, p=p, w=w, fn=fn)[1:], [h, p, w, fn])
    dot, ssq = rand(n, 32, scale=30), rand(n).abs() * 500 + 1500
    dot[:, 24:] = 0
    compare("coefficients", lambda *a: ops.coefficients(*a, 2048), [dot, ssq, rand(24), 0.5 + rand(3, scale=0.3)])
    lay, table = layout(2, 64, 16), tables()
    x = rand(128, d)
    for quant in range(4):
        compare(f"prep norm rope quant {quant}", lambda x, w: (ops.prep(x, w, lay.pos, table, quant),), [x, w],
                2e-4 if quant == 0 else 2e-2)
    compare("prep rope heads", lambda x: (ops.prep(x, None, lay.pos, table, 3, 2),), [rand(128, 2, 128)], 2e-2)
    compare("act_quant", lambda x: (ops.act_quant(x, True),), [rand(128, 96)], 1e-5)
    q, kv, sink = rand(128, 2, 128), rand(128, 128), rand(2)
    compare("attention window", lambda *a: ops.attention(*a, lay, table), [q, kv, sink])
    for ratio in (1, 2):
        rows = rand(2, 64 // ratio, 128)
        probe = torch.tensor([[7, 30, 63], [1, 2, 40]], device=DEV)
        sel = (torch.rand(2, 64, 64 // ratio, device=DEV) < 0.5).to(torch.uint8)
        compare(f"attention ratio {ratio}", lambda q, kv, s, r: ops.attention(q, kv, s, lay, table, r, ratio,
                                                                              probe=probe), [q, kv, sink, rows])
        compare(f"attention selected {ratio}", lambda q, kv, s, r: ops.attention(q, kv, s, lay, table, r, ratio, sel,
                                                                               probe),
                [q, kv, sink, rows])
        iq, keys, wt = rand(128, 2, 64), rand(2, 64 // ratio, 64), rand(128, 2)
        iq, keys = (t.mul(4).round().div(4) for t in (iq, keys))
        wt = wt.mul(4).round().div(4)
        with torch.no_grad():
            cand = [None]
            for role in (0, 1, 2):
                def run(iq, keys, wt):
                    out = ops.select(iq, keys, wt, lay, ratio, 9, role, cand[0], 3, 4)
                    if role == 1:
                        cand[0] = out[1]
                    return out[:1] if role != 1 else out
                compare(f"select ratio {ratio} role {role}", run, [iq, keys, wt], 0.0)
    compare("route", lambda z, b: (ops.route(z, b, 12, 4, 1.5),), [rand(64, 16), rand(12, scale=0.1)])
    compare("expert", lambda gu, r: (ops.expert_act(gu, r, 1.0),), [rand(16, 2, 13, 96), rand(16, 16)])
    compare("engram", lambda *a: (ops.engram_gate(*a),), [h, rand(n, 5 * d), rand(4, d)])
    target = torch.randint(0, 480, (32,), device=DEV).int()
    weight = rand(32).abs()
    compare("head_loss", lambda x, w: ops.head_loss(x, w, target, weight), [rand(32, 64), rand(480, 64)])
    print("failed:", sorted(set(failed)) if failed else "nothing")
    return 1 if failed else 0


if __name__ == "__main__":
    torch.backends.cuda.matmul.allow_tf32 = False
    sys.exit(main())
