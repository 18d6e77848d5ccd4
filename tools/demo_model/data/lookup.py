"""Look-up, copying, lists, JSON and arithmetic: conversations whose answer stands in the prompt."""

import json

from data import words as W
from data.sgd import effort

REFUSE_KEY = ["There is no entry for {k}.", "{k} is not in the list."]


def _turn(messages, r, question, answer, thinking, reasoning=None):
    messages.append({"role": "user", "content": question})
    messages.append({"role": "assistant", "content": answer, "reasoning": reasoning if thinking else None})


def _finish(r, messages, thinking, tools=None):
    """Without tools only the last turn keeps its reasoning (recipe.md 3.6)."""
    if thinking and not tools:
        messages[-1]["target"] = True
    return {"messages": messages, "tools": tools or [], "thinking": thinking, "effort": effort(r)}


def _place(r, messages, context, lead="", plain=True):
    """Puts a context into the system message, a first user message, or in front of or behind the first question, which
    is a paragraph of its own unless not `plain`."""
    x = r.random()
    gap = "\n\n" if plain else r.choice(("\n\n", "\n", "\n", " ", "\n---\n", "\n\nQuestion: ", "\nQ: "))
    if gap == " " and context[-1].isalnum():
        context += "."
    if x < 0.3:
        messages.insert(0, {"role": "system", "content": lead + context, "context": True})
    elif x < 0.5:
        messages.insert(0, {"role": "assistant", "content": W.pick(r, ["OK.", "{Understood|Noted|Got it}."])})
        messages.insert(0, {"role": "user", "content": lead + context, "context": True})
    elif x < 0.75:
        messages[0]["content"] = lead + context + gap + messages[0]["content"]
        messages[0]["context"] = True
    else:
        messages[0]["content"] += (gap if gap in ("\n\n", "\n", " ", "\n---\n") else "\n\n") + context
        messages[0]["context"] = True


def _key(r, kind):
    if kind == 0:
        return W.identifier(r)
    if kind == 1:
        return W.invented(r)
    if kind == 2:
        return W.number(r)
    if kind == 3:
        return W.proper(r)
    if kind == 4:
        return "the " + r.choice(W.ADJECTIVES) + " " + r.choice(W.NOUNS)
    if kind == 5:
        return r.choice(W.FIELDS) + "_" + W.number(r)
    return W.word(r)


def _entries(r, count, kind, values):
    out = {}
    while len(out) < count:
        k = _key(r, r.randrange(7) if kind < 0 else kind)
        if k not in out:
            out[k] = (W.value(r) if values < 0 else (W.number, W.invented, W.proper, W.code, W.date)[values](r))
    return out


KV_QUESTIONS = [
    ("What is the value of {k}?", "The value of {k} is {v}."), ("What is {k}?", "{k} is {v}."),
    ("Give {me |}only the value of {k}.", "{v}"), ("{k}?", "{v}"), ("Look up {k}.", "{k}: {v}"),
    ("Which value does {k} have?", "{k} has the value {v}."), ("What does the list say {for|about} {k}?", "{k}: {v}"),
    ("Tell me {k}.", "{k} is {v}."), ("Find {k}{ in the list|}, please.", "{k}: {v}"), ("And {k}?", "{k} is {v}."),
    ("Value of {k}{, nothing else|}.", "{v}"), ("I need {k}.", "{k} is {v}."),
]
REVERSE = [("Which {key|entry} has the value {v}?", "{k} has the value {v}."), ("{Who|What} has {v}?", "{k}")]


def _fill(r, pair, k, v):
    q, a = pair
    q = W.pick(r, [q.replace("{k}", "\0").replace("{v}", "\1")]).replace("\0", k).replace("\1", v)
    return q, a.replace("{k}", k).replace("{v}", v)


def key_value(r, tokens, encode_length, queries=None, thinking=None, only_plain=False):
    """`tokens`: about how long the list is. The bar's kv task is `only_plain`."""
    separator = r.choice((": ", " = ", " -> ", ", ", " is "))
    end = r.choice(("\n", "\n", "\n", "; ", ".\n"))
    bullet = r.choice(("", "", "- ", "* "))
    kind, values = r.choice((-1, 0, 1, 2, 3, 4, 5, 6)), r.choice((-1, -1, 0, 1, 2, 3, 4))
    sample = _entries(r, 12, kind, values)
    per = encode_length(end.join(bullet + k + separator + v for k, v in sample.items())) / 12
    count = max(2, int(tokens / per))
    entries = _entries(r, count, kind, values)
    context = end.join(bullet + k + separator + v for k, v in entries.items())
    lead = W.pick(r, ["", "", "{Here is|This is} {a|the} list{ of values|}:\n", "Data:\n", "Remember this list:\n", "List:\n",
                      "Use this table to answer.\n", "{Settings|Records|Entries}:\n"])
    thinking = r.random() < 0.35 if thinking is None else thinking
    messages = []
    keys = list(entries)
    for i in range(queries or r.randint(3, 6 + min(18, count // 2))):
        x = r.random()
        if not only_plain and x < 0.08:
            k = _key(r, max(kind, 0))
            if k in entries:
                continue
            q = _fill(r, r.choice(KV_QUESTIONS), k, "")[0]
            _turn(messages, r, q, REFUSE_KEY[i % 2].replace("{k}", k), thinking, f"I look for {k}. It is not there.")
        elif not only_plain and x < 0.16:
            k = r.choice(keys)
            v = entries[k]
            if list(entries.values()).count(v) > 1:
                continue
            q, a = _fill(r, r.choice(REVERSE), k, v)
            _turn(messages, r, q, a, thinking, f"I look for {v}. It belongs to {k}.")
        else:
            k = r.choice(keys)
            q, a = _fill(r, r.choice(KV_QUESTIONS), k, entries[k])
            _turn(messages, r, q, a, thinking, f"I look for {k}. It has {entries[k]}.")
    if not messages:
        return key_value(r, tokens, encode_length, queries, thinking, only_plain)
    _place(r, messages, context, lead, only_plain or r.random() < 0.5)
    return _finish(r, messages, thinking)


FACTS = [
    ("The {p} of {x} is {v}.", "What is the {p} of {x}?"), ("{x} has the {p} {v}.", "Which {p} does {x} have?"),
    ("By the way, the {p} of {x} is {v}.", "What is the {p} of {x}?"),
    ("Please note that the {p} of {x} is {v}.", "Tell me the {p} of {x}."), ("{x}: {p} {v}.", "What is the {p} of {x}?"),
]
PROPERTIES = ("code password color price number owner name address size weight age date phone key label status city answer "
              "score room name nickname badge PIN").split()


def fact(r, tokens, sentences, encode_length, queries=None, thinking=None):
    """Facts hidden between sentences of other texts."""
    thinking = r.random() < 0.35 if thinking is None else thinking
    facts, taken = [], set()
    for _ in range(queries or r.randint(1, 9)):
        p = r.choice(PROPERTIES)
        x = r.choice((W.proper, lambda r: "the " + r.choice(W.ADJECTIVES) + " " + r.choice(W.NOUNS), W.invented))(r)
        if x in taken:
            continue
        taken.add(x)
        facts.append((p, x, W.value(r)))
    lines, size = [], 0
    while size < tokens:
        s = r.choice(sentences)
        lines.append(s)
        size += len(s) / 3.7 + 1
    questions = []
    for p, x, v in facts:
        told, asked = r.choice(FACTS)

        def fill(text):
            return text.replace("{p}", p).replace("{x}", x).replace("{v}", v)

        line = fill(told)
        lines.insert(r.randint(0, len(lines)), line[0].upper() + line[1:])
        questions.append((fill(asked), fill("The {p} of {x} is {v}."), fill("The text says: {p} of {x} is {v}.")))
    messages = []
    r.shuffle(questions)
    for q, a, why in questions:
        _turn(messages, r, q, a, thinking, why)
    lead = W.pick(r, ["", "Text:\n", "{Read|Remember} this{ text|}:\n", "Notes:\n"])
    _place(r, messages, r.choice((" ", "\n")).join(lines), lead, queries is not None or r.random() < 0.5)
    return _finish(r, messages, thinking)


ORDINALS = ["first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth"]


def short_list(r):
    """Lists of 2 to 10 items: the n-th, first, last, how many, is it there, repeat."""
    thinking = r.random() < 0.35
    items = []
    make = r.choice((W.proper, W.invented, W.word, W.number, lambda r: r.choice(W.NOUNS), lambda r: r.choice(W.CITIES)))
    while len(items) < r.randint(2, 10):
        x = make(r)
        if x not in items:
            items.append(x)
    n = len(items)
    layout = r.randrange(4)
    if layout == 0:
        context = ", ".join(items)
    elif layout == 1:
        context = "\n".join(items)
    elif layout == 2:
        context = "\n".join(f"{i + 1}. {x}" for i, x in enumerate(items))
    else:
        context = "\n".join("- " + x for x in items)
    messages = []
    for _ in range(r.randint(1, 5)):
        x = r.randrange(6)
        i = r.randrange(n)
        noun = r.choice(("item", "entry", "one", "element"))
        if x == 0:
            q, a = f"What is the {ORDINALS[i]} {noun}?", items[i]
            why = f"Number {i + 1} is {items[i]}."
        elif x == 1:
            q, a, why = f"What is the last {noun}?", items[-1], f"The last is {items[-1]}."
        elif x == 2:
            q, a = W.pick(r, ["How many {items|entries} are there?", "How long is the list?"]), str(n)
            why = ", ".join(f"{k + 1} {y}" for k, y in enumerate(items))
        elif x == 3:
            y = items[i] if r.random() < 0.5 else make(r)
            q = f"Is {y} in the list?"
            a = f"Yes, {y} is in the list." if y in items else f"No, {y} is not in the list."
            why = f"I look for {y}."
        elif x == 4 and n > 1:
            i = r.randrange(n - 1)
            q, a = f"What comes {{after}} {items[i]}?".replace("{after}", "after"), items[i + 1]
            why = f"After {items[i]} comes {items[i + 1]}."
        else:
            q, a, why = W.pick(r, ["Repeat the list.", "Write the list {again|on one line}."]), ", ".join(items), "I copy it."
        _turn(messages, r, q, a, thinking, why)
    lead = W.pick(r, ["", "List:\n", "Here is {a|my} list:\n", "These are the items:\n", "List: ", "{My list|Items|Here is my list}: "])
    if lead.endswith(": ") and layout > 1:
        lead = lead[:-1] + "\n"
    _place(r, messages, context, lead, r.random() < 0.35)
    return _finish(r, messages, thinking)


def copying(r, sentences):
    """Repeat a text exactly."""
    thinking = r.random() < 0.3
    messages = []
    for _ in range(r.randint(1, 4)):
        x = r.random()
        if x < 0.3:
            text = r.choice(sentences)
        elif x < 0.5:
            text = " ".join(W.word(r) for _ in range(r.randint(1, 12)))
        elif x < 0.7:
            text = W.identifier(r)
        else:
            text = " ".join(W.value(r) for _ in range(r.randint(1, 5)))
        q = W.pick(r, ["Repeat{ after me|}: ", "Say: ", "{Copy|Write} this{ exactly|}: ", "{Echo|Print} ", "Repeat the following text.\n"]) + text
        _turn(messages, r, q, text, thinking, "I copy the text.")
    return _finish(r, messages, thinking)


def _record(r):
    """(sentence, {field: value}) about one thing."""
    x = r.randrange(7)
    first, last = r.choice(W.FIRST), r.choice(W.LAST)
    if x == 0:
        d = {"name": f"{first} {last}", "age": r.randint(18, 90), "city": r.choice(W.CITIES), "job": r.choice(W.THINGS) + " " + r.choice(("manager", "clerk", "designer", "engineer"))}
        s = [f"{d['name']} is {d['age']} years old, lives in {d['city']} and works as a {d['job']}.",
             f"My name is {d['name']}, I am {d['age']}. I am a {d['job']} from {d['city']}.",
             f"A {d['job']} from {d['city']}, {d['name']}, turned {d['age']} today."]
    elif x == 1:
        d = {"product": f"{r.choice(W.ADJECTIVES)} {r.choice(W.NOUNS)}", "price": r.choice((r.randint(1, 900), round(r.uniform(1, 900), 2))), "quantity": r.randint(1, 60)}
        s = [f"{first} ordered {d['quantity']} pieces of the {d['product']} at {d['price']} dollars each.",
             f"Order: {d['product']}, {d['price']} dollars, {d['quantity']} pieces.",
             f"The {d['product']} costs {d['price']} dollars and we have {d['quantity']} in stock."]
    elif x == 2:
        d = {"title": W.proper(r), "date": W.date(r), "time": W.clock(r), "place": r.choice(W.CITIES)}
        s = [f"The meeting {d['title']} is on {d['date']} at {d['time']} in {d['place']}.",
             f"{d['title']} takes place in {d['place']} on {d['date']}, {d['time']}."]
    elif x == 3:
        d = {"from": r.choice(W.CITIES), "to": r.choice(W.CITIES), "date": W.date(r), "passengers": r.randint(1, 9)}
        s = [f"A trip from {d['from']} to {d['to']} on {d['date']} for {d['passengers']} people.",
             f"{d['passengers']} people travel from {d['from']} to {d['to']}. They leave on {d['date']}."]
    elif x == 4:
        d = {"email": f"{first.lower()}.{last.lower()}@{W.invented(r)}.{r.choice(('com', 'org', 'net'))}", "phone": f"{r.randint(100, 999)}-{r.randint(100, 999)}-{r.randint(1000, 9999)}", "name": f"{first} {last}"}
        s = [f"You can reach {d['name']} at {d['email']} or {d['phone']}.", f"Contact: {d['name']}, phone {d['phone']}, mail {d['email']}."]
    elif x == 5:
        keys = []
        while len(keys) < r.randint(2, 4):
            k = r.choice(W.FIELDS)
            if k not in keys:
                keys.append(k)
        d = {k: W.value(r) for k in keys}
        s = ["The " + ", the ".join(f"{k} is {v}" for k, v in d.items()) + ".", "; ".join(f"{k}: {v}" for k, v in d.items())]
    else:
        names = [r.choice(W.FIRST) for _ in range(r.randint(2, 4))]
        d = {"event": W.proper(r), "guests": names, "paid": r.random() < 0.5}
        s = [f"The guests of {d['event']} are {', '.join(names)}. It is {'paid' if d['paid'] else 'not paid yet'}."]
    return r.choice(s), d


def json_extraction(r, thinking=None):
    """A sentence to a JSON object with the wanted keys."""
    thinking = r.random() < 0.35 if thinking is None else thinking
    messages = []
    object_mode = r.random() < 0.3
    for _ in range(r.randint(1, 5)):
        text, d = _record(r)
        keys = list(d)
        if r.random() < 0.4:
            r.shuffle(keys)
            keys = keys[: r.randint(1, len(keys))]
        want = ", ".join(keys)
        if r.random() < 0.25 and len(keys) > 1:
            want = ", ".join(keys[:-1]) + " and " + keys[-1]
        q = W.pick(r, [
            "{Extract|Return|Give me} {the|} " + want + " as JSON{.|:}\n" + text, text + "\n{Write|Give} a JSON object with the keys " + want + ".",
            "Text: " + text + "\n{Keys|Fields}: " + want + "\n{Answer in JSON.|JSON only.}",
            "Turn this into JSON with {keys|fields} " + want + ": " + text,
            "{Make|Write|Give me|Create} {JSON|a JSON object} with " + want + " {from|for|out of}{ this|}: " + text,
            text + " {Extract|Give me|I need|Return} " + want + " {as JSON|in JSON format}{.|, please.|}",
            "{Convert|Put} {this|the following} {to|into} JSON ({keys: |fields: |}" + want + "){:|.} " + text,
            "JSON{, please|}: " + want + "\n" + text])
        _turn(messages, r, q, json.dumps({k: d[k] for k in keys}, ensure_ascii=False), thinking, "The keys are " + want + ".")
    out = _finish(r, messages, thinking)
    out["json_object"] = object_mode
    return out


def arithmetic(r):
    """Sums of up to three digits, with the result alone or with steps."""
    thinking = r.random() < 0.4
    messages = []
    for _ in range(r.randint(1, 4)):
        op = r.choice("++--**")
        a, b = (r.randint(0, 10 ** r.randint(1, 3)) for _ in range(2))
        if op == "*":
            a, b = r.randint(0, 99), r.randint(0, 12)
        if op == "-" and b > a:
            a, b = b, a
        result = {"+": a + b, "-": a - b, "*": a * b}[op]
        name = {"+": "plus", "-": "minus", "*": r.choice(("times", "times", "multiplied by"))}[op]
        sign = r.choice((op, {"*": "x"}.get(op, op)))
        q = W.pick(r, [f"What's {a} {sign} {b}?", f"{a}{sign}{b}", f"What is {a}{sign}{b}?", f"{{And|Now|Then}} {a} {name} {b}?", f"{a} {name} {b}", f"Can you {{add up|do|solve|compute|calculate}} {a} {sign} {b}{{?| for me?}}",
                       {"+": f"{{Add|Sum}} {a} and {b}.", "-": f"Subtract {b} from {a}.", "*": f"Multiply {a} by {b}."}[op], f"What is {a} {sign} {b}?", f"{a} {sign} {b}", f"{a} {sign} {b} = ?", f"Calculate {a} {name} {b}.", f"How much is {a} {name} {b}?",
                       f"{{Compute|Work out}} {a} {sign} {b}{{, please|}}."])
        _turn(messages, r, q, f"{a} {op} {b} = {result}", thinking, steps(a, op, b))
    return _finish(r, messages, thinking)


def steps(a, op, b):
    """Written steps of one sum."""
    if op == "*":
        tens, ones = divmod(a, 10)
        if not tens:
            return f"{a} * {b} = {a * b}."
        return f"{tens * 10} * {b} = {tens * 10 * b}, {ones} * {b} = {ones * b}, together {a * b}."
    if op == "+":
        h, rest = divmod(b, 100)
        t, o = divmod(rest, 10)
        x, parts = a, []
        for part in (h * 100, t * 10, o):
            if part:
                parts.append(f"{x} + {part} = {x + part}")
                x += part
        return ", ".join(parts) + "." if parts else f"{a} + {b} = {a + b}."
    h, rest = divmod(b, 100)
    t, o = divmod(rest, 10)
    x, parts = a, []
    for part in (h * 100, t * 10, o):
        if part:
            parts.append(f"{x} - {part} = {x - part}")
            x -= part
    return ", ".join(parts) + "." if parts else f"{a} - {b} = {a - b}."
