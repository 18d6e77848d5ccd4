"""Number formats of the release (backbone.md 2.2, attention.md 3.4, 4.3, 5.1) in PyTorch.

`*_qdq` return the rounded value in float32; the exact rounding rules are shared by training (straight-through),
by the exporter (codes) and by the reference forward.
"""

import torch

FP4_VALUES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float32)


def exponent_ceil(x):
    """int32 ceil(log2(x)) of positive normal float32, from the bits."""
    bits = x.contiguous().view(torch.int32)
    return ((bits >> 23) & 255) - 127 + ((bits & 0x7FFFFF) != 0).to(torch.int32)


def pow2(e):
    """float32 2^e for -126 <= e <= 127."""
    return ((e.to(torch.int32) + 127) << 23).view(torch.float32)


def round_e4m3(x):
    """Nearest E4M3 value, ties to even, of |x| <= 448."""
    return x.to(torch.float8_e4m3fn).to(torch.float32)


def round_e2m1(x):
    """Nearest E2M1 value, ties to the even code, clamped to +-6."""
    a = x.abs().clamp(max=6.0)
    step = torch.where(a < 2, 0.5, torch.where(a < 4, 1.0, 2.0))
    return torch.round(a / step) * step * torch.sign(x)


def fp8_scale_exponent(amax):
    return exponent_ceil(amax.clamp(min=1e-4) * torch.tensor(1 / 448, dtype=torch.float32))


def fp8_rows_qdq(x, group=32):
    """E4M3 with a UE8M0 scale per `group` channels: window rows, activations."""
    g = x.float().unflatten(-1, (-1, group))
    s = pow2(fp8_scale_exponent(g.abs().amax(-1, keepdim=True)))
    return (round_e4m3((g / s).clamp(-448, 448)) * s).flatten(-2)


def mxfp4_exponent(amax):
    return exponent_ceil(amax.clamp(min=6 * 2.0**-126) * torch.tensor(1 / 6, dtype=torch.float32))


def mxfp4_rows_qdq(x, group=32):
    """E2M1 with a UE8M0 scale per `group` channels: index keys and queries, experts."""
    g = x.float().unflatten(-1, (-1, group))
    s = pow2(mxfp4_exponent(g.abs().amax(-1, keepdim=True)).clamp(min=-126))
    return (round_e2m1(g / s) * s).flatten(-2)


def nvfp4_rows_qdq(x, group=16):
    """E2M1 with an E4M3 scale per `group` channels: compressed rows."""
    g = x.float().unflatten(-1, (-1, group))
    s = round_e4m3((g.abs().amax(-1, keepdim=True) / 6).clamp(2.0**-9, 448))
    return (round_e2m1(g / s) * s).flatten(-2)


# Weights. The floor of the activation rule is no part of the weight formats; a tile of zeros gets the scale 2^-100.
_TINY = 2.0**-90


def _weight_exponent(amax, largest):
    return exponent_ceil((amax.clamp(min=_TINY) / largest))


def fp8_tile_codes(w):
    """[..., N, K] -> (E4M3 [..., N, K], uint8 UE8M0 [..., N/32, K/32]); N and K are multiples of 32."""
    n, k = w.shape[-2:]
    t = w.float().reshape(*w.shape[:-2], n // 32, 32, k // 32, 32)
    e = _weight_exponent(t.abs().amax(dim=(-3, -1), keepdim=True), 448.0)
    q = (t / pow2(e)).clamp(-448, 448).to(torch.float8_e4m3fn)
    return q.reshape(w.shape), (e + 127).to(torch.uint8).squeeze(-1).squeeze(-2)


def fp8_tile_qdq(w):
    n, k = w.shape[-2:]
    t = w.float().reshape(*w.shape[:-2], n // 32, 32, k // 32, 32)
    s = pow2(_weight_exponent(t.abs().amax(dim=(-3, -1), keepdim=True), 448.0))
    return (round_e4m3((t / s).clamp(-448, 448)) * s).reshape(w.shape)


def fp8_row_codes(w):
    """[N, K] -> (E4M3 [N, K], uint8 UE8M0 [N, K/32]): Engram tables."""
    g = w.float().unflatten(-1, (-1, 32))
    e = _weight_exponent(g.abs().amax(-1, keepdim=True), 448.0)
    q = (g / pow2(e)).clamp(-448, 448).to(torch.float8_e4m3fn)
    return q.flatten(-2), (e + 127).to(torch.uint8).squeeze(-1)


def fp8_row_qdq(w):
    g = w.float().unflatten(-1, (-1, 32))
    s = pow2(_weight_exponent(g.abs().amax(-1, keepdim=True), 448.0))
    return (round_e4m3((g / s).clamp(-448, 448)) * s).flatten(-2)


def fp4_codes(w):
    """[N, K] -> (int8 [N, K/2] low nibble = even column, uint8 UE8M0 [N, K/32]): experts."""
    g = w.float().unflatten(-1, (-1, 32))
    e = _weight_exponent(g.abs().amax(-1, keepdim=True), 6.0)
    v = round_e2m1(g / pow2(e)).flatten(-2)
    table = FP4_VALUES.to(v.device)
    code = torch.bucketize(v.abs(), table) + 8 * (v < 0)
    code = code.to(torch.uint8)
    packed = code[..., 0::2] | (code[..., 1::2] << 4)
    return packed.view(torch.int8), (e + 127).to(torch.uint8).squeeze(-1)


def fp4_qdq(w):
    g = w.float().unflatten(-1, (-1, 32))
    s = pow2(_weight_exponent(g.abs().amax(-1, keepdim=True), 6.0))
    return (round_e2m1(g / s) * s).flatten(-2)


def fp8_decode(q, scale, block):
    """E4M3 codes and uint8 scales back to float32; `block` = (rows, columns) a scale covers."""
    s = pow2(scale.to(torch.int32) - 127)
    s = s.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
    return q.to(torch.float32) * s[: q.shape[0], : q.shape[1]]


def fp4_decode(packed, scale):
    p = packed.view(torch.uint8)
    code = torch.stack([p & 15, p >> 4], -1).flatten(-2).long()
    v = FP4_VALUES[code & 7] * torch.where(code >= 8, -1.0, 1.0)
    return v * pow2(scale.to(torch.int32) - 127).repeat_interleave(32, 1)
