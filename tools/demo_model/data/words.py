"""Names, words and values that generated tasks are made of. Everything takes a random.Random."""

import re

SYLLABLES = ("ba be bi bo bu da de di do du fa fe fi fo ga ge gi go gu ha he hi ho ja jo ka ke ki ko ku la le li lo lu ma "
             "me mi mo mu na ne ni no nu pa pe pi po pu ra re ri ro ru sa se si so su ta te ti to tu va ve vi vo wa we wi "
             "ya yo za ze zi zo zu bra cre dri flo gra kle pra sta tri vel dor min tan ler quo xi rin mar sol fen").split()
ENDINGS = ["", "", "", "n", "r", "l", "s", "t", "x", "k", "m", "th", "nd", "rt", "ck", "sh"]
FIRST = ("Anna Ben Carla David Elena Frank Grace Henry Iris Jack Karen Leo Maria Nora Oscar Paula Quinn Rosa Sam Tina Uma "
         "Victor Wendy Xavier Yara Zoe Ahmed Bruno Chen Diego Emma Felix Hana Ivan Julia Kofi Lina Marco Nadia Omar Priya "
         "Ravi Sofia Tom Ursula Vera Will Yusuf Alice Bob Charlie Daniel Eva Fatima George Helen James Kate Liam Mia Noah "
         "Olivia Peter Rachel Simon Theo Amelia Lucas Sara Pedro Laura Mei Kenji").split()
LAST = ("Smith Brown Garcia Miller Jones Davis Lopez Wilson Moore Taylor Clark Lewis Young King Wright Hill Green Baker "
        "Nelson Carter Rossi Weber Novak Silva Kim Tanaka Singh Ali Cohen Petrov Larsen Dubois Moretti Costa Santos "
        "Schmidt Fischer Meyer Jansen Kowalski").split()
CITIES = ("Paris London Berlin Madrid Rome Tokyo Boston Chicago Denver Austin Seattle Miami Dallas Houston Phoenix Toronto "
          "Vancouver Lisbon Dublin Vienna Prague Warsaw Budapest Oslo Stockholm Helsinki Athens Cairo Nairobi Lagos Delhi "
          "Mumbai Bangkok Seoul Beijing Shanghai Sydney Melbourne Auckland Lima Bogota Santiago Havana Munich Hamburg "
          "Milan Naples Venice Lyon Nice Geneva Zurich Brussels Amsterdam Rotterdam Porto Seville Valencia Barcelona "
          "Edinburgh Glasgow Manchester Liverpool Oxford Cambridge Portland Atlanta Detroit Orlando Memphis Nashville "
          "Oakland Sacramento Istanbul Ankara Moscow Kyiv Riga Tallinn Vilnius Reykjavik Singapore Jakarta Manila Hanoi "
          "Osaka Kyoto Dubai Doha Amman Tunis Accra Dakar Quito Montreal Ottawa Calgary").split() + [
    "New York", "San Francisco", "Los Angeles", "San Diego", "Las Vegas", "New Orleans", "Buenos Aires", "Sao Paulo",
    "Cape Town", "Hong Kong", "Mexico City", "Salt Lake City", "Kuala Lumpur", "Tel Aviv", "San Jose"]
ADJECTIVES = ("red blue green yellow black white old new small large round square quiet loud bright dark cold warm heavy "
              "light soft hard fast slow wooden golden silver plastic empty full hidden open closed northern southern upper "
              "lower second third last main spare broken secret ancient modern busy lazy gentle sharp plain fancy").split()
NOUNS = ("door box car lamp table chair book pen bag key phone clock mirror window garden bridge tower engine printer "
         "server camera ticket letter parcel boat train truck bicycle piano guitar drum kettle oven fridge bottle cup plate "
         "knife spoon shelf drawer safe locker room office warehouse station harbor library museum school bakery farm "
         "hotel bank shop market pump valve sensor battery cable screen keyboard robot drone router folder report invoice "
         "contract order account badge helmet jacket coat scarf ring coin stamp map globe tent ladder hammer saw drill "
         "rope bucket basket carpet curtain pillow blanket candle statue painting vase crate barrel sack").split()
VERBS = ("create delete update get list find search open close start stop pause resume send receive read write move copy "
         "rename archive restore lock unlock enable disable add remove assign check count convert compute translate "
         "summarize play book cancel confirm schedule order ship track rate review upload download print scan sort filter "
         "merge split export import share publish register activate reset test measure record dim rotate water feed "
         "charge reserve renew approve reject invite mute notify").split()
THINGS = ("invoice order ticket user account file folder report message email note task event meeting reminder alarm timer "
          "song playlist photo video document page comment post product customer employee project contract payment refund "
          "shipment parcel booking room table flight train car taxi hotel recipe workout lesson course exam grade device "
          "sensor lamp thermostat door camera robot printer server database backup job queue channel member team ticket "
          "coupon voucher subscription policy claim appointment prescription sample article poll survey form label tag "
          "warehouse shelf pump valve garden plant pet vehicle battery license badge session").split()
FIELDS = ("id name title status color size weight height width price amount quantity date time city country address street "
          "phone email owner author category type priority level rating score language format version code serial model "
          "brand material department manager location floor room zone speed temperature duration distance start_date "
          "end_date due_date currency comment description label group mode channel count limit page source target unit").split()
MONTHS = "January February March April May June July August September October November December".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
HARVEST = []  # words of the corpora, filled by data.load


def invented(r, low=2, high=3):
    """A pronounceable word that is in no list."""
    return "".join(r.choice(SYLLABLES) for _ in range(r.randint(low, high))) + r.choice(ENDINGS)


def word(r):
    x = r.random()
    if x < 0.3 and HARVEST:
        return r.choice(HARVEST)
    if x < 0.55:
        return invented(r)
    return r.choice(r.choice((ADJECTIVES, NOUNS, THINGS, FIELDS, VERBS)))


def proper(r):
    """A capitalised name of one to three words."""
    x = r.random()
    if x < 0.25:
        return r.choice(FIRST) + " " + r.choice(LAST)
    if x < 0.4:
        return r.choice(CITIES)
    n = r.choice((1, 1, 2, 2, 2, 3))
    return " ".join(w[:1].upper() + w[1:] for w in (word(r) for _ in range(n)))


def style(r, words, kind=None):
    """Joins lower-case words to an identifier in one of the usual styles."""
    words = [w for w in words if w]
    kind = kind or r.choice(("snake", "snake", "camel", "pascal", "kebab", "upper", "joined"))
    if kind == "camel":
        return words[0].lower() + "".join(w[:1].upper() + w[1:] for w in words[1:])
    if kind == "pascal":
        return "".join(w[:1].upper() + w[1:] for w in words)
    if kind == "kebab":
        return "-".join(w.lower() for w in words)
    if kind == "upper":
        return "_".join(w.upper() for w in words)
    if kind == "joined":
        return "".join(w.lower() for w in words)
    return "_".join(w.lower() for w in words)


def split_name(name):
    """Lower-case words of an identifier."""
    name = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", name)
    return [w.lower() for w in re.split(r"[^A-Za-z0-9]+", name) if w]


def identifier(r):
    """A fresh identifier: real words, invented words, with numbers now and then."""
    words = [word(r) for _ in range(r.choice((1, 2, 2, 3)))]
    words = [re.sub(r"[^A-Za-z0-9]", "", w) or invented(r) for w in words]
    if r.random() < 0.2:
        words.append(str(r.randint(1, 99)))
    name = style(r, words)
    return name if not name[0].isdigit() else "x" + name


def number(r):
    k = r.choice((1, 2, 2, 3, 3, 4, 5, 6, 8))
    return str(r.randint(10 ** (k - 1), 10**k - 1))


def code(r):
    """An identifier-like value: letters and digits mixed."""
    return "".join(r.choice("ABCDEFGHJKLMNPQRSTUVWXYZ0123456789") for _ in range(r.randint(4, 8)))


def value(r):
    """A value that can only be copied."""
    x = r.random()
    if x < 0.3:
        return number(r)
    if x < 0.45:
        return invented(r)
    if x < 0.55:
        return code(r)
    if x < 0.65:
        return proper(r)
    if x < 0.75:
        return f"{r.randint(0, 99)}.{r.randint(0, 99)}"
    if x < 0.85:
        return date(r)
    return word(r) + " " + word(r)


def date(r):
    return f"{r.randint(2019, 2027)}-{r.randint(1, 12):02d}-{r.randint(1, 28):02d}"


def clock(r):
    return f"{r.randint(0, 23):02d}:{r.choice((0, 15, 30, 45, r.randint(0, 59))):02d}"


def pick(r, options):
    """One of the options; strings with '|' inside braces are alternatives: 'a {b|c} d'."""
    text = r.choice(options)
    while True:
        m = re.search(r"\{([^{}]*\|[^{}]*)\}", text)
        if not m:
            return text
        text = text[: m.start()] + r.choice(m.group(1).split("|")) + text[m.end():]
