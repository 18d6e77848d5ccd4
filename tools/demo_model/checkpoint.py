"""The release layout (backbone.md 2.1-2.4): which tensors a model has, safetensors shards, reading and writing."""

import json
import struct
from pathlib import Path

import torch

import formats

_DTYPES = {
    "BF16": torch.bfloat16, "F32": torch.float32, "F8_E4M3": torch.float8_e4m3fn, "F8_E8M0": torch.uint8,
    "I8": torch.int8,
}


def inventory(c):
    """{name: (shape, kind)}, kind = bf16 | f32 | fp8 (32x32 tiles) | fp4 (experts) | table (FP8 rows)."""
    d, w = c.hidden_size, c.moe_intermediate_size
    mix = (2 + c.hc_mult) * c.hc_mult
    t = {"embed.weight": ((c.vocab_size, d), "bf16")}
    for i in range(c.num_hidden_layers):
        p = f"layers.{i}."
        t[p + "attn_norm.weight"] = ((d,), "bf16")
        t[p + "ffn_norm.weight"] = ((d,), "bf16")
        a = p + "attn."
        t[a + "attn_sink"] = ((c.num_attention_heads,), "f32")
        t[a + "wq_a.weight"] = ((c.q_lora_rank, d), "fp8")
        t[a + "q_norm.weight"] = ((c.q_lora_rank,), "bf16")
        t[a + "wq_b.weight"] = ((c.num_attention_heads * c.head_dim, c.q_lora_rank), "fp8")
        t[a + "wkv.weight"] = ((c.head_dim, d), "fp8")
        t[a + "kv_norm.weight"] = ((c.head_dim,), "bf16")
        group = c.num_attention_heads * c.head_dim // c.o_groups
        t[a + "wo_a.weight"] = ((c.o_groups * c.o_lora_rank, group), "fp8")
        t[a + "wo_b.weight"] = ((d, c.o_groups * c.o_lora_rank), "fp8")
        for site in ("attn", "ffn"):
            t[f"{p}hc_{site}_fn"] = ((mix, c.hc_mult * d), "f32")
            t[f"{p}hc_{site}_base"] = ((mix,), "f32")
            t[f"{p}hc_{site}_scale"] = ((3,), "f32")
        f = p + "ffn."
        t[f + "gate.weight"] = ((c.n_routed_experts, d), "bf16")
        t[f + "gate.bias"] = ((c.n_routed_experts,), "f32")
        t[f + "gate.bias_vl"] = ((c.n_routed_experts,), "f32")
        for m, s in (("w1", (w, d)), ("w2", (d, w)), ("w3", (w, d))):
            t[f"{f}shared_experts.{m}.weight"] = (s, "fp8")
            for e in range(c.n_routed_experts):
                t[f"{f}experts.{e}.{m}.weight"] = (s, "fp4")
        if i in c.kv_source_layer_ids:
            t[a + "compressor.wkv.weight"] = ((c.head_dim, d), "bf16")
            if c.has_gate(i):
                t[a + "compressor.wgate.weight"] = ((c.head_dim, d), "bf16")
            t[a + "compressor.norm.weight"] = ((c.head_dim,), "bf16")
            t[a + "indexer.wk.weight"] = ((c.index_head_dim, c.head_dim), "bf16")
            t[a + "indexer.k_norm.weight"] = ((c.index_head_dim,), "bf16")
        if i in c.index_source_layer_ids:
            t[a + "indexer.wq_b.weight"] = ((c.index_n_heads * c.index_head_dim, c.q_lora_rank), "fp8")
            t[a + "indexer.weights_proj.weight"] = ((c.index_n_heads, d), "bf16")
        if i in c.engram_layer_ids:
            rows = sum(c.engram_primes()[c.engram_layer_ids.index(i)])
            t[p + "engram.embed.weight"] = ((rows, c.engram_head_dim), "table")
            t[p + "engram.wkv.weight"] = (((c.hc_mult + 1) * d, c.engram_columns * c.engram_head_dim), "fp8")
            t[p + "engram.q_weight"] = ((c.hc_mult, d), "bf16")
            t[p + "engram.k_weight"] = ((c.hc_mult, d), "bf16")
    t["norm.weight"] = ((d,), "bf16")
    t["head.weight"] = ((c.vocab_size, d), "bf16")
    return t


def encode(kind, w):
    """The stored tensors of one float32 weight: [(suffix, dtype name, tensor)]."""
    if kind == "bf16":
        return [("", "BF16", w.to(torch.bfloat16))]
    if kind == "f32":
        return [("", "F32", w.float())]
    codes = {"fp8": formats.fp8_tile_codes, "table": formats.fp8_row_codes, "fp4": formats.fp4_codes}[kind]
    q, s = codes(w)
    return [("", "I8" if kind == "fp4" else "F8_E4M3", q), (".scale", "F8_E8M0", s)]


def quantised(kind, w):
    """What encode() followed by a load gives, as float32."""
    if kind == "bf16":
        return w.to(torch.bfloat16).float()
    if kind == "f32":
        return w.float()
    return {"fp8": formats.fp8_tile_qdq, "table": formats.fp8_row_qdq, "fp4": formats.fp4_qdq}[kind](w)


def write(folder, c, weights, shard_bytes=14_500_000):
    """Writes shards of at most `shard_bytes` and their index. `weights`: {name: float32 tensor}, exactly inventory(c).
    Returns the payload bytes."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    spec = inventory(c)
    if set(spec) != set(weights):
        raise ValueError(f"tensors differ from the layout: {sorted(set(spec) ^ set(weights))[:5]}")
    stored = []
    for name, (shape, kind) in spec.items():
        w = weights[name].detach().cpu()
        if tuple(w.shape) != tuple(shape):
            raise ValueError(f"{name} has shape {tuple(w.shape)}, the layout says {tuple(shape)}")
        for suffix, dtype, t in encode(kind, w):
            full = name.removesuffix(".weight") + suffix if suffix else name
            stored.append((full, dtype, t.contiguous()))
    shards, size = [[]], 0
    for item in stored:
        n = item[2].numel() * item[2].element_size()
        if size + n > shard_bytes and shards[-1]:
            shards.append([])
            size = 0
        shards[-1].append(item)
        size += n
    where, total = {}, 0
    for k, items in enumerate(shards):
        file = f"model-{k + 1:05d}-of-{len(shards):05d}.safetensors"
        total += _write_shard(folder / file, items)
        where |= {name: file for name, _, _ in items}
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=0) + "\n")
    return total


def read(folder, c):
    """{name: float32 tensor} of a model folder: every weight of inventory(c), decoded."""
    folder = Path(folder)
    files = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    shards = {f: _read_shard(folder / f) for f in set(files.values())}
    out = {}
    for name, (shape, kind) in inventory(c).items():
        t = shards[files[name]][name]
        if kind in ("fp8", "fp4", "table"):
            scale_name = name.removesuffix(".weight") + ".scale"
            scale = shards[files[scale_name]][scale_name]
            if kind == "fp4":
                t = formats.fp4_decode(t, scale)
            else:
                t = formats.fp8_decode(t, scale, (32, 32) if kind == "fp8" else (1, 32))
        t = t.float()
        if tuple(t.shape) != tuple(shape):
            raise ValueError(f"{name} has shape {tuple(t.shape)}, the layout says {tuple(shape)}")
        out[name] = t
    return out


def read_plain(path):
    """{name: tensor} of one safetensors file with the dtypes above (I32 and U8 too)."""
    return _read_shard(path)


def _write_shard(path, items):
    header, offset = {}, 0
    for name, dtype, t in items:
        n = t.numel() * t.element_size()
        header[name] = {"dtype": dtype, "shape": list(t.shape), "data_offsets": [offset, offset + n]}
        offset += n
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)))
        f.write(text)
        for _, _, t in items:
            f.write(t.view(torch.uint8).numpy().tobytes() if t.dim() else t.reshape(1).view(torch.uint8).numpy().tobytes())
    return offset


def _read_shard(path):
    types = _DTYPES | {"I32": torch.int32, "U8": torch.uint8, "I64": torch.int64}
    data = Path(path).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    out = {}
    for name, h in header.items():
        begin, end = (8 + length + o for o in h["data_offsets"])
        raw = torch.frombuffer(bytearray(data[begin:end]), dtype=torch.uint8) if end > begin else torch.empty(0, dtype=torch.uint8)
        out[name] = raw.view(types[h["dtype"]]).reshape(h["shape"])
    return out
