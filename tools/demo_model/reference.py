"""A plain float32 forward pass of V4.1 written from backbone.md and attention.md: one prompt, every position.

Slow and obvious on purpose. It is what the training code is compared with; check_reference.py compares it with
golden values of an implementation that nobody here wrote.
"""

import math

import torch
import torch.nn.functional as F

import engram
import formats


def rms_norm(x, weight, eps):
    return weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps))


def rope_frequencies(c, compressed):
    """float32 [rope/2] (attention.md 3.5)."""
    dim = c.qk_rope_head_dim
    theta = c.compress_rope_theta if compressed else c.rope_theta
    i = torch.arange(dim // 2, dtype=torch.float32)
    f = 1.0 / torch.tensor(theta, dtype=torch.float32) ** (2 * i / dim)
    if not compressed:
        return f

    def corner(n):
        return dim * math.log(c.rope_original / (n * 2 * math.pi)) / (2 * math.log(theta))

    lo = max(math.floor(corner(c.rope_beta_fast)), 0)
    hi = min(math.ceil(corner(c.rope_beta_slow)), dim - 1)
    ramp = ((i - lo) / max(hi - lo, 0.001)).clamp(0, 1)
    return (f / c.rope_factor) * ramp + f * (1 - ramp)


def rotate(x, positions, freq, inverse=False):
    """Rotates the last 2*len(freq) channels of x [T, ..., d] (adjacent pairs) at integer positions [T]."""
    n = 2 * len(freq)
    angle = positions.float()[:, None] * freq
    cos, sin = torch.cos(angle), torch.sin(angle)
    if inverse:
        sin = -sin
    shape = [len(positions)] + [1] * (x.dim() - 2) + [len(freq)]
    cos, sin = cos.view(shape), sin.view(shape)
    a, b = x[..., -n::2], x[..., -n + 1 :: 2]
    turned = torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
    return torch.cat([x[..., :-n], turned], -1)


def lowest_index_topk(scores, k):
    """Boolean mask of the k largest values a row; ties go to the lower index; -inf is never taken."""
    order = torch.argsort(scores, dim=-1, descending=True, stable=True)[..., :k]
    mask = torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, order, True)
    return mask & (scores > -math.inf)


def hc_coefficients(v, fn, base, scale, c):
    """v [T, 4D] -> pre [T, 4], post [T, 4], comb [T, 4, 4] (backbone.md 4.1)."""
    n = c.hc_mult
    m = (v @ fn.T) * torch.rsqrt(v.square().mean(-1, keepdim=True) + c.rms_norm_eps)
    s = torch.cat([scale[0].expand(n), scale[1].expand(n), scale[2].expand(n * n)])
    a = m * s + base
    pre = torch.sigmoid(a[:, :n]) + c.hc_eps
    post = 2 * torch.sigmoid(a[:, n : 2 * n])
    comb = torch.softmax(a[:, 2 * n :].view(-1, n, n), -1) + c.hc_eps
    comb = comb / (comb.sum(1, keepdim=True) + c.hc_eps)
    for _ in range(c.hc_sinkhorn_iters - 1):
        comb = comb / (comb.sum(2, keepdim=True) + c.hc_eps)
        comb = comb / (comb.sum(1, keepdim=True) + c.hc_eps)
    return pre, post, comb


def collapse(h, p):
    return torch.einsum("ti,tid->td", p, h)


def expand(y, h, post, comb):
    return post[:, :, None] * y[:, None, :] + torch.einsum("tij,tid->tjd", comb, h)


def route(x, gate, bias, c):
    """Routing weights [T, experts], 0 where not chosen (backbone.md 5.2)."""
    s = torch.sqrt(F.softplus(x @ gate.T, threshold=1e9))
    chosen = lowest_index_topk(s + bias, c.num_experts_per_tok)
    w = s * chosen
    if c.num_experts_per_tok > 1:
        w = w / (w.sum(-1, keepdim=True) + 1e-20)
    return w * c.routed_scaling_factor


def expert(x, w1, w2, w3, limit, weight=None):
    g = (x @ w1.T).clamp(max=limit)
    u = (x @ w3.T).clamp(-limit, limit)
    t = F.silu(g) * u
    if weight is not None:
        t = t * weight
    return t @ w2.T


class Reference:
    """`weights`: {name: float32 tensor} of checkpoint.inventory. `kv_quant` off leaves rows, windows, keys unrounded."""

    def __init__(self, c, weights, token_map, kv_quant=True):
        self.c, self.w, self.map, self.kv_quant = c, weights, torch.as_tensor(token_map).long(), kv_quant

    def forward(self, ids, topk=None, candidates=True, seams=None):
        """ids [T] -> logits [T, vocab]. `topk` replaces index_topk; `candidates` off drops the candidate pool;
        `seams` (a dict) receives intermediate values."""
        c, w = self.c, self.w
        seams = {} if seams is None else seams
        topk = c.index_topk if topk is None else topk
        ids = torch.as_tensor(ids).long()
        pos = torch.arange(len(ids))
        h = w["embed.weight"][ids][:, None, :].repeat(1, c.hc_mult, 1)
        p = torch.zeros(len(ids), c.hc_mult)
        p[:, 0] = 1
        shared = {"use_candidates": candidates}
        for i in range(c.num_hidden_layers):
            n = f"layers.{i}."
            if i in c.engram_layer_ids:
                h = self._engram(i, h, ids)
            pre, post, comb = hc_coefficients(h.flatten(1), w[n + "hc_attn_fn"], w[n + "hc_attn_base"],
                                              w[n + "hc_attn_scale"], c)
            x = rms_norm(collapse(h, p), w[n + "attn_norm.weight"], c.rms_norm_eps)
            y = self._attention(i, x, pos, topk, shared, seams)
            h = expand(y, h, post, comb)
            pre2, post, comb = hc_coefficients(h.flatten(1), w[n + "hc_ffn_fn"], w[n + "hc_ffn_base"],
                                               w[n + "hc_ffn_scale"], c)
            x = rms_norm(collapse(h, pre), w[n + "ffn_norm.weight"], c.rms_norm_eps)
            h = expand(self._moe(i, x), h, post, comb)
            p = pre2
            seams[f"h.{i}"] = h
        x = rms_norm(collapse(h, p), w["norm.weight"], c.rms_norm_eps)
        return x @ w["head.weight"].T

    def _moe(self, i, x):
        c, w = self.c, self.w
        n = f"layers.{i}.ffn."
        r = route(x, w[n + "gate.weight"], w[n + "gate.bias"], c)
        y = torch.zeros_like(x)
        for e in range(c.n_routed_experts):
            k = f"{n}experts.{e}."
            t = (r[:, e] > 0).nonzero()[:, 0]
            y[t] += expert(x[t], w[k + "w1.weight"], w[k + "w2.weight"], w[k + "w3.weight"], c.swiglu_limit,
                           r[t, e : e + 1])
        k = n + "shared_experts."
        return y + expert(x, w[k + "w1.weight"], w[k + "w2.weight"], w[k + "w3.weight"], c.swiglu_limit)

    def _engram(self, i, h, ids):
        c, w = self.c, self.w
        n = f"layers.{i}.engram."
        k = c.engram_layer_ids.index(i)
        rows = engram.rows(self.map[ids].numpy(), 0, int(self.map[c.engram_pad_token_id]),
                           engram.multipliers(i, c.engram_compressed_vocab_size), c.engram_primes()[k],
                           c.engram_n_heads)
        r = w[n + "embed.weight"][torch.from_numpy(rows)].flatten(1)
        kv = r @ w[n + "wkv.weight"].T
        d = c.hidden_size
        key, val = kv[:, : c.hc_mult * d].view(-1, c.hc_mult, d), kv[:, c.hc_mult * d :]
        dot = (h * w[n + "q_weight"] * w[n + "k_weight"] * key).sum(-1)
        dot = dot * torch.rsqrt(h.square().mean(-1) + c.rms_norm_eps)
        dot = dot * torch.rsqrt(key.square().mean(-1) + c.rms_norm_eps) * d**-0.5
        sign = torch.where(dot >= 0, 1.0, -1.0)
        gate = torch.sigmoid(sign * torch.sqrt(dot.abs().clamp(min=1e-6)))
        return h + gate[:, :, None] * val[:, None, :]

    def _attention(self, i, x, pos, topk, shared, seams):
        c, w = self.c, self.w
        n = f"layers.{i}.attn."
        ratio, t, eps = c.ratio(i), len(pos), c.rms_norm_eps
        freq = rope_frequencies(c, ratio > 0)
        qr = rms_norm(x @ w[n + "wq_a.weight"].T, w[n + "q_norm.weight"], eps)
        q = rotate((qr @ w[n + "wq_b.weight"].T).view(t, c.num_attention_heads, c.head_dim), pos, freq)
        kv = rotate(rms_norm(x @ w[n + "wkv.weight"].T, w[n + "kv_norm.weight"], eps), pos, freq)
        if self.kv_quant:
            kv = formats.fp8_rows_qdq(kv)
        visible = (pos[:, None] - pos[None, :] < c.sliding_window) & (pos[None, :] <= pos[:, None])
        keys, mask = kv, visible
        if ratio:
            if i in c.kv_source_layer_ids:
                shared["rows"], shared["keys"], shared["at"] = self._rows(i, x, freq)
            rows = shared["rows"]
            causal = torch.arange(len(rows))[None, :] < ((pos + 1) // ratio)[:, None]
            if i in c.index_source_layer_ids:
                shared["selected"] = self._select(i, x, qr, pos, freq, causal, topk, shared, seams)
            keys, mask = torch.cat([kv, rows]), torch.cat([visible, shared["selected"]], 1)
        s = torch.einsum("thd,kd->thk", q, keys) * torch.tensor(c.head_dim**-0.5, dtype=torch.float32)
        s = s.masked_fill(~mask[:, None, :], -math.inf)
        m = s.amax(-1, keepdim=True)
        e = torch.exp(s - m)
        sink = torch.exp(w[n + "attn_sink"].view(1, -1, 1) - m)
        prob = e / (e.sum(-1, keepdim=True) + sink)
        o = rotate(torch.einsum("thk,kd->thd", prob, keys), pos, freq, inverse=True)
        a = w[n + "wo_a.weight"].view(c.o_groups, c.o_lora_rank, -1)
        z = torch.einsum("tgk,grk->tgr", o.reshape(t, c.o_groups, -1), a).flatten(1)
        return z @ w[n + "wo_b.weight"].T

    def _rows(self, i, x, freq):
        """Compressed rows and index keys of a source layer (attention.md 4, 5.1)."""
        c, w = self.c, self.w
        n = f"layers.{i}.attn."
        ratio = c.ratio(i)
        u = x @ w[n + "compressor.wkv.weight"].T
        if ratio > 1:
            g = x @ w[n + "compressor.wgate.weight"].T
            full = len(u) // ratio * ratio
            u, g = u[:full].view(-1, ratio, c.head_dim), g[:full].view(-1, ratio, c.head_dim)
            u = (torch.softmax(g, 1) * u).sum(1)
        latent = rms_norm(u, w[n + "compressor.norm.weight"], c.rms_norm_eps)
        at = torch.arange(len(latent)) * ratio
        key = rms_norm(latent @ w[n + "indexer.wk.weight"].T, w[n + "indexer.k_norm.weight"], c.rms_norm_eps)
        key, row = rotate(key, at, freq), rotate(latent, at, freq)
        if self.kv_quant:
            key, row = formats.mxfp4_rows_qdq(key), formats.nvfp4_rows_qdq(row)
        return row, key, at

    def _select(self, i, x, qr, pos, freq, causal, topk, shared, seams):
        """Boolean [T, rows]: what each token of layer i attends besides its window (attention.md 5.2-5.5)."""
        c, w = self.c, self.w
        n = f"layers.{i}.attn.indexer."
        iq = (qr @ w[n + "wq_b.weight"].T).view(len(pos), c.index_n_heads, c.index_head_dim)
        iq = rotate(iq, pos, freq)
        if self.kv_quant:
            iq = formats.mxfp4_rows_qdq(iq)
        weight = x @ w[n + "weights_proj.weight"].T * (c.index_head_dim**-0.5 * c.index_n_heads**-0.5)
        s = (F.relu(torch.einsum("thd,kd->thk", iq, shared["keys"])) * weight[:, :, None]).sum(1)
        s = s.masked_fill(~causal, -math.inf)
        if i == c.candidate_source_layer_id:
            size = c.candidate_block_size
            blocks = F.pad(s, (0, -s.shape[1] % size), value=-math.inf).unflatten(1, (-1, size)).amax(-1)
            newest = torch.div((pos + 1) // c.ratio(i) - 1, size, rounding_mode="floor")
            pinned = blocks.scatter(1, newest[:, None], math.inf)
            keep = lowest_index_topk(pinned, c.candidate_topk_blocks) & (blocks > -math.inf)
            shared["candidates"] = keep.repeat_interleave(size, 1)[:, : s.shape[1]]
            seams[f"candidates.{i}"] = shared["candidates"]
        elif i > c.candidate_source_layer_id >= 0 and shared["use_candidates"]:
            s = s.masked_fill(~shared["candidates"], -math.inf)
        seams[f"selected.{i}"] = lowest_index_topk(s, topk)
        return seams[f"selected.{i}"]
