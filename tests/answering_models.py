"""Models that need no weights: one reads the context and answers right, one answers blindly."""

import re
from collections import Counter

from nextlong.evaluate.models.base import TextTokenizer


class Oracle:
    """Answers from the text alone: it is never shown the references."""

    context = None
    overhead = 0

    def __init__(self, backend):
        self.tokenizer = TextTokenizer(backend)
        self.asked = []

    def identity(self):
        return {"kind": "test", "name": type(self).__name__}

    def prompt_tokens(self, sample):
        return len(self.tokenizer.with_prefix(self.tokenizer.encode(sample.text)))

    def batch(self, length):
        return 3

    def answers(self, samples):
        for sample in samples:
            self.asked.append(sample.text)
            yield self.read(sample.text)

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
    keys = re.split(r", and |, ", re.search(r" for (.+?) mentioned in the provided text\?", question)[1])
    pairs = re.findall(r"One of the special magic \w+ for (.+?) is: ([\w-]+)\.", context)
    return " and ".join(value for key, value in pairs if key in keys)


def _variables(text):
    asked = text.rsplit("Memorize and track", 1)[1]
    value = re.search(r"assigned the value (\d+) in the text", asked)[1]
    holds = {name for name, number in re.findall(r"VAR (\w+) = (\d+)", asked) if number == value}
    links = re.findall(r"VAR (\w+) = VAR (\w+)", asked)
    while new := {later for later, earlier in links if earlier in holds} - holds:
        holds |= new
    return " ".join(sorted(holds))


def _common(text):
    listed = text.rsplit("Memorize the ones that appear most often.\n", 1)[1].split("\nQuestion:")[0]
    words = re.split(r"(?:^| )\d+\. ", listed)[1:]
    return " ".join(f"{n}. {word}" for n, (word, _) in enumerate(Counter(words).most_common(10), start=1))


def _frequent(text):
    listed = text.split("coded words. ", 1)[1].split("\nQuestion:")[0].split()
    return ", ".join(word for word, _ in Counter(listed).most_common(4)[1:])


def _question(text):
    name = re.findall(r"Question: Where does (.+?) lie\?", text)[-1]
    return re.findall(rf"{re.escape(name)} lies in (\w+)\.", text)[-1]


def _value(text):
    key = re.findall(r"Key: (\S+)", text)[-1]
    return re.search(rf'"{key}": "([^"]+)"', text)[1]


def _label(text):
    return text.split("\n\n", 1)[1].rsplit("\nlabel:", 2)[1].split("\n")[0]


READERS = {
    "special magic": _needles,
    "Memorize and track": _variables,
    "Memorize the ones that appear": _common,
    "coded words": _frequent,
    "Corresponding value:": _value,
    "San Francisco?": lambda text: re.search(r"San Francisco is (eat a sandwich and sit in [\w ]+ day)", text)[1],
    "Where does": _question,
}
