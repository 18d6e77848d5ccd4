"""Generated tools: everyday tools in many wordings, and tools nobody has seen, made of a verb, a noun and parameters."""

import json

from data import words as W
from data.service import ERRORS, Service
from data.sgd import effort, in_schema_order, renamed, system_text

NO_TOOL = "I don't have a tool for that."

# Of each everyday tool: names, descriptions, parameters {role: (names, type, description, required, values)}, requests
# ([p] marks a parameter; a request without an optional parameter leaves it out), result fields, answers.
CITY = (["city", "location", "place", "town", "city_name", "where", "q"], "string", "Name of the city", True, lambda r: r.choice(W.CITIES) if r.random() < 0.8 else W.proper(r))


def _text(r):
    return W.pick(r, ["I am {late|on my way|home|at the station}", "{call|write} me {later|tomorrow}", "the {meeting|party|lunch} is at {noon|five|six}",
                      "{buy|bring} {milk|bread|the keys|two tickets}", "happy birthday", "see you {soon|on Monday|tonight}", "the {parcel|report|car} is {ready|here}"])


SKIES = ("sunny cloudy rainy windy snowy stormy foggy clear dry wet hot cold warm mild humid icy overcast misty drizzling freezing hazy breezy".split()
         + ["light rain", "heavy rain", "partly cloudy", "light snow", "strong wind", "scattered showers", "clear sky", "heavy snow"])


def _sky(r):
    return r.choice(SKIES) if r.random() < 0.75 else W.word(r)


EVERYDAY = [
    dict(names=["get_weather", "weather", "current_weather", "fetch_forecast", "weather_lookup"], about=["Get the weather for a city", "Weather by city", "Current weather", "Returns the current weather of a place"],
         params={"city": CITY,
                 "day": (["day", "date", "when"], "string", "Day of the forecast", False, lambda r: r.choice(["today", "tomorrow"] + W.DAYS)),
                 "unit": (["unit", "units", "scale"], "string", "Temperature unit", False, lambda r: r.choice(["celsius", "fahrenheit"]))},
         asks=["What is the weather in [city]?", "What's the weather like in [city] [day]?", "How is the weather in [city]?", "Weather in [city]{, please|}", "Is it {warm|cold|raining|sunny} in [city]?",
               "How warm is it in [city] in [unit]?", "Tell me the weather {for|in} [city] [day].", "Do I need {a coat|an umbrella} in [city] [day]?", "weather [city]", "What will the weather be in [city] [day]?",
               "What is the temperature in [city] in [unit]?", "Can you {check|look up} the weather in [city]?", "I am going to [city] [day]. How is the weather there?", "{Should|Shall} I take {an umbrella|a coat|a jacket|sunglasses} in [city]{| today| tomorrow}?", "Do I need {an umbrella|a jacket|boots|a hat} in [city]{| today| tonight}?", "How is the weather in [city] {today|tomorrow|right now|now|tonight|this morning}?",
               "{Will it|Does it|Is it going to} rain in [city]{| today| tomorrow}?", "{What's|What is|How's} the weather {in|like in} [city]{| today| right now| now}?", "Is it {nice|cold|hot|raining|snowing} {outside |}in [city]{| today| now}?", "[city] weather{| today| now| please}", "I'm in [city], {what should I wear|do I need an umbrella|is it warm outside}?",
               "{Give me|Show me|I need|I want to know} the {weather|forecast|temperature} {in|for|of} [city]{.| today.|, please.}", "Can I {go swimming|go for a walk|have a picnic|sit outside} in [city]{| today| tomorrow}?", "What are the conditions in [city]?", "How {cold|hot|warm} is it in [city]{| today| now}?", "{Weather|Forecast|Temperature} {for|in|of} [city]{?|.|}"],
         result=lambda r, a: {"temperature": r.randint(-15, 40), "condition": _sky(r)} | ({"humidity": r.randint(20, 99)} if r.random() < 0.3 else {}) | ({"wind_kmh": r.randint(0, 80)} if r.random() < 0.2 else {}),
         answers=["The weather in {city} is {condition} with {temperature} degrees.", "It is {temperature} degrees and {condition} in {city}.", "It is {condition} in {city}, {temperature} degrees."]),
    dict(names=["get_time", "current_time", "world_clock", "time_in_city", "clock"], about=["Current local time of a city", "Get the time in a city"], params={"city": CITY},
         asks=["What time is it in [city]?", "What's the time in [city]?", "Tell me the time in [city].", "Current time in [city]?", "How late is it in [city] now?"],
         result=lambda r, a: {"time": W.clock(r)}, answers=["It is {time} in {city}.", "The time in {city} is {time}."]),
    dict(names=["convert_currency", "exchange", "currency_converter", "convert_money"], about=["Convert an amount of money between currencies", "Currency conversion"],
         params={"amount": (["amount", "value", "sum"], "number", "Amount of money", True, lambda r: r.choice((r.randint(1, 999), r.randint(1, 50) * 10))),
                 "from": (["from", "from_currency", "source", "base"], "string", "Currency code to convert from", True, lambda r: r.choice("USD EUR GBP JPY CHF CAD AUD CNY INR SEK".split())),
                 "to": (["to", "to_currency", "target", "quote"], "string", "Currency code to convert to", True, lambda r: r.choice("USD EUR GBP JPY CHF CAD AUD CNY INR SEK".split()))},
         asks=["Convert [amount] [from] to [to].", "How much is [amount] [from] in [to]?", "What are [amount] [from] worth in [to]?", "[amount] [from] in [to]{?|, please}", "Change [amount] [from] into [to]."],
         result=lambda r, a: {"result": round(r.uniform(1, 2000), 2)}, answers=["{amount} {from} are {result} {to}.", "That is {result} {to}."]),
    dict(names=["translate", "translate_text", "translator"], about=["Translate a text into another language", "Text translation"],
         params={"text": (["text", "input", "phrase", "content"], "string", "Text to translate", True, _text),
                 "language": (["language", "target_language", "to", "lang"], "string", "Target language", True, lambda r: r.choice("French German Spanish Italian Dutch Polish Swedish Greek Turkish Hindi Japanese Korean Arabic Russian".split()))},
         asks=["Translate '[text]' to [language].", "How do I say '[text]' in [language]?", "What is '[text]' in [language]?", "Translate \"[text]\" into [language], please."],
         result=lambda r, a: {"translation": " ".join(W.invented(r) for _ in range(r.randint(1, 5)))}, answers=["In {language} it is: {translation}", "{translation}"]),
    dict(names=["send_message", "send_sms", "message", "text_contact"], about=["Send a text message to a person", "Sends a message"],
         params={"recipient": (["recipient", "to", "contact", "person", "name"], "string", "Who gets the message", True, lambda r: r.choice(W.FIRST)),
                 "text": (["text", "message", "body", "content"], "string", "Text of the message", True, _text)},
         asks=["Send [recipient] the message '[text]'.", "Tell [recipient]: [text]", "Text [recipient] \"[text]\".", "Write to [recipient] that [text].", "Message [recipient]: [text]"],
         result=lambda r, a: {"status": r.choice(("sent", "sent", "sent", "failed"))}, answers=["The message to {recipient} was {status}.", "The message to {recipient} was {status}."]),
    dict(names=["set_timer", "start_timer", "timer", "countdown"], about=["Start a timer", "Sets a countdown timer"],
         params={"minutes": (["minutes", "duration", "duration_minutes", "mins"], "integer", "Length in minutes", True, lambda r: r.randint(1, 120)),
                 "label": (["label", "name", "title"], "string", "Name of the timer", False, lambda r: r.choice("tea pasta pizza eggs laundry break nap bread rice workout cake".split()))},
         asks=["Set a timer for [minutes] minutes.", "Start a [minutes] minute timer{ for [label]|}.", "Timer [minutes] minutes{, please|}", "Remind me in [minutes] minutes.", "Set a timer called [label] for [minutes] minutes."],
         result=lambda r, a: {"id": r.randint(1, 99), "state": "running"}, answers=["The timer for {minutes} minutes is {state}.", "Your timer is {state}."]),
    dict(names=["get_stock_price", "stock_quote", "quote", "share_price"], about=["Latest price of a share", "Get the price of a stock"],
         params={"symbol": (["symbol", "ticker", "stock", "company"], "string", "Ticker symbol", True, lambda r: "".join(r.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZ") for _ in range(r.randint(2, 4))))},
         asks=["What is the price of [symbol]?", "How is [symbol] doing?", "[symbol] stock price?", "Get the price of [symbol] shares.", "What does a share of [symbol] cost?"],
         result=lambda r, a: {"price": round(r.uniform(1, 900), 2), "currency": r.choice(("USD", "EUR"))}, answers=["{symbol} is at {price} {currency}.", "A share of {symbol} costs {price} {currency}."]),
    dict(names=["search_web", "web_search", "search", "lookup"], about=["Search the web", "Finds pages for a query"],
         params={"query": (["query", "q", "terms", "keywords"], "string", "Search terms", True, lambda r: " ".join(W.word(r) for _ in range(r.randint(1, 4)))),
                 "limit": (["limit", "count", "max_results", "n"], "integer", "Number of results", False, lambda r: r.randint(1, 20))},
         asks=["Search for [query].", "Search the web for [query].", "Find [limit] pages about [query].", "Look up [query] {online|on the web}.", "Google [query]."],
         result=lambda r, a: {"title": W.proper(r), "url": f"https://{W.invented(r)}.com"}, answers=["I found {title}: {url}", "The first result is {title} ({url})."]),
    dict(names=["play_music", "play_song", "start_music", "player"], about=["Play music", "Plays a song"],
         params={"title": (["title", "song", "track", "name"], "string", "Title of the song", True, W.proper),
                 "artist": (["artist", "by", "band", "singer"], "string", "Artist", False, lambda r: r.choice(W.FIRST) + " " + r.choice(W.LAST))},
         asks=["Play [title].", "Play [title] by [artist].", "I want to hear [title].", "Put on [title] by [artist].", "Start the song [title]."],
         result=lambda r, a: {"state": "playing", "length": W.clock(r)}, answers=["{title} is {state}.", "Now {state}: {title}."]),
    dict(names=["calculate", "calculator", "compute", "evaluate_expression"], about=["Evaluate an arithmetic expression", "A calculator"],
         params={"expression": (["expression", "expr", "formula", "input"], "string", "Expression to evaluate", True, lambda r: f"{r.randint(1, 9999)} {r.choice('+-*/')} {r.randint(1, 999)}")},
         asks=["What is [expression]?", "Calculate [expression].", "Compute [expression]{, please|}.", "[expression] = ?", "How much is [expression]?"],
         result=lambda r, a: {"result": r.choice((r.randint(1, 99999), round(r.uniform(0, 999), 3)))}, answers=["{expression} = {result}", "The result is {result}."]),
    dict(names=["turn_on_light", "set_light", "light_control", "switch_light"], about=["Switch a light on or off", "Controls the lights of a room"],
         params={"room": (["room", "area", "zone", "where"], "string", "Room", True, lambda r: r.choice("kitchen bedroom hall office bathroom garage garden cellar attic".split() + ["living room", "dining room"])),
                 "on": (["on", "state", "enabled", "power"], "boolean", "true to switch on", True, lambda r: r.random() < 0.6)},
         asks=["Turn [on] the light in the [room].", "Switch [on] the [room] light.", "[room] light [on]{, please|}.", "Lights [on] in the [room]."],
         result=lambda r, a: {"done": True, "lamps": r.randint(1, 6)}, answers=["The light in the {room} is {on}."]),
    dict(names=["get_flight_status", "flight_status", "track_flight", "flight_info"], about=["Status of a flight", "Get the status of a flight by number"],
         params={"flight": (["flight", "flight_number", "number", "code"], "string", "Flight number", True, lambda r: r.choice(("LH", "BA", "AF", "UA", "DL", "KL", "EK", "SK")) + str(r.randint(10, 9999)))},
         asks=["Is flight [flight] on time?", "What is the status of [flight]?", "Where is flight [flight]?", "Check flight [flight].", "When does [flight] land?"],
         result=lambda r, a: {"status": r.choice(("on time", "delayed", "landed", "cancelled", "boarding")), "gate": r.choice("ABCDE") + str(r.randint(1, 60)), "arrival": W.clock(r)}, answers=["Flight {flight} is {status}, gate {gate}, arrival {arrival}."]),
    dict(names=["create_event", "add_event", "calendar_add", "schedule_meeting"], about=["Create a calendar event", "Add an appointment to the calendar"],
         params={"title": (["title", "name", "subject", "event"], "string", "Title", True, lambda r: W.pick(r, ["{lunch|dinner|meeting|call|coffee} with ", "visit to "]) + r.choice(W.FIRST)),
                 "date": (["date", "day", "on"], "string", "Date", True, W.date), "time": (["time", "start", "at", "start_time"], "string", "Start time", False, W.clock)},
         asks=["Add [title] on [date] at [time].", "Create an event [title] on [date].", "Put [title] in my calendar for [date], [time].", "Schedule [title] on [date] at [time].", "Plan [title] on [date]."],
         result=lambda r, a: {"event_id": r.randint(100, 9999), "created": True}, answers=["I added {title} on {date}.", "{title} is in your calendar, number {event_id}."]),
    dict(names=["find_restaurant", "restaurants", "search_restaurants", "places_to_eat"], about=["Find restaurants in a city", "Restaurant search"],
         params={"city": CITY, "cuisine": (["cuisine", "food", "kind", "type"], "string", "Kind of food", False, lambda r: r.choice("Italian Greek Thai Indian Chinese Mexican French Turkish Korean vegan".split()))},
         asks=["Find a restaurant in [city].", "Where can I eat [cuisine] food in [city]?", "I want [cuisine] food in [city].", "Any good restaurants in [city]?", "A [cuisine] restaurant in [city], please."],
         result=lambda r, a: {"name": W.proper(r), "rating": round(r.uniform(2, 5), 1), "address": f"{r.randint(1, 200)} {r.choice(W.LAST)} Street"}, answers=["{name} at {address} has a rating of {rating}.", "Try {name}, {address}."]),
    dict(names=["get_population", "population", "country_info", "census"], about=["Population of a city or country"], params={"city": CITY},
         asks=["How many people live in [city]?", "What is the population of [city]?", "Population of [city]?"],
         result=lambda r, a: {"population": r.randint(1000, 9999999)}, answers=["{population} people live in {city}.", "The population of {city} is {population}."]),
]


# What is too near to another tool to say that no tool fits.
GROUPS = {"get_time": "clock", "send_message": "message", "set_timer": "alarm", "search_web": "search", "play_music": "music", "turn_on_light": "home", "get_flight_status": "travel",
          "create_event": "calendar", "find_restaurant": "food"}


class Tool:
    """One offered tool: its schema, and how to ask for it and answer from it."""

    def __init__(self, schema, roles, asks, result, answers, values):
        self.schema, self.roles, self.asks, self.result, self.answers, self.values = schema, roles, asks, result, answers, values
        self.group = None


def everyday(r, spec=None):
    spec = spec or r.choice(EVERYDAY)
    name = r.choice(spec["names"])
    x = r.random()
    if x < 0.45:
        name = renamed(r, name, False, 0.5)
    roles, properties, required, values = {}, {}, [], {}
    items = list(spec["params"].items())
    if r.random() < 0.4:
        r.shuffle(items)
    for role, (names, kind, about, needed, value) in items:
        if not needed and r.random() < 0.35:
            continue
        key = r.choice(names) if r.random() < 0.8 else renamed(r, names[0], False, 0.6)
        while key in properties:
            key += "_" + r.choice("abcxyz")
        roles[role] = key
        properties[key] = {"type": kind} | ({"description": about} if r.random() < 0.75 else {})
        if needed:
            required.append(key)
        values[role] = value
    schema = {"name": name, "description": r.choice(spec["about"]), "parameters": {"type": "object", "properties": properties, "required": required}}
    tool = Tool(schema, roles, spec["asks"], spec["result"], spec["answers"], values)
    tool.group = GROUPS.get(spec["names"][0], spec["names"][0])
    return tool


def _value_of(kind, r):
    if kind == "integer":
        return r.randint(0, 999)
    if kind == "number":
        return r.choice((r.randint(0, 99), round(r.uniform(0, 99), 1), round(r.uniform(0, 9), 2)))
    if kind == "boolean":
        return r.random() < 0.5
    if kind == "array":
        return [r.choice((W.word, W.invented))(r) for _ in range(r.randint(1, 4))]
    return W.value(r)


def _spoken(v):
    if isinstance(v, bool):
        return "true" if v else "false"
    if isinstance(v, list):
        return ", ".join(v)
    return str(v)


def made_up(r):
    """A tool of a verb, a noun and random parameters; requests name them or describe them."""
    verb, noun = r.choice(W.VERBS), r.choice(W.THINGS)
    invented_name = r.random() < 0.35
    name = W.identifier(r) if invented_name else W.style(r, [verb, noun] if r.random() < 0.8 else [noun, verb])
    if r.random() < 0.2:  # Service_Number_Action
        name = f"{(r.choice(W.THINGS) + 's' if r.random() < 0.6 else W.invented(r)).capitalize()}_{r.randint(1, 9)}_{W.style(r, [verb, noun], 'pascal')}"
    text_only = r.random() < 0.2
    roles, properties, required, values = {}, {}, [], {}
    needed = r.choice((0.0, 0.5, 0.6, 0.8, 1.0))
    for _ in range(r.choice((0, 1, 1, 2, 2, 3, 3, 4, 5))):
        key = r.choice(W.FIELDS) if r.random() < 0.6 else W.identifier(r)
        if key in properties:
            continue
        kind = "string" if text_only else r.choice(("string", "string", "string", "integer", "number", "boolean", "array"))
        p = {"type": kind}
        if kind == "array":
            p["items"] = {"type": "string"}
        choices = None
        if kind == "string" and r.random() < 0.2:
            choices = list(dict.fromkeys(W.word(r) for _ in range(r.randint(2, 5))))
            p["enum"] = choices
        if r.random() < 0.5:
            p["description"] = W.pick(r, ["The ", ""]) + " ".join(W.split_name(key)) + W.pick(r, [" of the ", " for the "]) + noun
        properties[key] = p
        if r.random() < needed:
            required.append(key)
        roles[key] = key
        values[key] = (lambda c: lambda r: r.choice(c))(choices) if choices else (lambda k: lambda r: _value_of(k, r))(kind)
    about = W.pick(r, [f"{verb.capitalize()} a {noun}", f"{verb.capitalize()}s the {noun}", f"Use this to {verb} a {noun}", f"{noun.capitalize()}: {verb}"])
    schema = {"name": name, "description": about, "parameters": {"type": "object", "properties": properties, "required": required}}
    tool = Tool(schema, roles, None, None, None, values)
    tool.verb, tool.noun = verb, noun
    return tool


# Pieces that name a value without the parameter's own words; [v] is the value.
NATURAL = {"city": [" in [v]"], "country": [" in [v]"], "location": [" at [v]", " in [v]"], "date": [" on [v]", " for [v]"], "start_date": [" from [v]", " starting [v]"], "end_date": [" until [v]"], "due_date": [" by [v]"],
           "time": [" at [v]"], "email": [" to [v]"], "owner": [" of [v]"], "author": [" by [v]"], "name": [" called [v]", " named [v]"], "title": [" called [v]", " titled [v]"], "id": [" [v]", " number [v]", " no. [v]"], "color": [" in [v]"],
           "amount": [" for [v]"], "price": [" for [v]", " at [v]"], "duration": [" for [v]"], "room": [" in room [v]"], "language": [" in [v]"], "format": [" as [v]"], "source": [" from [v]"], "target": [" to [v]"], "recipient": [" to [v]"],
           "origin": [" from [v]"], "destination": [" to [v]"], "manager": [" of [v]"], "brand": [" from [v]"], "code": [" with code [v]", " [v]"], "reason": [" because of [v]"], "topic": [" about [v]"], "subject": [" about [v]"], "genre": [" of [v]"]}
HEADS = ["{v} {a} {n}", "{v} {a} {n}", "please {v} {a} {n}", "can you {v} {a} {n}", "could you {v} {a} {n}", "I want to {v} {a} {n}", "I need to {v} {a} {n}", "I'd like to {v} {a} {n}", "{v} {n}", "would you {v} {a} {n} for me", "we have to {v} {a} {n}",
         "help me {v} {a} {n}", "hey, {v} {a} {n}", "I need you to {v} {a} {n}", "let's {v} {a} {n}", "is it possible to {v} {a} {n}", "go and {v} {a} {n}", "time to {v} {a} {n}"]


def _made_up_request(r, tool, given):
    keys = list(given)
    if r.random() < 0.4:
        r.shuffle(keys)
    head = r.choice(HEADS).replace("{v}", tool.verb).replace("{a}", r.choice(("a", "the", "my", "this", "that"))).replace("{n}", tool.noun)
    head = head[0].upper() + head[1:] if r.random() < 0.9 else head
    if r.random() < 0.15:
        head = W.pick(r, ["{Call|Use|Run} "]) + tool.schema["name"]
    elif r.random() < 0.5:
        for k in [k for k in keys if k in NATURAL][:2]:
            head += r.choice(NATURAL[k]).replace("[v]", _spoken(given[k]))
            keys.remove(k)
    if not keys:
        return head + r.choice((".", "", "?" if head.lower().startswith(("can", "could", "would", "is")) else "."))
    how = r.randrange(7)
    named = []
    for k in keys:
        words = " ".join(W.split_name(k)) if how not in (2, 3) else k
        named.append(words + (" ", " ", " ", "=", ": ", " is ", " should be ")[how] + _spoken(given[k]))
    joined = named[0] if len(named) == 1 else ", ".join(named[:-1]) + r.choice((" and ", ", ")) + named[-1]
    if how >= 5:
        return head + ". " + ("The " if r.random() < 0.6 else "") + joined + r.choice((".", ""))
    if how == 4 and r.random() < 0.5:
        return head + r.choice((":\n", "\n")) + "\n".join(named)
    return head + r.choice((" with ", ": ", ", ", " using ", " (")) .replace("(", "with ") + joined + r.choice((".", "", "?" if head.lower().startswith(("can", "could", "would", "is")) else "."))


def _ask(r, tool):
    """(request, arguments by key, spoken values by role)."""
    if tool.asks is None:
        given = {}
        for role, make in tool.values.items():
            key = tool.roles[role]
            if key in tool.schema["parameters"]["required"] or r.random() < 0.5:
                given[key] = make(r)
        return _made_up_request(r, tool, given), given, given
    for _ in range(30):
        text = W.pick(r, tool.asks)
        used = [role for role in tool.roles if f"[{role}]" in text]
        if text.count("[") != len(used):  # the tool lacks a parameter that this wording needs
            continue
        if all(role in used for role in tool.roles if tool.roles[role] in tool.schema["parameters"]["required"]):
            break
    else:
        return None
    values = {role: tool.values[role](r) for role in used}
    spoken = {}
    for role, v in values.items():
        spoken[role] = ("on" if v else "off") if isinstance(v, bool) else _spoken(v)
        text = text.replace(f"[{role}]", spoken[role])
    if r.random() < 0.15:
        text = text[0].lower() + text[1:]
    if r.random() < 0.1:
        text = text.rstrip("?.!")
    if r.random() < 0.15:
        text = W.pick(r, ["Hi, ", "Hello. ", "Please: ", "Hey, "]) + text
    return text, {tool.roles[role]: v for role, v in values.items()}, spoken


def _result(r, tool, arguments, spoken):
    """(result text, answer)."""
    if tool.result is None:
        return _made_up_result(r, tool)
    fields = tool.result(r, arguments)
    echo = {k: v for k, v in arguments.items() if r.random() < 0.3}
    full = (echo | fields) if r.random() < 0.5 else (fields | {k: v for k, v in echo.items() if k not in fields})
    full |= fields
    answer = r.choice(tool.answers)
    for role, v in spoken.items():
        answer = answer.replace("{" + role + "}", v)
    for k, v in fields.items():
        answer = answer.replace("{" + k + "}", _spoken(v))
    if "{" in answer:
        return _result(r, tool, arguments, spoken)
    if r.random() < 0.08:
        why = r.choice(("not found", "service unavailable", "timeout", "invalid request"))
        return json.dumps({"error": why}), f"That did not work: {why}."
    if r.random() < 0.12 and len(fields) > 1:
        return ", ".join(f"{k}: {_spoken(v)}" for k, v in full.items()), answer
    return _dump(r, full), answer


def _made_up_result(r, tool):
    """A result of fields nobody has seen, and an answer that says them."""
    x = r.random()
    if x < 0.2:
        word = r.choice(("ok", "done", "success", "accepted", "queued", W.word(r)))
        return json.dumps({"status": word}), f"The {tool.noun} request returned status {word}."
    if x < 0.3:
        key, v = r.choice(W.FIELDS), W.value(r)
        return json.dumps({"error": f"{key} {v} not found"}), f"It failed: {key} {v} not found."
    if x < 0.36:
        text = " ".join(W.word(r) for _ in range(r.randint(2, 6)))
        return text, f"The tool says: {text}"
    if x < 0.44:
        rows = [W.proper(r) for _ in range(r.randint(1, 4))]
        key = r.choice(("results", "items", tool.noun + "s", "names"))
        return _dump(r, {key: rows} if r.random() < 0.7 else rows), f"I found {len(rows)}: {', '.join(rows)}."
    fields = {}
    for _ in range(r.choice((1, 1, 2, 3))):
        fields.setdefault(r.choice(W.FIELDS) if r.random() < 0.8 else W.identifier(r), r.choice((W.value, W.value, W.word, W.word, lambda r: r.randint(0, 5000)))(r))
    words = [f"{' '.join(W.split_name(k))} of the {tool.noun} is {v}" for k, v in list(fields.items())[:1]] + [f"the {' '.join(W.split_name(k))} is {v}" for k, v in list(fields.items())[1:]]
    answer = "Done. The " + (words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]) + "."
    return _dump(r, {r.choice(("result", "data", tool.noun)): fields} if r.random() < 0.15 else fields), answer


def _dump(r, value):
    """JSON in one of the usual spacings."""
    x = r.random()
    if x < 0.7:
        return json.dumps(value, ensure_ascii=False)
    return json.dumps(value, ensure_ascii=False, indent=2) if x < 0.85 else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _reasoning(name, arguments):
    given = ", ".join(f"{k} = {_spoken(v)}" for k, v in arguments.items())
    return f"A call of {name} is due: {given}." if given else f"A call of {name} is due."


def offered_tools(r, count):
    tools, names = [], set()
    while len(tools) < count:
        x = r.random()
        t = everyday(r) if x < 0.25 else Service(r) if x < 0.62 else made_up(r)
        if t.group and any(t.group == u.group for u in tools) and r.random() < 0.8:  # mostly no two of a kind
            continue
        if t.schema["name"] not in names:
            names.add(t.schema["name"])
            tools.append(t)
    return tools


def _serve(r, tool, say, call):
    """One request for a service; now and then something is missing and asked for, or one value changes afterwards."""
    values = tool.values(r)
    text = tool.request(r, values)
    if text is None:
        return
    lacking = [role for role in tool.required() if role in values and tool.spec["slots"][role][5]
               and not any("{" + role + "}" in x for x in (tool.spec["do"], tool.spec["want"]))]
    if lacking and r.random() < 0.22:
        lacking = r.sample(lacking, 1 if len(lacking) == 1 or r.random() < 0.5 else 2)
        lacking.sort(key=list(tool.keys).index)
        text = None
        for _ in range(5):
            text = text or tool.request(r, {k: v for k, v in values.items() if k not in lacking})
        if text is None:
            return
        say("user", text)
        names = [" ".join(W.split_name(tool.keys[role])) for role in lacking]
        say("assistant", "Which " + " and which ".join(names) + "?", reasoning=f"{' and '.join(tool.keys[k] for k in lacking)} is missing. I ask for it.")
        pieces = []
        for role in lacking:
            spoken = str(values[role][0])
            options = tool.spec["slots"][role][5]
            pieces.append(spoken if isinstance(options, dict) or r.random() < 0.5 else r.choice(options).replace("{v}", spoken).strip(" ,:"))
        text = r.choice((" ", ", ", " and ")).join(pieces)
        text = text[0].upper() + text[1:] + r.choice((".", "", " please"))
    say("user", text)
    turn = 0
    while True:
        call([(tool, tool.arguments(values))])
        if r.random() < 0.07:
            why = r.choice(ERRORS)
            say("tool", json.dumps({"error": why}))
            say("assistant", f"That did not work: {why}.", reasoning="The result is here. I answer from it.")
        else:
            fields, answer = tool.result(r, values)
            echo = {tool.keys[role]: v for role, (_, v) in values.items() if role in tool.keys and r.random() < 0.25 and tool.keys[role] not in fields}
            full = echo | fields if r.random() < 0.5 else fields | echo
            say("tool", ", ".join(f"{k}: {_spoken(v)}" for k, v in full.items()) if r.random() < 0.1 else _dump(r, full))
            say("assistant", answer, reasoning="The result is here. I answer from it.")
        changeable = [role for role in tool.keys if role in values and role in ("city", "to", "date", "time", "title", "room", "word", "genre", "kind", "name", "who", "restaurant")]
        if turn or not changeable or r.random() > 0.2:
            return
        turn, role = 1, r.choice(changeable)
        spoken, v = tool.spec["slots"][role][4](r)
        values = values | {role: (spoken, v if isinstance(v, str) == (tool.kinds[role] == "string") else str(v))}
        piece = r.choice(tool.spec["slots"][role][5] or [" {v}"]).replace("{v}", spoken).strip(" ,:")
        say("user", W.pick(r, ["And {p}?", "What about {p}?", "And the same {p}.", "Now {p}{, please|}.", "{Ok, and|How about} {p}?", "The same again {p}{.|, please.}", "No, {p}.", "Do it again {p}."]).replace("{p}", piece))


def conversation(r, chat, spec=None):
    """One to four requests with tools: calls, two calls at once, a question back, no fitting tool, small talk between.
    `chat(r)` gives (question, answer, reasoning) of small talk or of something unknown."""
    tools = offered_tools(r, r.choice((1, 1, 2, 3, 4, 6, 8)))
    if spec is not None or r.random() < 0.25:
        t = everyday(r, spec or EVERYDAY[0])
        tools = [t] + [x for x in tools[1:] if x.schema["name"] != t.schema["name"] and x.group != t.group]
    r.shuffle(tools)
    thinking = r.random() < 0.45
    messages = []

    def say(role, content, **more):
        messages.append({"role": role, "content": content} | more)

    def call(calls):
        say("assistant", "", tool_calls=[{"name": t.schema["name"], "arguments": in_schema_order(a, t.schema)} for t, a in calls],
            reasoning=" ".join(_reasoning(t.schema["name"], in_schema_order(a, t.schema)) for t, a in calls))

    for _ in range(r.choice((1, 1, 1, 2, 2, 3, 4))):
        x = r.random()
        if x < 0.08:
            q, a, why = chat(r)
            say("user", q)
            say("assistant", a, reasoning=why)
            continue
        if x < 0.16:
            other = everyday(r) if r.random() < 0.4 else Service(r)
            groups = {t.group for t in tools}
            if other.group in groups or {other.group, "search"} & groups == {"search"}:
                continue
            asked = _ask(r, other) if isinstance(other, Tool) else (other.request(r, other.values(r)),)
            if not asked or asked[0] is None:
                continue
            say("user", asked[0])
            say("assistant", NO_TOOL, reasoning="None of the tools fits.")
            continue
        tool = r.choice(tools)
        if isinstance(tool, Service):
            _serve(r, tool, say, call)
            continue
        asked = _ask(r, tool)
        if asked is None:
            continue
        text, arguments, spoken = asked
        required = tool.schema["parameters"]["required"]
        if x < 0.26 and len(required) >= 1 and tool.asks is None and len(arguments) > 1:
            missing = r.choice([k for k in required if k in arguments])
            rest = {k: v for k, v in arguments.items() if k != missing}
            say("user", _made_up_request(r, tool, rest))
            say("assistant", f"Which {' '.join(W.split_name(missing))}?", reasoning=f"{missing} is missing. I ask for it.")
            say("user", W.pick(r, [_spoken(arguments[missing]).replace("|", "/").replace("{", "").replace("}", ""), "It is " + _spoken(arguments[missing]).replace("|", "/").replace("{", "").replace("}", "") + "."]))
            call([(tool, arguments)])
        elif x < 0.34 and tool.asks is not None and "city" in tool.roles and len(arguments) == 1:
            other = r.choice([c for c in W.CITIES if c != spoken["city"]])
            text = text.replace(spoken["city"], f"{spoken['city']} and {other}")
            say("user", text)
            second = {tool.roles["city"]: other}
            call([(tool, arguments), (tool, second)])
            first_result, first_answer = _result(r, tool, arguments, spoken)
            second_result, second_answer = _result(r, tool, second, {"city": other})
            say("tool", first_result)
            say("tool", second_result)
            say("assistant", first_answer + " " + second_answer, reasoning="The results are here. I answer from them.")
            continue
        else:
            say("user", text)
            call([(tool, arguments)])
        result, answer = _result(r, tool, arguments, spoken)
        say("tool", result)
        say("assistant", answer, reasoning="The result is here. I answer from it.")
        if r.random() < 0.15:
            say("user", W.pick(r, ["{Thanks|Thank you|Great, thanks}{!|.|}", "{Ok|Good|Perfect}{.|}"]))
            say("assistant", W.pick(r, ["You're welcome!"]), reasoning="No call is due. I reply to the user.")
    if not messages:
        return conversation(r, chat, spec)
    if r.random() < 0.25:
        messages.insert(0, {"role": "system", "content": system_text(r)})
    return {"messages": messages, "tools": [t.schema for t in tools], "thinking": thinking, "effort": effort(r)}
