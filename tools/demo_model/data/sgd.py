"""SGD dialogues as training conversations: names and values replaced, tools shuffled, reasoning added.

Arguments follow the order of the properties in the tool's schema (SGD's own order is alphabetical): going through the
schema once is something that works for functions never seen.
"""

import json
import re

from data import words as W

SYNONYMS = {
    "find": ["search", "lookup", "list", "get", "query", "discover"], "search": ["find", "lookup", "query", "browse"],
    "get": ["fetch", "show", "read", "retrieve", "lookup"], "reserve": ["book", "hold", "request"],
    "book": ["reserve", "order", "arrange"], "buy": ["purchase", "order", "get"], "play": ["start", "stream", "run"],
    "check": ["view", "read", "query"], "transfer": ["send", "move", "wire"], "schedule": ["arrange", "plan", "set"],
    "add": ["create", "insert", "new"], "city": ["town", "municipality", "place"], "location": ["place", "area", "where"],
    "date": ["day", "on_date", "calendar_day"], "time": ["hour", "at_time", "clock"], "name": ["title", "called", "label"],
    "restaurant": ["eatery", "diner"], "hotel": ["lodging", "inn"], "event": ["show", "happening"],
    "movie": ["film", "picture"], "song": ["track", "tune"], "number": ["count", "num", "amount"], "of": ["of", ""],
    "price": ["cost", "fare"], "type": ["kind", "category"], "category": ["type", "class"], "amount": ["sum", "value"],
    "destination": ["to", "target"], "origin": ["from", "source"], "departure": ["leaving", "outbound"],
    "return": ["inbound", "back"], "flight": ["plane", "air_trip"], "bus": ["coach"], "car": ["vehicle", "auto"],
    "music": ["audio"], "weather": ["forecast"], "account": ["bank_account"], "recipient": ["receiver", "payee"],
    "seats": ["places"], "party": ["group"], "size": ["count"], "house": ["home"], "doctor": ["physician"],
    "stylist": ["hairdresser"], "appointment": ["visit", "slot"], "address": ["street"], "phone": ["telephone"],
}


def renamed(r, name, service_words=True, fresh=0.35):
    """Another identifier for `name`: restyled, with synonyms, or (probability `fresh`) invented."""
    if r.random() < fresh:
        return W.identifier(r)
    words = W.split_name(name)
    if service_words and len(words) > 2 and words[1].isdigit():
        words = words[2:] if r.random() < 0.7 else [words[0]] + words[2:]
    if service_words and r.random() < 0.35:  # SGD's own style with another service, number or action
        service = r.choice(("Restaurants Hotels Events Movies Music Media Buses Flights RentalCars RideSharing Homes Banks Services Travel "
                            "Weather Calendar Alarm Messaging Payment Trains").split()) if r.random() < 0.6 else W.invented(r).capitalize()
        actions = [r.choice(SYNONYMS[x]) if x in SYNONYMS and r.random() < 0.4 else x for x in words if not x.isdigit()]
        if r.random() < 0.2:
            actions = [r.choice(W.VERBS), W.invented(r) if r.random() < 0.5 else r.choice(W.THINGS)]
        return f"{service}_{r.randint(1, 9)}_{W.style(r, '_'.join(actions).split('_'), 'pascal')}"[:60]
    words = [w for x in words for w in (r.choice(SYNONYMS[x]) if x in SYNONYMS and r.random() < 0.4 else x).split("_")]
    if r.random() < 0.15:
        r.shuffle(words)
    if r.random() < 0.15:
        words.append(r.choice(("v2", "api", "tool", "fn", "service", str(r.randint(1, 9)))))
    return W.style(r, words or [W.invented(r)])[:60]


def _unique(make, taken):
    for _ in range(20):
        name = make()
        if name and name not in taken:
            taken.add(name)
            return name
    name = f"{make()}_{len(taken)}"
    taken.add(name)
    return name


def _replace_values(r, messages):
    """Other proper names for some values that the dialogue spells out before the call that uses them."""
    seen, candidates = "", []
    for m in messages:
        for call in m.get("tool_calls") or []:
            for v in call["arguments"].values():
                if len(v) >= 4 and v[:1].isupper() and v not in ("True", "False") and v in seen and v not in candidates:
                    candidates.append(v)
        if m["role"] != "tool":
            seen += "\n" + (m.get("content") or "")
    mapping = {}
    for v in candidates:
        if r.random() < 0.7 and not any(v in o or o in v for o in mapping):
            mapping[v] = W.proper(r).replace('"', "")
    if not mapping:
        return messages
    pattern = re.compile(r"(?<!\w)(" + "|".join(re.escape(v) for v in sorted(mapping, key=len, reverse=True)) + r")(?!\w)")

    def swap(text):
        return pattern.sub(lambda m: mapping[m.group(1)], text)

    out = []
    for m in messages:
        m = dict(m)
        if m.get("content"):
            m["content"] = swap(m["content"])
        if m.get("tool_calls"):
            m["tool_calls"] = [{"name": c["name"], "arguments": {k: swap(v) for k, v in c["arguments"].items()}}
                               for c in m["tool_calls"]]
        out.append(m)
    return out


def in_schema_order(arguments, tool):
    order = list(tool["parameters"]["properties"])
    return {k: arguments[k] for k in sorted(arguments, key=lambda k: order.index(k) if k in order else 99)}


def plain(dialogue, thinking=False):
    """The dialogue as it is, arguments in schema order: what evaluation uses."""
    tools = {t["name"]: t for t in dialogue["tools"]}
    messages = []
    for m in dialogue["messages"]:
        m = dict(m)
        if m.get("tool_calls"):
            m["tool_calls"] = [{"name": c["name"], "arguments": in_schema_order(c["arguments"], tools[c["name"]])}
                               for c in m["tool_calls"]]
        messages.append(m)
    return {"messages": messages, "tools": dialogue["tools"], "thinking": thinking}


def augmented(r, dialogue, distractors, rename=0.82):
    """A training conversation of a dialogue; `distractors`: other tools that may be offered as well."""
    messages, tools = dialogue["messages"], dialogue["tools"]
    if r.random() < 0.35:
        messages = _replace_values(r, messages)
    names, keys = {}, {}
    if r.random() < rename:
        fresh = r.choice((0.0, 0.2, 0.5, 0.9))
        taken, taken_keys = set(), set()
        kind = r.choice((None, "snake", "camel", "pascal", "kebab"))
        for t in tools:
            names[t["name"]] = _unique(lambda: renamed(r, t["name"], fresh=fresh), taken)
        if r.random() < 0.8:
            for t in tools:
                for p in t["parameters"]["properties"]:
                    if p not in keys:
                        keys[p] = _unique(lambda: renamed(r, p, False, fresh * 0.8) if r.random() < 0.7 or kind is None
                                          else W.style(r, W.split_name(p), kind), taken_keys)
    offered, by_name = [], {}
    order = r.random() < 0.5
    drop_service = r.random() < 0.4
    for t in tools:
        items = list(t["parameters"]["properties"].items())
        if order:
            r.shuffle(items)
        properties = {keys.get(p, p): dict(v) for p, v in items}
        required = [keys.get(p, p) for p in t["parameters"].get("required", [])]
        about = t["description"]
        if drop_service:
            about = re.sub(r" \([^()]*\)$", "", about)
        new = {"name": names.get(t["name"], t["name"]), "description": about,
               "parameters": {"type": "object", "properties": properties, "required": required}}
        offered.append(new)
        by_name[t["name"]] = new
    if distractors and r.random() < 0.3:
        extra = r.choice(distractors)
        if extra["name"] not in {t["name"] for t in offered}:
            offered.append(extra)
    r.shuffle(offered)
    out = []
    for m in messages:
        m = dict(m)
        if m["role"] == "tool" and keys:
            m["content"] = _rename_result(m["content"], keys)
        if m.get("tool_calls"):
            m["tool_calls"] = [{"name": names.get(c["name"], c["name"]), "arguments": in_schema_order(
                {keys.get(k, k): v for k, v in c["arguments"].items()}, by_name[c["name"]])} for c in m["tool_calls"]]
        out.append(m)
    thinking = r.random() < 0.4
    if thinking:
        out = with_reasoning(r, out)
    conversation = {"messages": out, "tools": offered, "thinking": thinking, "effort": effort(r)}
    if r.random() < 0.25:
        out.insert(0, {"role": "system", "content": system_text(r)})
    return conversation


def _rename_result(text, keys):
    try:
        rows = json.loads(text)
    except ValueError:
        return text
    if not isinstance(rows, list):
        return text
    return json.dumps([{keys.get(k, k): v for k, v in row.items()} if isinstance(row, dict) else row for row in rows],
                      ensure_ascii=False)


def effort(r):
    return r.choice((75, 75, 75, 75, 50, 100, r.randint(1, 100)))


def with_reasoning(r, messages):
    """Short reasoning for every assistant turn: what is due, and with which values."""
    out, previous = [], None
    for m in messages:
        if m["role"] == "assistant":
            m = dict(m)
            if m.get("tool_calls"):
                c = m["tool_calls"][0]
                given = ", ".join(f"{k} = {v}" for k, v in c["arguments"].items())
                m["reasoning"] = f"A call of {c['name']} is due: {given}." if given else f"A call of {c['name']} is due."
            elif previous == "tool":
                m["reasoning"] = "The result is here. I answer from it."
            else:
                m["reasoning"] = "No call is due. I reply to the user."
        previous = m["role"]
        out.append(m)
    return out


def system_text(r):
    return W.pick(r, [
        "You are a helpful assistant.", "You are a {friendly|polite|careful|concise} assistant.",
        "{Answer|Reply} {briefly|in short sentences|politely}.", "You help users with {bookings|errands|daily tasks}.",
        "You are the assistant of {a travel office|a web shop|a help desk|a smart home|an office}.", "Be {brief|kind|exact}.",
        "Use the tools when they help.", "You are an assistant with tools. {Call them when needed.|Use them.}",
    ])
