"""Engram ids (backbone.md 6): canonical token ids, bucket primes, hash multipliers, table rows."""

import unicodedata

import numpy as np

# One entry stands for "exactly one space", so that stripping does not remove it (backbone.md 6.1).
_SPACE = "\ue000"
_WHITE = " \t\r\n"


def token_map(tokenizer):
    """int32[vocab]: raw id -> canonical id. `tokenizer` is a PyPI Tokenizer with a byte-level decoder."""
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    seen, out = {}, np.empty(size, np.int32)
    for i in range(size):
        key = _key(tokenizer.decode([i], skip_special_tokens=False), tokenizer.id_to_token(i))
        out[i] = seen.setdefault(key, len(seen))
    return out


def _key(text, raw):
    if "\ufffd" in text:
        return raw
    s = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text))
    s = "".join(c for c in s if not unicodedata.category(c).startswith("M"))
    s = "".join(c.lower() for c in s)
    parts, run = [], False
    for c in s:
        if c in _WHITE:
            if not run:
                parts.append(" ")
            run = True
        else:
            parts.append(c)
            run = False
    s = "".join(parts)
    if s == " ":
        s = _SPACE
    return s.strip().replace(_SPACE, " ") or text


def primes(layers, orders, heads, bound):
    """[layers][orders*heads]: one walk upwards from `bound` - 1 for each layer and order, no prime twice."""
    used, out = set(), []
    for _ in range(layers):
        columns = []
        for _ in range(orders):
            value = bound - 1
            for _ in range(heads):
                value += 1
                while value in used or not _is_prime(value):
                    value += 1
                used.add(value)
                columns.append(value)
        out.append(columns)
    return out


def multipliers(layer_id, compressed_vocab, count=4):
    """`count` odd int64 of one Engram layer (NumPy's default generator, seed 10007 * layer)."""
    bound = max(1, ((2**63 - 1) // compressed_vocab) // 2)
    draws = np.random.default_rng(10007 * layer_id).integers(0, bound, size=count, dtype=np.int64)
    return 2 * draws + 1


def rows(canonical, starts, pad, mult, prime_list, heads):
    """int64 [T, columns] table rows of `canonical` ids [T]; `starts` [T] = index of the first token of each token's
    document (nothing before it is seen). `mult`, `prime_list`: of this layer."""
    canonical = np.asarray(canonical, np.int64)
    index = np.arange(len(canonical))
    values = []
    for k in range(len(mult)):
        back = index - k
        blocked = back < starts
        values.append(np.where(blocked, pad, canonical[np.maximum(back, 0)]))
    offsets = np.concatenate([[0], np.cumsum(prime_list)[:-1]])
    out = np.empty((len(canonical), len(prime_list)), np.int64)
    r = values[0] * mult[0]
    for k in range(1, len(mult)):
        r = r ^ (values[k] * mult[k])
        for h in range(heads):
            c = (k - 1) * heads + h
            out[:, c] = r % prime_list[c] + offsets[c]
    return out


def _is_prime(n):
    if n < 2:
        return False
    d = 2
    while d * d <= n:
        if n % d == 0:
            return False
        d += 1
    return True
