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
    words = [w for x in words for w in (r.choice(SYNONYMS[x]) if x in SYNONYMS and r.random() < 0.4 else x).split("_")]
    if r.random() < 0.15:
        r.shuffle(words)
    if r.random() < 0.15:
        words.append(r.choice(("v2", "api", "tool", "fn", "service", str(r.randint(1, 9)))))
    return W.style(r, words or [W.invented(r)])[:60]


EARLY = 0.3  # share of the dialogues that are cut at a call without parameters that were required


SERVICES = {
    "Restaurants": "Dining Eateries Food Tables", "Hotels": "Lodging Stays Inns Rooms", "Events": "Shows Happenings Concerts", "Movies": "Films Cinema Pictures", "Music": "Songs Audio Tunes", "Media": "Streaming Video Cinema",
    "Buses": "Coaches Bus Rides", "Flights": "Airlines Air Planes", "RentalCars": "CarHire Autos Vehicles", "RideSharing": "Cabs Taxi Rides", "Homes": "Apartments Housing Property", "Banks": "Bank Finance Accounts",
    "Services": "Providers Appointments Care", "Travel": "Tourism Sights Places", "Weather": "Forecast Climate Sky", "Calendar": "Agenda Planner Diary",
}


def in_service_style(r, names):
    """SGD's own style, Service_Number_Action, with another service or number (the same for all tools of a service), and now
    and then another action. {name: new name}"""
    services, out = {}, {}
    for name in names:
        service, number, action = name.split("_")
        if (service, number) not in services:
            x = r.random()
            word = service if x < 0.5 else r.choice(SERVICES[service].split()) if x < 0.75 and service in SERVICES else W.invented(r).capitalize() if x < 0.9 else r.choice(W.THINGS).capitalize() + "s"
            services[service, number] = f"{word}_{r.randint(1, 9)}"
        words = W.split_name(action)
        if r.random() < 0.5:
            words = [w for x in words for w in (r.choice(SYNONYMS[x]) if x in SYNONYMS and r.random() < 0.5 else x).split("_") if w]
        elif r.random() < 0.25:
            words = [words[0] if r.random() < 0.5 else r.choice(W.VERBS), W.invented(r)]
        out[name] = f"{services[service, number]}_{W.style(r, words, 'pascal')}"
    return out if len(set(out.values())) == len(out) else in_service_style(r, names)


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


SEARCHES = re.compile(r"_(Find|Search|Get|Lookup|Check|Play)[A-Z][A-Za-z]*$")


def called_early(r, dialogue):
    """(messages, tools) of the dialogue cut where the assistant asked for more before a search, with the call it could make
    at once because the schema no longer requires the rest; None where no such place is clear."""
    messages = dialogue["messages"]
    places = []
    for at, m in enumerate(messages):
        call = (m.get("tool_calls") or [None])[0]
        if not call or not SEARCHES.search(call["name"]) or any(x["role"] == "tool" for x in messages[:at]):
            continue
        said = [x["content"].lower() if x["role"] == "user" else "" for x in messages[:at]]
        first = {k: next((i for i, s in enumerate(said) if v.lower() in s), None) for k, v in call["arguments"].items()}
        if None in first.values():
            continue
        for i in range(0, at - 2):
            if messages[i]["role"] == "user" and messages[i + 1]["role"] == "assistant" and "?" in messages[i + 1]["content"]:
                known = {k: v for k, v in call["arguments"].items() if first[k] <= i}
                if len(known) < len(call["arguments"]):
                    places.append((i, call["name"], known))
    if not places:
        return None
    i, name, known = r.choice(places)
    if not known and r.random() < 0.5:
        return None
    tools = []
    for t in dialogue["tools"]:
        if t["name"] == name:
            t = dict(t)
            t["parameters"] = t["parameters"] | {"required": [k for k in t["parameters"].get("required", []) if k in known]}
        tools.append(t)
    return messages[: i + 1] + [{"role": "assistant", "content": "", "tool_calls": [{"name": name, "arguments": known}]}], tools


def augmented(r, dialogue, distractors, rename=0.88):
    """A training conversation of a dialogue; `distractors`: other tools that may be offered as well."""
    messages, tools = dialogue["messages"], dialogue["tools"]
    if r.random() < EARLY:
        messages, tools = called_early(r, dialogue) or (messages, tools)
    if r.random() < 0.35:
        messages = _replace_values(r, messages)
    names, keys = {}, {}
    if r.random() < rename:
        fresh = r.choice((0.0, 0.25, 0.5, 0.9))
        taken, taken_keys = set(), set()
        kind = r.choice((None, "snake", "camel", "pascal", "kebab"))
        if r.random() < 0.45:
            names = in_service_style(r, [t["name"] for t in tools])
        else:
            for t in tools:
                names[t["name"]] = _unique(lambda: renamed(r, t["name"], fresh=fresh), taken)
        if r.random() < 0.85:
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
    while distractors and r.random() < 0.35:
        extra = r.choice(distractors)
        service = extra["name"].split("_")[0]
        if not any(t["name"].startswith(service) for t in [*tools, *offered]):
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
