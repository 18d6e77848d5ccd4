"""Makes the tokenizer and the Engram token map of the demo model: prepare.py CORPUS_FOLDER OUT_FOLDER"""

import random
import sys
from pathlib import Path

import engram
import render
import tokenizer
from config import Config
from data import mix, sgd


def texts(corpora):
    """Plain runs of training documents, a third of them dialogues with their own names."""
    r = random.Random(5)
    source = mix.Source(corpora, None, 5)
    source.length = lambda text: len(text) // 3
    for d in r.sample(corpora.train, min(1500, len(corpora.train))):
        yield from runs(sgd.plain(d, r.random() < 0.4))
    for task, count in (("sgd", 1500), ("tools", 2000), ("kv", 150), ("fact", 300), ("list", 600), ("json", 600), ("plain", 2500), ("chat", 1500),
                        ("copy", 600), ("sums", 300)):
        for _ in range(count):
            yield from runs(source.conversation(task))
    yield from corpora.questions[::4]


def runs(conversation):
    """What the tokenizer sees of a conversation: text between special tokens. The fixed preamble is left to some."""
    run = []
    for text, special, _ in render.segments(conversation, header=False):
        if special:
            if run:
                yield "".join(run)
            run = []
        else:
            run.append(text)


def main(corpus, out):
    spec = tokenizer.train(texts(mix.Corpora(corpus)), Config().vocab_size)
    tokenizer.save(spec, out)
    token_map = engram.token_map(tokenizer.load(out))
    token_map.astype("<i4").tofile(Path(out) / "engram_token_map.i32")
    print(f"{len(token_map)} ids, {token_map.max() + 1} canonical")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
