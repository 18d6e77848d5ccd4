"""Reads and writes safetensors files with the standard library alone, and takes them apart for tests."""

import array
import json
import struct
from pathlib import Path

TYPE_CODES = {"F32": "f", "I32": "i", "U8": "B"}


def read(path):
    """Returns {name: (shape, flat list)} for F32, I32 and U8 tensors, and the raw bytes of others."""
    data = Path(path).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        raw = data[8 + length + begin : 8 + length + end]
        code = TYPE_CODES.get(entry["dtype"])
        tensors[name] = (entry["shape"], array.array(code, raw) if code else raw)
    return tensors


def write(path, tensors):
    """Writes {name: (dtype, shape, bytes)}."""
    header, blob = {}, b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(blob), len(blob) + len(raw)]}
        blob += raw
    save(path, header, blob)


def take_apart(path):
    """Returns (header, data bytes)."""
    data = Path(path).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def save(path, header, blob):
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    Path(path).write_bytes(struct.pack("<Q", len(text)) + text + blob)
