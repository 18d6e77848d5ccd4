"""The training mix: corpora, which task next, documents to token ids, packed batches."""

import json
import lzma
import os
import random
import subprocess
from pathlib import Path

import numpy as np

import render
from data import chat, lookup, plain, sgd, toolgen
from data import words as W

# Weight of a token in the loss by its kind (render.py).
WEIGHTS = np.zeros(7, np.float32)
WEIGHTS[[render.SYSTEM_TEXT, render.USER_TEXT, render.RESULT, render.REASONING, render.ANSWER]] = 0.04, 0.2, 0.1, 0.5, 1.0

# Share of each task in the tokens seen.
SHARES = {"sgd": 0.33, "tools": 0.225, "kv": 0.15, "plain": 0.065, "json": 0.06, "fact": 0.045, "chat": 0.045, "list": 0.04,
          "copy": 0.02, "sums": 0.02}
SHORT = ("plain", "chat", "list", "json", "copy", "sums")  # tasks of a few turns, that are also mixed in one conversation
ALIGN = 16  # documents start at multiples of this: compressor groups and candidate blocks never straddle two
HELD_OUT = 20  # every 20th dialogue of sgd_train, from the first on, is never trained on


def read_lines(folder, name):
    """The objects of NAME.jsonl.xz or NAME.jsonl.zst."""
    packed = Path(folder) / f"{name}.jsonl.xz"
    if packed.exists():
        text = lzma.decompress(packed.read_bytes()).decode()
    else:
        out = subprocess.run(["zstd", "-dc", str(Path(folder) / f"{name}.jsonl.zst")], check=True, capture_output=True)
        text = out.stdout.decode()
    return [json.loads(line) for line in text.splitlines()]


class Corpora:
    """The parts of the corpora that tasks draw from. Fills the harvested word list of words.py."""

    def __init__(self, folder, small=False):
        dialogues = read_lines(folder, "sgd_train")
        self.held_out = dialogues[::HELD_OUT]
        self.train = [d for i, d in enumerate(dialogues) if i % HELD_OUT]
        if small:
            self.train = self.train[:: 20]
        problems = read_lines(folder, "gsm8k_train")
        self.questions = [p["question"] for p in problems if len(p["question"]) < 400]
        sentences = []
        for d in self.train[:: 4]:
            sentences += [m["content"] for m in d["messages"] if m["role"] != "tool" and 20 < len(m.get("content") or "") < 160]
        for p in problems[::3]:
            sentences += [s.strip() + "." for s in p["question"].split(". ") if 20 < len(s) < 160]
        self.sentences = sorted(set(sentences))
        found = {w.strip(".,!?;:\"'()").lower() for s in self.sentences for w in s.split()}
        W.HARVEST[:] = sorted(w for w in found if w.isascii() and w.isalpha() and 3 <= len(w) <= 12)
        self.tools = [t for t in {t["name"]: t for d in self.train for t in d["tools"]}.values()]


class Source:
    """An endless stream of training documents (ids, weights), the tasks balanced by tokens."""

    def __init__(self, corpora, encoder, seed, longest=4096):
        self.c, self.encode, self.r, self.longest = corpora, encoder, random.Random(seed), longest
        self.used = dict.fromkeys(SHARES, 0.0)
        self.order = []

    def length(self, text):
        return len(self.encode.text(text))

    def conversation(self, task):
        if task in SHORT and self.r.random() < 0.25:
            return self._mixed(task)
        return self._single(task)

    def _mixed(self, task):
        """Short conversations of several kinds as one, without tools."""
        parts = [task] + [self.r.choice(SHORT) for _ in range(self.r.choice((1, 1, 2)))]
        self.r.shuffle(parts)
        messages = []
        for part in parts:
            c = self._single(part)
            if c["messages"][0]["role"] == "system" and messages or c.get("json_object"):
                continue
            messages += c["messages"]
        if not messages:
            return self._single(task)
        thinking = self.r.random() < 0.3
        messages = [{k: v for k, v in m.items() if k not in ("target", "context")} for m in messages]
        if thinking and messages[-1].get("reasoning"):
            messages[-1]["target"] = True
        return {"messages": messages, "tools": [], "thinking": thinking and "target" in messages[-1], "effort": sgd.effort(self.r)}

    def _single(self, task):
        r = self.r
        if task == "sgd":
            if not self.order:
                self.order = list(range(len(self.c.train)))
                r.shuffle(self.order)
            return sgd.augmented(r, self.c.train[self.order.pop()], self.c.tools)
        if task == "tools":
            return toolgen.conversation(r, lambda r: chat.with_tools(r, self.c.questions))
        if task == "kv":
            return lookup.key_value(r, self._size(), self.length)
        if task == "fact":
            return lookup.fact(r, self._size(), self.c.sentences, self.length)
        if task == "plain":
            return plain.conversation(r)
        if task == "list":
            return lookup.short_list(r)
        if task == "json":
            return lookup.json_extraction(r)
        if task == "copy":
            return lookup.copying(r, self.c.sentences)
        if task == "sums":
            return lookup.arithmetic(r)
        return chat.conversation(r, self.c.questions)

    def _size(self):
        x = self.r.random()
        if x < 0.35:
            return self.r.randint(10, 200)
        if x < 0.65:
            return self.r.randint(200, 1200)
        return self.r.randint(1200, self.longest - 450)

    def next(self):
        total = sum(self.used.values()) + 1
        task = max(SHARES, key=lambda t: SHARES[t] * total - self.used[t])
        ids, weights = document(self.conversation(task), self.encode)
        if len(ids) > self.longest or (len(ids) > 2048 and task == "sgd" and self.r.random() < 0.5):
            ids, weights = cut(ids, weights, self.longest if len(ids) > self.longest and self.r.random() < 0.5 else 2048,
                               self.encode.special[render.EOS])
        self.used[task] += len(ids)
        return ids, weights


def document(conversation, encode):
    """(ids int16, weights float32) of a whole conversation."""
    ids, kinds = encode(render.segments(conversation, header=False))
    return np.array(ids, np.int16), WEIGHTS[kinds]


def cut(ids, weights, longest, eos):
    """The document up to the last turn that ends within `longest` tokens."""
    ends = np.flatnonzero(ids[:longest] == eos)
    n = ends[-1] + 1 if len(ends) else longest
    return ids[:n], weights[:n]


def pack(documents, rows, length, pad):
    """Best-fit packing of [(ids, weights)] into `rows` rows; returns (batch, documents left over).
    batch: ids int16, target int16, weight float32, start int16, each [rows * length]."""
    ids = np.full((rows, length), pad, np.int16)
    target = np.full((rows, length), pad, np.int16)
    weight = np.zeros((rows, length), np.float32)
    start = np.zeros((rows, length), np.int16)
    free = np.full(rows, length)
    left = []
    for doc in sorted(documents, key=lambda d: -len(d[0])):
        need = -(-len(doc[0]) // ALIGN) * ALIGN
        fits = np.flatnonzero(free >= need)
        if not len(fits):
            left.append(doc)
            continue
        k = fits[np.argmin(free[fits])]
        at, n = length - free[k], len(doc[0])
        ids[k, at : at + n] = doc[0]
        target[k, at : at + n - 1] = doc[0][1:]
        weight[k, at : at + n - 1] = doc[1][1:]
        start[k, at : at + need] = at
        free[k] -= need
    for k in range(rows):
        start[k, length - free[k] :] = length - free[k]
    return {"ids": ids.ravel(), "target": target.ravel(), "weight": weight.ravel(), "start": start.ravel(),
            "rows": rows, "length": length}, left


def batches(source, tokens, pad, short=2048, long=4096):
    """Endless packed batches of `tokens` tokens, of rows `short` or `long`, as the documents come."""
    pools = {short: [], long: []}
    size = {short: 0, long: 0}
    while True:
        doc = source.next()
        k = short if len(doc[0]) <= short else long
        pools[k].append(doc)
        size[k] += -(-len(doc[0]) // ALIGN) * ALIGN
        for length in (short, long):
            filled = size[length] >= (2 if length == short else 0.8) * tokens
            if not filled:
                continue
            documents = pools[length]
            if length == long:  # short ones fill the gaps
                extra = pools[short][: len(pools[short]) // 2]
                pools[short] = pools[short][len(extra) :]
                documents = documents + extra
            batch, left = pack(documents, tokens // length, length, pad)
            pools[long] = [d for d in left if len(d[0]) > short] if length == long else pools[long]
            keep = [d for d in left if len(d[0]) <= short]
            pools[short] = keep + (pools[short] if length == long else [])
            for key in pools:
                size[key] = sum(-(-len(d[0]) // ALIGN) * ALIGN for d in pools[key])
            yield batch


def worker(folder, tokenizer_folder, seed, tokens, queue, longest):
    """Puts packed batches on a queue for ever; runs as a process of its own."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    import tokenizer

    encoder = render.Encoder(tokenizer.load(tokenizer_folder))
    source = Source(Corpora(folder), encoder, seed, longest)
    for batch in batches(source, tokens, encoder.special["<｜▁pad▁｜>"]):
        queue.put(batch)
