"""Everyday services as tools: each in many wordings, put together from openings, pieces for the parameters and whole
sentences. A request may say more than the tool has parameters for; then the rest is left out of the call."""

from data import words as W
from data.sgd import renamed


# Values. Each maker returns (as spoken, as the argument).
def _same(make):
    def maker(r):
        v = make(r)
        return v, v

    return maker


def _one_of(text):
    choices = text.split("|")
    return _same(lambda r: r.choice(choices))


def _date(r):
    return W.pick(r, ["today", "tomorrow", "tonight", "{|next |this }" + r.choice(W.DAYS), r.choice(W.DAYS), f"{r.choice(W.MONTHS)} {r.randint(1, 28)}", f"{r.randint(1, 28)} {r.choice(W.MONTHS)}",
                      W.date(r), f"the {r.randint(4, 20)}th of {r.choice(W.MONTHS)}", f"{r.choice(W.MONTHS)} {r.randint(4, 20)}th", "the day after tomorrow"])


def _time(r):
    h = r.randint(1, 12)
    return W.pick(r, [f"{h} {{pm|am}}", f"{h}{{pm|am}}", f"{h}:{r.choice((15, 30, 45))} {{pm|am}}", W.clock(r), W.clock(r), "noon", "midnight", f"{h} o'clock", f"half past {W.NUMBER_WORDS[h]}", f"{h} in the {{morning|evening}}"])


def _count(low, high):
    def maker(r):
        n = r.randint(low, high)
        return (W.NUMBER_WORDS[n] if n <= 12 and r.random() < 0.5 else str(n)), n

    return maker


def _message(r):
    return W.pick(r, ["I {am|will be} {late|on my way|home|at the station|stuck in traffic|ready|ten minutes late}", "{call|write|text} me {later|tomorrow|when you can}", "the {meeting|party|lunch|game} {is|starts} at {noon|five|six|eight}",
                      "{please |don't forget to |}{buy|bring} {milk|bread|the keys|two tickets|some water|an umbrella}", "happy birthday", "see you {soon|on Monday|tonight|there}", "the {parcel|report|car|dinner} is {ready|here|gone}", "dinner is {ready|served}", "I love you", "where are you",
                      " ".join(W.word(r) for _ in range(r.randint(2, 6)))])


def _todo(r):
    return W.pick(r, ["{buy|get} {milk|bread|eggs|stamps|flowers}", "call {the dentist|mum|the bank|" + r.choice(W.FIRST) + "}", "water the {plants|garden}", "take out the {trash|bins}", "pay the {rent|bill}", "walk the dog", "clean the {car|kitchen}", "feed the {cat|fish}",
                      "take my {pills|medicine}", "pick up {the kids|the parcel|" + r.choice(W.FIRST) + "}", f"{r.choice(W.VERBS)} the {r.choice(W.THINGS)}", f"{r.choice(W.VERBS)} the {r.choice(W.NOUNS)}"])


CITY, PERSON = _same(lambda r: r.choice(W.CITIES) if r.random() < 0.75 else W.proper(r)), _same(lambda r: r.choice(W.FIRST) if r.random() < 0.7 else r.choice(W.FIRST) + " " + r.choice(W.LAST))
DATE, TIME, BUSINESS, TITLE, TODO, MESSAGE = map(_same, (_date, _time, W.business, lambda r: W.proper(r) if r.random() < 0.6 else W.business(r), _todo, _message))
ROOM = _one_of("kitchen|bedroom|hall|office|bathroom|garage|garden|cellar|attic|living room|dining room|nursery|study|library|porch|basement")

# Slots: (parameter names, type, description, share of tools where it is required, maker, pieces of a request, whole sentences)
S_CITY = ("city location town place", "string", "{City|Name of the city|The city|Where}", 1.0, CITY, [" in {v}", " in {v}", " near {v}"], ["I am in {v}."])
S_FROM = ("from origin start departure_city from_city", "string", "{Where the trip starts|City to leave from|Origin}", 1.0, CITY, [" from {v}"], ["I leave from {v}.", "I'm in {v} now."])
S_TO = ("to destination target arrival_city to_city", "string", "{Where to go|City to arrive at|Destination}", 1.0, CITY, [" to {v}"], ["I want to go to {v}.", "My destination is {v}."])
S_DATE = ("date day when on_date", "string", "{Date|Day|The date}", 0.4, DATE, [" on {v}", " for {v}", ", {v}"], ["It is for {v}."])
S_TIME = ("time hour at start_time", "string", "{Time|Time of day|Start time|When}", 0.6, TIME, [" at {v}", " for {v}", " around {v}", ", {v}"], ["{v} would be good."])
S_PEOPLE = ("people party_size guests seats number_of_people persons", "integer", "{Number of people|How many people|Party size|Number of guests}", 0.6, _count(1, 12),
            [" for {v}", " for {v} people", " for a party of {v}", ", {v} people", ", we are {v}", ", {v} of us", " for {v} persons", ", party of {v}"], ["We are {v}.", "There are {v} of us.", "We will be {v} people.", "It's for {v} people."])


def slot(names, about, required, maker, pieces, sentences=(), kind="string"):
    return (names, kind, about, required, maker, pieces, list(sentences))


def flag(names, about, yes, no):
    """A boolean; `yes` and `no`: pieces."""
    return (names, "boolean", about, 0.2, lambda r: (lambda b: (b, b))(r.random() < 0.6), {True: yes, False: no}, [])


def opt(base, share):
    return base[:3] + (share,) + base[4:]


SERVICES = [
    dict(group="food", names="book_table reserve_table table_booking reserve_restaurant make_reservation book_restaurant", about="Book a table at a restaurant|Reserve a table|Makes a restaurant reservation|Table booking",
         do="book a table|reserve a table|get me a table|make a reservation|get us a table|find us a table|book dinner|book lunch|hold a table", want="a table|a reservation|a booking|dinner|a nice table|lunch",
         say=["We want to {eat|have dinner|have lunch} at [restaurant].", "I'm taking {my wife|a friend|the team} to [restaurant], get us a table.", "{Dinner|Lunch} at [restaurant], please book.", "Does [restaurant] have a table?", "Is there a free table at [restaurant]?"],
         slots=dict(restaurant=slot("restaurant restaurant_name name venue place", "{Name of the restaurant|Restaurant|Which restaurant}", 1.0, BUSINESS, [" at {v}", " at {v}", " in the restaurant {v}"], ["The restaurant is {v}."]),
                    time=S_TIME, people=S_PEOPLE, date=S_DATE, outside=flag("outdoor outside terrace", "Table outside", [" outside", " on the terrace"], [" inside", " indoors"])),
         answers=["Your table at {restaurant} is booked, number {ref}.", "The table at {restaurant} is {status}."]),
    dict(group="food", names="order_food order_meal food_delivery place_order deliver_food", about="Order food|Order a meal for delivery|Food delivery",
         do="order {food}|get me {food}|order us {food}|have {food} delivered", want="{food}", say=["I'm hungry, {order|get} [food].", "I could eat [food] now.", "[food] for dinner, please."],
         slots=dict(food=slot("dish item food meal", "{Dish|What to order|Food}", 1.0, _same(lambda r: W.pick(r, ["{a|one} {pizza|burger|salad|curry|soup|sandwich|kebab}", "sushi", "noodles", "tacos", "fried rice", "pancakes", "a pizza {margherita|funghi|salami}", "two pizzas"])), []),
                    address=slot("address to deliver_to", "Where to deliver", 0.6, _same(lambda r: f"{r.randint(1, 200)} {r.choice(W.LAST)} Street"), [" to {v}"], ["I live at {v}."]), time=opt(S_TIME, 0.2)),
         answers=["I ordered {food}, order number {ref}.", "Your order of {food} is {status}."]),
    dict(group="hotel", names="book_hotel reserve_hotel hotel_booking book_room reserve_room", about="Book a hotel room|Reserve a room|Hotel reservation",
         do="book a room|reserve a hotel|book a hotel|get me a room|find me a place to stay|book a place to sleep", want="a hotel|a room|a hotel room|a bed|a place to sleep|a place to stay", say=["I have to sleep in [city].", "We are staying in [city], book us a room.", "Somewhere to stay in [city], please."],
         slots=dict(city=S_CITY, date=S_DATE, nights=slot("nights stay length_of_stay number_of_nights", "{Number of nights|How many nights}", 0.5, _count(1, 12), [" for {v} nights", ", {v} nights"], ["I stay {v} nights."], "integer"), people=opt(S_PEOPLE, 0.3),
                    breakfast=flag("breakfast with_breakfast", "With breakfast", [" with breakfast", " including breakfast"], [" without breakfast", ", no breakfast"])),
         result=lambda r: {"hotel": W.business(r), "price": r.randint(40, 400)}, answers=["I booked {hotel} in {city} for {price} euros.", "{hotel} in {city} costs {price} euros."]),
    dict(group="travel", names="book_train find_train search_trains train_search train_tickets", about="Find trains between two cities|Search train connections|Train tickets",
         do="find a train|book a train|look for a train|get me a train ticket|search trains|buy a train ticket", want="a train|a train ticket|a seat on a train|a rail ticket", say=["How do I get from [from] to [to] by train?", "I have to be in [to], I start in [from].", "When is the next train from [from] to [to]?", "Which trains go from [from] to [to]?"],
         slots={"from": S_FROM, "to": S_TO, "date": S_DATE, "time": opt(S_TIME, 0.2), "class": slot("class travel_class", "Travel class", 0.15, _one_of("first class|second class|business"), [", {v}", " in {v}"])},
         result=lambda r: {"departure": W.clock(r), "arrival": W.clock(r), "price": r.randint(9, 190)}, answers=["The train leaves {from} at {departure} and arrives in {to} at {arrival}.", "There is a train at {departure} for {price} euros."]),
    dict(group="travel", names="search_flights find_flight book_flight flight_search fly", about="Search flights|Find a flight between two cities|Book a flight",
         do="find a flight|book a flight|search for flights|get me a flight|book me on a plane", want="a flight|a plane ticket|a cheap flight|flights|an air ticket", say=["I want to fly from [from] to [to].", "We fly from [from] to [to].", "What flights are there from [from] to [to]?", "How can I fly to [to] from [from]?"],
         slots={"from": S_FROM, "to": S_TO, "date": opt(S_DATE, 0.7), "people": opt(S_PEOPLE, 0.2), "class": slot("cabin class seat_class", "Cabin class", 0.15, _one_of("economy|business|first"), [" in {v} class", ", {v} class"])},
         result=lambda r: {"airline": W.business(r), "departure": W.clock(r), "price": r.randint(39, 900)}, answers=["{airline} flies at {departure} for {price} euros.", "The flight from {from} to {to} leaves at {departure}."]),
    dict(group="travel", names="find_bus bus_connections search_bus next_bus", about="Find a bus|Bus connections between two places", do="find a bus|look up a bus|get me a bus ticket|check the bus", want="a bus|a bus ticket|a coach", say=["Is there a bus from [from] to [to]?", "When does the bus from [from] to [to] go?"],
         slots={"from": S_FROM, "to": S_TO, "date": S_DATE}, result=lambda r: {"line": str(r.randint(1, 199)), "departure": W.clock(r)}, answers=["Bus {line} leaves at {departure}.", "Take bus {line} at {departure}."]),
    dict(group="travel", names="call_taxi book_taxi get_ride order_cab request_ride", about="Call a taxi|Order a ride|Book a cab to a place", do="call a taxi|get me a cab|order a taxi|book a ride|send a car", want="a taxi|a cab|a ride|a lift|a car", say=["I have to get to [to].", "Take me to [to].", "I need to go to [to] {now|quickly|soon}.", "Drive me to [to]."],
         slots=dict(to=slot("destination to where dropoff", "{Destination|Where to}", 1.0, _same(lambda r: W.pick(r, ["the {airport|station|harbour|hospital|museum|stadium|office}", f"{r.randint(1, 200)} {r.choice(W.LAST)} Street", W.business(r), r.choice(W.CITIES)])), [" to {v}"]),
                    pickup=slot("pickup from start", "Where to pick up", 0.3, _same(lambda r: W.pick(r, ["the {hotel|station|school}", f"{r.randint(1, 200)} {r.choice(W.LAST)} Road"])), [" from {v}"]), time=opt(S_TIME, 0.2), people=opt(S_PEOPLE, 0.3)),
         result=lambda r: {"driver": r.choice(W.FIRST), "minutes": r.randint(1, 30)}, answers=["{driver} will be there in {minutes} minutes.", "Your driver {driver} comes in {minutes} minutes."]),
    dict(group="travel", names="rent_car car_rental reserve_car hire_car", about="Rent a car|Reserve a rental car", do="rent a car|hire a car|get me a rental car|reserve a car", want="a rental car|a car to rent|a hire car", say=["I need wheels in [city]."],
         slots=dict(city=S_CITY, date=opt(S_DATE, 0.6), days=slot("days duration number_of_days", "Number of days", 0.5, _count(1, 12), [" for {v} days", ", {v} days"], (), "integer"), kind=slot("type car_type category", "Type of car", 0.2, _one_of("small|compact|SUV|van|sports car|electric"), [", {v}"])),
         result=lambda r: {"car": W.business(r), "price": r.randint(20, 300)}, answers=["A {car} for {price} euros is reserved.", "You get a {car} in {city}."]),
    dict(group="travel", names="get_directions route navigate directions find_route", about="Directions from one place to another|Route planner", do="show me the way|find the route|give me directions|navigate", want="directions|the route|the way", say=["How do I get from [from] to [to]?", "What is the way from [from] to [to]?", "How far is it from [from] to [to]?", "How long does it take from [from] to [to]?"],
         slots={"from": S_FROM, "to": S_TO, "mode": slot("mode by transport", "Means of transport", 0.2, _one_of("car|bike|foot|bus|train"), [" by {v}"])}, result=lambda r: {"distance_km": r.randint(1, 900), "minutes": r.randint(3, 700)}, answers=["It is {distance_km} km and takes {minutes} minutes.", "From {from} to {to} it is {distance_km} km."]),
    dict(group="music", names="play_song play_music play_track start_music music_player play", about="Play a song|Plays music|Start a song on the player", do="play {title}|put on {title}|start {title}|play the song {title}|turn on {title}|throw on {title}|spin {title}", want="to hear {title}|to listen to {title}|the song {title}",
         say=["I'd love to hear [title].", "I want to listen to [title].", "How about some [title]?", "I am in the mood for [title].", "Let me hear [title].", "Can I listen to [title]?"],
         slots=dict(title=slot("title song track song_name name", "{Title of the song|Song|Name of the track}", 1.0, TITLE, []), artist=slot("artist by band singer", "{Artist|Who sings it}", 0.3, _same(lambda r: r.choice((W.proper(r), "the " + r.choice(W.NOUNS).capitalize() + "s", r.choice(W.FIRST) + " " + r.choice(W.LAST), "The " + W.invented(r).capitalize() + "s"))), [" by {v}", " by {v}", " from {v}"]),
                    device=slot("device speaker where room", "Where to play it", 0.2, _one_of("kitchen|bedroom|living room|TV|phone|speaker|car"), [" on the {v}", " in the {v}"]), volume=slot("volume loudness", "Volume", 0.05, _count(1, 100), [" at volume {v}"], (), "integer")),
         result=lambda r: {"status": r.choice(("playing", "started", "queued"))}, answers=["{title} is {status}.", "Now {status}: {title}."]),
    dict(group="music", names="set_volume volume change_volume adjust_volume", about="Set the volume|Change how loud it is", do="set the volume|turn the volume|change the volume", want="the volume", say=["Make it {louder|quieter}, {level} percent.", "Volume [level].", "Volume to [level] please.", "Put the sound at [level]."],
         slots=dict(level=slot("level volume percent value", "Level from 0 to 100", 1.0, _count(0, 100), [" to {v}", " to {v} percent", " at {v}"], (), "integer")), answers=["The volume is {level} now."]),
    dict(group="film", names="find_movie search_movies movie_search find_films", about="Find movies|Search films by genre", do="find a {genre} movie|look for a {genre} film|search {genre} movies|suggest a {genre} film", want="a {genre} movie|a {genre} film|something {genre} to watch", say=["What [genre] films are on?", "I'm in the mood for a [genre] movie.", "Any good [genre] movies?"],
         slots=dict(genre=slot("genre category kind", "Genre", 0.8, _one_of("comedy|horror|action|drama|romance|fantasy|crime|science fiction|animation|western|mystery|family"), []), city=opt(S_CITY, 0.4), actor=slot("actor star starring cast", "Actor", 0.1, PERSON, [" with {v}", " starring {v}"]), year=slot("year", "Year", 0.1, _same(lambda r: r.randint(1950, 2026)), [" from {v}"], (), "integer")),
         result=lambda r: {"title": W.business(r), "rating": round(r.uniform(2, 9.9), 1)}, answers=["How about {title}? It is rated {rating}.", "I found {title}, rated {rating}."]),
    dict(group="film", names="buy_tickets book_tickets movie_tickets get_tickets event_tickets", about="Buy tickets for an event|Tickets for a film or concert", do="buy tickets|get me tickets|book tickets|buy seats|get us seats", want="tickets|seats", say=["We want to see [event].", "I'd like to go to [event].", "Can I see [event]?"],
         slots=dict(event=slot("event title show name movie", "{Name of the event|Event|What to see}", 1.0, TITLE, [" for {v}", " to see {v}", " to {v}"]), count=slot("tickets count number_of_tickets quantity seats", "Number of tickets", 0.7, _count(1, 12), [", {v} of them", ", {v} tickets", ", {v} seats"], ["I need {v} of them.", "We are {v}."], "integer"), date=S_DATE, time=opt(S_TIME, 0.2)),
         answers=["Your tickets for {event} are {status}, number {ref}.", "I bought the tickets for {event}."]),
    dict(group="calendar", names="create_event add_appointment schedule_meeting new_event add_to_calendar", about="Create a calendar event|Add an appointment|Schedule a meeting", do="schedule {title}|add {title} to my calendar|plan {title}|put {title} in my calendar|set up {title}|arrange {title}", want="{title} in my calendar",
         say=["I have [title], put it in my calendar.", "Note [title].", "Don't let me miss [title]."],
         slots=dict(title=slot("title subject event name", "Title", 1.0, _same(lambda r: W.pick(r, ["{lunch|dinner|a meeting|a call|coffee} with ", "a visit to "]) + r.choice(W.FIRST)), []), date=opt(S_DATE, 1.0), time=opt(S_TIME, 0.5), place=slot("place location where room", "Place", 0.2, BUSINESS, [" at {v}"])),
         answers=["{title} is in your calendar.", "I added {title}, number {ref}."]),
    dict(group="calendar", names="list_events get_events calendar_events show_calendar my_schedule get_appointments", about="List the events of the calendar|Show appointments|Events of a day", do="show my appointments|list my events|show my calendar|read my schedule|check my calendar", want="my appointments|my schedule", say=["What is on my calendar?", "What do I have planned?", "Am I free?", "Do I have any meetings?", "What's my day like?", "Anything on today?"],
         slots=dict(date=opt(S_DATE, 0.3)), result=lambda r: {"events": [W.clock(r) + " " + r.choice(W.THINGS) + " with " + r.choice(W.FIRST) for _ in range(r.randint(1, 3))]}, answers=["You have: {events}."]),
    dict(group="alarm", names="set_alarm create_alarm wake_up alarm new_alarm", about="Set an alarm|Wakes the user at a time", do="set an alarm|wake me|wake me up|get me up|ring", want="an alarm|a wake-up call", say=["I have to get up at [time].", "Don't let me sleep past [time].", "Alarm [time].", "I want to be awake by [time]."],
         slots=dict(time=opt(S_TIME, 1.0), day=opt(S_DATE, 0.1), label=slot("label name title", "Name of the alarm", 0.1, _one_of("work|school|gym|medicine|flight|breakfast|yoga"), [" called {v}", " named {v}"])), answers=["The alarm for {time} is {status}.", "I will wake you at {time}."]),
    dict(group="alarm", names="list_alarms get_alarms show_alarms my_alarms alarms", about="List all alarms|Show the alarms that are set", do="list my alarms|show my alarms|tell me my alarms|check my alarms|read my alarms", want="my alarms|a list of my alarms", say=["Which alarms {are set|do I have}?", "What alarms do I have?", "Do I have an alarm?", "When do I wake up?"],
         slots={}, result=lambda r: {"alarms": [W.clock(r) for _ in range(r.randint(1, 3))]}, answers=["Your alarms: {alarms}.", "You have alarms at {alarms}."]),
    dict(group="alarm", names="add_reminder remind_me create_reminder set_reminder reminder", about="Set a reminder|Remind the user of something", do="remind me to {what}|set a reminder to {what}", want="a reminder to {what}", say=["Don't let me forget to [what].", "I must [what], remind me.", "I need to remember to [what]."],
         slots=dict(what=slot("text task message what about", "What to remember", 1.0, TODO, []), time=opt(S_TIME, 0.3), date=opt(S_DATE, 0.2)), answers=["I will remind you to {what}.", "The reminder is {status}."]),
    dict(group="todo", names="add_task add_todo new_task create_todo todo_add", about="Add a task to the to-do list|Create a to-do", do="add {what} to my list|put {what} on my to-do list|note down {what}|write down {what}", want="{what} on my list", say=["New task: [what].", "To do: [what].", "I still have to [what], add it."],
         slots=dict(what=slot("task text title item", "The task", 1.0, TODO, []), priority=slot("priority", "Priority", 0.2, _one_of("high|low|medium|urgent"), [" with {v} priority", ", {v} priority"]), due=opt(("due due_date deadline by",) + S_DATE[1:5] + ([" by {v}", " until {v}"], []), 0.2)), answers=["I added: {what}.", "{what} is on your list."]),
    dict(group="todo", names="list_tasks show_todos get_tasks todo_list", about="Show the to-do list|List open tasks", do="show my tasks|list my to-dos|read my to-do list|show me what is open", want="my to-do list|my tasks", say=["What do I have to do?", "What is left to do?", "Any open tasks?", "What's on my list?"],
         slots=dict(limit=slot("limit max count", "How many at most", 0.0, _count(1, 12), [", {v} at most", ", at most {v}"], (), "integer")), result=lambda r: {"tasks": [_todo(r) for _ in range(r.randint(1, 3))]}, answers=["Your tasks: {tasks}.", "You have to: {tasks}."]),
    dict(group="todo", names="add_to_shopping_list shopping_list_add add_item buy_list", about="Put something on the shopping list|Add an item to the shopping list", do="put {item} on the shopping list|add {item} to the shopping list|add {item}|note {item} for shopping", want="{item} on the shopping list", say=["We are out of [item].", "We need [item].", "I have to buy [item].", "There is no more [item]."],
         slots=dict(item=slot("item product name what", "What to buy", 1.0, _same(lambda r: r.choice(W.FOODS)), []), quantity=slot("quantity amount count", "How many", 0.3, _count(1, 12), [", {v} of them", ", {v} pieces"], (), "integer")), answers=["{item} is on the list.", "I added {item}."]),
    dict(group="message", names="send_email email write_email mail send_mail", about="Send an email|Write a mail", do="send an email|write an email|send a mail|email", want="an email", say=["Email [to] that [text].", "Write [to] a mail: [text]", "Mail to [to]: [text]", "Send an email to [to] saying [text]."],
         slots=dict(to=slot("to recipient address receiver", "Who gets the mail", 1.0, _same(lambda r: r.choice(W.FIRST) if r.random() < 0.5 else f"{r.choice(W.FIRST).lower()}@{W.invented(r)}.com"), [" to {v}"]), subject=slot("subject title", "Subject", 0.2, _same(lambda r: r.choice(W.THINGS) + " " + r.choice(W.FIELDS).replace("_", " ")), [" with the subject {v}", " about {v}"]), text=slot("body text message content", "Text of the mail", 0.8, MESSAGE, [" saying {v}", ": {v}"])),
         answers=["The mail to {to} is {status}.", "I wrote to {to}."]),
    dict(group="message", names="send_message text_contact message send_text sms", about="Send a message to a contact|Text somebody", do="send a message|send a text|drop a message", want="a message", say=["Tell [to] [text].", "Let [to] know that [text].", "Text [to]: [text]", "Can you tell [to] that [text]?", "Message [to] that [text].", "Write [to] '[text]'."],
         slots=dict(to=slot("to recipient contact person name", "Who gets it", 1.0, PERSON, [" to {v}"]), text=slot("text message body content", "The text", 1.0, MESSAGE, [" saying {v}", ": {v}", " that says {v}"])), answers=["The message to {to} is {status}.", "I told {to}."]),
    dict(group="message", names="call_contact phone_call call make_call dial", about="Call somebody|Make a phone call", do="call {to}|phone {to}|ring {to}|dial {to}|give {to} a call", want="to talk to {to}|to speak to {to}", say=["Get me [to] on the phone.", "I have to speak with [to].", "Connect me with [to]."],
         slots=dict(to=slot("contact name person number who", "Whom to call", 1.0, PERSON, [])), answers=["I am calling {to}.", "The call to {to} is {status}."]),
    dict(group="message", names="share_location send_location where_am_i_share", about="Share the location with a contact|Send where the user is", do="share my location with {to}|send my location to {to}|show {to} where I am|tell {to} where I am", want="to share my location with {to}", say=["Let [to] see where I am."],
         slots=dict(to=slot("contact with person to name", "Who sees it", 1.0, PERSON, []), minutes=slot("minutes duration", "For how many minutes", 0.2, _count(5, 90), [" for {v} minutes"], (), "integer")), answers=["{to} can see where you are.", "Your location is {status}."]),
    dict(group="money", names="send_money transfer_money pay make_payment transfer", about="Send money to somebody|Transfer money|Pay a person", do="send {amount} {unit} to {to}|pay {to} {amount} {unit}|transfer {amount} {unit} to {to}|give {to} {amount} {unit}|wire {to} {amount} {unit}", want="to pay {to} {amount} {unit}|to send {to} {amount} {unit}", say=["I owe [to] [amount] {dollars|euros}, pay it.", "[to] gets [amount] {dollars|euros} from me."], unit="dollars|euros|pounds",
         slots=dict(to=slot("recipient to receiver payee name", "Who gets the money", 1.0, PERSON, []), amount=slot("amount sum value", "Amount", 1.0, _same(lambda r: r.randint(1, 999)), [], (), "number"), note=slot("note message purpose reason", "What it is for", 0.2, _one_of("rent|dinner|lunch|the tickets|the bill|drinks|the gift|gas"), [" for {v}"])), answers=["{to} got {amount}.", "The payment to {to} is {status}."]),
    dict(group="money", names="get_balance check_balance account_balance balance", about="Balance of an account|How much money is on an account", do="check my balance|show my balance|check the account", want="my balance|my account balance", say=["How much money do I have?", "How much is on my account?", "What is my balance?", "Am I broke?", "What's left on my account?"],
         slots=dict(account=slot("account account_type which", "Which account", 0.4, _one_of("savings|checking|joint|business"), [", the {v} account", " on the {v} account", " for {v}"])), result=lambda r: {"balance": round(r.uniform(1, 9999), 2)}, answers=["Your balance is {balance}.", "You have {balance}."]),
    dict(group="home", names="set_light switch_light light_control lights turn_light", about="Switch the light of a room|Control lights", do="turn {on} the light|switch {on} the light|turn the light {on}|put {on} the lights", want="the light {on}", say=["Light [on] in the [room].", "[room] light [on].", "Lights [on] in the [room] please."],
         slots=dict(room=slot("room where area zone", "Room", 1.0, ROOM, [" in the {v}"]), on=slot("state on power", "on or off", 1.0, _one_of("on|off"), [])), answers=["The light in the {room} is {on}.", "{room}: {on}."]),
    dict(group="home", names="set_temperature thermostat heating set_heating", about="Set the temperature of a room|Thermostat", do="set the temperature|set the heating|heat|turn the heating", want="the temperature", say=["I'm cold, make it [degrees] degrees.", "Make it [degrees] degrees in the [room].", "It should be [degrees] degrees in the [room].", "[degrees] degrees in the [room], please."],
         slots=dict(degrees=slot("temperature degrees value target", "Degrees Celsius", 1.0, _count(15, 28), [" to {v} degrees", " to {v}"], (), "integer"), room=slot("room zone where", "Room", 0.5, ROOM, [" in the {v}"])), answers=["It will be {degrees} degrees.", "The heating is set to {degrees}."]),
    dict(group="home", names="lock_door door_lock lock control_lock", about="Lock or unlock a door|Door locks", do="{action} the {door}|please {action} the {door}", want="the {door} to be {action}ed", say=["Is it possible to [action] the [door] from here?", "I want you to [action] the [door]."],
         slots=dict(door=slot("door which name", "Which door", 1.0, _one_of("front door|back door|garage door|cellar door|garden gate|office door|car"), []), action=slot("action command do", "lock or unlock", 1.0, _one_of("lock|unlock"), [])), answers=["The {door} is {status}.", "Done, {action} {door}."]),
    dict(group="health", names="book_appointment make_appointment doctor_appointment schedule_visit", about="Book an appointment with a doctor|Make an appointment", do="book an appointment|make an appointment|get me an appointment|arrange a visit", want="an appointment|a visit|a check-up", say=["I have to see [who].", "My tooth hurts, I need to see [who].", "When can I see [who]?"],
         slots=dict(who=slot("doctor provider name with stylist therapist", "With whom", 1.0, _same(lambda r: W.pick(r, ["Dr. " + r.choice(W.LAST), r.choice(W.FIRST) + " " + r.choice(W.LAST), W.business(r)])), [" with {v}", " at {v}"]), date=opt(S_DATE, 0.7), time=opt(S_TIME, 0.5)), answers=["Your appointment with {who} is {status}, number {ref}.", "You see {who}, reference {ref}."]),
    dict(group="search", names="find_shop find_place nearby_search search_places places", about="Find a shop or place in a city|Search places nearby", do="find a {kind}|look for a {kind}|show me a {kind}|search a {kind}", want="a {kind}|a good {kind}", say=["Where is a [kind] in [city]?", "Is there a [kind] in [city]?", "Any [kind] in [city]?", "Where can I find a [kind] in [city]?"],
         slots=dict(kind=slot("type kind category what query", "What to look for", 1.0, _one_of("pharmacy|bakery|bank|gym|hairdresser|dentist|bookshop|museum|park|supermarket|gas station|hospital|pool|cafe|bar|zoo|library|hardware store|vet|school"), []), city=S_CITY), result=lambda r: {"name": W.business(r), "address": f"{r.randint(1, 200)} {r.choice(W.LAST)} Street"}, answers=["{name}, {address}.", "There is {name} at {address}."]),
    dict(group="search", names="get_news news headlines latest_news", about="Latest news|News about a topic", do="show me the news|read the news|get the news", want="the news|the headlines", say=["What's new?", "What is going on in the world?", "What happened today?", "Any news?"],
         slots=dict(topic=slot("topic about subject category", "Topic", 0.2, _one_of("sports|politics|business|science|music|weather|technology|health"), [" about {v}", " on {v}"])), result=lambda r: {"headline": " ".join(W.word(r) for _ in range(r.randint(3, 6)))}, answers=["The news: {headline}.", "{headline}"]),
    dict(group="search", names="define_word dictionary define lookup_word meaning", about="Definition of a word|Dictionary", do="define {word}|look up {word}|explain the word {word}", want="the meaning of {word}|a definition of {word}", say=["What does [word] mean?", "What is the meaning of [word]?", "What is a [word]?"],
         slots=dict(word=slot("word term text", "The word", 1.0, _same(W.word), [])), result=lambda r: {"definition": "a " + r.choice(W.ADJECTIVES) + " " + r.choice(W.NOUNS)}, answers=["{word} means {definition}.", "{word}: {definition}"]),
    dict(group="order", names="track_order order_status where_is_order track_package parcel_status", about="Status of an order|Track a parcel by number", do="track order {id}|track my parcel {id}|check order {id}|look up order {id}|follow package {id}", want="the status of order {id}|to know about order {id}", say=["Where is my order [id]?", "Has [id] been sent?", "When will [id] arrive?", "Is [id] on its way?", "What's up with order [id]?"],
         slots=dict(id=slot("order_id id number tracking_number order", "Number of the order", 1.0, _same(lambda r: r.choice((W.code, W.number))(r)), [])), result=lambda r: {"status": r.choice(("shipped", "delivered", "packed", "delayed", "lost", "in customs", "waiting", "on the way")), "date": W.date(r)}, answers=["Order {id} is {status}.", "It is {status}, date {date}."]),
    dict(group="order", names="cancel_order cancel_booking cancel cancel_reservation", about="Cancel an order or booking|Cancels a reservation", do="cancel {id}|cancel order {id}|cancel booking {id}|call off {id}", want="to cancel {id}|{id} cancelled", say=["I don't want [id] any more.", "Forget booking [id]."],
         slots=dict(id=slot("id booking_id order_id reference number", "Number of the booking", 1.0, _same(lambda r: r.choice((W.code, W.number))(r)), []), reason=slot("reason why", "Reason", 0.1, _one_of("too expensive|changed plans|illness|wrong date"), [", {v}", " because of {v}"])), answers=["{id} is cancelled.", "The booking {id} is {status}."]),
    dict(group="chance", names="roll_dice dice throw_dice roll", about="Roll dice|Throws dice", do="roll the dice|throw a die|roll a die|roll", want="a random number", say=["Give me a dice roll.", "Let's roll."], slots=dict(sides=slot("sides faces max", "Number of sides", 0.1, _count(4, 20), [" with {v} sides", ", {v} sides"], (), "integer"), count=slot("count dice number", "How many dice", 0.1, _count(2, 9), [", {v} dice"], (), "integer")), result=lambda r: {"result": r.randint(1, 20)}, answers=["You rolled {result}.", "It is {result}."]),
    dict(group="chance", names="get_joke tell_joke joke random_joke", about="Tell a joke|A random joke", do="tell me a joke|make me laugh|tell a joke", want="a joke|something funny", say=["Do you know a joke?", "Cheer me up."], slots=dict(topic=slot("topic about subject", "Topic", 0.0, _same(lambda r: r.choice(W.ANIMALS) + "s"), [" about {v}"])), result=lambda r: {"joke": "Why did the " + r.choice(W.ANIMALS) + " cross the " + r.choice(W.NOUNS) + "?"}, answers=["{joke}"]),
    dict(group="clock", names="get_time current_time clock now what_time", about="Current time|The time now", do="tell me the time|check the time|show the time", want="the time|the current time", say=["What time is it?", "How late is it?", "What's the time?", "Do you have the time?"], slots=dict(city=opt(S_CITY, 0.0)), result=lambda r: {"time": W.clock(r)}, answers=["It is {time}.", "The time is {time}."]),
    dict(group="system", names="get_status system_status server_status health_check ping status", about="Status of the system|Health of the servers", do="check the {what}|ping the {what}|look at the {what}", want="the status of the {what}", say=["Is the [what] up?", "How is the [what] doing?", "Is the [what] ok?", "Is anything wrong with the [what]?"],
         slots=dict(what=slot("service server name target host", "What to check", 0.9, _same(lambda r: W.pick(r, ["{web|mail|file|build|game} server", "database", "printer", "router", "backup", r.choice(W.NOUNS)])), [])), result=lambda r: {"status": r.choice(("ok", "down", "degraded", "running", "stopped", "overloaded")), "uptime_hours": r.randint(1, 999)}, answers=["The {what} is {status}.", "{what}: {status}."]),
    dict(group="system", names="read_file open_file get_file cat show_file", about="Read a file|Contents of a file", do="read {path}|open {path}|show {path}|print the file {path}|show me {path}", want="the contents of {path}|to see {path}", say=["What is in [path]?", "What does [path] say?"], slots=dict(path=slot("path file filename name", "Path of the file", 1.0, _same(lambda r: W.pick(r, ["", "/{etc|home|tmp|var}/", "{src|docs|data}/"]) + W.word(r) + r.choice((".txt", ".md", ".py", ".json", ".csv", ".log"))), [])), result=lambda r: {"content": " ".join(W.word(r) for _ in range(r.randint(2, 7)))}, answers=["It says: {content}", "{path}: {content}"]),
    dict(group="people", names="find_contact contact_lookup get_contact phonebook lookup_person", about="Look up a contact|Find the data of a person", do="find {name}|look up {name}|search {name} in my contacts", want="the number of {name}|the address of {name}", say=["What is the number of [name]?", "What's [name]'s number?", "How can I reach [name]?", "Do you have the phone number of [name]?"], slots=dict(name=slot("name person contact who", "Name of the person", 1.0, PERSON, [])), result=lambda r: {"phone": f"{r.randint(100, 999)}-{r.randint(1000, 9999)}", "email": f"{W.invented(r)}@{W.invented(r)}.com"}, answers=["{name}: {phone}, {email}.", "The number of {name} is {phone}."]),
]

RELATIVE_DAYS = ("today", "tomorrow", "tonight", "next", "this", "the day after")
OPENINGS = ["{h}.", "{h}.", "{h}", "Please {h}.", "{h}, please.", "{h} please", "Can you {h}?", "Could you {h}?", "Could you please {h}?", "Can you {h} for me?", "Would you {h}?", "Will you {h}?", "I want to {h}.", "I'd like to {h}.", "I need to {h}.", "I would like to {h}.", "I need you to {h}.",
            "Hey, {h}.", "Hi, can you {h}?", "Hi! Please {h}.", "We want to {h}.", "Help me {h}.", "Can we {h}?", "Can I {h}?", "Is it possible to {h}?", "Go ahead and {h}.", "You should {h}.", "Would you be so kind to {h}?", "I was hoping you could {h}.", "ok {h}", "Now {h}.", "Are you able to {h}?", "Do me a favour and {h}.", "Let's {h}."]
WANTS = ["I need {n}.", "I want {n}.", "I'd like {n}.", "I would like {n}.", "We need {n}.", "{n}, please.", "{n}", "Can I have {n}?", "I am looking for {n}.", "I'm after {n}.", "Looking for {n}.", "Could I get {n}?", "Can I get {n}?", "{n} would be great.", "Any chance of {n}?", "Could we have {n}?"]
TO_WANTS = ["I want {n}.", "I'd like {n}.", "I need {n}.", "We want {n}.", "I would love {n}."]
ERRORS = ("not found", "service unavailable", "timeout", "invalid request", "no results", "permission denied", "fully booked", "sold out", "not available", "closed")


class Service:
    """One offered service: its schema, how to ask for it and how to answer from its result."""

    def __init__(self, r, spec=None):
        self.spec = spec = spec or r.choice(SERVICES)
        name = r.choice(spec["names"].split())
        style = r.choice((None, "snake", "snake", "camel", "pascal", "kebab"))
        if r.random() < 0.3:
            name = renamed(r, name, False, 0.4)
        elif style:
            name = W.style(r, name.split("_"), style)
        self.keys, properties, required, self.kinds = {}, {}, [], {}
        items = list(spec["slots"].items())
        if r.random() < 0.4:
            r.shuffle(items)
        for role, (names, kind, about, share, _, _, _) in items:
            needed = r.random() < share
            if not needed and r.random() < 0.3:
                continue
            key = r.choice(names.split())
            changed = r.random() < 0.15
            if changed:
                key = renamed(r, key, False, 0.5)
            elif style:
                key = W.style(r, key.split("_"), style)
            while key in properties:
                key += "_" + r.choice("abcxyz")
            p = {"type": kind}
            if kind == "integer" and r.random() < 0.15:
                kind = "string"
                p = {"type": "string"}
            if changed or r.random() < 0.8:
                p["description"] = W.pick(r, [about])
            properties[key] = p
            self.keys[role], self.kinds[role] = key, kind
            if needed:
                required.append(key)
        self.schema = {"name": name, "description": r.choice(spec["about"].split("|")), "parameters": {"type": "object", "properties": properties, "required": required}}
        if not required and r.random() < 0.3:
            del self.schema["parameters"]["required"]
        self.group = spec["group"]

    def required(self):
        return [role for role, key in self.keys.items() if key in self.schema["parameters"].get("required", [])]

    def values(self, r):
        """{role: (spoken, argument)} of one request: all that is required, some of the rest; and what the tool has no
        parameter for, which is said and not passed."""
        out = {}
        for role, s in self.spec["slots"].items():
            known = role in self.keys
            marked = any("{" + role + "}" in x for x in (self.spec["do"], self.spec["want"])) and role not in self.keys
            if role in self.required() or marked or r.random() < (0.45 if known else 0.15):
                spoken, v = s[4](r)
                if known and self.kinds[role] == "string" and not isinstance(v, str):
                    v = str(v)
                out[role] = (spoken, v)
        return out

    def arguments(self, values):
        return {self.keys[role]: v for role, (_, v) in values.items() if role in self.keys}

    def request(self, r, values):
        """A wording of the request that says all the values."""
        spec, slots = self.spec, self.spec["slots"]
        for _ in range(20):
            x = r.random()
            if x < 0.3:
                body, kind = W.pick(r, spec["say"]).replace("[", "{").replace("]", "}"), "say"
            elif x < 0.7:
                body, kind = r.choice(spec["do"].split("|")), "do"
            else:
                body, kind = r.choice(spec["want"].split("|")), "want"
            used = [role for role in slots if "{" + role + "}" in body]
            rest = [role for role in values if role not in used]
            if all(u in values for u in used) and all(slots[role][5] for role in rest):
                break
        else:
            return None
        r.shuffle(rest)
        pieces, sentences = "", []
        for role in rest:
            spoken = values[role][0]
            options, whole = slots[role][5], slots[role][6]
            if isinstance(options, dict):
                options = options[spoken]
            if whole and r.random() < 0.2:
                sentences.append(r.choice(whole).replace("{v}", str(spoken)))
            else:
                piece = r.choice(options).replace("{v}", str(spoken))
                for relative in RELATIVE_DAYS:
                    piece = piece.replace(" on " + relative, " " + relative)
                pieces = piece + pieces if not piece.startswith(",") and r.random() < 0.3 else pieces + piece
        if "{unit}" in body:
            body = body.replace("{unit}", r.choice(spec["unit"].split("|")))
        for role in used:
            body = body.replace("{" + role + "}", str(values[role][0]))
        if kind == "say":
            text = body
            if pieces:
                end = text[-1] if text[-1] in ".?!" else ""
                text = text.rstrip(".?!") + pieces + end
        elif kind == "do":
            text = r.choice(OPENINGS).replace("{h}", body + pieces)
        else:
            text = r.choice(TO_WANTS if body.startswith("to ") else WANTS).replace("{n}", body + pieces)
        text = text[0].upper() + text[1:] if r.random() < 0.9 else text
        if sentences:
            r.shuffle(sentences)
            tail = " ".join(s[0].upper() + s[1:] for s in sentences)
            text = f"{tail} {text}" if r.random() < 0.35 else f"{text if text[-1] in '.?!' else text + '.'} {tail}"
        return text

    def result(self, r, values):
        """(fields, answer)."""
        fields = self.spec["result"](r) if "result" in self.spec else {}
        answer = r.choice(self.spec["answers"])
        if "{status}" in answer and "status" not in fields:
            fields["status"] = r.choice(("confirmed", "done", "booked", "sent", "set", "ready", "accepted", "pending", "queued", "active", "ok", W.word(r)))
        if "{ref}" in answer or r.random() < 0.15:
            fields["ref"] = r.choice((W.code, W.number))(r)
        if not fields:
            fields = {r.choice(("ok", "success", "done")): True}
        for role, (spoken, _) in values.items():
            answer = answer.replace("{" + role + "}", str(spoken))
        for k, v in fields.items():
            answer = answer.replace("{" + k + "}", ", ".join(v) if isinstance(v, list) else str(v))
        if "{" in answer:
            return self.result(r, values)
        if "ref" in fields:
            key = r.choice(("booking_id", "confirmation", "reference", "id", "ref", "number", "code"))
            fields = {key if k == "ref" else k: v for k, v in fields.items()}
        answer = answer[0].upper() + answer[1:]
        return fields, answer
