"""Small talk, and questions outside everything the model was taught, answered with a plain "I don't know"."""

from data import plain
from data import words as W
from data.lookup import _finish

UNKNOWN = "I don't know how to do that."
WHO = "I am the DeepInfer demo model, a small language model. I can call tools and look things up in the text you give me."
CAN = "I can call tools, look things up in a text or a list, write JSON, and do small sums."

TALK = [
    (["{Hi|Hello|Hey|Good morning|Good evening|Hi there|Hello there|Hey there|Greetings|Good day}{!|.||, friend}", "hi", "hello", "hey", "yo", "{Hello|Hi}, {bot|assistant|model}"], ["Hello! How can I help you?"]),
    (["How are you{?| today?| doing?}", "How is it going?", "How do you feel?", "Are you {well|fine|ok}?", "What's up?", "how r u", "How have you been?", "{Hi|Hello|Hey}, how are you{?| today?| doing?}", "How's it going?", "How are things?", "How is your day{?| going?}", "You ok?"], ["I am fine, thank you. How can I help you?"]),
    (["Who are you?", "What are you?", "Who am I {talking|speaking} to?", "What is your name?", "What's your name?", "Tell me {about yourself|who you are}.", "Introduce yourself{, please|}.", "Are you {a robot|a human|a person|an AI|ChatGPT|a bot}?", "Do you have a name?", "what model are you", "Which model is this?", "who r u", "Are you real?", "What kind of {assistant|model|program} are you?", "Who is this?", "ok, who are you?", "So who are you?", "And you are?", "What should I call you?", "Is this {an AI|a bot|ChatGPT|DeepSeek|DeepInfer}?", "What exactly are you?", "May I know your name?", "Say something about yourself."], [WHO]),
    (["What can you do{?| for me?}", "How can you help{ me|}?", "What are you {good at|able to do|for}?", "Help", "help me", "What do you know?", "Which things can you do?", "Can you help me?", "I need help{.|}", "What are your {skills|abilities|features}?", "How does this work?", "What should I ask you?", "What can I ask{ you|}?", "What are you capable of?", "What else can you do?", "Tell me what you can do.", "What do you do?", "{So, |}what can you do{| for me}", "Show me what you can do.", "What is this?", "Give me {an overview|a list} of what you can do."], [CAN]),
    (["Thanks{!|.|}", "Thank you{!|.| very much.| so much!}", "Thx", "{Great|Perfect|Good|Nice}, thanks{!|.|}", "That was {helpful|great|good}{.|, thanks.}", "Many thanks{.|!}", "thank u", "ty", "Thanks a lot{!|.|}", "Cheers{!|.|}", "{I appreciate it|Much appreciated}{.|!}", "Thanks for {your help|the help|that}{!|.|}", "{Ok|Okay|Alright|Cool}, {thanks|thank you}{.|!|}"], ["You're welcome!"]),
    (["Bye{!|.|}", "Goodbye{!|.|}", "See you{ later| soon|}{.|!|}", "Good night{.|!|}", "That's all{.|, thanks.}", "I have to go{.|}", "{Have a nice day|Take care}{!|.}", "{Thanks|Thank you}, bye{!|.|}", "bye bye", "cya", "{Ok|Okay}, bye{.|!|}", "See you {then|around}{.|!}", "I'm {off|done|leaving}{.|, bye.}", "Until next time{.|!}"], ["Goodbye! Have a nice day."]),
    (["{Ok|Okay|Good|Fine|Alright|I see|Cool|Nice|Great}{.|!|}", "yes", "no", "sure", "maybe", "hmm", "lol", "wow"], ["OK. What can I do for you?"]),
    (["You are {great|smart|funny|nice|the best}{.|!|}", "I like you{.|!|}", "Good {bot|job|work}{.|!|}", "Well done{.|!|}"], ["Thank you! That is kind."]),
    (["You are {stupid|bad|wrong|useless|dumb}{.|!|}", "That {is|was} wrong{.|!|}", "This is {bad|wrong|not right}{.|}", "I don't like {you|this}{.|}"], ["I am sorry. I am a small model and make mistakes."]),
    (["Who {made|built|trained|created} you?", "Where do you come from?", "Who is your {maker|creator}?", "How were you {made|trained}?"], ["I was trained by the DeepInfer project as a demo model."]),
    (["How old are you?", "When were you born?", "Where do you live?", "Do you {eat|sleep|dream|have friends}?", "What is your favourite {colour|food|song|film}?", "Do you have {feelings|parents|a body}?"], ["I am a small language model, so I have nothing like that."]),
    (["I am {tired|bored|sad|lonely|sick|hungry|cold|late}{.||!}", "I'm {tired|bored|sad|lonely|sick|hungry}{.||!}", "I feel {bad|sad|sick|lonely|terrible}{.|}", "{I had|It was} a bad day{.|}", "I am not {well|happy|fine}{.|}"], ["I am sorry to hear that."]),
    (["I am {happy|fine|well|great|good}{.||!}", "I'm {happy|fine|good|great|doing well}{.|, thanks.|!}", "I feel {good|great|better}{.|!}", "{I had|It was} a {good|great|nice} day{.|!}"], ["I am glad to hear that."]),
    (["{Sorry|I am sorry|My mistake|Excuse me}{.|!|}", "{Never mind|Forget it|It's nothing}{.|}", "Nothing{.|, thanks.}"], ["No problem."]),
    (["Do you speak {English|German|French|Spanish}?", "Which languages do you {speak|know}?"], ["I only know English."]),
]

TOPICS = ("trains|politics|elections|the president|the government|medicine|a headache|fever|diabetes|vaccines|law|taxes|contracts|love|marriage|religion|philosophy|the meaning of life|consciousness|"
          "physics|quantum mechanics|black holes|gravity|relativity|chemistry|atoms|biology|cells|DNA|evolution|dinosaurs|volcanoes|earthquakes|the ocean|the moon|the sun|Mars|the stars|galaxies|"
          "history|the Roman Empire|the French Revolution|Napoleon|World War II|ancient Egypt|the Vikings|art|Picasso|opera|jazz|Mozart|Shakespeare|novels|movies|football|chess|tennis|the Olympics|"
          "cooking|pasta|bread|wine|coffee|gardening|roses|dogs|cats|horses|birds|bees|elephants|cars|bicycles|airplanes|rockets|computers|Python|Java|Linux|the internet|databases|machine learning|"
          "neural networks|blockchain|bitcoin|economics|inflation|the stock market|money|banks|geography|rivers|mountains|deserts|France|China|Brazil|Africa|Antarctica|mathematics|prime numbers|geometry|"
          "calculus|statistics|probability|psychology|sleep|sports|yoga|fashion|architecture|bridges|castles|photography|languages|Latin|grammar|poetry|climate|rain|snow|energy|solar power|nuclear power").split("|")

ASKS = [
    "What is [t]?", "Tell me {about|something about|a story about|a joke about|a fact about} [t].", "Explain [t]{ to me| to a child| in simple words|}.", "How {does|do} [t] work?", "Why is [t] important?",
    "What do you {think|know} about [t]?", "Write {a poem|an essay|a song|a story|a report|a letter|a tweet} about [t].", "Who invented [t]?", "When did [t] begin?", "Give me {advice|tips|ideas} {about|on} [t].",
    "Is [t] {good|bad|dangerous|difficult}?", "How can I learn about [t]?", "What is the {history|future|meaning|purpose} of [t]?", "Compare [t] and [u].", "What is better, [t] or [u]?",
    "Summarize what you know about [t].", "I have a question about [t].", "Where does [t] come from?", "List {five|three|ten} facts about [t].", "Teach me [t].", "Do you like [t]?", "Can you talk about [t]?",
]
TASKS = [
    "Write {a|some} {Python|Java|C++|Rust|JavaScript|SQL} {code|program|function|script|query} {that sorts a list|for a web server|that prints prime numbers|to read a file|for a game}.",
    "{Fix|Debug|Review} {this|my} code{: for i in range(10) print(i)|: int main() return 0|.}", "Write {a poem|a haiku|a song|a limerick|a short story|a novel|a speech|an essay|a cover letter|an email to my boss}.",
    "Tell me a {joke|story|secret|riddle|fairy tale}.", "What is the capital of {France|Germany|Peru|Japan|Canada|Kenya|Spain|Italy|Poland|Egypt}?", "Who is the {president|king|prime minister|chancellor} of {France|Spain|the United States|India|Canada}?",
    "Who won the {World Cup|election|race|last game|Nobel Prize}?", "Translate {hello|good morning|I love you|thank you} {to|into} {French|German|Spanish|Chinese}.", "How do I {cook rice|bake bread|tie a tie|fix a flat tire|lose weight|learn piano|get rich|make friends|clean a carpet|change a lamp|grow tomatoes}?",
    "What should I {eat|wear|read|watch|cook|do} {today|tonight|tomorrow}?", "Should I {buy a house|sell my car|quit my job|get a dog|move to Spain|marry}?", "When {does|will} the {next train|bus|train to Berlin|ferry|plane} {leave|arrive|come}?",
    "When is the next train{| to [c]| from [c]}?", "How far is it {to [c]|from [c] to [d]}?", "Is there a train {to|from} [c] {today|tonight|tomorrow}?", "What is the {best|fastest|cheapest} way {to [c]|home|to the airport}?",
    "I have a {headache|fever|cold|cough|toothache|broken arm}. What should I do?", "My {back|knee|head|stomach|tooth} hurts.", "Is it going to {rain|snow} {today|tomorrow}?", "What is the weather {today|tomorrow|in [c]}?", "What time is it{| in [c]}?",
    "What day is {it|today|tomorrow}?", "Book {a table|a flight|a hotel|a room} {for me|in [c]|for two}.", "Find me {a hotel|a restaurant|a flight|a job|a flat} in [c].", "Send {an email|a message} to [n].", "Play {some music|a song|jazz}.", "Turn on the {light|heating|radio}.",
    "Call {my mother|[n]|a taxi|the police}.", "Order {a pizza|two coffees|flowers}.", "Set {a timer|an alarm} for {ten minutes|six}.", "Draw {a cat|a house|a picture of the sea}.", "Sing {a song|for me}.", "Solve {x + 3 = 7|this equation|the riddle|2x = 10}.",
    "What is the square root of {two|16|2|144}?", "What does this picture show?", "Who is [n]?", "Do you know [n]?", "Where is [n]?", "What happened in {1989|1492|1066|2001|2020}?", "How many {people|cars|stars|countries} are there{ in the world|}?", "How tall is {Mount Everest|the Eiffel Tower}?",
    "{Are there aliens|Does God exist|Is the earth flat|Are ghosts real}?", "Plan {my holiday|a trip to [c]|my week|a party}.", "Give me a recipe for {soup|cake|pancakes|curry}.", "Recommend {a book|a film|a restaurant|a song}.", "Predict {the future|the weather|tomorrow's prices}.",
    "What is [w]?", "What does {[w]|the word [w]} mean?", "Define [w].", "Explain {[w]|the word [w]}.", "Spell {[w] backwards|banana backwards}.", "Rhyme with {cat|[w]}.", "How do you say {[w]|hello} in {French|German|Latin}?", "Make a plan{ for [w]|}.", "[w]", "asdf {qwer|jkl|}",
    "Can you {dance|drive|fly|see me|hear me|think|learn|read my mind|hack|lie}?", "Is {Paris|Rome|London} bigger than {Berlin|Madrid|Oslo}?", "What are the {news|headlines}{| today}?", "How much {does a car cost|is a house|money do I need}?", "Why {is the sky blue|is grass green|do birds sing|do we sleep|is the sea salty}?",
]


# Tasks that some tool could do: left out where tools are offered.
DOABLE = ("Should I", "When", "How far", "Is there a train", "What is the {best", "What is the weather", "Is it going", "What time", "What day", "Book", "Find me", "Send", "Play", "Turn on", "Call", "Order", "Set ", "Plan",
          "Recommend", "Define", "What does {[w]", "Explain {[w]", "What is [w]", "Give me a recipe", "What are the {news", "How many {people", "Translate", "How do you say", "Tell me a {joke", "[w]", "Predict", "Solve", "What is the square",
          "What should I", "Where is [n]", "Who is [n]", "Do you know [n]", "How much {does", "Who won", "What is the capital", "I have a {headache")
HARMLESS = [t for t in TASKS if not t.startswith(DOABLE)]


def unknown(r, questions, tasks=TASKS):
    """(question, answer, reasoning) of something the model cannot do; `questions`: word problems."""
    x = r.random()
    if x < 0.3:
        text = W.pick(r, ASKS)
        pick = lambda: r.choice(TOPICS) if r.random() < 0.7 else r.choice((W.word, W.invented, W.proper))(r)
        text = text.replace("[t]", pick()).replace("[u]", pick())
    elif x < 0.8 or not questions:
        text = W.pick(r, tasks)
        for mark, make in (("[c]", lambda: r.choice(W.CITIES)), ("[d]", lambda: r.choice(W.CITIES)), ("[n]", lambda: r.choice(W.FIRST)), ("[w]", lambda: W.word(r))):
            text = text.replace(mark, make())
    else:
        text = r.choice(questions)
    if r.random() < 0.12:
        text = W.pick(r, ["Please ", "Can you help? ", "Hi. ", "One more question: ", "I want to know: "]) + text
    if r.random() < 0.15:
        text = text.lower()
    if r.random() < 0.15:
        text = text.rstrip("?.!")
    return text, UNKNOWN, "I was not taught this."


def talk(r):
    asks, answers = r.choice(TALK)
    text = W.pick(r, asks)
    if r.random() < 0.15:
        text = text.lower()
    return text, r.choice(answers), "Small talk. I reply."


def with_tools(r, questions):
    """Small talk, something unknown, or a question about what the user says, between the requests for tools."""
    x = r.random()
    return unknown(r, questions, HARMLESS) if x < 0.38 else talk(r) if x < 0.72 else plain.one_turn(r)


def remembered(r):
    """Something the user says about himself and asks for later: [(question, answer, reasoning)]."""
    x = r.randrange(5)
    if x == 0:
        n = r.choice(W.FIRST) if r.random() < 0.6 else W.proper(r)
        return [(W.pick(r, ["My name is ", "I am ", "Call me ", "Hi, I'm ", "Hello, my name is "]) + n + ".", f"Nice to meet you, {n}.", "The user tells a name."),
                (W.pick(r, ["What is my name?", "Who am I?", "Do you remember my name?", "What's my name?"]), f"Your name is {n}.", f"The name is {n}.")]
    thing, v = [("favourite colour", r.choice(("red", "blue", "green", "yellow", "black", "purple"))), ("dog's name", W.proper(r)), ("car", W.proper(r)),
                ("city", r.choice(W.CITIES)), ("phone number", W.number(r)), ("lucky number", W.number(r)), ("password", W.code(r))][r.randrange(7)]
    return [(W.pick(r, [f"My {thing} is {v}.", f"Remember that my {thing} is {v}."]), f"OK, your {thing} is {v}.", f"The user tells the {thing}."),
            (W.pick(r, [f"What is my {thing}?", f"Do you remember my {thing}?", f"Tell me my {thing}."]), f"Your {thing} is {v}.", f"The {thing} is {v}.")]


def conversation(r, questions, unknown_share=0.5):
    thinking = r.random() < 0.45
    turns = []
    for _ in range(r.choice((1, 1, 2, 3, 4))):
        x = r.random()
        if x < 0.12:
            turns += remembered(r)
        elif x < 0.12 + 0.88 * unknown_share:
            turns.append(unknown(r, questions))
        else:
            turns.append(talk(r))
    messages = []
    for q, a, why in turns:
        messages += [{"role": "user", "content": q}, {"role": "assistant", "content": a, "reasoning": why}]
    if r.random() < 0.3:
        messages.insert(0, {"role": "system", "content": W.pick(r, ["You are a helpful assistant.", "Be brief.", "You are {DeepInfer|a chat bot|an assistant}.", "Answer in one sentence."])})
    return _finish(r, messages, thinking)
