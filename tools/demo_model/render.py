"""The V4.1 prompt format (recipe.md 3) for training documents: conversations to segments to token ids.

A conversation is {"messages": [...], "tools": [...], "thinking": bool, "effort": int}; messages have role system, user,
assistant or tool, "content" (text), "context" where it is random matter that nobody should learn to predict, and for the assistant "reasoning" and "tool_calls" [{"name", "arguments"}].
Segments are (text, special, kind); neighbouring plain segments are one run for the tokenizer, a special token cuts it.
"""

import json
from pathlib import Path

_TEXT = json.loads((Path(__file__).parent / "prompt_constants.json").read_text(encoding="utf-8"))

BOS, EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
SYSTEM, USER, ASSISTANT = "<｜System｜>", "<｜User｜>", "<｜Assistant｜>"
THINK, END_THINK, DSML = "<think>", "</think>", "｜DSML｜"

# Kinds of segment; training weighs their tokens differently.
FRAME, SYSTEM_TEXT, USER_TEXT, RESULT, REASONING, ANSWER, CONTEXT = range(7)


def dumps(value):
    return json.dumps(value, ensure_ascii=False)


def schema_line(tool):
    return dumps({
        "name": tool["name"], "description": tool.get("description") or "",
        "parameters": tool.get("parameters") or {},
    })


def segments(conversation, header=True):
    """The prompt of a conversation; with `header` a generation header follows the last message."""
    out = [(BOS, True, FRAME)]
    tools = conversation.get("tools") or []
    thinking = conversation.get("thinking", True)
    messages = list(conversation["messages"])
    lead = ""
    if thinking:
        lead = f"{_TEXT['effort_prefix']}{conversation.get('effort', 75)}{_TEXT['effort_suffix']}"
    first = messages[0] if messages and messages[0]["role"] == "system" else None
    if first or tools or lead or conversation.get("json_object"):
        out.append((SYSTEM, True, FRAME))
        text = lead + (first["content"] if first else "")
        if text:
            out.append((text, False, CONTEXT if first and first.get("context") else SYSTEM_TEXT))
        if tools:
            out += _with_specials("\n\n" + _TEXT["tools_pre"], SYSTEM_TEXT)
            out.append(("\n".join(schema_line(t) for t in tools) + _TEXT["tools_post"], False, SYSTEM_TEXT))
        if conversation.get("json_object"):
            out.append((_TEXT["json_object_block"], False, SYSTEM_TEXT))
    keep_reasoning = thinking and bool(tools)
    previous = None
    for m in messages[1:] if first else messages:
        role = m["role"]
        if role in ("user", "tool"):
            if previous in ("user", "tool"):
                out.append(("\n\n", False, USER_TEXT))
            else:
                out.append((USER, True, FRAME))
            if role == "tool":
                out.append((f"<tool_result>{m['content']}</tool_result>", False, RESULT))
            else:
                out.append((m["content"], False, CONTEXT if m.get("context") else USER_TEXT))
        elif role == "system":
            out += [(SYSTEM, True, FRAME), (m["content"], False, SYSTEM_TEXT)]
        else:
            out.append((ASSISTANT, True, FRAME))
            out += _assistant(m, keep_reasoning)
        previous = role
    if header:
        out += [(ASSISTANT, True, FRAME), (THINK if thinking else END_THINK, True, FRAME)]
    return [s for s in out if s[0]]


def _assistant(m, keep_reasoning):
    # `target` marks a turn that is trained with its reasoning although older turns of the request lose theirs.
    out = []
    if keep_reasoning or m.get("target"):
        out += [(THINK, True, FRAME), (m.get("reasoning") or "", False, REASONING), (END_THINK, True, REASONING)]
    else:
        out.append((END_THINK, True, FRAME))
    out.append((m.get("content") or "", False, ANSWER))
    if m.get("tool_calls"):
        out += calls(m["tool_calls"])
    out.append((EOS, True, ANSWER))
    return out


def calls(tool_calls):
    """Segments of the calls block; names, keys and values are plain text whatever they spell."""
    out = []

    def tag(before, after):
        out.extend([(before, False, ANSWER), (DSML, True, ANSWER), (after, False, ANSWER)])

    tag("\n\n<", " calls>")
    for c in tool_calls:
        tag("\n<", f' invoke name="{c["name"]}">')
        for key, value in c["arguments"].items():
            is_text = isinstance(value, str)
            tag("\n<", f' parameter name="{key}" string="{"true" if is_text else "false"}">')
            tag((value if is_text else dumps(value)) + "</", " parameter>")
        if not c["arguments"]:
            out.append(("\n", False, ANSWER))
        tag("\n</", " invoke>")
    tag("\n</", " calls>")
    return out


def _with_specials(text, kind):
    """Template text whose control spellings are special tokens."""
    out = []
    while text:
        found = [(text.find(s), s) for s in (DSML, THINK, END_THINK) if s in text]
        if not found:
            out.append((text, False, kind))
            break
        at, spelling = min(found)
        out += [(text[:at], False, kind), (spelling, True, kind)]
        text = text[at + len(spelling):]
    return out


class Encoder:
    """Segments to ids. Plain runs never see the added tokens (recipe.md 1.4)."""

    def __init__(self, tokenizer):
        self.special = {}
        for i, t in tokenizer.get_added_tokens_decoder().items():
            self.special[t.content] = i
        self.plain = _without_added(tokenizer)

    def text(self, text):
        return self.plain.encode(text, add_special_tokens=False).ids

    def __call__(self, parts):
        """(ids, kinds): a run of plain segments has the kind of its first."""
        ids, kinds, run, kind = [], [], [], None
        runs = []
        for text, special, k in parts + [("", True, None)]:
            if not special:
                kind = k if not run else kind
                run.append(text)
                continue
            if run:
                runs.append(("".join(run), False, kind))
                run = []
            if text:
                runs.append((text, True, k))
        encoded = iter(self.plain.encode_batch([t for t, s, _ in runs if not s], add_special_tokens=False))
        for text, special, k in runs:
            new = [self.special[text]] if special else next(encoded).ids
            ids += new
            kinds += [k] * len(new)
        return ids, kinds


def _without_added(tokenizer):
    spec = json.loads(tokenizer.to_str())
    spec["added_tokens"] = []
    return type(tokenizer).from_str(json.dumps(spec))
