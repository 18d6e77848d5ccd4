"""Names, words and values that generated tasks are made of. Everything takes a random.Random."""

import re

SYLLABLES = ("ba be bi bo bu da de di do du fa fe fi fo ga ge gi go gu ha he hi ho ja jo ka ke ki ko ku la le li lo lu ma "
             "me mi mo mu na ne ni no nu pa pe pi po pu ra re ri ro ru sa se si so su ta te ti to tu va ve vi vo wa we wi "
             "ya yo za ze zi zo zu bra cre dri flo gra kle pra sta tri vel dor min tan ler quo xi rin mar sol fen").split()
ENDINGS = ["", "", "", "n", "r", "l", "s", "t", "x", "k", "m", "th", "nd", "rt", "ck", "sh"]
FIRST = ("Anna Ben Carla David Elena Frank Grace Henry Iris Jack Karen Leo Maria Nora Oscar Paula Quinn Rosa Sam Tina Uma "
         "Victor Wendy Xavier Yara Zoe Ahmed Bruno Chen Diego Emma Felix Hana Ivan Julia Kofi Lina Marco Nadia Omar Priya "
         "Ravi Sofia Tom Ursula Vera Will Yusuf Alice Bob Charlie Daniel Eva Fatima George Helen James Kate Liam Mia Noah "
         "Olivia Peter Rachel Simon Theo Amelia Lucas Sara Pedro Laura Mei Kenji Olga Brutus Greta Hugo Ines Joao Klaus Lars "
         "Magda Nils Otto Pia Ralf Sven Thea Ute Viktor Walter Yuki Zara Adam Bella Carl Dora Erik Finn Gina Hans Ida Jonas Kira "
         "Luis Max Nina Owen Petra Rita Stefan Tara Ugo Vince Willa Agnes Boris Clara Dennis Edith Fred Gustav Holly Ian Jane "
         "Kevin Linda Martin Nancy Oliver Patricia Robert Sandra Thomas Vanessa William Susan Mark Paul Emily Jacob Sophie "
         "Michael Jessica Andrew Hannah Ali Aisha Mohammed Ling Wei Sanjay Deepa Arjun Ananya Chloe Pierre Marie Giulia Luca "
         "Dmitri Svetlana Katya Mateo Camila Santiago Isabel Tomasz Agata Eero Aino").split()
LAST = ("Smith Brown Garcia Miller Jones Davis Lopez Wilson Moore Taylor Clark Lewis Young King Wright Hill Green Baker "
        "Nelson Carter Rossi Weber Novak Silva Kim Tanaka Singh Ali Cohen Petrov Larsen Dubois Moretti Costa Santos "
        "Schmidt Fischer Meyer Jansen Kowalski Adams Bell Cook Diaz Evans Ford Gray Hughes Irwin Jackson Kelly Long Murphy Nolan "
        "Owens Parker Reed Scott Turner Vargas Ward Allen Bauer Conti Duarte Eriksen Ferrari Gomez Hansen Ito Janssen Keller "
        "Lang Mendes Nakamura Olsen Popov Ramos Sato Torres Ueda Vogel Wagner Yamada Zhang Chen Wang Patel Sharma Khan").split()
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
         "charge reserve renew approve reject invite mute notify show fetch query browse request submit post edit modify change "
         "save load reload refresh sync connect disconnect attach detach insert append replace clear empty fill set unset "
         "turn switch adjust raise lower increase decrease launch boot shut run execute trigger fire queue drop pick choose "
         "select mark flag label tag group join leave follow unfollow like block hide reveal verify validate inspect scan "
         "analyze compare match detect identify recognize predict estimate plan design draw paint build make bake cook brew "
         "clean wash dry iron fold pack unpack deliver collect gather hire rent lease lend borrow return buy sell pay bill "
         "refund donate transfer deposit withdraw exchange trade bid vote answer ask call ring dial hail forward reply quote "
         "sign log record stream broadcast watch listen view preview zoom crop resize paste unzip compress encode decode "
         "encrypt decrypt hash parse render deploy install uninstall patch upgrade migrate").split()
THINGS = ("invoice order ticket user account file folder report message email note task event meeting reminder alarm timer "
          "song playlist photo video document page comment post product customer employee project contract payment refund "
          "shipment parcel booking room table flight train car taxi hotel recipe workout lesson course exam grade device "
          "sensor lamp thermostat door camera robot printer server database backup job queue channel member team ticket "
          "coupon voucher subscription policy claim appointment prescription sample article poll survey form label tag "
          "warehouse shelf pump valve garden plant pet vehicle battery license badge session alarm location contact money bill "
          "balance loan card wallet cart basket wishlist gift receipt tax salary budget expense goal habit diary journal "
          "chapter story poem quote fact joke news headline weather forecast traffic route trip tour cruise ferry bus bike "
          "scooter parking garage bridge ticket seat concert show movie series episode channel podcast radio album track band "
          "artist museum exhibit painting statue park trail beach pool gym class match game score league player coach race "
          "doctor dentist therapist nurse clinic pharmacy pill symptom allergy diet meal menu dish pizza burger salad soup "
          "cake bread coffee tea wine beer restaurant cafe bar kitchen oven fridge washer dryer heater fan blind curtain lock "
          "window gate roof wall lawn tree flower seed cow horse dog cat bird fish aquarium tank boiler meter panel antenna "
          "drone satellite rocket telescope microscope experiment dataset table row column index schema branch commit pipeline "
          "build release bug issue sprint story epic board card webhook token key secret certificate domain website blog forum "
          "thread chat group call voicemail letter envelope stamp package courier truck route driver fleet invoice").split()
FIELDS = ("id name title status color size weight height width price amount quantity date time city country address street "
          "phone email owner author category type priority level rating score language format version code serial model "
          "brand material department manager location floor room zone speed temperature duration distance start_date "
          "end_date due_date currency comment description label group mode channel count limit page source target unit "
          "first_name last_name nickname gender birthday nationality postcode zip state region district province building "
          "apartment entrance gate terminal platform seat row table_number party_size guests adults children rooms beds nights "
          "check_in check_out arrival departure pickup dropoff origin destination via stops carrier airline flight_number "
          "train_number cabin fare class luggage pets smoking wifi parking breakfast view genre director actor artist album "
          "track title_of_song year season episode subtitle theater venue stage section subject teacher student grade semester "
          "course_id topic keyword query filter sort_by order offset page_size radius latitude longitude altitude depth area "
          "volume capacity voltage power energy pressure humidity frequency timeout retries threshold ratio percent discount "
          "tax total subtotal balance account iban payee recipient sender message body attachment cc deadline reminder repeat "
          "interval enabled visible public private verified urgent active archived shape texture flavor ingredient calories "
          "portion dose symptom diagnosis doctor_name stylist specialty insurance policy_number claim_id license_plate mileage "
          "fuel engine transmission doors warranty sku barcode batch supplier warehouse shelf stock reorder branch commit "
          "environment cluster node port protocol host username role permission token").split()
FLAVOURS = ("sweet sour salty spicy crispy smoky bitter creamy fresh juicy tasty happy hungry merry royal grand little wild blue "
            "noble lucky jolly sunny rainy cloudy windy foggy snowy stormy misty humid icy mild hot chilly breezy dusty dry wet").split()
PLACE_KINDS = "Kitchen Grill Diner Bistro Tavern House Inn Bar Garden Corner Place Palace Lounge Bakery Pizzeria Studio Shop Club".split()
FOODS = ("milk eggs bread apples bananas butter cheese rice pasta tomatoes onions potatoes carrots sugar salt flour coffee tea oranges "
         "lemons pears grapes yogurt chicken fish beef ham beans peas corn spinach lettuce garlic honey jam cookies chocolate water juice "
         "cereal oats nuts olives mushrooms peppers cucumbers melons plums cherries peaches avocados wine beer soap napkins candles batteries "
         "pens notebooks stamps envelopes socks shirts towels plates cups forks spoons nails screws brushes bulbs tickets").split()
ANIMALS = "dog cat horse parrot rabbit hamster goldfish turtle snake pony goat cow pig hen duck mouse lizard ferret bird donkey".split()
RELATIVES = ("brother sister mother father son daughter uncle aunt cousin wife husband boss neighbour friend teacher doctor colleague "
             "roommate grandmother grandfather boyfriend girlfriend dentist landlord coach partner").split()
COLOURS = "red blue green yellow black white brown grey pink purple orange golden silver turquoise beige violet".split()
JOBS = ("teacher nurse doctor engineer baker pilot farmer lawyer plumber painter singer writer chef driver dentist architect designer "
        "mechanic clerk manager librarian carpenter gardener photographer journalist waiter sailor soldier tailor butcher").split()
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
    return r.choice(r.choice((ADJECTIVES, NOUNS, THINGS, FIELDS, VERBS, FLAVOURS, FOODS)))


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


NUMBER_WORDS = "zero one two three four five six seven eight nine ten eleven twelve".split()


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


def business(r):
    """A name that a restaurant, a hotel, a film or a shop could have."""
    x = r.random()
    if x < 0.2:
        return r.choice(("Bella", "Casa", "Chez", "La", "Il", "El", "Le", "The", "Villa", "Cafe", "Hotel", "Don", "San")) + " " + proper(r).split()[0]
    if x < 0.4:
        return "The " + r.choice((ADJECTIVES, FLAVOURS))[r.randrange(30)].capitalize() + " " + r.choice(NOUNS).capitalize()
    if x < 0.55:
        return r.choice(FIRST) + r.choice(("'s", "")) + " " + r.choice(PLACE_KINDS)
    if x < 0.75:
        return r.choice((ADJECTIVES, FLAVOURS))[r.randrange(30)].capitalize() + " " + r.choice(NOUNS).capitalize()
    return proper(r)


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
