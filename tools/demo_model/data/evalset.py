"""Evaluation items: documents with the spans of assistant turns that are to be produced. No item is ever trained on:
SGD dialogues are the held-out ones and sgd_test, generated ones come from seeds that training does not use."""

import pickle
import random
from pathlib import Path

import numpy as np

import render
from data import chat, lookup, mix, plain, sgd, toolgen

SEED = 987_654_321


def spans(conversation, encode):
    """(ids, [span]) of a conversation; span = {start, end, call, name_end}: tokens [start, end) are one assistant turn
    after its header, EOS included; name_end: end of the part that fixes the called function's name."""
    ids, kinds = encode(render.segments(conversation, header=False))
    eos, dsml = encode.special[render.EOS], encode.special[render.DSML]
    out, n = [], len(ids)
    at = 0
    while at < n:
        if kinds[at] != render.ANSWER:
            at += 1
            continue
        end = at
        while ids[end] != eos:
            end += 1
        marks = [k for k in range(at, end) if ids[k] == dsml]
        out.append({"start": at, "end": end + 1, "call": bool(marks), "name_end": marks[2] if len(marks) > 2 else end})
        at = end + 1
    return ids, out


def build(name, folder, corpora, encode, count, longest=4096):
    """Items of one set: [{"ids", "spans", "set"}]. `count`: documents."""
    r = random.Random(f"{SEED} {name}")
    items = []
    if name in ("sgd_heldout", "sgd_test"):
        dialogues = corpora.held_out if name == "sgd_heldout" else mix.read_lines(folder, "sgd_test")
        dialogues = r.sample(dialogues, min(count, len(dialogues)))
        make = iter([sgd.plain(d) for d in dialogues])
    else:
        make = iter(lambda: _generated(name, r, corpora, encode), None)
    for conversation in make:
        if len(items) == count:
            break
        ids, found = spans(conversation, encode)
        if name in ("kv_1k", "fact_1k") and not 750 <= len(ids) <= 1250:
            continue
        if name in ("kv_4k", "fact_4k") and not 2800 <= len(ids) <= 4090:
            continue
        if len(ids) > longest:
            keep = [s for s in found if s["end"] <= longest]
            if not keep:
                continue
            ids, found = ids[: keep[-1]["end"]], keep
        # An acknowledgement of a pasted list is no look-up.
        if name.startswith(("kv", "fact")):
            said = encode.plain.decode(ids[found[0]["start"] : found[0]["end"] - 1])
            found = found[1:] if said in ("OK.", "Understood.", "Noted.", "Got it.") else found
        items.append({"set": name, "ids": ids, "spans": found})
    return items


def _generated(name, r, corpora, encode):
    def length(text):
        return len(encode.text(text))

    if name.startswith("kv"):
        size = r.randint(700, 1000) if name == "kv_1k" else r.randint(2700, 3800) if name == "kv_4k" else r.randint(10, 200)
        return lookup.key_value(r, size, length, queries=6, thinking=False, only_plain=True)
    if name.startswith("fact"):
        return lookup.fact(r, r.randint(700, 1000) if name == "fact_1k" else r.randint(2700, 3600), corpora.sentences, length,
                           queries=r.randint(1, 6), thinking=False)
    if name == "json":
        return lookup.json_extraction(r, thinking=False)
    while True:
        if name == "tools":
            c = toolgen.conversation(r, lambda r: chat.with_tools(r, corpora.questions))
        elif name == "list":
            c = lookup.short_list(r)
        elif name == "sums":
            c = lookup.arithmetic(r)
        elif name == "plain":
            c = plain.conversation(r)
        elif name == "copy":
            c = lookup.copying(r, corpora.sentences)
        else:
            c = chat.conversation(r, corpora.questions)
        if not c["thinking"]:
            return c


SETS = {"sgd_heldout": 300, "sgd_test": 300, "kv_short": 60, "kv_1k": 75, "kv_4k": 75, "fact_1k": 60, "fact_4k": 60,
        "json": 150, "tools": 200, "plain": 200, "list": 100, "sums": 60, "copy": 60, "chat": 100}


def build_all(folder, tokenizer_folder, share, path):
    """All sets (a share of their documents), pickled to `path`; runs as a process of its own."""
    import tokenizer

    encode = render.Encoder(tokenizer.load(tokenizer_folder))
    corpora = mix.Corpora(folder)
    items = []
    for name, count in SETS.items():
        items += build(name, folder, corpora, encode, max(1, int(count * share)))
    Path(path).write_bytes(pickle.dumps(items))


class Table:
    """Counts of right turns by set and measure."""

    def __init__(self):
        self.counts = {}

    def add(self, key, right):
        n, k = self.counts.get(key, (0, 0))
        self.counts[key] = (n + 1, k + bool(right))

    def rows(self):
        for key, (n, k) in self.counts.items():
            low, high = interval(k, n)
            yield key, k / n, low, high, n

    def lines(self):
        return [f"{key:28} {100 * p:6.2f} %  [{100 * a:5.1f}, {100 * b:5.1f}]  n = {n}" for key, p, a, b, n in self.rows()]


def interval(k, n, z=1.96):
    """Wilson interval of k of n."""
    p = k / n
    c = (p + z * z / (2 * n)) / (1 + z * z / n)
    w = z * np.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return max(0.0, c - w), min(1.0, c + w)


def judge(table, name, span, ids, predicted):
    """Counts one turn. `predicted`: the arg max at every position of the span given the true tokens before it."""
    true = ids[span["start"] : span["end"]]
    same = np.asarray(predicted) == np.asarray(true)
    whole = bool(same.all())
    if name.startswith("sgd") or name == "tools":
        if span["call"]:
            n = span["name_end"] - span["start"]
            table.add(f"{name} name", same[:n].all())
            table.add(f"{name} all args", whole)
        else:
            opener = span["opener"]
            table.add(f"{name} call where reply due", predicted[0] == opener)
            if name == "tools":
                table.add("tools reply", whole)
    else:
        table.add(name, whole)
