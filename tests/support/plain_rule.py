"""The rule of docs/decisions/0005-near-duplicates.md, word for word: slow, in plain Python, and shared by nothing under src/."""

from fractions import Fraction
from functools import cache

SOLO = (
    (0x0E00, 0x0EFF),
    (0x1000, 0x109F),
    (0x1780, 0x17FF),
    (0x3040, 0x30FF),
    (0x3400, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x3FFFF),
)
BASE, MASK = 0xD1342543DE82EF95, (1 << 64) - 1
ALIKE = [1024]  # every run weighs the same


@cache
def words_of(text):
    words, word = [], ""
    for char in text:
        is_solo = any(first <= ord(char) <= last for first, last in SOLO)
        if word and (is_solo or not char.isalnum()):
            words.append(word)
            word = ""
        if char.isalnum():
            lower = char.lower()
            word += lower if len(lower) == 1 else char
            if is_solo:
                words.append(word)
                word = ""
    return tuple([*words, word] if word else words)


def mix(value):
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & MASK
    return value ^ value >> 31


@cache
def word_number(word):
    return mix(
        sum(
            mix(ord(char) * BASE & MASK) * BASE**place
            for place, char in enumerate(word)
        )
        & MASK
    )


@cache
def run_number(words):
    total = 0
    for word in words:
        total = (total * BASE + word_number(word)) & MASK
    return mix(total ^ len(words))


def runs_of(words, length=3):
    return [
        tuple(words[place : place + length]) for place in range(len(words) - length + 1)
    ]


def weights_of(texts_of_documents, *, slots):
    """Weights by slot; each document a list of its chunks' texts."""
    counts = [0] * slots
    for texts in texts_of_documents:
        long = [words for words in map(words_of, texts) if len(words) >= 10]
        for slot in {
            run_number(run) % slots for words in long for run in runs_of(words)
        }:
            counts[slot] += 1
    limit = max(Fraction(16), Fraction(len(texts_of_documents), 1000))
    return [
        min(1024, max(1, int(1024 * limit / count))) if count else 1024
        for count in counts
    ]


def share(words, others, weights):
    """Return (weight of the words that stand in a run of `others`, weight of all); the first and last two do not count."""
    runs, there = runs_of(words), set(runs_of(others))
    weight = [weights[run_number(run) % len(weights)] for run in runs]
    inner = [range(place - 2, place + 1) for place in range(2, len(words) - 2)]
    shared = sum(
        max(weight[run] for run in own)
        for own in inner
        if any(runs[run] in there for run in own)
    )
    return shared, sum(max(weight[run] for run in own) for own in inner)


def has_passage(words, others):
    return (
        len(words) >= 100
        and len(others) >= 100
        and not set(runs_of(words, 100)).isdisjoint(runs_of(others, 100))
    )


def repeats(text, other, weights, threshold, *, passages=True):
    """Whether a text repeats another one."""
    words, others = words_of(text), words_of(other)
    if not words or not others:
        return False
    if len(words) < 10 or len(others) < 10:
        return words == others
    shared, whole = share(words, others, weights)
    return shared * 1_000_000 >= round(threshold * 1_000_000) * whole or (
        passages and has_passage(words, others)
    )


def repeats_document(text, chunks, weights, threshold, *, passages=True):
    """Whether a text repeats the document of these chunks."""
    short = [chunk for chunk in chunks if len(words_of(chunk)) < 10]
    return any(
        repeats(text, other, weights, threshold, passages=passages)
        for other in ["".join(chunks), *short]
    )


def found(texts, chunks, weights, threshold):
    """Return what `find` should: which repeat the document, pairs of the others, and which do so only by a passage."""
    of_document = [repeats_document(text, chunks, weights, threshold) for text in texts]
    by_share = [
        repeats_document(text, chunks, weights, threshold, passages=False)
        for text in texts
    ]
    pairs, in_pairs = [], set()
    for a in range(len(texts)):
        for b in range(a + 1, len(texts)):
            if of_document[a] or of_document[b]:
                continue
            both = [
                repeats(texts[x], texts[y], weights, threshold, passages=passages)
                for x, y in ((a, b), (b, a))
                for passages in (True, False)
            ]
            if any(both):
                pairs.append([a, b])
                in_pairs |= {a, b}
            if both[1] or both[3]:
                by_share[a] = by_share[b] = True
    only = [
        (of_document[a] or a in in_pairs) and not by_share[a] for a in range(len(texts))
    ]
    return of_document, pairs, only
