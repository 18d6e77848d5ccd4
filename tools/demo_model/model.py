"""The trainable model: parameters of equal shape stacked over layers, forward pass over packed batches.

Parameters live as float32 masters `P[name]`; every step makes working copies (`working`), bfloat16 and, in the last part
of training, rounded to the release's FP8 and FP4 grids with gradients passing straight through to the masters.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F

import engram
import formats
import ops
import reference

MIX = 32  # rows of an hc fn: 24 and padding to a multiple that matrix units like
GATES = 16  # rows of a router: experts, then padding


def shapes(c):
    """{name: (shape, fan_in or None, optimiser, storage)}; storage as in checkpoint.inventory."""
    n, d, f, e = c.num_hidden_layers, c.hidden_size, c.moe_intermediate_size, c.n_routed_experts + 1
    q, o, hd, g = c.q_lora_rank, c.o_lora_rank, c.num_attention_heads * c.head_dim, c.o_groups
    sources, gated = len(c.kv_source_layer_ids), sum(c.has_gate(i) for i in range(n))
    index, eng = len(c.index_source_layer_ids), len(c.engram_layer_ids)
    columns = c.engram_columns * c.engram_head_dim
    rows = sum(sum(p) for p in c.engram_primes())
    return {
        "wq_a": ((n, q, d), d, "muon", "fp8"), "wq_b": ((n, hd, q), q, "muon", "fp8"),
        "wkv": ((n, c.head_dim, d), d, "muon", "fp8"), "wo_a": ((n, g, o, hd // g), hd // g, "muon", "fp8"),
        "wo_b": ((n, d, g * o), g * o, "muon", "fp8"), "w13": ((n, 2, e, f, d), d, "muon", "expert"),
        "w2": ((n, e, f, d), f, "muon", "expert_t"), "ckv": ((sources, c.head_dim, d), d, "muon", "bf16"),
        "cgate": ((gated, c.head_dim, d), d, "muon", "bf16"),
        "iwq": ((index, c.index_n_heads * c.index_head_dim, q), q, "muon", "fp8"),
        "iwk": ((sources, c.index_head_dim, c.head_dim), c.head_dim, "muon", "bf16"),
        "iproj": ((index, c.index_n_heads, d), d, "adam", "bf16"),
        "ewkv": ((eng, (c.hc_mult + 1) * d, columns), columns, "muon", "fp8"),
        "gate": ((n, GATES, d), d, "adam", "bf16"), "embed": ((c.vocab_size, d), None, "adam", "bf16"),
        "head": ((c.vocab_size, d), d, "adam", "bf16"), "table": ((rows, c.engram_head_dim), None, "adam_fast", "table"),
        "eq": ((eng, c.hc_mult, d), None, "adam", "bf16"), "ek": ((eng, c.hc_mult, d), None, "adam", "bf16"),
        "attn_norm": ((n, d), None, "adam", "bf16"), "ffn_norm": ((n, d), None, "adam", "bf16"),
        "q_norm": ((n, q), None, "adam", "bf16"), "kv_norm": ((n, c.head_dim), None, "adam", "bf16"),
        "c_norm": ((sources, c.head_dim), None, "adam", "bf16"), "k_norm": ((sources, c.index_head_dim), None, "adam", "bf16"),
        "norm": ((d,), None, "adam", "bf16"), "hc_fn": ((n, 2, MIX, c.hc_mult * d), None, "adam_slow", "f32"),
        "hc_base": ((n, 2, 24), None, "adam", "f32"), "hc_scale": ((n, 2, 3), None, "adam", "f32"),
        "sink": ((n, c.num_attention_heads), None, "adam", "f32"),
    }


# Used as float32 by the forward pass itself; everything else gets a working copy in the compute type.
_DIRECT = {"attn_norm", "ffn_norm", "q_norm", "kv_norm", "c_norm", "k_norm", "norm", "hc_base", "hc_scale", "sink",
           "eq", "ek"}


def initial(c, device, seed=0):
    """Float32 masters."""
    gen = torch.Generator().manual_seed(seed)
    out = {}
    for name, (shape, fan, _, _) in shapes(c).items():
        if fan is not None:
            w = torch.randn(shape, generator=gen) / math.sqrt(fan)
            if name == "head":
                w *= 0.5
        elif name == "embed":
            w = torch.randn(shape, generator=gen) * 0.5
        elif name == "table":
            w = torch.randn(shape, generator=gen) * 0.3
        elif name in ("hc_scale",):
            w = torch.full(shape, 0.3)
        elif name in ("hc_base", "sink"):
            w = torch.zeros(shape)
        elif name == "hc_fn":
            w = torch.randn(shape, generator=gen) * 0.02
        else:
            w = torch.ones(shape)
        out[name] = w
    # Sub-layer outputs start small; every stream starts with its own content (a weighty diagonal of comb).
    out["wo_b"] *= 0.3
    out["w2"] *= 0.5
    out["hc_fn"][:, :, 24:] = 0
    out["hc_base"][:, :, 8:24] = (2 * torch.eye(4)).flatten()
    out["gate"][:, c.n_routed_experts :] = 0
    return {k: v.to(device) for k, v in out.items()}


def round_weight(w, storage):
    """The value that the release stores, for one stacked master."""
    if storage == "fp8":
        return formats.fp8_tile_qdq(w)
    if storage == "table":
        return formats.fp8_row_qdq(w)
    if storage in ("expert", "expert_t"):
        # Expert index is the axis before the matrix; the shared expert, the last, is FP8.
        experts, shared = w[..., :-1, :, :], w[..., -1:, :, :]
        if storage == "expert_t":  # kept transposed: scales run along the stored matrix's columns
            experts = formats.fp4_qdq(experts.transpose(-1, -2)).transpose(-1, -2)
        else:
            experts = formats.fp4_qdq(experts)
        return torch.cat([experts, formats.fp8_tile_qdq(shared)], -3)
    if storage == "bf16":
        return w.to(torch.bfloat16).float()
    return w


@dataclass
class Mode:
    """What a training phase switches on."""

    quant_kv: bool = False
    quant_weights: bool = False
    quant_acts: bool = False
    select: bool = False
    index_loss: bool = False
    candidates: bool = True
    topk: int = 0  # 0: the configuration's


class Model:
    def __init__(self, c, token_map, device, dtype=torch.bfloat16, seed=0):
        self.c, self.device, self.dtype = c, device, dtype
        self.P = initial(c, device, seed)
        self.bias = torch.zeros(c.num_hidden_layers, c.n_routed_experts, device=device)
        self.spec = shapes(c)
        self.map = torch.as_tensor(token_map).long().to(device)
        self.pad = int(token_map[c.engram_pad_token_id])
        primes = c.engram_primes()
        self.primes = torch.tensor(primes, device=device)  # [layers, columns]
        offsets, base = [], 0
        for p in primes:
            offsets.append([base + sum(p[:k]) for k in range(len(p))])
            base += sum(p)
        self.offsets = torch.tensor(offsets, device=device)
        self.mult = [[int(v) for v in engram.multipliers(i, c.engram_compressed_vocab_size)] for i in c.engram_layer_ids]
        at = torch.arange(8192)
        self.tables = []
        for compressed in (False, True):
            angle = at.float()[:, None] * reference.rope_frequencies(c, compressed)
            self.tables.append((torch.cos(angle).to(device), torch.sin(angle).to(device)))

    def working(self, mode):
        """{name: leaf tensor with requires_grad}: rounded or cast copies of the masters."""
        out = {}
        for name, w in self.P.items():
            storage = self.spec[name][3]
            if mode.quant_weights:
                w = round_weight(w, storage)
            w = w.detach().to(torch.float32 if name in _DIRECT else self.dtype)
            out[name] = w.clone() if w is self.P[name] else w
            out[name].requires_grad_(True)
        return out

    def engram_rows(self, ids, pos):
        """int64 [layers][N, columns] rows of the joint table."""
        canonical = self.map[ids.long()]
        values = [canonical]
        for k in range(1, self.c.engram_max_ngram_size):
            back = torch.cat([canonical.new_zeros(k), canonical[:-k]])
            values.append(torch.where(pos < k, self.pad, back))
        out = []
        for layer, mult in enumerate(self.mult):
            r = values[0] * mult[0]
            columns = []
            for k in range(1, len(mult)):
                r = r ^ (values[k] * mult[k])
                cut = slice((k - 1) * self.c.engram_n_heads, k * self.c.engram_n_heads)
                columns.append(r[:, None] % self.primes[layer, cut] + self.offsets[layer, cut])
            out.append(torch.cat(columns, 1))
        return out

    def forward(self, w, ids, lay, mode, probe=None):
        """`w` from working(); `probe` int64 [B, n]: the tokens whose attention the index loss looks at. Returns (final normalised x [N, D], index loss, expert counts [layers, experts])."""
        c = self.c
        split = {k: v.unbind(0) if v.dim() > 1 and k not in ("embed", "head", "table") else v for k, v in w.items()}
        eng_rows = self.engram_rows(ids, lay.pos)
        e = ops.lookup(w["embed"], ids.long()).to(self.dtype)
        h = e[:, None, :].expand(-1, c.hc_mult, -1).contiguous()
        p = torch.zeros(len(ids), c.hc_mult, device=self.device)
        p[:, 0] = 1
        width = c.hc_mult * c.hidden_size
        shared = {"probe": probe, "seen": {}, "scores": {}}
        counts = []
        y = post = comb = None
        for i in range(c.num_hidden_layers):
            fn, base, scale = (split[k][i] for k in ("hc_fn", "hc_base", "hc_scale"))
            if i in c.engram_layer_ids:
                if y is not None:
                    h = ops.seam(h, y, post, comb)[0]
                    y = None
                k = c.engram_layer_ids.index(i)
                rows = ops.lookup(w["table"], eng_rows[k]).to(self.dtype).flatten(1)
                kv = F.linear(rows, split["ewkv"][k])
                h = ops.engram_gate(h, kv, split["eq"][k] * split["ek"][k])
            h, x, dot, ssq = ops.seam(h, y, post, comb, p, split["attn_norm"][i], fn[0])
            pre, post, comb = ops.coefficients(dot, ssq, base[0], scale[0], width)
            y = self._attention(i, x, lay, mode, split, shared)
            h, x, dot, ssq = ops.seam(h, y, post, comb, pre, split["ffn_norm"][i], fn[1])
            p, post, comb = ops.coefficients(dot, ssq, base[1], scale[1], width)
            y, r = self._moe(i, x, mode, split)
            counts.append((r[:, : c.n_routed_experts] > 0).sum(0))
        _, x, _, _ = ops.seam(h, y, post, comb, p, w["norm"])
        return x, self._index_loss(shared), torch.stack(counts)

    def _moe(self, i, x, mode, w):
        c = self.c
        z = ops.matmul_f32(x, w["gate"][i])
        r = ops.route(z, self.bias[i], c.n_routed_experts, c.num_experts_per_tok, c.routed_scaling_factor)
        e, f = c.n_routed_experts + 1, c.moe_intermediate_size
        gu = F.linear(ops.act_quant(x, mode.quant_acts), w["w13"][i].reshape(-1, c.hidden_size))
        t = ops.expert_act(gu.view(-1, 2, e, f), r, c.swiglu_limit)
        return ops.act_quant(t, mode.quant_acts) @ w["w2"][i].reshape(e * f, -1), r

    def _attention(self, i, x, lay, mode, w, shared):
        c = self.c
        ratio = c.ratio(i)
        table = self.tables[ratio > 0]
        quant = mode.quant_kv
        xq = ops.act_quant(x, mode.quant_acts)
        qr = ops.prep(F.linear(xq, w["wq_a"][i]), w["q_norm"][i])
        qrq = ops.act_quant(qr, mode.quant_acts)
        q = F.linear(qrq, w["wq_b"][i]).view(-1, c.num_attention_heads, c.head_dim)
        kv = ops.prep(F.linear(xq, w["wkv"][i]), w["kv_norm"][i], lay.pos, table, ops.FP8 if quant else 0)
        rows = selected = probe = None
        if ratio:
            if i in c.kv_source_layer_ids:
                self._rows(i, x, lay, quant, w, shared, table)
            if i in c.index_source_layer_ids:
                self._index(i, x, qrq, lay, mode, w, shared, table)
            rows, selected = shared["rows"], shared["selected"]
            probe = shared["probe"] if mode.index_loss else None
        o, seen = ops.attention(q, kv, w["sink"][i], lay, table, rows, ratio, selected, probe)
        if seen is not None:
            source = c.index_source(i)
            shared["seen"][source] = shared["seen"].get(source, 0) + seen
        group = c.num_attention_heads * c.head_dim // c.o_groups
        o = o.view(-1, c.o_groups, group)
        z = torch.cat([o[:, g] @ w["wo_a"][i][g].t() for g in range(c.o_groups)], 1)
        return F.linear(ops.act_quant(z, mode.quant_acts), w["wo_b"][i])

    def _rows(self, i, x, lay, quant, w, shared, table):
        c = self.c
        k, ratio = c.kv_source_layer_ids.index(i), c.ratio(i)
        u = F.linear(x, w["ckv"][k])
        if ratio > 1:
            gate = F.linear(x, w["cgate"][sum(c.has_gate(j) for j in range(i))]).float().unflatten(0, (-1, ratio))
            u = (torch.softmax(gate, 1) * u.float().unflatten(0, (-1, ratio))).sum(1).to(x.dtype)
        latent = ops.prep(u, w["c_norm"][k])
        pos = lay.pos[::ratio].contiguous()
        shared["rows"] = ops.prep(latent, None, pos, table, ops.NVFP4 if quant else 0).view(lay.b, -1, c.head_dim)
        key = F.linear(latent.detach(), w["iwk"][k])
        shared["keys"] = ops.prep(key, w["k_norm"][k], pos, table, ops.MXFP4 if quant else 0).view(lay.b, -1, c.index_head_dim)

    def _index(self, i, x, qr, lay, mode, w, shared, table):
        c = self.c
        k, ratio = c.index_source_layer_ids.index(i), c.ratio(i)
        weight = ops.matmul_f32(x.detach(), w["iproj"][k]) * (c.index_head_dim**-0.5 * c.index_n_heads**-0.5)
        shared["selected"] = None
        if not (mode.select or mode.index_loss):
            return
        quant = ops.MXFP4 if mode.quant_kv else 0
        if mode.select:
            with torch.no_grad():
                iq = F.linear(qr, w["iwq"][k]).view(-1, c.index_n_heads, c.index_head_dim)
                iq = ops.prep(iq, None, lay.pos, table, quant, c.index_n_heads)
                role = ops.NO_ROLE
                if mode.candidates and i >= c.candidate_source_layer_id:
                    role = ops.SOURCE if i == c.candidate_source_layer_id else ops.CONSUMER
                shared["selected"], shared["candidates"] = ops.select(
                    iq, shared["keys"], weight, lay, ratio, mode.topk or c.index_topk, role, shared.get("candidates"),
                    c.candidate_topk_blocks, c.candidate_block_size)
        if mode.index_loss:
            probe = shared["probe"]

            def take(t):  # rows [N, width] -> [B, n, width]
                return t.view(lay.b, lay.s, -1).gather(1, probe[:, :, None].expand(-1, -1, t.shape[-1]))

            q = F.linear(take(qr.detach()), w["iwq"][k]).reshape(-1, c.index_n_heads, c.index_head_dim)
            pos = lay.pos.view(lay.b, lay.s).gather(1, probe).flatten()
            q = ops.prep(q, None, pos, table, quant, c.index_n_heads).view(lay.b, -1, c.index_head_dim)
            s = torch.matmul(q, shared["keys"].transpose(1, 2)).float()
            s = F.relu(s.view(lay.b, -1, c.index_n_heads, s.shape[-1]))
            s = (s * take(weight)[..., None]).sum(2)
            ok = lay.visible_rows_of(probe, ratio)
            if shared["selected"] is not None and i != c.candidate_source_layer_id:
                rows = shared["selected"].shape[2]
                ok = ok & (shared["selected"].gather(1, probe[:, :, None].expand(-1, -1, rows)) != 0)
            shared["scores"][i] = s, ok

    def _index_loss(self, shared):
        """Divergence of each source's scores from the attention of the layers that use its selection. The candidate source
        also answers for the layers that only see its pool."""
        c, total = self.c, torch.zeros((), device=self.device)
        for i, (s, ok) in shared["scores"].items():
            users = [i]
            if i == c.candidate_source_layer_id:
                users += [k for k in c.index_source_layer_ids if k > i]
            mass = sum(shared["seen"][k].sum(-1) for k in users)
            target = sum(shared["seen"][k] / shared["seen"][k].sum(-1, keepdim=True).clamp(min=1e-6) for k in users) / len(users)
            logp = torch.log_softmax(s.masked_fill(~ok, -1e9), -1)
            each = (target * (torch.log(target.clamp(min=1e-9)) - logp)).masked_fill(~ok, 0).sum(-1)
            total = total + (each * mass).sum() / mass.sum().clamp(min=1e-3)
        return total


def export_weights(model):
    """{release name: float32 tensor} of the masters, unrounded (checkpoint.write rounds)."""
    c, p = model.c, {k: v.detach().float().cpu() for k, v in model.P.items()}
    out = {"embed.weight": p["embed"], "head.weight": p["head"], "norm.weight": p["norm"]}
    first = 0
    for i in range(c.num_hidden_layers):
        n = f"layers.{i}."
        a, f = n + "attn.", n + "ffn."
        out[n + "attn_norm.weight"], out[n + "ffn_norm.weight"] = p["attn_norm"][i], p["ffn_norm"][i]
        out[a + "attn_sink"] = p["sink"][i]
        for k in ("wq_a", "wq_b", "wkv", "wo_b"):
            out[f"{a}{k}.weight"] = p[k][i]
        out[a + "wo_a.weight"] = p["wo_a"][i].flatten(0, 1)
        out[a + "q_norm.weight"], out[a + "kv_norm.weight"] = p["q_norm"][i], p["kv_norm"][i]
        for s, site in enumerate(("attn", "ffn")):
            # The forward pass used fn at bfloat16 values; the file keeps float32, so the values carry over exactly.
            out[f"{n}hc_{site}_fn"] = p["hc_fn"][i, s, :24].to(torch.bfloat16).float()
            out[f"{n}hc_{site}_base"], out[f"{n}hc_{site}_scale"] = p["hc_base"][i, s], p["hc_scale"][i, s]
        out[f + "gate.weight"] = p["gate"][i, : c.n_routed_experts]
        out[f + "gate.bias"] = out[f + "gate.bias_vl"] = model.bias[i].detach().float().cpu()
        for e in range(c.n_routed_experts + 1):
            k = f"{f}experts.{e}." if e < c.n_routed_experts else f + "shared_experts."
            out[k + "w1.weight"], out[k + "w3.weight"] = p["w13"][i, 0, e], p["w13"][i, 1, e]
            out[k + "w2.weight"] = p["w2"][i, e].t().contiguous()
        if i in c.kv_source_layer_ids:
            k = c.kv_source_layer_ids.index(i)
            out[a + "compressor.wkv.weight"], out[a + "compressor.norm.weight"] = p["ckv"][k], p["c_norm"][k]
            out[a + "indexer.wk.weight"], out[a + "indexer.k_norm.weight"] = p["iwk"][k], p["k_norm"][k]
            if c.has_gate(i):
                out[a + "compressor.wgate.weight"] = p["cgate"][sum(c.has_gate(j) for j in range(i))]
        if i in c.index_source_layer_ids:
            k = c.index_source_layer_ids.index(i)
            out[a + "indexer.wq_b.weight"], out[a + "indexer.weights_proj.weight"] = p["iwq"][k], p["iproj"][k]
        if i in c.engram_layer_ids:
            k = c.engram_layer_ids.index(i)
            rows = sum(c.engram_primes()[k])
            out[n + "engram.embed.weight"] = p["table"][first : first + rows]
            first += rows
            out[n + "engram.wkv.weight"] = p["ewkv"][k]
            out[n + "engram.q_weight"], out[n + "engram.k_weight"] = p["eq"][k], p["ek"][k]
    return out


def load_weights(model, weights):
    """Sets the masters to release weights (checkpoint.read); the reverse of export_weights."""
    c, p = model.c, model.P

    def put(name, at, value):
        p[name][at].copy_(value)

    for name, key in (("embed", "embed.weight"), ("head", "head.weight"), ("norm", "norm.weight")):
        p[name].copy_(weights[key])
    first = 0
    for i in range(c.num_hidden_layers):
        n = f"layers.{i}."
        a, f = n + "attn.", n + "ffn."
        put("attn_norm", i, weights[n + "attn_norm.weight"])
        put("ffn_norm", i, weights[n + "ffn_norm.weight"])
        put("sink", i, weights[a + "attn_sink"])
        for k in ("wq_a", "wq_b", "wkv", "wo_b", "q_norm", "kv_norm"):
            put(k, i, weights[f"{a}{k}.weight"])
        put("wo_a", i, weights[a + "wo_a.weight"].view(p["wo_a"][i].shape))
        for s, site in enumerate(("attn", "ffn")):
            p["hc_fn"][i, s, :24].copy_(weights[f"{n}hc_{site}_fn"])
            p["hc_base"][i, s].copy_(weights[f"{n}hc_{site}_base"])
            p["hc_scale"][i, s].copy_(weights[f"{n}hc_{site}_scale"])
        p["gate"][i, : c.n_routed_experts].copy_(weights[f + "gate.weight"])
        model.bias[i].copy_(weights[f + "gate.bias"])
        for e in range(c.n_routed_experts + 1):
            k = f"{f}experts.{e}." if e < c.n_routed_experts else f + "shared_experts."
            p["w13"][i, 0, e].copy_(weights[k + "w1.weight"])
            p["w13"][i, 1, e].copy_(weights[k + "w3.weight"])
            p["w2"][i, e].copy_(weights[k + "w2.weight"].t())
        if i in c.kv_source_layer_ids:
            k = c.kv_source_layer_ids.index(i)
            put("ckv", k, weights[a + "compressor.wkv.weight"])
            put("c_norm", k, weights[a + "compressor.norm.weight"])
            put("iwk", k, weights[a + "indexer.wk.weight"])
            put("k_norm", k, weights[a + "indexer.k_norm.weight"])
            if c.has_gate(i):
                put("cgate", sum(c.has_gate(j) for j in range(i)), weights[a + "compressor.wgate.weight"])
        if i in c.index_source_layer_ids:
            k = c.index_source_layer_ids.index(i)
            put("iwq", k, weights[a + "indexer.wq_b.weight"])
            put("iproj", k, weights[a + "indexer.weights_proj.weight"])
        if i in c.engram_layer_ids:
            k = c.engram_layer_ids.index(i)
            rows = sum(c.engram_primes()[k])
            p["table"][first : first + rows].copy_(weights[n + "engram.embed.weight"])
            first += rows
            put("ewkv", k, weights[n + "engram.wkv.weight"])
            put("eq", k, weights[n + "engram.q_weight"])
            put("ek", k, weights[n + "engram.k_weight"])
