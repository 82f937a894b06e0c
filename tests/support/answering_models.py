"""Models that need no weights: one reads the context and answers right, one answers blindly; and a run of an evaluation."""

import re
from collections import Counter

from rich.console import Console

from nextlong.evaluate.data import DataFiles
from nextlong.evaluate.progress import TaskProgress
from nextlong.evaluate.prompts import ModelOptions, Prompts
from nextlong.evaluate.registry import registered
from nextlong.evaluate.run import evaluate
from nextlong.evaluate.settings import EvaluationSettings
from nextlong.evaluate.task import TextTokenizer


def asked(out, *names, lengths=(8192,), samples=4, data=None, **more):
    """Return the settings of an evaluation of some tasks, by name."""
    tasks = [registered()[name] for name in names]
    return EvaluationSettings(
        tasks, lengths, out, DataFiles(data), ModelOptions("model"), samples, **more
    )


def evaluated(model, settings):
    """Evaluate a model and print nothing; return its results."""
    return evaluate(lambda: model, settings, progress=TaskProgress(Console(quiet=True)))


def answered(model, samples):
    """Return a model's answers to samples, in the order of the samples."""
    answers = {number: text for number, _, text in model.answers(enumerate(samples))}
    return [answers[number] for number in sorted(answers)]


class Oracle:
    """Answers from the text alone: it is never shown the references."""

    context = None
    engine = "test 1"

    def __init__(self, backend):
        self.tokenizer = TextTokenizer(backend)
        self.prompts = Prompts(self.tokenizer)
        self.asked = []

    def identity(self):
        return {"kind": "test", "name": type(self).__name__}

    def answers(self, samples, *, done=()):
        for number, sample in samples:
            if number not in done:
                yield number, sample, self.answer(sample)

    def answer(self, sample):
        self.asked.append(sample.text)
        return self.read(sample.text)

    def read(self, text):
        for sign, answer in READERS.items():
            if sign in text:
                return answer(text)
        raise AssertionError(f"the oracle knows no such question: {text[-200:]}")


class Blind(Oracle):
    """Answers what might be right without a look at the context."""

    def read(self, text):
        return "1234567, 00000000-0000-4000-8000-000000000000, AAAAA, zzzzzz, Atlantis"


def _needles(text):
    context, question = text.rsplit("\nWhat ", 1)
    keys = re.split(
        r", and |, ",
        re.search(r" for (.+?) mentioned in the provided text\?", question)[1],
    )
    pairs = re.findall(
        r"One of the special magic \w+ for (.+?) is: ([\w-]+)\.", context
    )
    return " and ".join(value for key, value in pairs if key in keys)


def _variables(text):
    asked = text.rsplit("Memorize and track", 1)[1]
    value = re.search(r"assigned the value (\d+) in the text", asked)[1]
    holds = {
        name
        for name, number in re.findall(r"VAR (\w+) = (\d+)", asked)
        if number == value
    }
    links = re.findall(r"VAR (\w+) = VAR (\w+)", asked)
    while new := {later for later, earlier in links if earlier in holds} - holds:
        holds |= new
    return " ".join(sorted(holds))


def _common(text):
    listed = text.rsplit("Memorize the ones that appear most often.\n", 1)[1].split(
        "\nQuestion:"
    )[0]
    words = re.split(r"(?:^| )\d+\. ", listed)[1:]
    return " ".join(
        f"{n}. {word}"
        for n, (word, _) in enumerate(Counter(words).most_common(10), start=1)
    )


def _frequent(text):
    listed = text.split("coded words.", 1)[1].split("\nQuestion:")[0].split()
    return ", ".join(word for word, _ in Counter(listed).most_common(4)[1:])


def _question(text):
    name = re.findall(r"Question: Where does (.+?) lie\?", text)[-1]
    return re.findall(rf"{re.escape(name)} lies in (\w+)\.", text)[-1]


def _value(text):
    key = re.findall(r"Key: (\S+)", text)[-1]
    return re.search(rf'"{key}": "([^"]+)"', text)[1]


def _label(text):
    return text.split("\n\n", 1)[1].rsplit("\nlabel:", 2)[1].split("\n")[0]


def _graph(text):
    edges, operation = text.rsplit("The graph has the following edges:\n", 1)[1].split(
        "\n\nOperation:\n"
    )
    pairs = [line.split(" -> ") for line in edges.splitlines()]
    node = re.search(r"node (\w+)", operation)[1]
    if operation.startswith("Find the parents"):
        found = {start for start, end in pairs if end == node} - {node}
    else:
        found = {node}
        for _ in range(int(re.search(r"depth (\d)", operation)[1])):
            found = {end for start, end in pairs if start in found}
    return f"I walked.\nFinal Answer: [{', '.join(found)}]"


def _world(text):
    """Answer bAbI's questions by the facts in the context, read one after the other."""
    context, question = (
        text.split("</example>")[-1]
        .split("<context>\n")[1]
        .split("\n</context>\n\nQuestion: ")
    )
    at, held, been, gifts = {}, {}, {}, []
    for who, act, what in re.findall(
        r"(Daniel|John|Mary|Sandra|Bill|Fred|Jeff) "
        r"(went to|moved to|journeyed to|travelled to|went back to|got|grabbed|took|picked up|dropped|discarded|left|put down) "
        r"the (\w+)(?: there)?\.",
        context,
    ):
        if act.endswith(" to"):
            at[who] = what
            for thing in (thing for thing, by in held.items() if by == who):
                been[thing].append(what)
        elif act in ("got", "grabbed", "took", "picked up"):
            held[what] = who
            been.setdefault(what, [at.get(who)])
        else:
            del held[what]
    gifts = re.findall(r"(\w+) (?:gave|handed|passed) the (\w+) to (\w+)\.", context)
    if found := re.match(r"Where is (\w+)\?", question):
        return at[found[1]]
    if found := re.match(r"Where is the (\w+)\?", question):
        return f"The {found[1]} is in the {been[found[1]][-1]}."
    if found := re.match(r"Where was the (\w+) before the (\w+)\?", question):
        return been[found[1]][been[found[1]].index(found[2]) - 1]
    if found := re.match(r"What is (\w+) of the (\w+)\?", question):
        return re.search(rf"The (\w+) is {found[1]} of the {found[2]}\.", context)[1]
    if found := re.match(r"What is the (\w+) (\w+) of\?", question):
        opposite = {"north": "south", "south": "north", "east": "west", "west": "east"}[
            found[2]
        ]
        return re.search(rf"The (\w+) is {opposite} of the {found[1]}\.", context)[1]
    names = re.findall(r"Bill|Fred|Jeff|Mary|apple|football|milk", question)
    giver, thing, taker = next(
        gift for gift in reversed(gifts) if set(names) <= set(gift)
    )
    return (
        thing
        if question.startswith("What")
        else taker
        if re.match("Who (did|received)", question)
        else giver
    )


def _latent(text):
    signs = {
        "Spain": "Sagrada",
        "England": "Big Ben",
        "Germany": "Brandenburg",
        "Italy": "Colosseum",
        "France": "Eiffel",
    }
    signs |= {
        "India": "Taj Mahal",
        "ice cream": "milk without",
        "climb": "wheelchair",
        "beef": "no meat",
        "instruments": "violins",
    }
    body, question = text.rsplit("\n\nQuestion: ", 1)
    sign = next(sign for word, sign in signs.items() if word in question)
    line = next(part for part in re.split(r"(?<=[.!?])\s+", body) if sign in part)
    return re.search(
        r"Amara|Bastian|Celeste|Dmitri|Elowen|Farouk|Greta|Hiroshi|Ingrid|Joaquin", line
    )[0]


def _conversation(text):
    mark, number, asked = re.findall(
        r"Prepend (\w+) to the (\d)\w+ \(1 indexed\) (.+)\. Do not include", text
    )[-1]
    told = re.findall(
        rf"User: Write a {re.escape(asked)}\.\n\nAssistant: (.+?)(?=\n\nUser: )",
        text,
        flags=re.DOTALL,
    )
    return mark + told[int(number) - 1]


READERS = {
    "a list of directed edges": _graph,
    "with the facts": _world,
    "what clearly follows from it": _latent,
    "(1 indexed)": _conversation,
    "special magic": _needles,
    "Memorize and track": _variables,
    "Memorize the ones that appear": _common,
    "coded words": _frequent,
    "Corresponding value:": _value,
    "San Francisco?": lambda text: re.search(
        r"San Francisco is (eat a sandwich and sit in [\w ]+ day)", text
    )[1],
    "Where does": _question,
}
