"""Compares render.py with conformance rows of the V4.1 Chat dialect: prompts byte for byte, ids one by one.
Usage: check_render.py RENDER_JSONL V41_TOKENIZER_FOLDER"""

import json
import sys

import render
import tokenizer

EFFORTS = {"minimal": 50, "low": 50, "medium": 75, "high": 75, "xhigh": 75, "max": 100, "ultra": 100}


def conversation(row):
    """The row's request as a conversation, or None where it uses what training documents never do."""
    r = row["request"]
    allowed = {"model", "messages", "tools", "thinking", "reasoning_effort", "stream", "max_tokens", "temperature",
               "top_p", "stop", "seed", "tool_choice"}
    if set(r) - allowed or r.get("tool_choice", "auto") != "auto":
        return None
    messages = []
    for m in r["messages"]:
        if m["role"] not in ("system", "user", "assistant", "tool") or not isinstance(m.get("content") or "", str):
            return None
        if set(m) - {"role", "content", "reasoning_content", "tool_calls", "tool_call_id"}:
            return None
        if m["role"] == "system" and not m["content"]:
            continue
        calls = [{"name": c["function"]["name"], "arguments": json.loads(c["function"]["arguments"]), "id": c["id"]}
                 for c in m.get("tool_calls") or []]
        messages.append({"role": m["role"], "content": m.get("content") or "", "tool_calls": calls,
                         "reasoning": m.get("reasoning_content"), "call": m.get("tool_call_id")})
    if any(len(m["tool_calls"]) > 1 for m in messages):
        return None
    tools = [t["function"] for t in r.get("tools") or []]
    if any(t.get("strict") for t in tools):
        return None
    return {"messages": messages, "tools": tools, "thinking": row["thinking"],
            "effort": EFFORTS.get(row["effort"], 75)}


def main(cases, folder):
    encode = render.Encoder(tokenizer.load(folder))
    compared = failed = 0
    for line in open(cases, encoding="utf-8"):
        row = json.loads(line)
        if row["version"] != "v4.1" or row["dialect"] != "chat":
            continue
        if set(row.get("tags", [])) - {"sampling", "v4-float-text"}:
            continue
        try:
            c = conversation(row)
        except (ValueError, KeyError, AttributeError):
            continue
        if c is None:
            continue
        parts = render.segments(c)
        compared += 1
        same = "".join(t for t, _, _ in parts) == row["prompt"] and encode(parts)[0] == row["ids"]
        if not same:
            failed += 1
            print("differs:", row["id"])
    print(f"{compared} rows compared, {failed} differ")
    return 1 if failed or compared < 40 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
