"""Triton kernels of the training forward and backward passes. ops.py wraps them and states the maths.

Every kernel works on whole rows, so that each is a few lines of the formula; sums over tokens (weight gradients)
leave the kernels as one partial per program. Rows of a packed batch: token t of batch row b is n = b * S + t; `start`
is the index in its batch row of the first token of its document.
"""

import triton
import triton.language as tl

INT_MIN = tl.constexpr(-2147483648)
INT_MAX = tl.constexpr(2147483647)


# ---- mHC: expand, collapse, norm -------------------------------------------------------------------------------------


@triton.jit
def seam_fwd(H, Y, POST, COMB, P, W, HO, X, SSQ, EPS: tl.constexpr, D: tl.constexpr, EXPAND: tl.constexpr,
             PRE: tl.constexpr):
    n = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, D)
    base = n * 4 * D
    h0 = tl.load(H + base + d).to(tl.float32)
    h1 = tl.load(H + base + D + d).to(tl.float32)
    h2 = tl.load(H + base + 2 * D + d).to(tl.float32)
    h3 = tl.load(H + base + 3 * D + d).to(tl.float32)
    if EXPAND:
        y = tl.load(Y + n * D + d).to(tl.float32)
        for j in tl.static_range(4):
            v = (tl.load(POST + n * 4 + j) * y + tl.load(COMB + n * 16 + j) * h0
                 + tl.load(COMB + n * 16 + 4 + j) * h1 + tl.load(COMB + n * 16 + 8 + j) * h2
                 + tl.load(COMB + n * 16 + 12 + j) * h3)
            v = v.to(HO.dtype.element_ty)
            tl.store(HO + base + j * D + d, v)
            v = v.to(tl.float32)
            if PRE:
                p = tl.load(P + n * 4 + j)
                if j == 0:
                    xc = p * v
                    ssq = tl.sum(v * v, 0)
                else:
                    xc += p * v
                    ssq += tl.sum(v * v, 0)
    else:
        xc = (tl.load(P + n * 4) * h0 + tl.load(P + n * 4 + 1) * h1 + tl.load(P + n * 4 + 2) * h2
              + tl.load(P + n * 4 + 3) * h3)
        ssq = tl.sum(h0 * h0 + h1 * h1 + h2 * h2 + h3 * h3, 0)
    if PRE:
        xc = xc.to(X.dtype.element_ty).to(tl.float32)
        inv = tl.rsqrt(tl.sum(xc * xc, 0) / D + EPS)
        w = tl.load(W + d).to(tl.float32)
        tl.store(X + n * D + d, (w * (xc * inv)).to(X.dtype.element_ty))
        tl.store(SSQ + n, ssq)


@triton.jit
def seam_bwd(H, Y, HO, POST, COMB, P, W, DHO, DX, G, DSSQ, DH, DY, DPOST, DCOMB, DP, DW, N, TOKENS: tl.constexpr,
             EPS: tl.constexpr, D: tl.constexpr, EXPAND: tl.constexpr, PRE: tl.constexpr, MIX: tl.constexpr,
             PASS: tl.constexpr):
    """DHO: gradient of the expanded streams from their other consumer (absent unless PASS); G = ddot . fn."""
    pid = tl.program_id(0)
    d = tl.arange(0, D)
    dw = tl.zeros([D], tl.float32)
    if PRE:
        w = tl.load(W + d).to(tl.float32)
    for k in range(TOKENS):
        n = (pid * TOKENS + k).to(tl.int64)
        base = n * 4 * D
        o0 = tl.load(HO + base + d).to(tl.float32)
        o1 = tl.load(HO + base + D + d).to(tl.float32)
        o2 = tl.load(HO + base + 2 * D + d).to(tl.float32)
        o3 = tl.load(HO + base + 3 * D + d).to(tl.float32)
        if PASS:
            g0 = tl.load(DHO + base + d).to(tl.float32)
            g1 = tl.load(DHO + base + D + d).to(tl.float32)
            g2 = tl.load(DHO + base + 2 * D + d).to(tl.float32)
            g3 = tl.load(DHO + base + 3 * D + d).to(tl.float32)
        else:
            g0 = tl.zeros([D], tl.float32)
            g1 = g0
            g2 = g0
            g3 = g0
        if PRE:
            p0 = tl.load(P + n * 4)
            p1 = tl.load(P + n * 4 + 1)
            p2 = tl.load(P + n * 4 + 2)
            p3 = tl.load(P + n * 4 + 3)
            xc = p0 * o0 + p1 * o1 + p2 * o2 + p3 * o3
            xc = xc.to(DX.dtype.element_ty).to(tl.float32)
            inv = tl.rsqrt(tl.sum(xc * xc, 0) / D + EPS)
            xh = xc * inv
            dx = tl.load(DX + n * D + d).to(tl.float32)
            dw += dx * xh
            t = dx * w
            dxc = inv * (t - xh * (tl.sum(t * xh, 0) / D))
            tl.store(DP + n * 4, tl.sum(dxc * o0, 0))
            tl.store(DP + n * 4 + 1, tl.sum(dxc * o1, 0))
            tl.store(DP + n * 4 + 2, tl.sum(dxc * o2, 0))
            tl.store(DP + n * 4 + 3, tl.sum(dxc * o3, 0))
            g0 += p0 * dxc
            g1 += p1 * dxc
            g2 += p2 * dxc
            g3 += p3 * dxc
            if MIX:
                s = 2 * tl.load(DSSQ + n)
                g0 += tl.load(G + base + d).to(tl.float32) + s * o0
                g1 += tl.load(G + base + D + d).to(tl.float32) + s * o1
                g2 += tl.load(G + base + 2 * D + d).to(tl.float32) + s * o2
                g3 += tl.load(G + base + 3 * D + d).to(tl.float32) + s * o3
        if EXPAND:
            y = tl.load(Y + n * D + d).to(tl.float32)
            dy = (tl.load(POST + n * 4) * g0 + tl.load(POST + n * 4 + 1) * g1 + tl.load(POST + n * 4 + 2) * g2
                  + tl.load(POST + n * 4 + 3) * g3)
            tl.store(DY + n * D + d, dy.to(DY.dtype.element_ty))
            tl.store(DPOST + n * 4, tl.sum(g0 * y, 0))
            tl.store(DPOST + n * 4 + 1, tl.sum(g1 * y, 0))
            tl.store(DPOST + n * 4 + 2, tl.sum(g2 * y, 0))
            tl.store(DPOST + n * 4 + 3, tl.sum(g3 * y, 0))
            for i in tl.static_range(4):
                h = tl.load(H + base + i * D + d).to(tl.float32)
                c = COMB + n * 16 + i * 4
                dh = tl.load(c) * g0 + tl.load(c + 1) * g1 + tl.load(c + 2) * g2 + tl.load(c + 3) * g3
                tl.store(DH + base + i * D + d, dh.to(DH.dtype.element_ty))
                dc = DCOMB + n * 16 + i * 4
                tl.store(dc, tl.sum(g0 * h, 0))
                tl.store(dc + 1, tl.sum(g1 * h, 0))
                tl.store(dc + 2, tl.sum(g2 * h, 0))
                tl.store(dc + 3, tl.sum(g3 * h, 0))
        else:
            tl.store(DH + base + d, g0.to(DH.dtype.element_ty))
            tl.store(DH + base + D + d, g1.to(DH.dtype.element_ty))
            tl.store(DH + base + 2 * D + d, g2.to(DH.dtype.element_ty))
            tl.store(DH + base + 3 * D + d, g3.to(DH.dtype.element_ty))
    if PRE:
        tl.store(DW + pid.to(tl.int64) * D + d, dw)


# ---- mHC: coefficients with Sinkhorn ---------------------------------------------------------------------------------


@triton.jit
def _mix(DOT, BASE, SCALE, n, r, j: tl.constexpr):
    k: tl.constexpr = 0 if j < 4 else (1 if j < 8 else 2)
    return tl.load(DOT + n * 32 + j) * r * tl.load(SCALE + k) + tl.load(BASE + j)


@triton.jit
def _soft(a, b, c, d):
    m = tl.maximum(tl.maximum(a, b), tl.maximum(c, d))
    a = tl.exp(a - m)
    b = tl.exp(b - m)
    c = tl.exp(c - m)
    d = tl.exp(d - m)
    s = a + b + c + d
    return a / s, b / s, c / s, d / s


@triton.jit
def _divide(a, b, c, d, OUT, at, N, EPS: tl.constexpr):
    """Four entries over their sum; the sum is stored, so that the backward pass can undo the division."""
    s = a + b + c + d + EPS
    tl.store(OUT + at * N, s)
    return a / s, b / s, c / s, d / s


@triton.jit
def hc_fwd(DOT, SSQ, BASE, SCALE, PRE, POST, COMB, SUMS, N, WIDTH: tl.constexpr, NEPS: tl.constexpr,
           EPS: tl.constexpr, STEPS: tl.constexpr, BLOCK: tl.constexpr):
    """SUMS [4 + 8 (STEPS - 1), N]: the divisors of all normalisations in order."""
    n = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    r = tl.rsqrt(tl.load(SSQ + n) / WIDTH + NEPS)
    for j in tl.static_range(4):
        tl.store(PRE + n * 4 + j, 1 / (1 + tl.exp(-_mix(DOT, BASE, SCALE, n, r, j))) + EPS)
        tl.store(POST + n * 4 + j, 2 / (1 + tl.exp(-_mix(DOT, BASE, SCALE, n, r, 4 + j))))
    a0, a1, a2, a3 = _soft(_mix(DOT, BASE, SCALE, n, r, 8), _mix(DOT, BASE, SCALE, n, r, 9),
                           _mix(DOT, BASE, SCALE, n, r, 10), _mix(DOT, BASE, SCALE, n, r, 11))
    b0, b1, b2, b3 = _soft(_mix(DOT, BASE, SCALE, n, r, 12), _mix(DOT, BASE, SCALE, n, r, 13),
                           _mix(DOT, BASE, SCALE, n, r, 14), _mix(DOT, BASE, SCALE, n, r, 15))
    c0, c1, c2, c3 = _soft(_mix(DOT, BASE, SCALE, n, r, 16), _mix(DOT, BASE, SCALE, n, r, 17),
                           _mix(DOT, BASE, SCALE, n, r, 18), _mix(DOT, BASE, SCALE, n, r, 19))
    d0, d1, d2, d3 = _soft(_mix(DOT, BASE, SCALE, n, r, 20), _mix(DOT, BASE, SCALE, n, r, 21),
                           _mix(DOT, BASE, SCALE, n, r, 22), _mix(DOT, BASE, SCALE, n, r, 23))
    a0 += EPS
    a1 += EPS
    a2 += EPS
    a3 += EPS
    b0 += EPS
    b1 += EPS
    b2 += EPS
    b3 += EPS
    c0 += EPS
    c1 += EPS
    c2 += EPS
    c3 += EPS
    d0 += EPS
    d1 += EPS
    d2 += EPS
    d3 += EPS
    S = SUMS + n
    a0, b0, c0, d0 = _divide(a0, b0, c0, d0, S, 0, N, EPS)
    a1, b1, c1, d1 = _divide(a1, b1, c1, d1, S, 1, N, EPS)
    a2, b2, c2, d2 = _divide(a2, b2, c2, d2, S, 2, N, EPS)
    a3, b3, c3, d3 = _divide(a3, b3, c3, d3, S, 3, N, EPS)
    for k in range(STEPS - 1):
        at = 4 + 8 * k
        a0, a1, a2, a3 = _divide(a0, a1, a2, a3, S, at, N, EPS)
        b0, b1, b2, b3 = _divide(b0, b1, b2, b3, S, at + 1, N, EPS)
        c0, c1, c2, c3 = _divide(c0, c1, c2, c3, S, at + 2, N, EPS)
        d0, d1, d2, d3 = _divide(d0, d1, d2, d3, S, at + 3, N, EPS)
        a0, b0, c0, d0 = _divide(a0, b0, c0, d0, S, at + 4, N, EPS)
        a1, b1, c1, d1 = _divide(a1, b1, c1, d1, S, at + 5, N, EPS)
        a2, b2, c2, d2 = _divide(a2, b2, c2, d2, S, at + 6, N, EPS)
        a3, b3, c3, d3 = _divide(a3, b3, c3, d3, S, at + 7, N, EPS)
    C = COMB + n * 16
    tl.store(C, a0)
    tl.store(C + 1, a1)
    tl.store(C + 2, a2)
    tl.store(C + 3, a3)
    tl.store(C + 4, b0)
    tl.store(C + 5, b1)
    tl.store(C + 6, b2)
    tl.store(C + 7, b3)
    tl.store(C + 8, c0)
    tl.store(C + 9, c1)
    tl.store(C + 10, c2)
    tl.store(C + 11, c3)
    tl.store(C + 12, d0)
    tl.store(C + 13, d1)
    tl.store(C + 14, d2)
    tl.store(C + 15, d3)


@triton.jit
def _undo(a, b, c, d, ga, gb, gc, gd, S, at, N):
    """Through one division backwards: values and gradients before it."""
    s = tl.load(S + at * N)
    t = ga * a + gb * b + gc * c + gd * d
    return a * s, b * s, c * s, d * s, (ga - t) / s, (gb - t) / s, (gc - t) / s, (gd - t) / s


@triton.jit
def _soft_bwd(a, b, c, d, ga, gb, gc, gd):
    a, b, c, d = _soft(a, b, c, d)
    t = a * ga + b * gb + c * gc + d * gd
    return a * (ga - t), b * (gb - t), c * (gc - t), d * (gd - t)


@triton.jit
def _mix_bwd(DOT, SCALE, DDOT, DA, DAM, n, r, N, j: tl.constexpr, da, total):
    k: tl.constexpr = 0 if j < 4 else (1 if j < 8 else 2)
    dot = tl.load(DOT + n * 32 + j)
    dm = da * tl.load(SCALE + k)
    tl.store(DDOT + n * 32 + j, (dm * r).to(DDOT.dtype.element_ty))
    tl.store(DA + j * N + n, da)
    tl.store(DAM + j * N + n, da * dot * r)
    return total + dm * dot


@triton.jit
def hc_bwd(DOT, SSQ, BASE, SCALE, COMB, SUMS, DPRE, DPOST, DCOMB, DDOT, DSSQ, DA, DAM, N, WIDTH: tl.constexpr,
           NEPS: tl.constexpr, EPS: tl.constexpr, STEPS: tl.constexpr, BLOCK: tl.constexpr):
    """DA, DAM [24, N]: gradients of base and, per output, of scale before their sum over tokens."""
    n = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    r = tl.rsqrt(tl.load(SSQ + n) / WIDTH + NEPS)
    C = COMB + n * 16
    G = DCOMB + n * 16
    a0 = tl.load(C)
    a1 = tl.load(C + 1)
    a2 = tl.load(C + 2)
    a3 = tl.load(C + 3)
    b0 = tl.load(C + 4)
    b1 = tl.load(C + 5)
    b2 = tl.load(C + 6)
    b3 = tl.load(C + 7)
    c0 = tl.load(C + 8)
    c1 = tl.load(C + 9)
    c2 = tl.load(C + 10)
    c3 = tl.load(C + 11)
    d0 = tl.load(C + 12)
    d1 = tl.load(C + 13)
    d2 = tl.load(C + 14)
    d3 = tl.load(C + 15)
    p0 = tl.load(G)
    p1 = tl.load(G + 1)
    p2 = tl.load(G + 2)
    p3 = tl.load(G + 3)
    q0 = tl.load(G + 4)
    q1 = tl.load(G + 5)
    q2 = tl.load(G + 6)
    q3 = tl.load(G + 7)
    u0 = tl.load(G + 8)
    u1 = tl.load(G + 9)
    u2 = tl.load(G + 10)
    u3 = tl.load(G + 11)
    v0 = tl.load(G + 12)
    v1 = tl.load(G + 13)
    v2 = tl.load(G + 14)
    v3 = tl.load(G + 15)
    S = SUMS + n
    for i in range(STEPS - 1):
        at = 4 + 8 * (STEPS - 2 - i)
        a0, b0, c0, d0, p0, q0, u0, v0 = _undo(a0, b0, c0, d0, p0, q0, u0, v0, S, at + 4, N)
        a1, b1, c1, d1, p1, q1, u1, v1 = _undo(a1, b1, c1, d1, p1, q1, u1, v1, S, at + 5, N)
        a2, b2, c2, d2, p2, q2, u2, v2 = _undo(a2, b2, c2, d2, p2, q2, u2, v2, S, at + 6, N)
        a3, b3, c3, d3, p3, q3, u3, v3 = _undo(a3, b3, c3, d3, p3, q3, u3, v3, S, at + 7, N)
        a0, a1, a2, a3, p0, p1, p2, p3 = _undo(a0, a1, a2, a3, p0, p1, p2, p3, S, at, N)
        b0, b1, b2, b3, q0, q1, q2, q3 = _undo(b0, b1, b2, b3, q0, q1, q2, q3, S, at + 1, N)
        c0, c1, c2, c3, u0, u1, u2, u3 = _undo(c0, c1, c2, c3, u0, u1, u2, u3, S, at + 2, N)
        d0, d1, d2, d3, v0, v1, v2, v3 = _undo(d0, d1, d2, d3, v0, v1, v2, v3, S, at + 3, N)
    a0, b0, c0, d0, p0, q0, u0, v0 = _undo(a0, b0, c0, d0, p0, q0, u0, v0, S, 0, N)
    a1, b1, c1, d1, p1, q1, u1, v1 = _undo(a1, b1, c1, d1, p1, q1, u1, v1, S, 1, N)
    a2, b2, c2, d2, p2, q2, u2, v2 = _undo(a2, b2, c2, d2, p2, q2, u2, v2, S, 2, N)
    a3, b3, c3, d3, p3, q3, u3, v3 = _undo(a3, b3, c3, d3, p3, q3, u3, v3, S, 3, N)
    p0, p1, p2, p3 = _soft_bwd(_mix(DOT, BASE, SCALE, n, r, 8), _mix(DOT, BASE, SCALE, n, r, 9),
                               _mix(DOT, BASE, SCALE, n, r, 10), _mix(DOT, BASE, SCALE, n, r, 11), p0, p1, p2, p3)
    q0, q1, q2, q3 = _soft_bwd(_mix(DOT, BASE, SCALE, n, r, 12), _mix(DOT, BASE, SCALE, n, r, 13),
                               _mix(DOT, BASE, SCALE, n, r, 14), _mix(DOT, BASE, SCALE, n, r, 15), q0, q1, q2, q3)
    u0, u1, u2, u3 = _soft_bwd(_mix(DOT, BASE, SCALE, n, r, 16), _mix(DOT, BASE, SCALE, n, r, 17),
                               _mix(DOT, BASE, SCALE, n, r, 18), _mix(DOT, BASE, SCALE, n, r, 19), u0, u1, u2, u3)
    v0, v1, v2, v3 = _soft_bwd(_mix(DOT, BASE, SCALE, n, r, 20), _mix(DOT, BASE, SCALE, n, r, 21),
                               _mix(DOT, BASE, SCALE, n, r, 22), _mix(DOT, BASE, SCALE, n, r, 23), v0, v1, v2, v3)
    t = r * 0
    for j in tl.static_range(4):
        s = 1 / (1 + tl.exp(-_mix(DOT, BASE, SCALE, n, r, j)))
        t = _mix_bwd(DOT, SCALE, DDOT, DA, DAM, n, r, N, j, tl.load(DPRE + n * 4 + j) * s * (1 - s), t)
        s = 1 / (1 + tl.exp(-_mix(DOT, BASE, SCALE, n, r, 4 + j)))
        t = _mix_bwd(DOT, SCALE, DDOT, DA, DAM, n, r, N, 4 + j, 2 * tl.load(DPOST + n * 4 + j) * s * (1 - s), t)
    t = _mix_bwd(DOT, SCALE, DDOT, DA, DAM, n, r, N, 8, p0, t)
    t = _mix_bwd(DOT, SCALE, DDOT, DA, DAM, n, r, N, 9, p1, t)
    t = _mix_bwd(DOT, SCALE, DDOT, DA, DAM, n, r, N, 10, p2, t)
    t = _mix_bwd(DOT, SCALE, DDOT, DA, DAM, n, r, N, 11, p3, t)
    t = _mix_bwd(DOT, SCALE, DDOT, DA, DAM, n, r, N, 12, q0, t)
    t = _mix_bwd(DOT, SCALE, DDOT, DA, DAM, n, r, N, 13, q1, t)
    t = _mix_bwd(DOT, SCALE, DDOT, DA, DAM, n, r, N, 14, q2, t)
    t = _mix_bwd(DOT, SCALE, DDOT, DA, DAM, n, r, N, 15, q3, t)
    t = _mix_bwd(DOT, SCALE, DDOT, DA, DAM, n, r, N, 16, u0, t)
    t = _mix_bwd(DOT, SCALE, DDOT, DA, DAM, n, r, N, 17, u1, t)
    t = _mix_bwd(DOT, SCALE, DDOT, DA, DAM, n, r, N, 18, u2, t)
    t = _mix_bwd(DOT, SCALE, DDOT, DA, DAM, n, r, N, 19, u3, t)
    t = _mix_bwd(DOT, SCALE, DDOT, DA, DAM, n, r, N, 20, v0, t)
    t = _mix_bwd(DOT, SCALE, DDOT, DA, DAM, n, r, N, 21, v1, t)
    t = _mix_bwd(DOT, SCALE, DDOT, DA, DAM, n, r, N, 22, v2, t)
    t = _mix_bwd(DOT, SCALE, DDOT, DA, DAM, n, r, N, 23, v3, t)
    for j in tl.static_range(8):
        tl.store(DDOT + n * 32 + 24 + j, (t * 0).to(DDOT.dtype.element_ty))
    tl.store(DSSQ + n, t * (-0.5) * r * r * r / WIDTH)


# ---- norm, RoPE, fake quantisation -----------------------------------------------------------------------------------


@triton.jit
def _rint(x):
    """Nearest integer, ties to even, of |x| < 2^22."""
    return (x + 12582912.0) - 12582912.0


@triton.jit
def _exponent_up(x):
    """2^ceil(log2 x) of positive normal x."""
    bits = x.to(tl.int32, bitcast=True)
    e = (bits >> 23) + ((bits & 0x7FFFFF) != 0).to(tl.int32)
    return (e << 23).to(tl.float32, bitcast=True)


@triton.jit
def _e4m3(x):
    a = tl.abs(x)
    e = (tl.maximum(a, 0.015625).to(tl.int32, bitcast=True) >> 23) - 3
    step = (e << 23).to(tl.float32, bitcast=True)
    return _rint(x / step) * step


@triton.jit
def _e2m1(x):
    x = tl.minimum(tl.maximum(x, -6.0), 6.0)
    a = tl.abs(x)
    step = tl.where(a < 2, 0.5, tl.where(a < 4, 1.0, 2.0))
    return _rint(x / step) * step


@triton.jit
def _quantise(e, o, QUANT: tl.constexpr):
    """Rows of groups: e, o [groups, pairs]. QUANT 1 = FP8 with 2^k, 2 = FP4 with E4M3 scales, 3 = FP4 with 2^k."""
    a = tl.max(tl.maximum(tl.abs(e), tl.abs(o)), 1)
    if QUANT == 1:
        s = _exponent_up(tl.maximum(a, 1e-4) * 0.002232142857142857)[:, None]
        return _e4m3(tl.minimum(tl.maximum(e / s, -448.0), 448.0)) * s, _e4m3(
            tl.minimum(tl.maximum(o / s, -448.0), 448.0)) * s
    elif QUANT == 2:
        s = _e4m3(tl.minimum(tl.maximum(a / 6.0, 0.001953125), 448.0))[:, None]
        return _e2m1(e / s) * s, _e2m1(o / s) * s
    else:
        s = _exponent_up(tl.maximum(a, 1e-30) * 0.16666666666666666)[:, None]
        return _e2m1(e / s) * s, _e2m1(o / s) * s


@triton.jit
def prep_fwd(X, W, POS, COS, SIN, OUT, HEADS: tl.constexpr, EPS: tl.constexpr, D: tl.constexpr, PAIRS: tl.constexpr,
             NORM: tl.constexpr, ROPE: tl.constexpr, QUANT: tl.constexpr):
    """One row [D]: RMSNorm, rotation of the last 64 channels, fake quantisation; pairs (2i, 2i+1) as even and odd."""
    n = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, D // 2 // PAIRS)[:, None] * PAIRS + tl.arange(0, PAIRS)[None, :]
    ty = OUT.dtype.element_ty
    e = tl.load(X + n * D + 2 * i).to(tl.float32)
    o = tl.load(X + n * D + 2 * i + 1).to(tl.float32)
    if NORM:
        inv = tl.rsqrt(tl.sum(tl.sum(e * e + o * o, 1), 0) / D + EPS)
        e = (tl.load(W + 2 * i).to(tl.float32) * (e * inv)).to(ty).to(tl.float32)
        o = (tl.load(W + 2 * i + 1).to(tl.float32) * (o * inv)).to(ty).to(tl.float32)
    if ROPE:
        r = i - (D // 2 - 32)
        at = tl.load(POS + n // HEADS).to(tl.int64) * 32 + r
        cos = tl.load(COS + at, mask=r >= 0, other=1.0)
        sin = tl.load(SIN + at, mask=r >= 0, other=0.0)
        e2 = (e * cos - o * sin).to(ty).to(tl.float32)
        o = (e * sin + o * cos).to(ty).to(tl.float32)
        e = e2
    if QUANT > 0:
        e, o = _quantise(e, o, QUANT)
    tl.store(OUT + n * D + 2 * i, e.to(ty))
    tl.store(OUT + n * D + 2 * i + 1, o.to(ty))


@triton.jit
def prep_bwd(X, W, POS, COS, SIN, DOUT, DX, DW, TOKENS: tl.constexpr, HEADS: tl.constexpr, EPS: tl.constexpr,
             D: tl.constexpr, NORM: tl.constexpr, ROPE: tl.constexpr):
    """Quantisation passes gradients straight through."""
    pid = tl.program_id(0)
    i = tl.arange(0, D // 2)
    we = tl.zeros([D // 2], tl.float32)
    wo = tl.zeros([D // 2], tl.float32)
    for k in range(TOKENS):
        n = (pid * TOKENS + k).to(tl.int64)
        ge = tl.load(DOUT + n * D + 2 * i).to(tl.float32)
        go = tl.load(DOUT + n * D + 2 * i + 1).to(tl.float32)
        if ROPE:
            r = i - (D // 2 - 32)
            at = tl.load(POS + n // HEADS).to(tl.int64) * 32 + r
            cos = tl.load(COS + at, mask=r >= 0, other=1.0)
            sin = tl.load(SIN + at, mask=r >= 0, other=0.0)
            g2 = ge * cos + go * sin
            go = go * cos - ge * sin
            ge = g2
        if NORM:
            e = tl.load(X + n * D + 2 * i).to(tl.float32)
            o = tl.load(X + n * D + 2 * i + 1).to(tl.float32)
            inv = tl.rsqrt(tl.sum(e * e + o * o, 0) / D + EPS)
            e *= inv
            o *= inv
            we += ge * e
            wo += go * o
            ge *= tl.load(W + 2 * i).to(tl.float32)
            go *= tl.load(W + 2 * i + 1).to(tl.float32)
            m = tl.sum(ge * e + go * o, 0) / D
            ge = inv * (ge - e * m)
            go = inv * (go - o * m)
        tl.store(DX + n * D + 2 * i, ge.to(DX.dtype.element_ty))
        tl.store(DX + n * D + 2 * i + 1, go.to(DX.dtype.element_ty))
    if NORM:
        tl.store(DW + pid.to(tl.int64) * D + 2 * i, we)
        tl.store(DW + pid.to(tl.int64) * D + 2 * i + 1, wo)


@triton.jit
def rope_inplace(X, POS, COS, SIN, SIGN: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr):
    """Rotates the last 64 channels of rows [D] by SIGN * angle; row r belongs to token r // HEADS."""
    r = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    i = tl.arange(0, 32)[None, :]
    at = tl.load(POS + r // HEADS).to(tl.int64) * 32 + i
    cos = tl.load(COS + at)
    sin = SIGN * tl.load(SIN + at)
    p = X + r * D + (D - 64) + 2 * i
    e = tl.load(p).to(tl.float32)
    o = tl.load(p + 1).to(tl.float32)
    tl.store(p, (e * cos - o * sin).to(X.dtype.element_ty))
    tl.store(p + 1, (e * sin + o * cos).to(X.dtype.element_ty))


# ---- attention -------------------------------------------------------------------------------------------------------


@triton.jit
def softmax_fwd(SW, SG, START, SINK, SEL, PS, S, C0, SC, RC, R, SCALE: tl.constexpr, H: tl.constexpr,
                RATIO: tl.constexpr, SELECT: tl.constexpr, BG: tl.constexpr, W: tl.constexpr):
    """Scores of one (token, head) to probabilities, in place: window [2W] and compressed rows [RC], one softmax with a
    sink. PS: the sink's probability."""
    row = tl.program_id(0).to(tl.int64)
    b = row // (SC * H)
    rest = row % (SC * H)
    t = C0 + rest // H
    head = rest % H
    n = b * S + t
    start = tl.load(START + n).to(tl.int64)
    j = tl.arange(0, 2 * W)
    key = n // W * W - W + j
    ok = (key <= n) & (key > n - W) & (key >= b * S + start)
    pw = SW + (n * H + head) * 2 * W + j
    s = tl.load(pw, mask=ok, other=0.0).to(tl.float32) * SCALE
    s = tl.where(ok, s, -1e30)
    sink = tl.load(SINK + head)
    m = tl.maximum(tl.max(s, 0), sink)
    if RATIO > 0:
        g = tl.arange(0, BG)
        gok = (g < RC) & ((g + 1) * RATIO <= t + 1) & (g * RATIO >= start)
        if SELECT:
            gok = gok & (tl.load(SEL + n * R + g, mask=gok, other=0) != 0)
        pg = SG + row * RC + g
        sg = tl.load(pg, mask=gok, other=0.0).to(tl.float32) * SCALE
        sg = tl.where(gok, sg, -1e30)
        m = tl.maximum(m, tl.max(sg, 0))
    e = tl.where(ok, tl.exp(s - m), 0.0)
    es = tl.exp(sink - m)
    z = tl.sum(e, 0) + es
    if RATIO > 0:
        eg = tl.where(gok, tl.exp(sg - m), 0.0)
        z += tl.sum(eg, 0)
        tl.store(pg, (eg / z).to(SG.dtype.element_ty), mask=g < RC)
    tl.store(pw, (e / z).to(SW.dtype.element_ty))
    tl.store(PS + n * H + head, es / z)


@triton.jit
def softmax_bwd(PW, DPW, PG, DPG, PS, DSINK, S, C0, SC, RC, SCALE: tl.constexpr, H: tl.constexpr,
                RATIO: tl.constexpr, BG: tl.constexpr, W: tl.constexpr):
    """Gradients of probabilities to gradients of scores, in place in DPW, DPG."""
    row = tl.program_id(0).to(tl.int64)
    b = row // (SC * H)
    rest = row % (SC * H)
    n = b * S + C0 + rest // H
    head = rest % H
    at = (n * H + head) * 2 * W + tl.arange(0, 2 * W)
    p = tl.load(PW + at).to(tl.float32)
    dp = tl.load(DPW + at).to(tl.float32)
    delta = tl.sum(p * dp, 0)
    if RATIO > 0:
        g = tl.arange(0, BG)
        pg = tl.load(PG + row * RC + g, mask=g < RC, other=0.0).to(tl.float32)
        dg = tl.load(DPG + row * RC + g, mask=g < RC, other=0.0).to(tl.float32)
        delta += tl.sum(pg * dg, 0)
        tl.store(DPG + row * RC + g, (pg * (dg - delta) * SCALE).to(DPG.dtype.element_ty), mask=g < RC)
    tl.store(DPW + at, (p * (dp - delta) * SCALE).to(DPW.dtype.element_ty))
    tl.store(DSINK + n * H + head, -tl.load(PS + n * H + head) * delta)


@triton.jit
def _ordered(x):
    """float32 to int32 of the same order."""
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _top(keys, K: tl.constexpr):
    """Mask of the K largest of int32 keys, ties to the lower index; INT_MIN is never taken."""
    lo = tl.min(keys, 0)
    hi = tl.max(keys, 0)
    for _ in range(32):
        mid = (lo | hi) - ((lo ^ hi) >> 1)
        enough = tl.sum((keys >= mid).to(tl.int32), 0) >= K
        lo = tl.where(enough, mid, lo)
        hi = tl.where(enough, hi, tl.maximum(mid - 1, lo))
    above = keys > lo
    equal = (keys == lo).to(tl.int32)
    room = K - tl.sum(above.to(tl.int32), 0)
    return (above | ((equal != 0) & (tl.cumsum(equal, 0) <= room))) & (keys > INT_MIN)


@triton.jit
def select_rows(SI, WT, START, SEL, CAND, S, C0, SC, RC, R, HI: tl.constexpr, RATIO: tl.constexpr, K: tl.constexpr,
                BG: tl.constexpr, ROLE: tl.constexpr, BLOCKS: tl.constexpr, SIZE: tl.constexpr):
    """Top-K rows of one token from its index scores. ROLE 1: also writes the candidate blocks; 2: obeys them."""
    pid = tl.program_id(0).to(tl.int64)
    b = pid // SC
    t = C0 + pid % SC
    n = b * S + t
    start = tl.load(START + n).to(tl.int64)
    g = tl.arange(0, BG)
    ok = (g < RC) & ((g + 1) * RATIO <= t + 1) & (g * RATIO >= start)
    s = tl.zeros([BG], tl.float32)
    for h in tl.static_range(HI):
        v = tl.load(SI + (pid * HI + h) * RC + g, mask=ok, other=0.0).to(tl.float32)
        s += tl.maximum(v, 0.0) * tl.load(WT + n * HI + h)
    keys = tl.where(ok, _ordered(s), INT_MIN)
    cells: tl.constexpr = BG // SIZE
    if ROLE == 1:
        c = tl.arange(0, cells)
        block = tl.max(tl.reshape(keys, [cells, SIZE]), 1)
        newest = ((t + 1) // RATIO - 1) // SIZE
        block = tl.where((c == newest) & (block > INT_MIN), INT_MAX, block)
        keep = _top(block, BLOCKS)
        tl.store(CAND + n * (R // SIZE) + c, keep.to(tl.uint8), mask=c < R // SIZE)
    if ROLE == 2:
        inside = tl.load(CAND + n * (R // SIZE) + g // SIZE, mask=ok, other=0) != 0
        keys = tl.where(inside, keys, INT_MIN)
    tl.store(SEL + n * R + g, _top(keys, K).to(tl.uint8), mask=g < R)


# ---- router and experts ----------------------------------------------------------------------------------------------


@triton.jit
def _root_softplus(z):
    """sqrt(log(1 + e^z)), positive for every z, so that it can be divided by."""
    e = tl.exp(-tl.abs(z))
    tail = tl.where(e < 1e-3, e * (1 - 0.5 * e), tl.log(1 + e))
    return tl.sqrt(tl.maximum(tl.maximum(z, 0.0) + tail, 1e-30))


@triton.jit
def route_fwd(Z, BIAS, R, N, E: tl.constexpr, K: tl.constexpr, SCALE: tl.constexpr, BLOCK: tl.constexpr):
    """Z [N, 16] -> R [N, 16]: weights of the chosen experts, 1 for the shared one (column E), else 0."""
    n = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    e = tl.arange(0, 16)
    z = tl.load(Z + n[:, None] * 16 + e[None, :])
    s = _root_softplus(z)
    b = tl.where(e[None, :] < E, s + tl.load(BIAS + e, mask=e < E, other=0.0)[None, :], -1e30)
    before = (b[:, None, :] > b[:, :, None]) | ((b[:, None, :] == b[:, :, None]) & (e[None, None, :] < e[None, :, None]))
    chosen = (tl.sum(before.to(tl.int32), 2) < K) & (e[None, :] < E)
    s = tl.where(chosen, s, 0.0)
    r = s / tl.sum(s, 1)[:, None] * SCALE
    tl.store(R + n[:, None] * 16 + e[None, :], tl.where(e[None, :] == E, 1.0, r))


@triton.jit
def route_bwd(Z, R, DR, DZ, N, E: tl.constexpr, SCALE: tl.constexpr, BLOCK: tl.constexpr):
    n = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    e = tl.arange(0, 16)
    at = n[:, None] * 16 + e[None, :]
    z = tl.load(Z + at)
    routed = e[None, :] < E
    r = tl.where(routed, tl.load(R + at), 0.0)
    dr = tl.load(DR + at)
    s = _root_softplus(z)
    total = tl.sum(tl.where(r > 0, s, 0.0), 1)[:, None]
    t = tl.sum(dr * r, 1)[:, None] / SCALE
    ds = tl.where(r > 0, SCALE / total * (dr - t), 0.0)
    dz = ds / (2 * s) / (1 + tl.exp(-z))
    tl.store(DZ + at, tl.where(routed, dz, 0.0).to(DZ.dtype.element_ty))


@triton.jit
def expert_fwd(GU, R, T, LIMIT: tl.constexpr, E: tl.constexpr, F: tl.constexpr, FB: tl.constexpr):
    """GU [N, 2, E, F] (gate, up) and R [N, 16] -> T [N, E, F] = silu(min(g, L)) * clamp(u) * r."""
    n = tl.program_id(0).to(tl.int64)
    e = tl.arange(0, 16)[:, None]
    f = tl.arange(0, FB)[None, :]
    ok = (e < E) & (f < F)
    g = tl.load(GU + n * 2 * E * F + e * F + f, mask=ok, other=0.0).to(tl.float32)
    u = tl.load(GU + n * 2 * E * F + E * F + e * F + f, mask=ok, other=0.0).to(tl.float32)
    r = tl.load(R + n * 16 + e)
    g = tl.minimum(g, LIMIT)
    u = tl.minimum(tl.maximum(u, -LIMIT), LIMIT)
    t = g / (1 + tl.exp(-g)) * u * r
    tl.store(T + n * E * F + e * F + f, t.to(T.dtype.element_ty), mask=ok)


@triton.jit
def expert_bwd(GU, R, DT, DGU, DR, LIMIT: tl.constexpr, E: tl.constexpr, F: tl.constexpr, FB: tl.constexpr):
    n = tl.program_id(0).to(tl.int64)
    e1 = tl.arange(0, 16)
    e = e1[:, None]
    f = tl.arange(0, FB)[None, :]
    ok = (e < E) & (f < F)
    at = n * 2 * E * F + e * F + f
    g0 = tl.load(GU + at, mask=ok, other=0.0).to(tl.float32)
    u0 = tl.load(GU + at + E * F, mask=ok, other=0.0).to(tl.float32)
    r = tl.load(R + n * 16 + e)
    dt = tl.load(DT + n * E * F + e * F + f, mask=ok, other=0.0).to(tl.float32)
    g = tl.minimum(g0, LIMIT)
    u = tl.minimum(tl.maximum(u0, -LIMIT), LIMIT)
    s = 1 / (1 + tl.exp(-g))
    a = g * s
    tl.store(DR + n * 16 + e1, tl.sum(dt * a * u, 1))
    dt = dt * r
    dg = tl.where(g0 < LIMIT, dt * u * s * (1 + g * (1 - s)), 0.0)
    du = tl.where(tl.abs(u0) < LIMIT, dt * a, 0.0)
    tl.store(DGU + at, dg.to(DGU.dtype.element_ty), mask=ok)
    tl.store(DGU + at + E * F, du.to(DGU.dtype.element_ty), mask=ok)


# ---- Engram ----------------------------------------------------------------------------------------------------------


@triton.jit
def engram_fwd(H, KV, C, OUT, EPS: tl.constexpr, ROOT: tl.constexpr, D: tl.constexpr):
    """Streams [4, D] += gate_i * value; KV = keys [4, D], value [D]; C [4, D] = q_weight * k_weight,
    ROOT = sqrt(D)."""
    n = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, D)
    val = tl.load(KV + n * 5 * D + 4 * D + d).to(tl.float32)
    for i in tl.static_range(4):
        h = tl.load(H + n * 4 * D + i * D + d).to(tl.float32)
        k = tl.load(KV + n * 5 * D + i * D + d).to(tl.float32)
        c = tl.load(C + i * D + d)
        x = tl.sum(h * c * k, 0) * tl.rsqrt(tl.sum(h * h, 0) / D + EPS) * tl.rsqrt(tl.sum(k * k, 0) / D + EPS)
        x = x / ROOT
        root = tl.sqrt(tl.maximum(tl.abs(x), 1e-6))
        g = 1 / (1 + tl.exp(-tl.where(x >= 0, root, -root)))
        tl.store(OUT + n * 4 * D + i * D + d, (h + g * val).to(OUT.dtype.element_ty))


@triton.jit
def engram_bwd(H, KV, C, DOUT, DH, DKV, DC, TOKENS: tl.constexpr, EPS: tl.constexpr, ROOT: tl.constexpr,
               D: tl.constexpr):
    pid = tl.program_id(0)
    d = tl.arange(0, D)
    for i in tl.static_range(4):
        acc = tl.zeros([D], tl.float32)
        c = tl.load(C + i * D + d)
        for t in range(TOKENS):
            n = (pid * TOKENS + t).to(tl.int64)
            h = tl.load(H + n * 4 * D + i * D + d).to(tl.float32)
            k = tl.load(KV + n * 5 * D + i * D + d).to(tl.float32)
            val = tl.load(KV + n * 5 * D + 4 * D + d).to(tl.float32)
            do = tl.load(DOUT + n * 4 * D + i * D + d).to(tl.float32)
            rh = tl.rsqrt(tl.sum(h * h, 0) / D + EPS)
            rk = tl.rsqrt(tl.sum(k * k, 0) / D + EPS)
            raw = tl.sum(h * c * k, 0)
            q = rh * rk / ROOT
            x = raw * q
            root = tl.sqrt(tl.maximum(tl.abs(x), 1e-6))
            g = 1 / (1 + tl.exp(-tl.where(x >= 0, root, -root)))
            dx = tl.sum(do * val, 0) * g * (1 - g) * tl.where(tl.abs(x) > 1e-6, 0.5 / root, 0.0)
            dq = dx * q
            acc += dq * h * k
            dh = do + dq * (c * k - raw * rh * rh / D * h)
            dk = dq * (c * h - raw * rk * rk / D * k)
            tl.store(DH + n * 4 * D + i * D + d, dh.to(DH.dtype.element_ty))
            tl.store(DKV + n * 5 * D + i * D + d, dk.to(DKV.dtype.element_ty))
            v = DKV + n * 5 * D + 4 * D + d
            if i == 0:
                tl.store(v, (g * do).to(DKV.dtype.element_ty))
            else:
                tl.store(v, (tl.load(v).to(tl.float32) + g * do).to(DKV.dtype.element_ty))
        tl.store(DC + pid.to(tl.int64) * 4 * D + i * D + d, acc)


# ---- loss ------------------------------------------------------------------------------------------------------------


@triton.jit
def cross_entropy(LOGITS, TARGET, WEIGHT, NORM, LOSS, RIGHT, DLOGITS, V: tl.constexpr, VB: tl.constexpr):
    """Weighted loss of one row, whether the target is the arg max, and the gradient (scaled by NORM[0])."""
    n = tl.program_id(0).to(tl.int64)
    v = tl.arange(0, VB)
    x = tl.load(LOGITS + n * V + v, mask=v < V, other=-1e30)
    t = tl.load(TARGET + n)
    w = tl.load(WEIGHT + n)
    m = tl.max(x, 0)
    e = tl.exp(x - m)
    z = tl.sum(e, 0)
    hit = tl.sum(tl.where(v == t, x, 0.0), 0)
    tl.store(LOSS + n, m + tl.log(z) - hit)
    tl.store(RIGHT + n, (hit >= m).to(tl.uint8))
    g = (e / z - tl.where(v == t, 1.0, 0.0)) * (w * tl.load(NORM))
    tl.store(DLOGITS + n * V + v, g.to(DLOGITS.dtype.element_ty), mask=v < V)
