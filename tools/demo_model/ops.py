"""Differentiable operations of the model, each twice: fused (kernels.py) and plain PyTorch.

The plain twins run anywhere in any float type and are what the kernels are checked against (check_kernels.py); the
model is compared with reference.py through them. `use_kernels` picks.
"""

import math
import os

import torch
import torch.nn.functional as F

import formats

use_kernels = True
EPS = 1e-20
HC_EPS = 1e-6
STEPS = 20

if torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1":
    import kernels as K


def _next_pow2(n):
    return 1 << (n - 1).bit_length()


def _tokens(n, most):
    """Tokens per program of kernels that keep one partial sum per program."""
    while n % most:
        most //= 2
    return most


def matmul_f32(x, w):
    """x [N, K] . w [M, K]^T with float32 result."""
    return _MatmulF32.apply(x, w)


def _mm_f32(x, w):
    if x.is_cuda and x.dtype != torch.float32:
        return torch.mm(x, w.t(), out_dtype=torch.float32)
    return x.float() @ w.float().t()


class _MatmulF32(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return _mm_f32(x, w)

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        g = g.to(x.dtype)
        return g @ w, g.t() @ x


# ---- mHC -------------------------------------------------------------------------------------------------------------


def seam(h, y=None, post=None, comb=None, p=None, w=None, fn=None):
    """What lies between two sub-layers: expand(y) into the streams h (if y is given), then collapse with p and RMSNorm
    with w (if p is given), and the raw mixes of the next site (if fn [32, 4D] is given).
    Returns (streams, x, dot [N, 32], ssq [N])."""
    if use_kernels:
        out, x, dot, ssq = _Seam.apply(h, y, post, comb, p, w, fn)
        return h if y is None else out, x, dot, ssq
    x = dot = ssq = None
    if y is not None:
        h = (post[:, :, None] * y[:, None, :] + torch.einsum("nij,nid->njd", comb, h.float())).to(h.dtype)
    if p is not None:
        xc = torch.einsum("ni,nid->nd", p, h.float()).to(h.dtype).float()
        x = (w * (xc * torch.rsqrt(xc.square().mean(-1, keepdim=True) + EPS))).to(h.dtype)
        ssq = h.float().square().sum((1, 2))
    if fn is not None:
        dot = h.flatten(1).float() @ fn.float().t()
    return h, x, dot, ssq


class _Seam(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h, y, post, comb, p, w, fn):
        n, _, d = h.shape
        expand, pre = y is not None, p is not None
        out = torch.empty_like(h) if expand else h
        x = torch.empty(n, d, dtype=h.dtype, device=h.device) if pre else None
        ssq = torch.empty(n, dtype=torch.float32, device=h.device) if pre else None
        K.seam_fwd[(n,)](h, y, post, comb, p, w, out, x, ssq, EPS, d, expand, pre, num_warps=2)
        dot = None
        if fn is not None:
            dot = _mm_f32(out.view(n, 4 * d), fn)
        ctx.save_for_backward(h if expand else None, y, out, post, comb, p, w, fn)
        ctx.set_materialize_grads(False)
        return out if expand else None, x, dot, ssq

    @staticmethod
    def backward(ctx, dout, dx, ddot, dssq):
        h, y, out, post, comb, p, w, fn = ctx.saved_tensors
        n, _, d = out.shape
        expand, pre, mix = y is not None, p is not None, fn is not None
        dfn = g = None
        if mix:
            t = ddot.to(out.dtype)
            g = t @ fn
            dfn = t.t() @ out.view(n, 4 * d)
        dh = torch.empty_like(out)
        f32 = dict(dtype=torch.float32, device=out.device)
        dy = torch.empty_like(y) if expand else None
        dpost = torch.empty(n, 4, **f32) if expand else None
        dcomb = torch.empty(n, 4, 4, **f32) if expand else None
        dp = torch.empty(n, 4, **f32) if pre else None
        tokens = _tokens(n, 16)
        dw = torch.empty(n // tokens, d, **f32) if pre else None
        K.seam_bwd[(n // tokens,)](h, y, out, post, comb, p, w, dout.contiguous() if dout is not None else None,
                                   dx.contiguous() if dx is not None else None, g, dssq, dh, dy, dpost, dcomb, dp, dw, n,
                                   tokens, EPS, d, expand, pre, mix, dout is not None, num_warps=2)
        return dh, dy, dpost, dcomb, dp, dw.sum(0) if pre else None, dfn


def coefficients(dot, ssq, base, scale, width):
    """Raw mixes to pre [N, 4], post [N, 4], comb [N, 4, 4]; `width` = 4D."""
    if use_kernels:
        return _Coefficients.apply(dot, ssq, base, scale, width)
    m = dot[:, :24] * torch.rsqrt(ssq / width + EPS)[:, None]
    s = torch.cat([scale[0].expand(4), scale[1].expand(4), scale[2].expand(16)])
    a = m * s + base
    pre = torch.sigmoid(a[:, :4]) + HC_EPS
    post = 2 * torch.sigmoid(a[:, 4:8])
    c = torch.softmax(a[:, 8:].view(-1, 4, 4), -1) + HC_EPS
    c = c / (c.sum(1, keepdim=True) + HC_EPS)
    for _ in range(STEPS - 1):
        c = c / (c.sum(2, keepdim=True) + HC_EPS)
        c = c / (c.sum(1, keepdim=True) + HC_EPS)
    return pre, post, c


class _Coefficients(torch.autograd.Function):
    @staticmethod
    def forward(ctx, dot, ssq, base, scale, width):
        n = dot.shape[0]
        f32 = dict(dtype=torch.float32, device=dot.device)
        pre, post, comb = torch.empty(n, 4, **f32), torch.empty(n, 4, **f32), torch.empty(n, 4, 4, **f32)
        sums = torch.empty(4 + 8 * (STEPS - 1), n, **f32)
        block = min(128, n)
        K.hc_fwd[(n // block,)](dot, ssq, base, scale, pre, post, comb, sums, n, width, EPS, HC_EPS, STEPS, block,
                                num_warps=4)
        ctx.save_for_backward(dot, ssq, base, scale, comb, sums)
        ctx.width = width
        return pre, post, comb

    @staticmethod
    def backward(ctx, dpre, dpost, dcomb):
        dot, ssq, base, scale, comb, sums = ctx.saved_tensors
        n = dot.shape[0]
        f32 = dict(dtype=torch.float32, device=dot.device)
        ddot, dssq = torch.empty(n, 32, **f32), torch.empty(n, **f32)
        da, dam = torch.empty(24, n, **f32), torch.empty(24, n, **f32)
        block = min(128, n)
        K.hc_bwd[(n // block,)](dot, ssq, base, scale, comb, sums, dpre.contiguous(), dpost.contiguous(),
                                dcomb.contiguous(), ddot, dssq, da, dam, n, ctx.width, EPS, HC_EPS, STEPS, block,
                                num_warps=4)
        dam = dam.sum(1)
        dscale = torch.stack([dam[:4].sum(), dam[4:8].sum(), dam[8:].sum()])
        return ddot, dssq, da.sum(1), dscale, None


# ---- norm, RoPE, fake quantisation -----------------------------------------------------------------------------------

NO_QUANT, FP8, NVFP4, MXFP4 = range(4)
_RULES = {FP8: formats.fp8_rows_qdq, NVFP4: formats.nvfp4_rows_qdq, MXFP4: formats.mxfp4_rows_qdq}


def prep(x, w=None, pos=None, table=None, quant=NO_QUANT, heads=1):
    """Rows x [..., D]: RMSNorm with w, rotation of the last 64 channels at pos[row // heads], fake quantisation
    (gradients pass straight through), each if asked for. `table` = (cos, sin) [positions, 32]."""
    if use_kernels:
        cos, sin = table if table is not None else (None, None)
        return _Prep.apply(x, w, pos, cos, sin, quant, heads)
    y = x.float()
    if w is not None:
        y = (w * (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + EPS))).to(x.dtype).float()
    if pos is not None:
        y = _rotate(y.view(-1, heads, y.shape[-1]), pos, table).view(y.shape).to(x.dtype).float()
    if quant:
        y = y + (_RULES[quant](y.detach()) - y.detach())
    return y.to(x.dtype)


def _rotate(x, pos, table, sign=1.0):
    cos, sin = table[0][pos.long()][:, None, :], sign * table[1][pos.long()][:, None, :]
    a, b = x[..., -64::2], x[..., -63::2]
    return torch.cat([x[..., :-64], torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)], -1)


class _Prep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, pos, cos, sin, quant, heads):
        x = x.contiguous()
        d = x.shape[-1]
        out = torch.empty_like(x)
        pairs = 8 if quant == NVFP4 else 16
        K.prep_fwd[(x.numel() // d,)](x, w, pos, cos, sin, out, heads, EPS, d, pairs, w is not None, pos is not None,
                                      quant, num_warps=1 if d <= 128 else 2)
        ctx.save_for_backward(x if w is not None else None, w, pos, cos, sin)
        ctx.heads = heads
        return out

    @staticmethod
    def backward(ctx, g):
        x, w, pos, cos, sin = ctx.saved_tensors
        if w is None and pos is None:
            return g, None, None, None, None, None, None
        g = g.contiguous()
        d = g.shape[-1]
        rows = g.numel() // d
        tokens = _tokens(rows, 16)
        dx = torch.empty_like(g)
        dw = torch.empty(rows // tokens, d, dtype=torch.float32, device=g.device) if w is not None else None
        K.prep_bwd[(rows // tokens,)](x, w, pos, cos, sin, g, dx, dw, tokens, ctx.heads, EPS, d, w is not None,
                                      pos is not None, num_warps=1 if d <= 128 else 2)
        return dx, dw.sum(0) if w is not None else None, None, None, None, None, None


def act_quant(x, on):
    """FP8 rounding of the input of a quantised linear (backbone.md 8.1), if `on`."""
    # Groups of 32 lie within rows, so any cut of the flat tensor into multiples of 32 rounds alike.
    return prep(x.reshape(-1, 512), quant=FP8).view_as(x) if on else x


# ---- attention -------------------------------------------------------------------------------------------------------


class Layout:
    """A packed batch: B rows of S tokens; `pos` int32 [N] position in the document, `start` int32 [N] index in the batch
    row of the document's first token. Documents start at multiples of 16."""

    def __init__(self, batch, length, pos, start, window=128, chunks=4):
        self.b, self.s, self.pos, self.start, self.window = batch, length, pos, start, window
        self.chunks = chunks if length % (chunks * window) == 0 else 1

    def visible_window(self):
        """bool [B, S, S] for the plain twins."""
        t = torch.arange(self.s, device=self.pos.device)
        d = t[:, None] - t[None, :]
        return ((d >= 0) & (d < self.window))[None] & (t[None, None, :] >= self.start.view(self.b, self.s, 1))

    def visible_rows_of(self, tokens, ratio):
        """bool [B, n, S/ratio]: the rows that tokens int64 [B, n] may see."""
        j = torch.arange(self.s // ratio, device=self.pos.device)
        start = self.start.view(self.b, self.s).gather(1, tokens)
        return ((j + 1) * ratio <= tokens[..., None] + 1) & (j * ratio >= start[..., None])

    def visible_rows(self, ratio):
        t = torch.arange(self.s, device=self.pos.device)
        j = torch.arange(self.s // ratio, device=self.pos.device)
        causal = (j[None, :] + 1) * ratio <= t[:, None] + 1
        return causal[None] & (j[None, None, :] * ratio >= self.start.view(self.b, self.s, 1))


def attention(q, kv, sink, lay, table, rows=None, ratio=0, selected=None, probe=None):
    """q [N, H, D] before rotation, kv [N, D] window keys (= values), rows [B, S/ratio, D], selected uint8 [B, S, S/ratio].
    Rotates q, attends with one softmax over window, rows and sink, rotates the output back: [N, H, D].
    `probe` int64 [B, n]: also returns the rows' probabilities, summed over heads, of these tokens of each batch row:
    float32 [B, n, S/ratio] without gradient (else None)."""
    if use_kernels:
        o, seen = _Attention.apply(q, kv, sink, lay, table[0], table[1], rows, ratio, selected, probe)
        return o, seen
    n, heads, d = q.shape
    q = _rotate(q.float(), lay.pos, table).to(q.dtype).view(lay.b, lay.s, heads, d)
    keys, mask = kv.view(lay.b, lay.s, d), lay.visible_window()
    if ratio:
        extra = lay.visible_rows(ratio)
        if selected is not None:
            extra = extra & (selected != 0)
        keys, mask = torch.cat([keys, rows], 1), torch.cat([mask, extra], 2)
    s = torch.einsum("bthd,bkd->bthk", q, keys).float() * d**-0.5
    s = s.masked_fill(~mask[:, :, None, :], -math.inf)
    m = torch.maximum(s.amax(-1, keepdim=True), sink.view(1, 1, -1, 1)).detach()
    e = torch.exp(s - m)
    p = e / (e.sum(-1, keepdim=True) + torch.exp(sink.view(1, 1, -1, 1) - m))
    o = torch.einsum("bthk,bkd->bthd", p.to(q.dtype), keys).reshape(n, heads, d)
    seen = None
    if probe is not None and ratio:
        seen = torch.take_along_dim(p[..., lay.s :].sum(2), probe[:, :, None], 1).detach()
    return _rotate(o.float(), lay.pos, table, -1.0).to(q.dtype), seen


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, kv, sink, lay, cos, sin, rows, ratio, selected, probe):
        n, heads, d = q.shape
        b, s, w = lay.b, lay.s, lay.window
        q = q.contiguous()
        K.rope_inplace[(n * heads // 32,)](q, lay.pos, cos, sin, 1.0, heads, d, 32, num_warps=4)
        padded = torch.cat([torch.zeros(w, d, dtype=kv.dtype, device=kv.device), kv])
        keys = padded.as_strided((n // w, 2 * w, d), (w * d, d, 1))
        qw = q.view(n // w, w * heads, d)
        pw = torch.bmm(qw, keys.transpose(1, 2))
        scale = d**-0.5
        psink = torch.empty(n, heads, dtype=torch.float32, device=q.device)
        chunks = lay.chunks if ratio else 1
        step = s // chunks
        q3 = q.view(b, s * heads, d)
        pgs = []
        for c in range(chunks):
            pg, rc = None, 1
            if ratio:
                rc = (c + 1) * step // ratio
                part = q3[:, c * step * heads : (c + 1) * step * heads]
                pg = torch.bmm(part, rows[:, :rc].transpose(1, 2))
                pgs.append(pg)
            K.softmax_fwd[(b * step * heads,)](pw, pg, lay.start, sink, selected, psink, s, c * step, step, rc,
                                               s // ratio if ratio else 1, scale, heads, ratio, selected is not None,
                                               _next_pow2(rc), w, num_warps=4)
        o = torch.bmm(pw, keys).view(n, heads, d)
        o3 = o.view(b, s * heads, d)
        for c, pg in enumerate(pgs):
            part = o3[:, c * step * heads : (c + 1) * step * heads]
            torch.baddbmm(part, pg, rows[:, : pg.shape[2]], out=part)
        seen = None
        if ratio and probe is not None:
            # A row's probability is exp(score - sink) times the sink's own.
            part = q.view(b, s, heads * d).gather(1, probe[:, :, None].expand(-1, -1, heads * d))
            score = torch.bmm(part.view(b, -1, d), rows.transpose(1, 2)).float().view(b, -1, heads, s // ratio) * scale
            own = psink.view(b, s, heads).gather(1, probe[:, :, None].expand(-1, -1, heads))
            score = score + (torch.log(own.clamp(min=1e-37)) - sink)[..., None]
            ok = lay.visible_rows_of(probe, ratio)
            if selected is not None:
                ok = ok & (selected.gather(1, probe[:, :, None].expand(-1, -1, s // ratio)) != 0)
            seen = torch.exp(score.clamp(max=0)).masked_fill(~ok[:, :, None], 0).sum(2)
        K.rope_inplace[(n * heads // 32,)](o, lay.pos, cos, sin, -1.0, heads, d, 32, num_warps=4)
        ctx.save_for_backward(q, padded, rows, pw, psink, cos, sin, *pgs)
        ctx.meta = (lay, ratio, step)
        ctx.mark_non_differentiable(*([seen] if seen is not None else []))
        return o, seen

    @staticmethod
    def backward(ctx, do, _):
        q, padded, rows, pw, psink, cos, sin, *pgs = ctx.saved_tensors
        lay, ratio, step = ctx.meta
        n, heads, d = q.shape
        b, s, w = lay.b, lay.s, lay.window
        do = do.contiguous()
        K.rope_inplace[(n * heads // 32,)](do, lay.pos, cos, sin, 1.0, heads, d, 32, num_warps=4)
        keys = padded.as_strided((n // w, 2 * w, d), (w * d, d, 1))
        qw, dow = q.view(n // w, w * heads, d), do.view(n // w, w * heads, d)
        q3, do3 = q.view(b, s * heads, d), do.view(b, s * heads, d)
        dpw = torch.bmm(dow, keys.transpose(1, 2))
        dsink = torch.empty_like(psink)
        dgs = []
        for c in range(len(pgs) or 1):
            dg, rc, pg = None, 1, None
            if ratio:
                pg = pgs[c]
                rc = pg.shape[2]
                dg = torch.bmm(do3[:, c * step * heads : (c + 1) * step * heads], rows[:, :rc].transpose(1, 2))
                dgs.append(dg)
            K.softmax_bwd[(b * step * heads,)](pw, dpw, pg, dg, psink, dsink, s, c * step, step, rc, d**-0.5, heads,
                                               ratio, _next_pow2(rc), w, num_warps=4)
        dq = torch.bmm(dpw, keys)
        half = torch.bmm(dpw.transpose(1, 2), qw)
        half = torch.baddbmm(half, pw.transpose(1, 2), dow).view(n // w, 2, w, d)
        dkv = half[:, 1].clone()
        dkv[:-1] += half[1:, 0]
        drows = None
        if ratio:
            drows = torch.zeros_like(rows)
            dq3 = dq.view(b, s * heads, d)
            for c, dg in enumerate(dgs):
                rc = dg.shape[2]
                cut = slice(c * step * heads, (c + 1) * step * heads)
                part = dq3[:, cut]
                torch.baddbmm(part, dg, rows[:, :rc], out=part)
                part = drows[:, :rc]
                torch.baddbmm(part, dg.transpose(1, 2), q3[:, cut], out=part)
                torch.baddbmm(part, pgs[c].transpose(1, 2), do3[:, cut], out=part)
        dq = dq.view(n, heads, d)
        K.rope_inplace[(n * heads // 32,)](dq, lay.pos, cos, sin, -1.0, heads, d, 32, num_warps=4)
        return dq, dkv.view(n, d), dsink.sum(0), None, None, None, drows, None, None, None


NO_ROLE, SOURCE, CONSUMER = range(3)


def select(iq, keys, weight, lay, ratio, topk, role=NO_ROLE, candidates=None, blocks=96, size=8):
    """Index queries [N, HI, DI], keys [B, R, DI], head weights [N, HI] float32 -> (uint8 [B, S, R], candidate blocks)."""
    b, s = lay.b, lay.s
    r = s // ratio
    n, heads, di = iq.shape
    if not use_kernels:
        sc = torch.einsum("bthd,bkd->bthk", iq.view(b, s, heads, di).float(), keys.float())
        sc = (F.relu(sc) * weight.view(b, s, heads, 1)).sum(2)
        sc = sc.masked_fill(~lay.visible_rows(ratio), -math.inf)
        if role == SOURCE:
            cells = sc.unflatten(2, (-1, size)).amax(-1)
            newest = torch.div((torch.arange(s, device=iq.device) + 1) // ratio - 1, size, rounding_mode="floor")
            valid = cells > -math.inf
            at = newest.clamp(min=0)[None, :, None].expand(b, s, 1)
            pinned = cells.scatter(2, at, torch.where(valid.gather(2, at), math.inf, -math.inf))
            candidates = (_topk(pinned, blocks) & valid).to(torch.uint8)
        if role == CONSUMER:
            sc = sc.masked_fill(candidates.repeat_interleave(size, 2) == 0, -math.inf)
        return _topk(sc, topk).to(torch.uint8), candidates
    if role == SOURCE:
        candidates = torch.zeros(b, s, r // size, dtype=torch.uint8, device=iq.device)
    out = torch.zeros(b, s, r, dtype=torch.uint8, device=iq.device)
    chunks = lay.chunks
    step = s // chunks
    q3 = iq.reshape(b, s * heads, di)
    for c in range(chunks):
        rc = (c + 1) * step // ratio
        si = torch.bmm(q3[:, c * step * heads : (c + 1) * step * heads], keys[:, :rc].transpose(1, 2))
        K.select_rows[(b * step,)](si, weight, lay.start, out, candidates, s, c * step, step, rc, r, heads, ratio, topk,
                                   _next_pow2(rc), role, blocks, size, num_warps=4)
    return out, candidates


def _topk(scores, k):
    order = torch.argsort(scores, dim=-1, descending=True, stable=True)[..., :k]
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, order, True) & (scores > -math.inf)


# ---- router, experts, Engram, loss -----------------------------------------------------------------------------------


def route(z, bias, experts, k, scale):
    """Router logits [N, 16] -> weights [N, 16] (chosen experts; column `experts` is the shared one, 1)."""
    if use_kernels:
        return _Route.apply(z, bias, experts, k, scale)
    s = torch.sqrt(F.softplus(z[:, :experts], threshold=1e9))
    chosen = _topk((s + bias[:experts]).detach(), k)
    r = s * chosen
    r = r / r.sum(-1, keepdim=True) * scale
    return torch.cat([r, torch.ones_like(r[:, :1]), torch.zeros(len(r), 15 - experts, device=r.device)], 1)


class _Route(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z, bias, experts, k, scale):
        r = torch.empty_like(z)
        n = z.shape[0]
        block = min(32, n)
        K.route_fwd[(n // block,)](z, bias, r, n, experts, k, scale, block, num_warps=4)
        ctx.save_for_backward(z, r)
        ctx.meta = (experts, scale)
        return r

    @staticmethod
    def backward(ctx, dr):
        z, r = ctx.saved_tensors
        dz = torch.empty_like(z)
        n = z.shape[0]
        block = min(32, n)
        K.route_bwd[(n // block,)](z, r, dr.contiguous(), dz, n, *ctx.meta, block, num_warps=4)
        return dz, None, None, None, None


def expert_act(gu, r, limit):
    """gu [N, 2, E, F], weights r [N, 16] -> [N, E * F]."""
    if use_kernels:
        return _Expert.apply(gu, r, limit)
    g, u = gu[:, 0].float().clamp(max=limit), gu[:, 1].float().clamp(-limit, limit)
    return (F.silu(g) * u * r[:, : gu.shape[2], None]).to(gu.dtype).flatten(1)


class _Expert(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gu, r, limit):
        n, _, e, f = gu.shape
        t = torch.empty(n, e * f, dtype=gu.dtype, device=gu.device)
        K.expert_fwd[(n,)](gu, r, t, limit, e, f, _next_pow2(f), num_warps=4)
        ctx.save_for_backward(gu, r)
        ctx.limit = limit
        return t

    @staticmethod
    def backward(ctx, dt):
        gu, r = ctx.saved_tensors
        n, _, e, f = gu.shape
        dgu, dr = torch.empty_like(gu), torch.empty_like(r)
        K.expert_bwd[(n,)](gu, r, dt.contiguous(), dgu, dr, ctx.limit, e, f, _next_pow2(f), num_warps=4)
        return dgu, dr, None


def engram_gate(h, kv, c):
    """Streams h [N, 4, D], kv [N, 5D] (4 keys, value), c [4, D] -> streams with the gated value added."""
    if use_kernels:
        return _Engram.apply(h, kv, c)
    d = h.shape[2]
    x, key, val = h.float(), kv[:, : 4 * d].view(-1, 4, d).float(), kv[:, 4 * d :].float()
    dot = (x * c * key).sum(-1) * torch.rsqrt(x.square().mean(-1) + EPS) * torch.rsqrt(key.square().mean(-1) + EPS)
    dot = dot * d**-0.5
    root = torch.sqrt(dot.abs().clamp(min=1e-6))
    gate = torch.sigmoid(torch.where(dot >= 0, root, -root))
    return (x + gate[:, :, None] * val[:, None, :]).to(h.dtype)


class _Engram(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h, kv, c):
        out = torch.empty_like(h)
        K.engram_fwd[(h.shape[0],)](h, kv, c, out, EPS, h.shape[2] ** 0.5, h.shape[2], num_warps=2)
        ctx.save_for_backward(h, kv, c)
        return out

    @staticmethod
    def backward(ctx, g):
        h, kv, c = ctx.saved_tensors
        n, _, d = h.shape
        tokens = _tokens(n, 16)
        dh, dkv = torch.empty_like(h), torch.empty_like(kv)
        dc = torch.empty(n // tokens, 4, d, dtype=torch.float32, device=h.device)
        K.engram_bwd[(n // tokens,)](h, kv, c, g.contiguous(), dh, dkv, dc, tokens, EPS, d**0.5, d, num_warps=2)
        return dh, dkv, dc.sum(0)


def lookup(table, index):
    """Rows of a table; the gradient is summed in float32."""
    return _Lookup.apply(table, index)


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx, table, index):
        ctx.save_for_backward(index)
        ctx.shape = table.shape
        return table[index]

    @staticmethod
    def backward(ctx, g):
        (index,) = ctx.saved_tensors
        out = torch.zeros(ctx.shape, dtype=torch.float32, device=g.device)
        return out.index_add_(0, index.flatten(), g.reshape(-1, ctx.shape[1]).float()), None


def head_loss(x, head, target, weight):
    """Mean over weights of the cross entropy: (loss, per-token loss [N], arg max is the target uint8 [N])."""
    if use_kernels:
        return _HeadLoss.apply(x, head, target, weight)
    logits = x.float() @ head.float().t()
    each = F.cross_entropy(logits, target.long(), reduction="none")
    loss = (each * weight).sum() / weight.sum().clamp(min=1)
    return loss, each.detach(), (logits.argmax(-1) == target).to(torch.uint8)


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, head, target, weight):
        logits = _mm_f32(x, head)
        n, v = logits.shape
        norm = 1 / weight.sum().clamp(min=1)
        each = torch.empty(n, dtype=torch.float32, device=x.device)
        right = torch.empty(n, dtype=torch.uint8, device=x.device)
        dl = torch.empty(n, v, dtype=x.dtype, device=x.device)
        K.cross_entropy[(n,)](logits, target, weight, norm, each, right, dl, v, _next_pow2(v), num_warps=8)
        ctx.save_for_backward(x, head, dl)
        ctx.mark_non_differentiable(each, right)
        return (each * weight).sum() * norm, each, right

    @staticmethod
    def backward(ctx, g, _a, _b):
        x, head, dl = ctx.saved_tensors
        return (dl @ head) * g.to(x.dtype), (dl.t() @ x) * g.to(x.dtype), None, None
