"""Look-up as people type it: a few facts, a list with amounts, a menu, a schedule or a short story, and questions about
it, in one message or over several, in one line or many."""

import json

from data import words as W
from data.lookup import _finish

# Things people say about themselves: (ways to say it, ways to ask, answer, maker).
MINE = [
    (["My name is {v}", "I am {v}", "I'm {v}", "I am called {v}", "This is {v} speaking", "{v} is my name", "Hi, I'm {v}", "You can call me {v}"], ["What is my name?", "What's my name?", "Who am I?", "How am I called?", "Do you know my name?", "Tell me my name."], "Your name is {v}.",
     lambda r: r.choice(W.FIRST) if r.random() < 0.7 else W.invented(r).capitalize()),
    (["I live in {v}", "My home is in {v}", "I am from {v}", "My city is {v}", "Home is {v}"], ["Where do I live?", "In which city do I live?", "Which city do I live in?", "Where is my home?", "Where am I from?"], "You live in {v}.", lambda r: r.choice(W.CITIES)),
    (["I am {v} years old", "I'm {v}", "My age is {v}", "I just turned {v}"], ["How old am I?", "What is my age?"], "You are {v} years old.", lambda r: str(r.randint(6, 95))),
    (["I work as a {v}", "My job is {v}", "I am a {v} by profession", "I earn my money as a {v}"], ["What is my job?", "What do I do for a living?", "What do I work as?"], "You work as a {v}.", lambda r: r.choice(W.JOBS)),
    (["I drive a {v}", "My car is a {v}", "I own a {v}"], ["What car do I drive?", "Which car do I have?", "What is my car?"], "You drive a {v}.", lambda r: (r.choice(W.COLOURS) + " " if r.random() < 0.4 else "") + W.proper(r)),
    (["I was born in {v}", "My birth year is {v}"], ["When was I born?", "In which year was I born?"], "You were born in {v}.", lambda r: str(r.randint(1930, 2015))),
    (["My birthday is on {v}", "I have my birthday on {v}"], ["When is my birthday?", "What day is my birthday?"], "Your birthday is on {v}.", lambda r: f"{r.choice(W.MONTHS)} {r.randint(1, 28)}"),
    (["I parked {v}", "My car is parked {v}", "I left the car {v}"], ["Where did I park?", "Where is my car?", "Where is the car parked?"], "Your car is parked {v}.", lambda r: W.pick(r, ["on level ", "in row ", "in space "]) + str(r.randint(1, 99))),
    (["I have {v}", "I own {v}", "I keep {v}"], ["What pets do I have?", "Which animals do I have?"], "You have {v}.", lambda r: f"{r.choice(W.NUMBER_WORDS[2:9])} {r.choice(W.ANIMALS)}s"),
    (["I am allergic to {v}", "I can't eat {v}", "I must not eat {v}"], ["What am I allergic to?", "What can I not eat?", "What must I not eat?"], "You cannot eat {v}.", lambda r: r.choice(W.FOODS)),
    (["I need to be at {v}", "I have to go to {v}"], ["Where do I have to be?", "Where do I have to go?"], "You have to be at {v}.", lambda r: W.business(r)),
    (["my flight leaves at {v}", "the plane goes at {v}"], ["When does my flight leave?", "What time is my flight?", "When do I fly?"], "Your flight leaves at {v}.", W.clock),
]
NAMED = ("dog cat horse parrot rabbit hamster goldfish turtle boat car robot teddy guitar company team school street village band " + " ".join(W.RELATIVES)).split()
KINDS = [("favourite colour", lambda r: r.choice(W.COLOURS)), ("favorite food", lambda r: r.choice(W.FOODS)), ("favourite number", W.number), ("phone number", W.number), ("password", W.code), ("PIN", lambda r: str(r.randint(1000, 9999))), ("room number", W.number), ("locker code", W.code),
         ("email address", lambda r: f"{W.invented(r)}@{W.invented(r)}.com"), ("address", lambda r: f"{r.randint(1, 200)} {r.choice(W.LAST)} Street"), ("shoe size", lambda r: str(r.randint(34, 48))), ("seat", lambda r: f"{r.randint(1, 40)}{r.choice('ABCDEF')}"), ("favourite film", W.business), ("team", W.proper),
         ("hobby", lambda r: r.choice("chess tennis running sailing painting singing cooking reading fishing dancing cycling hiking climbing knitting".split())), ("gate", lambda r: r.choice("ABCDE") + str(r.randint(1, 60))), ("order number", W.code), ("budget", lambda r: f"{r.randint(1, 90) * 10} euros"), ("deadline", W.date),
         ("account number", W.number), ("wifi password", W.code), ("meeting", lambda r: r.choice(("on ", "next ")) + r.choice(W.DAYS)), ("favourite animal", lambda r: r.choice(W.ANIMALS)), ("height", lambda r: f"{r.randint(140, 210)} cm"), ("code word", W.invented), ("license plate", W.code), ("bike", lambda r: r.choice(W.COLOURS)), ("coffee order", lambda r: r.choice(W.FLAVOURS) + " coffee")]


def _about_me(r):
    """(way to say it, question, answer, thing) of a fact about the user."""
    x = r.random()
    if x < 0.35:
        said, asked, answer, make = r.choice(MINE)
        v = make(r)
        return r.choice(said).replace("{v}", v), r.choice(asked), answer.replace("{v}", v), answer[:12]
    if x < 0.65:
        thing = r.choice(NAMED)
        v = r.choice(W.FIRST) if r.random() < 0.6 else W.proper(r)
        said = W.pick(r, [f"my {thing} is called {v}", f"my {thing}'s name is {v}", f"my {thing} is named {v}", f"the name of my {thing} is {v}", f"I have a {thing} called {v}", f"I have a {thing} named {v}", f"{v} is my {thing}", f"I call my {thing} {v}"])
        return said, W.pick(r, [f"What is my {thing} called?", f"What is the name of my {thing}?", f"What's my {thing}'s name?", f"How is my {thing} called?", f"What do I call my {thing}?", f"Who is my {thing}?" if thing in W.RELATIVES else f"What's the name of my {thing}?"]), f"Your {thing} is called {v}.", thing
    thing, make = r.choice(KINDS)
    v = make(r)
    said = W.pick(r, [f"my {thing} is {v}", f"my {thing} is {v}", f"remember that my {thing} is {v}", f"{v} is my {thing}", f"the {thing} I have is {v}", f"my {thing}: {v}"])
    return said, W.pick(r, [f"What is my {thing}?", f"What's my {thing}?", f"Tell me my {thing}.", f"Do you know my {thing}?", f"Which {thing} do I have?", f"Can you tell me my {thing}?"]), f"Your {thing} is {v}.", thing


def _about_others(r):
    """Facts of the same kind about several people, and questions."""
    people = r.sample(W.FIRST, r.randint(2, 5))
    kinds = [("{n} is {v} years old", "How old is {n}?", "Who is {v}?", "{n} is {v} years old.", lambda r: str(r.randint(3, 95))), ("{n} lives in {v}", "Where does {n} live?", "Who lives in {v}?", "{n} lives in {v}.", lambda r: r.choice(W.CITIES)),
             ("{n} is a {v}", "What is {n}'s job?", "Who is the {v}?", "{n} is a {v}.", lambda r: r.choice(W.JOBS)), ("{n} has a {v}", "What does {n} have?", "Who has a {v}?", "{n} has a {v}.", lambda r: r.choice(W.ANIMALS)), ("{n} likes {v}", "What does {n} like?", "Who likes {v}?", "{n} likes {v}.", lambda r: r.choice(W.FOODS)),
             ("{n} sits in room {v}", "In which room is {n}?", "Who sits in room {v}?", "{n} sits in room {v}.", lambda r: str(r.randint(1, 400))), ("{n} owes me {v} dollars", "How much does {n} owe me?", "Who owes me {v} dollars?", "{n} owes you {v} dollars.", lambda r: str(r.randint(2, 500))),
             ("{n} comes on {v}", "When does {n} come?", "Who comes on {v}?", "{n} comes on {v}.", lambda r: r.choice(W.DAYS)), ("{n} plays the {v}", "What does {n} play?", "Who plays the {v}?", "{n} plays the {v}.", lambda r: r.choice("piano guitar drums violin flute trumpet cello harp organ bass".split())),
             ("{n} brings the {v}", "What does {n} bring?", "Who brings the {v}?", "{n} brings the {v}.", lambda r: r.choice(W.FOODS)), ("{n} drives a {v} car", "What colour is {n}'s car?", "Who drives a {v} car?", "{n} drives a {v} car.", lambda r: r.choice(W.COLOURS)), ("{n} scored {v} points", "How many points did {n} score?", "Who scored {v} points?", "{n} scored {v} points.", lambda r: str(r.randint(1, 99)))]
    chosen = r.sample(kinds, r.choice((1, 1, 2)))
    facts = []
    for said, asked, who, answer, make in chosen:
        values = []
        while len(values) < len(people):
            v = make(r)
            if v not in values:
                values.append(v)
        for n, v in zip(people, values):
            def fill(t):
                return t.replace("{n}", n).replace("{v}", v)
            facts.append((fill(said), fill(asked) if r.random() < 0.6 else fill(who), fill(answer)))
    if r.random() < 0.5:
        r.shuffle(facts)
    return facts


def join(r, sayings):
    """Sayings as one text: sentences, or one chain."""
    if len(sayings) > 1 and r.random() < 0.35:
        text = (r.choice((", ", ", ", "; ")).join(sayings[:-1]) + r.choice((" and ", ", and ", ", "))) + sayings[-1]
        return text[0].upper() + text[1:] + r.choice((".", ".", ""))
    mark = r.choice((". ", ". ", ".\n", "\n", "! "))
    return mark.join(s[0].upper() + s[1:] for s in sayings) + ("." if "." in mark or r.random() < 0.3 else "")


ACKNOWLEDGED = "OK, I will remember that."


def _converse(r, text, questions, first=None, own_message=True):
    """Messages of a text and [(question, answer, reasoning)] about it: the text in the same message as the first question
    (any layout, in front or behind), in a message of its own, or in the system message. `first`: the answer to that message."""
    thinking = r.random() < 0.3
    messages = []
    for q, a, why in questions:
        if r.random() < 0.15:
            q = W.pick(r, ["So, ", "And ", "Now: ", "Quick question: ", "Hey, ", "Please tell me: "]) + q[0].lower() + q[1:]
        if r.random() < 0.12:
            q = q.lower() if r.random() < 0.5 else q.rstrip("?.")
        messages += [{"role": "user", "content": q}, {"role": "assistant", "content": a, "reasoning": why}]
    x = r.random() if own_message else r.random() * 0.7
    if x < 0.55:
        gap = r.choice((" ", " ", " ", "\n", "\n", "\n\n", " - "))
        if text[-1] not in ".!?:" and gap in (" ",):
            text += "."
        messages[0]["content"] = text + gap + messages[0]["content"]
    elif x < 0.7:
        messages[0]["content"] += r.choice((" ", "\n", "\n\n")) + text
    elif x < 0.88:
        messages = [{"role": "user", "content": text}, {"role": "assistant", "content": first or "OK.", "reasoning": "There is nothing to answer yet."}] + messages
    else:
        messages.insert(0, {"role": "system", "content": text})
    return _finish(r, messages, thinking)


def stated(r):
    """Facts said in a sentence or two, about the user or about others."""
    if r.random() < 0.62:
        facts, things = [], set()
        for _ in range(r.choice((1, 1, 2, 2, 3, 4))):
            said, asked, answer, thing = _about_me(r)
            if thing not in things:
                things.add(thing)
                facts.append((said, asked, answer))
    else:
        facts = _about_others(r)
    text = join(r, [f[0] for f in facts])
    if r.random() < 0.12:
        text = W.pick(r, ["Hi! ", "Hello. ", "Some facts: ", "About me: ", "Remember this: ", "Listen. "]) + text
    asked = r.sample(facts, min(len(facts), r.choice((1, 1, 2, 3))))
    questions = [(q, a, f"The user said: {s}.") for s, q, a in asked]
    if r.random() < 0.06:
        questions.append((W.pick(r, ["What is my {mother's|uncle's|horse's} name?", "What is my shirt size?", "Where is my umbrella?", "How tall is my house?"]), "You did not tell me that.", "That was not said."))
    return _converse(r, text, questions, ACKNOWLEDGED, len(facts) > 1)  # chat.remembered tells single facts apart


def _lay_out(r, title, items):
    """A titled list in one of the usual layouts."""
    how = r.randrange(8)
    if how < 3:
        return (title + ": " if title else "") + r.choice((", ", ", ", "; ", " / ")).join(items) + r.choice((".", ".", ""))
    if how == 3:
        return (title + ": " if title else "") + ", ".join(items[:-1]) + " and " + items[-1] + "."
    head = title + r.choice((":", ":", "")) + "\n" if title else ""
    if how == 4:
        return head + "\n".join(items)
    if how == 5:
        return head + "\n".join("- " + x for x in items)
    if how == 6:
        return head + "\n".join(f"{i + 1}. {x}" for i, x in enumerate(items))
    return head + "\n".join("* " + x for x in items)


def amounts(r):
    """A list with amounts: what is to be bought, what is in stock, who has how many."""
    things = r.sample(sorted(set(W.FOODS)) if r.random() < 0.75 else sorted(set(W.NOUNS)), r.randint(2, 8))
    entries = []
    for t in things:
        n = r.choice((None, r.randint(2, 12), r.randint(2, 60)))
        entries.append((t + "s" if t in W.NOUNS and n is not None and not t.endswith("s") else t, n))
    way = r.choice(("{n} {t}",) * 6 + ("{t} x{n}", "{t} ({n})", "{t}: {n}"))
    items = [t if n is None else way.replace("{n}", str(n)).replace("{t}", t) for t, n in entries]
    title = W.pick(r, ["Shopping list", "{My |}{shopping|grocery} list", "Groceries", "To buy", "I need", "Buy", "{In the |}{fridge|stock|box|bag}", "Things to {pack|buy|bring}", "Packing list", "Inventory", "We have", "I have", "Recipe", "Ingredients", "Order"])
    questions = []
    for _ in range(r.choice((1, 1, 2, 3))):
        t, n = r.choice(entries)
        x = r.random()
        if x < 0.55 and n is not None:
            questions.append((W.pick(r, [f"How many {t} do I need?", f"How many {t} {{do I have|are there|are on the list|should I buy|do we need}}?", f"How many {t}?", f"What is the number of {t}?", f"{t.capitalize()}?"]), f"{n} {t}.", f"The list says {n} {t}."))
        elif x < 0.7:
            questions.append((W.pick(r, [f"Is {t} on the list?", f"Do I need {t}?", f"Is there {t}?", f"Are {t} on the list?", f"Did I write {t}?"]), f"Yes, {t} is on the list.", f"I look for {t}."))
        elif x < 0.8:
            o = r.choice(W.FOODS)
            if o in things:
                continue
            questions.append((W.pick(r, [f"Is {o} on the list?", f"Do I need {o}?", f"Are there {o} on the list?"]), f"No, {o} is not on the list.", f"I look for {o}."))
        elif x < 0.9:
            questions.append((W.pick(r, ["How many {things|items|entries} are {there|on the list|on it}?", "How long is the list?"]), str(len(entries)), ", ".join(f"{k + 1} {y}" for k, (y, _) in enumerate(entries))))
        else:
            i = r.randrange(2)
            questions.append((W.pick(r, [f"What is the {('first', 'last')[i]} {{thing|item|entry}}{{| on the list}}?", f"What comes {('first', 'last')[i]}?"]), items[(0, -1)[i]], f"It is {items[(0, -1)[i]]}."))
    return _converse(r, _lay_out(r, title, items), questions) if questions else amounts(r)


PAIRS = [  # (titles, key maker, value maker, ways to write an entry, questions for the value, answer, questions for the key, answer)
    ("Menu|Prices|Price list|Today's menu|On the card", lambda r: r.choice((r.choice(W.FLAVOURS) + " ", "", "")) + r.choice(W.FOODS), lambda r: r.choice((str(r.randint(1, 60)), f"{r.randint(1, 30)}.{r.choice((25, 50, 75, 90, 99))}", f"${r.randint(1, 99)}", f"{r.randint(2, 40)} euros")),
     ["{k} {v}", "{k}: {v}", "{k} = {v}", "{k} - {v}", "{k} ({v})", "{k} costs {v}"], ["How much is the {k}?", "What does the {k} cost?", "What is the price of the {k}?", "How much do I pay for {k}?", "How expensive is the {k}?"], "The {k} costs {v}.", ["What costs {v}?", "What can I get for {v}?"]),
    ("Schedule|Today|Meeting schedule|My day|Agenda|Plan for tomorrow|Timetable|Program", lambda r: W.pick(r, ["standup", "{team|design|budget|sales|code} {review|meeting|talk}", "lunch", "call with " + r.choice(W.FIRST), "gym", "dentist", "{maths|history|music|art|physics} class", "workshop", "dinner with " + r.choice(W.FIRST), "demo", "interview", "training", "coffee break", r.choice(W.THINGS)]), lambda r: r.choice((W.clock(r), f"{r.randint(1, 12)} {r.choice(('am', 'pm'))}", f"{r.randint(1, 12)}{r.choice(('am', 'pm'))}")),
     ["{v} {k}", "{k} {v}", "{v}: {k}", "{k}: {v}", "{k} at {v}", "{v} - {k}"], ["When is the {k}?", "What time is the {k}?", "At what time is {k}?", "When do I have the {k}?", "When does the {k} start?"], "The {k} is at {v}.", ["What is at {v}?", "What do I have at {v}?", "What happens at {v}?"]),
    ("Week|This week|Plan|Calendar|Rota", lambda r: W.pick(r, ["{swimming|yoga|football|cleaning|laundry|shopping|cooking|choir|piano}", "{visit|call|meet} " + r.choice(W.FIRST), r.choice(W.THINGS)]), lambda r: r.choice(W.DAYS), ["{v}: {k}", "{v} {k}", "{k} on {v}", "{k}: {v}"], ["When is {k}?", "On which day is {k}?", "Which day is {k}?"], "{k} is on {v}.", ["What is on {v}?", "What is planned for {v}?"]),
    ("Contacts|Phone numbers|Numbers|Phone list|Call", lambda r: r.choice(W.FIRST), lambda r: r.choice((f"{r.randint(100, 999)}-{r.randint(1000, 9999)}", W.number(r))), ["{k} {v}", "{k}: {v}", "{k} - {v}", "{k} ({v})", "{k} has {v}"], ["What is {k}'s number?", "What's the number of {k}?", "What number does {k} have?", "How can I call {k}?", "{k}'s number?"], "The number of {k} is {v}.", ["Who has {v}?", "Whose number is {v}?"]),
    ("Ages|Kids|Team|Members|Family|Scores|Points|Results", lambda r: r.choice(W.FIRST), lambda r: str(r.randint(1, 99)), ["{k} {v}", "{k}: {v}", "{k} ({v})", "{k} = {v}", "{k} has {v}"], ["What does {k} have?", "Which number belongs to {k}?", "What is the number of {k}?", "What about {k}?"], "{k} has {v}.", ["Who has {v}?"]),
    ("Capitals|Offices|Rooms|Who sits where|Seats|Cities|Homes", lambda r: r.choice(W.FIRST), lambda r: r.choice(W.CITIES) if r.random() < 0.6 else "room " + str(r.randint(1, 300)), ["{k}: {v}", "{k} - {v}", "{k} is in {v}", "{k} ({v})", "{k} in {v}"], ["Where is {k}?", "In which place is {k}?", "Where can I find {k}?"], "{k} is in {v}.", ["Who is in {v}?"]),
    ("Roles|Team|Staff|Crew|Jobs|People", lambda r: r.choice(W.FIRST), lambda r: r.choice(W.JOBS), ["{k}: {v}", "{k} ({v})", "{k} is the {v}", "{k} - {v}", "{v}: {k}"], ["What is {k}?", "What is the job of {k}?", "What does {k} do?"], "{k} is the {v}.", ["Who is the {v}?", "Which person is the {v}?"]),
    ("Colours|Flags|Lights|Things|Objects", lambda r: r.choice(W.NOUNS), lambda r: r.choice(W.COLOURS), ["{k}: {v}", "the {k} is {v}", "{k} - {v}", "{k} = {v}", "{v} {k}"], ["What colour is the {k}?", "Which color has the {k}?", "What is the colour of the {k}?"], "The {k} is {v}.", ["What is {v}?", "Which thing is {v}?"]),
    ("Status|Servers|Systems|Machines|Devices", lambda r: r.choice(W.NOUNS + W.THINGS) + r.choice(("", "", str(r.randint(1, 9)))), lambda r: r.choice(("ok", "down", "up", "broken", "running", "stopped", "slow", "offline", "online", "full", "idle", W.word(r))), ["{k}: {v}", "{k} is {v}", "{k} = {v}", "{k} ({v})"], ["What is the status of {k}?", "How is the {k}?", "Is the {k} ok?", "What about the {k}?"], "The {k} is {v}.", ["What is {v}?", "Which one is {v}?"]),
    ("Settings|Config|Options|Values|Data|Parameters|Variables", lambda r: r.choice((r.choice(W.FIELDS), W.identifier(r), r.choice("xyzabcn"))), W.value, ["{k} = {v}", "{k}: {v}", "{k}={v}", "{k} is {v}"], ["What is {k}?", "What is the value of {k}?", "Which value has {k}?", "{k}?"], "{k} is {v}.", ["What has the value {v}?"]),
    ("Trains|Departures|Flights|Buses|Ferries", lambda r: r.choice(W.CITIES), lambda r: r.choice((W.clock(r), W.clock(r), "platform " + str(r.randint(1, 20)), "gate " + r.choice("ABCD") + str(r.randint(1, 40)))), ["{k} {v}", "{k}: {v}", "to {k}: {v}", "{v} {k}", "{k} - {v}"], ["What is said about {k}?", "What does it say for {k}?", "When or where does it go to {k}?", "{k}?"], "{k}: {v}.", ["What goes with {v}?"]),
    ("Weather|Forecast|Temperatures", lambda r: r.choice(W.CITIES), lambda r: r.choice((f"{r.randint(-20, 40)} degrees", r.choice(W.FLAVOURS[-20:]))), ["{k} {v}", "{k}: {v}", "{k} - {v}", "in {k} {v}"], ["How is the weather in {k}?", "What is the weather in {k}?", "What about {k}?", "How is it in {k}?"], "{k}: {v}.", ["Where is it {v}?", "Which city has {v}?"]),
]


def pairs(r):
    """A small table of keys and values in a layout of everyday life."""
    titles, key, value, ways, asked, answer, reverse = r.choice(PAIRS)
    entries, seen = [], set()
    for _ in range(r.randint(2, 7)):
        k, v = key(r), value(r)
        if k.lower() not in seen and v.lower() not in seen:
            seen |= {k.lower(), v.lower()}
            entries.append((k, v))
    way = r.choice(ways)
    items = [way.replace("{k}", k).replace("{v}", v) for k, v in entries]
    text = _lay_out(r, W.pick(r, titles.split("|")) if r.random() < 0.75 else "", items)
    if r.random() < 0.07:
        text = json.dumps(dict(entries), ensure_ascii=False)
    questions = []
    for k, v in r.sample(entries, min(len(entries), r.choice((1, 1, 2, 3)))):
        q = r.choice(asked if r.random() < 0.75 else reverse)
        a = answer.replace("{k}", k).replace("{v}", v)
        questions.append((q.replace("{k}", k).replace("{v}", v), a[0].upper() + a[1:], f"The list says {way.replace('{k}', k).replace('{v}', v)}."))
    return _converse(r, text[0].upper() + text[1:] if r.random() < 0.5 else text, questions)


def story(r):
    """A few sentences about a person, a trip, a shop or an event, and questions about them."""
    n, m = r.sample(W.FIRST, 2)
    city, other = r.sample(W.CITIES, 2)
    she = r.choice(("She", "He"))
    job, animal, colour, food, day, month, place = r.choice(W.JOBS), r.choice(W.ANIMALS), r.choice(W.COLOURS), r.choice(W.FOODS), r.choice(W.DAYS), r.choice(W.MONTHS), W.business(r)
    pet, age, price, clock, year, count = W.proper(r).split()[0], r.randint(5, 95), r.randint(2, 900), W.clock(r), r.randint(1900, 2026), r.randint(2, 90)
    kind = r.randrange(5)
    if kind == 0:
        facts = [(f"{n} is a {age} year old {job} from {city}.", [("How old is {n}?", f"{n} is {age} years old."), ("What is {n}'s job?", f"{n} is a {job}."), ("Where is {n} from?", f"{n} is from {city}.")]),
                 (f"{she} has a {colour} {animal} called {pet}.", [(f"What is the {animal} called?", f"The {animal} is called {pet}."), (f"What colour is the {animal}?", f"The {animal} is {colour}."), (f"Who is {pet}?", f"{pet} is a {animal}.")]),
                 (f"On {day} {she.lower()} is travelling to {other} to see {m}.", [("Where is {n} travelling?", f"{n} is travelling to {other}."), ("When is {n} travelling?", f"{n} is travelling on {day}."), ("Whom will {n} see?", f"{n} will see {m}."), ("Who does {n} visit?", f"{n} will see {m}.")]),
                 (f"{she} loves {food}.", [("What does {n} love?", f"{n} loves {food}."), ("What does {n} like to eat?", f"{n} loves {food}.")])]
    elif kind == 1:
        facts = [(f"The {place} in {city} opened in {year}.", [("When did {p} open?", f"{place} opened in {year}."), ("Where is {p}?", f"{place} is in {city}."), ("In which city is {p}?", f"{place} is in {city}.")]),
                 (f"It is run by {n} and has {count} {r.choice(('rooms', 'seats', 'tables'))}.", [("Who runs {p}?", f"{place} is run by {n}."), ("Who runs it?", f"{place} is run by {n}.")]),
                 (f"It is known for its {food}.", [("What is {p} known for?", f"{place} is known for its {food}."), ("What is it known for?", f"{place} is known for its {food}.")]),
                 (f"It is closed on {day}s.", [("When is {p} closed?", f"{place} is closed on {day}s."), ("On which day is it closed?", f"{place} is closed on {day}s.")])]
    elif kind == 2:
        facts = [(f"The {r.choice(('meeting', 'party', 'concert', 'game'))} is on {day} at {clock} in {place}.", [("When is it?", f"It is on {day} at {clock}."), ("Where is it?", f"It is in {place}."), ("At what time does it start?", f"It is on {day} at {clock}."), ("What day is it on?", f"It is on {day} at {clock}.")]),
                 (f"{n} brings the {food}.", [("What does {n} bring?", f"{n} brings the {food}."), (f"Who brings the {food}?", f"{n} brings the {food}.")]),
                 (f"{count} people are invited.", [("How many people are invited?", f"{count} people are invited."), ("How many guests are there?", f"{count} people are invited.")]),
                 (f"The ticket costs {price} dollars.", [("How much is the ticket?", f"The ticket costs {price} dollars."), ("What does the ticket cost?", f"The ticket costs {price} dollars.")])]
    elif kind == 3:
        item = r.choice(W.ADJECTIVES) + " " + r.choice(W.NOUNS)
        facts = [(f"{n} bought a {item} for {price} euros in {city}.", [("What did {n} buy?", f"{n} bought a {item}."), ("How much did {n} pay?", f"{n} paid {price} euros."), (f"How much was the {item}?", f"{n} paid {price} euros."), ("Where did {n} buy it?", f"{n} bought it in {city}.")]),
                 (f"{m} wanted a {colour} one.", [("Who wanted a {c} one?".replace("{c}", colour), f"{m} wanted a {colour} one."), (f"What did {m} want?", f"{m} wanted a {colour} one.")]),
                 (f"It was delivered on {day}.", [("When was it delivered?", f"It was delivered on {day}.")])]
    else:
        facts = [(f"The project {place} is led by {n} and started in {month} {year}.", [("Who leads the project?", f"{n} leads the project."), ("When did the project start?", f"The project started in {month} {year}."), ("What is the project called?", f"The project is called {place}.")]),
                 (f"{m} writes the {r.choice(('code', 'report', 'tests'))} and works from {city}.", [(f"Where does {m} work?", f"{m} works from {city}."), (f"Where does {m} work from?", f"{m} works from {city}.")]),
                 (f"The budget is {price} thousand dollars.", [("What is the budget?", f"The budget is {price} thousand dollars."), ("How big is the budget?", f"The budget is {price} thousand dollars.")]),
                 (f"The next review is on {month} {r.randint(1, 28)}.", [])]
        date = facts[3][0].split(" is on ")[1]
        facts[3] = (facts[3][0], [("When is the next review?", f"The next review is on {date}"), ("What is the date of the next review?", f"The next review is on {date}")])
    keep = [facts[0]] + [f for f in facts[1:] if r.random() < 0.75]
    lines = [f[0] for f in keep]
    questions = []
    for _ in range(r.choice((1, 1, 2, 3))):
        said, options = r.choice(keep)
        q, a = r.choice(options)
        q = q.replace("{n}", n).replace("{p}", place)
        if r.random() < 0.12 and kind == 0:
            q = q.replace(n + "'s", {"She": "her", "He": "his"}[she]).replace(n, she.lower())
        questions.append((q[0].upper() + q[1:], a, f"The text says: {said}"))
    return _converse(r, r.choice((" ", " ", " ", "\n")).join(lines), questions)


def conversation(r):
    x = r.random()
    return stated(r) if x < 0.4 else amounts(r) if x < 0.57 else pairs(r) if x < 0.82 else story(r)


def one_turn(r):
    """(question with its facts, answer, reasoning)."""
    while True:
        first, second = conversation(r)["messages"][:2]
        if first["role"] == "user" and second["content"] not in ("OK.", ACKNOWLEDGED):
            return first["content"], second["content"], second["reasoning"]
