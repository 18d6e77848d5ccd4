"""Byte-level BPE of the demo model: the pre-tokenisation steps of V4.1's tokenizer.json, an own vocabulary.

The file differs from V4.1's in three things only: the merges and vocabulary, the number splitter (one digit a
piece instead of up to three, so that a small model reads numbers digit by digit), and the added tokens, of which
only the named ones are kept. Ids 0, 1, 2 are BOS, EOS, PAD as in the original.
"""

import json
from pathlib import Path

from tokenizers import Tokenizer, pre_tokenizers, trainers, models

SPLIT_NUMBER = r"\p{N}"
SPLIT_CJK = "[一-龥\u3040-ゟ゠-ヿ]+"
SPLIT_GENERAL = (
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
)

# (spelling, special, normalized) in the order of their ids in V4.1's file; the first three sit at ids 0, 1, 2.
BASE_SPECIALS = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"]
_PLAIN = [
    "<｜System｜>", "<｜fim▁hole｜>", "<｜fim▁begin｜>", "<｜fim▁end｜>", "<｜User｜>", "<｜Assistant｜>", "<|EOT|>",
    "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>",
    "<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>", "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>",
    "<｜tool▁sep｜>", "<｜begin▁of▁repo▁name｜>", "<｜end▁of▁repo▁name｜>", "<｜begin▁of▁file▁name｜>",
    "<｜end▁of▁file▁name｜>", "<｜begin▁of▁file｜>", "<｜end▁of▁file｜>", "<think>", "</think>", "｜DSML｜",
    "<｜begin▁sys｜>", "<｜end▁sys｜>", "<｜latest_reminder｜>", "<｜action｜>", "<｜query｜>", "<｜authority｜>",
    "<｜domain｜>", "<｜task｜>", "<｜political｜>", "<｜entity｜>", "<｜title｜>", "<｜safety｜>", "<｜answer｜>",
    "<｜search｜>", "<dsml:", "</dsml:", "<｜search▁begin｜>", "<｜search▁end｜>", "<｜extracted_url｜>",
    "<｜read_url｜>",
]
IMAGE = "<｜deepseek_image｜>"
_TAIL = [
    ("<｜end_of_query｜>", True), ("<｜rl_image_pad｜>", True), ("<｜rl_image_start｜>", True), (IMAGE, False),
    ("<｜/polygon｜>", True), ("<｜polygon｜>", True), ("<｜/point｜>", True), ("<｜point｜>", True),
    ("<｜/box｜>", True), ("<｜box｜>", True), ("<｜/ref｜>", True), ("<｜ref｜>", True),
]


def added_tokens():
    """[(spelling, special, normalized)] of the tokens after the base vocabulary, ascending by id."""
    return [(t, False, True) for t in _PLAIN] + [(t, s, False) for t, s in _TAIL]


def train(texts, vocab_size):
    """A tokenizer.json (as a dict) of exactly `vocab_size` ids, merges learnt from the iterable `texts`."""
    base = vocab_size - len(added_tokens())
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    # The splitters go in through JSON, so that the file holds V4.1's pattern strings themselves.
    spec = json.loads(tok.to_str())
    spec["pre_tokenizer"] = _pre_tokenizer()
    tok = Tokenizer.from_str(json.dumps(spec))
    trainer = trainers.BpeTrainer(
        vocab_size=base,
        show_progress=False,
        special_tokens=BASE_SPECIALS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tok.train_from_iterator(texts, trainer)
    model = json.loads(tok.to_str())["model"]
    if len(model["vocab"]) != base:
        raise ValueError(f"the text gave {len(model['vocab'])} entries, {base} were asked for: add text")
    model["merges"] = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    tokens = [_entry(i, t, True, False) for i, t in enumerate(BASE_SPECIALS)]
    tokens += [_entry(base + i, *t) for i, t in enumerate(added_tokens())]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": tokens,
        "normalizer": {"type": "Sequence", "normalizers": []},
        "pre_tokenizer": _pre_tokenizer(),
        "post_processor": {
            "type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True,
        },
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
            "vocab": model["vocab"], "merges": model["merges"],
        },
    }


def config():
    """tokenizer_config.json of the demo model."""

    def token(spelling):
        return {
            "__type": "AddedToken", "content": spelling, "lstrip": False, "normalized": True, "rstrip": False,
            "single_word": False,
        }

    return {
        "add_bos_token": False,
        "add_eos_token": False,
        "bos_token": token(BASE_SPECIALS[0]),
        "clean_up_tokenization_spaces": False,
        "eos_token": token(BASE_SPECIALS[1]),
        "legacy": True,
        "model_max_length": 65536,
        "pad_token": token(BASE_SPECIALS[1]),
        "sp_model_kwargs": {},
        "unk_token": None,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }


def save(spec, folder):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(spec, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config(), ensure_ascii=False, indent=2) + "\n",
                                                  encoding="utf-8")


def load(folder):
    """A PyPI Tokenizer of a model folder."""
    return Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))


def _pre_tokenizer():
    def split(pattern):
        return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}

    return {
        "type": "Sequence",
        "pretokenizers": [
            split(SPLIT_NUMBER), split(SPLIT_CJK), split(SPLIT_GENERAL),
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        ],
    }


def _entry(index, spelling, special, normalized):
    return {
        "id": index, "content": spelling, "single_word": False, "lstrip": False, "rstrip": False,
        "normalized": normalized, "special": special,
    }
