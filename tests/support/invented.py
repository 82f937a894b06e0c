"""Invented corpora: documents of kinds that no file here has, and a recipe for each, drawn by a seed.

Question lists, statutes, boilerplate, novels in one paragraph, standards in lines,
program text, tables, every kind of newline, letters composed and not, many scripts in
both directions, copies with some words changed, passages that many documents share, one
document alone, odd ids. What is tuned to known documents fails on others; these are
others each time.
"""

from __future__ import annotations

import json
import random
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from nextlong import pipeline
from nextlong.errors import CorpusError
from nextlong.recipe import Recipe
from nextlong.verify.checks import verify
from nextlong.verify.outcome import CheckOutcome

# Letters of many scripts, those whose cases are odd first: İ and ı, ß and ẞ, Σ σ ς,
# titles, Cherokee, Deseret, ligatures.
SCRIPTS = (
    "abcdefghijklmnopqrstuvwxyz",
    "abcdefghIİiıjklmnSsŞş",
    "aäbcßẞſstuü",
    "αβγδεΣσςΟοΆά",
    "ǅǄǆaﬁﬀŉǰ1½²٣",
    "АБВГабвгІіЁё",
    "ᎠᎡᎢꭰꭱꭲ𐐀𐐨",
    "नमस्तेदुनियाक्ष",
    "العربيةمرحبا",
    "漢字仮名交文東京都",
    "あいうえおカタカナー々",
    "ภาษาไทยสวัสดี",
    "မြန်မာဘာသာ",
    "가나다라마바사",
    "a\u0301e\u0308i\u0307o\u200d\u00adn",
    "𝐀𝐁𝐚𝟘🄰🜁x",
)
GAPS = (
    " ",
    " ",
    " ",
    " ",
    ", ",
    "; ",
    " – ",
    "\t",
    "_",
    "-",
    "\u00a0",
    "\u2028",
    "…",
    "'",
    "\u3000",
    " 🙂 ",
)
Words = Sequence[str]


class Corpus:
    """One invented corpus: documents, and how it draws words."""

    def __init__(self, seed: int) -> None:
        """Draw the words of the corpus, and then its documents."""
        self.draw = random.Random(seed)
        self.scripts = (
            self.draw.sample(SCRIPTS, self.draw.randint(1, 3))
            if self.draw.random() < 0.6
            else SCRIPTS[:1]
        )
        self.vocabulary = [
            self._word() for _ in range(self.draw.choice((40, 150, 600)))
        ]
        self.stock = [
            self.words(self.draw.choice((3, 12, 60, 120, 300))) for _ in range(4)
        ]
        self.gaps = GAPS if self.draw.random() < 0.3 else (" ",)
        kinds = self.draw.sample(KINDS, self.draw.randint(1, 3))
        count = self.draw.choice((1, 6, 6, 12, 12, 25, 25))
        self.documents = [self.draw.choice(kinds)(self) for _ in range(count)]
        self.documents += [copied(self) for _ in range(self.draw.randint(0, count))]
        self.draw.shuffle(self.documents)

    def _word(self) -> str:
        letters = self.draw.choice(self.scripts)
        word = "".join(
            self.draw.choices(letters, k=self.draw.choice((1, 2, 3, 5, 8, 8, 13)))
        )
        return self.draw.choice((word, word, word.upper(), word.title()))

    def words(self, count: int) -> list[str]:
        """Return words of the corpus, the first of its vocabulary more often than the last."""
        most = len(self.vocabulary)
        return [
            self.vocabulary[int(most * self.draw.random() ** 2)] for _ in range(count)
        ]

    def line(self, words: Words) -> str:
        """Return words as text, some in another case."""
        cases: Sequence[Callable[[str], str]] = (
            str,
            str,
            str,
            str.upper,
            str.lower,
            str.title,
        )
        case = self.draw.choice(cases)
        return "".join(case(word) + self.draw.choice(self.gaps) for word in words)

    def lines(self, count: int, *, fewest: int, most: int) -> list[str]:
        """Return `count` lines of `fewest` to `most` words."""
        return [
            self.line(self.words(self.draw.randint(fewest, most))) for _ in range(count)
        ]


def questions(corpus: Corpus) -> str:
    """A list of questions that differ in one word, with short answers, some of them the same."""
    draw, ask = corpus.draw, corpus.draw.choice(corpus.stock[:2])
    answers = corpus.lines(3, fewest=1, most=14)
    asked = [
        f"{corpus.line([*ask, *corpus.words(1)])}?\n{draw.choice(answers)}"
        for _ in range(draw.randint(3, 15))
    ]
    return "\n\n".join(asked)


def statute(corpus: Corpus) -> str:
    """Numbered clauses that begin alike, one after the other."""
    formula = corpus.draw.choice(corpus.stock)
    clauses = corpus.lines(corpus.draw.randint(2, 10), fewest=4, most=40)
    return "\n".join(
        f"({number}) {corpus.line(formula)} {clause}"
        for number, clause in enumerate(clauses)
    )


def boilerplate(corpus: Corpus) -> str:
    """A little of its own between passages that other documents have too."""
    own = corpus.lines(corpus.draw.randint(1, 4), fewest=3, most=60)
    return "\n".join(
        [
            corpus.line(corpus.stock[0]),
            *own,
            corpus.line(corpus.draw.choice(corpus.stock)),
        ]
    )


def novel(corpus: Corpus) -> str:
    """One very long paragraph, or a few."""
    return "\n".join(corpus.lines(corpus.draw.choice((1, 1, 3)), fewest=100, most=500))


def standard(corpus: Corpus) -> str:
    """Lines of a table: a few words or numbers each, many the same."""
    rows = corpus.lines(corpus.draw.randint(1, 5), fewest=0, most=4)
    return "\n".join(
        f"{corpus.draw.randint(0, 9)}.{corpus.draw.choice(rows)}"
        for _ in range(corpus.draw.randint(5, 30))
    )


def fragments(corpus: Corpus) -> str:
    """What cleaning leaves: empty lines, signs without letters, words without end, one long line of blanks."""
    odd = (
        "",
        "?!",
        "…\n—",
        "x" * 300,
        "".join(corpus.words(150)),
        " " * 90,
        "1,2,3\r\n",
        "\u0085",
        "\ufeff",
        "\x00",
    )
    pieces = [
        corpus.draw.choice((*odd, *corpus.lines(4, fewest=1, most=30)))
        for _ in range(corpus.draw.randint(3, 20))
    ]
    return "\n".join(pieces)


def program(corpus: Corpus) -> str:
    """Lines of code: names with signs between, indented by blanks or tabs, the same few statements again and again."""
    draw, indent = corpus.draw, corpus.draw.choice(("    ", "\t", "  "))
    names = ["_".join(corpus.words(draw.randint(1, 3))) for _ in range(6)]
    forms = (
        "def {0}({1}):",
        "return {0}[{1}] + {2}",
        "if ({0} != {1}) {{",
        "}}",
        "// {0} {1} {2}",
        "{0}.{1}({2}); // {0}",
        "",
    )
    lines = [
        draw.choice(forms).format(*draw.choices(names, k=3))
        for _ in range(draw.randint(5, 60))
    ]
    return "\n".join(indent * draw.randint(0, 4) + line for line in lines)


def ledger(corpus: Corpus) -> str:
    """A table in Markdown or with tabs; most cells are numbers, and many rows the same."""
    draw, border = corpus.draw, corpus.draw.choice((" | ", "\t", ",", ";"))
    rows = [
        [
            *corpus.words(1),
            *(f"{draw.choice((0, 7, draw.random() * 1e6)):.2f}" for _ in range(4)),
        ]
        for _ in range(5)
    ]
    return "\n".join(border.join(draw.choice(rows)) for _ in range(draw.randint(4, 60)))


def newlines(corpus: Corpus) -> str:
    """Paragraphs that end in anything that someone takes for the end of a line."""
    ends = (
        "\n",
        "\r\n",
        "\r",
        "\n\n\n",
        "\u2028",
        "\u2029",
        "\x0b",
        "\x0c",
        "\x1c",
        "\x85",
        "\n \n",
        "",
    )
    lines = corpus.lines(corpus.draw.randint(3, 20), fewest=0, most=25)
    return "".join(line + corpus.draw.choice(ends) for line in lines)


def marks(corpus: Corpus) -> str:
    """Words with marks put on them, composed or not; marks of direction, joiners, variants, letters of three code points."""
    signs = (
        "\u0301",
        "\u0327\u0308",
        "\u200d",
        "\u200f",
        "\u202b",
        "\u202c",
        "\ufe0f",
        "\u20e3",
        "\u0130",
        "\u1e9e",
        "\u034f",
    )
    form: Literal["NFC", "NFD", "NFKC"] = corpus.draw.choice(("NFC", "NFD", "NFKC"))
    marked = (
        word + corpus.draw.choice((*signs, "", "", ""))
        for word in corpus.words(corpus.draw.randint(5, 200))
    )
    return unicodedata.normalize(
        form, corpus.draw.choice((" ", "\u200f ", "\n")).join(marked)
    )


def refrain(corpus: Corpus) -> str:
    """One paragraph again and again, and a word at the end."""
    line = corpus.line(corpus.draw.choice(corpus.stock))
    return "\n".join([line] * corpus.draw.choice((1, 2, 5, 30)) + corpus.words(1))


KINDS: tuple[Callable[[Corpus], str], ...] = (
    questions,
    statute,
    boilerplate,
    novel,
    standard,
    fragments,
)
KINDS += (program, ledger, newlines, marks, refrain)
ODD_IDS = (
    "",
    "0",
    "a/b#c d",
    "../x",
    "é\u0301",
    "\u202eabc",
    'say "x"\n',
    "🙂" * 9,
    "x" * 400,
    "NaN",
    "a,b;c\td",
    "<b>&amp;",
    "[/red]",
)
METHODS = (
    "standard",
    "knn",
    "iclm",
    "quest",
    "splice",
    "untie_the_knots",
    "litelong",
)


def copied(corpus: Corpus) -> str:
    """Another document with some of its words changed, or a passage of it among other words."""
    text, draw = corpus.draw.choice(corpus.documents), corpus.draw
    words = text.split(" ")
    if draw.random() < 0.4:
        first = draw.randrange(len(words))
        passage = words[
            first : first + draw.choice((20, 95, 98, 99, 100, 101, 102, 105, 150, 400))
        ]
        return " ".join(
            [
                *corpus.words(draw.choice((1, 15, 80))),
                *passage,
                *corpus.words(draw.choice((1, 15, 80))),
            ]
        )
    share = draw.choice((0.0, 0.01, 0.05, 0.1, 0.15, 0.2, 0.3))
    return " ".join(
        corpus.words(1)[0] if draw.random() < share else word for word in words
    )


def recipe_of(seed: int, folder: Path, tokenizer: Path) -> dict[str, Any]:
    """Write the corpus of a seed into a folder; return a recipe for it, drawn by the seed too."""
    corpus, draw = Corpus(seed), random.Random(f"recipe {seed}")
    folder.mkdir(parents=True)
    ids = [
        draw.choice((str(number), str(number), *ODD_IDS))
        for number in range(len(corpus.documents))
    ]
    rows = [
        json.dumps({"id": own, "text": text})
        for own, text in zip(ids, corpus.documents, strict=True)
    ]
    (folder / "corpus.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return {
        "run_dir": str(folder / "run"),
        "executor": "serial",  # a corpus of a few pages is done before a worker has started
        "ingest": {
            "sources": [{"path": str(folder / "corpus.jsonl"), "name": "invented"}],
            "shard_mb": draw.choice((0.005, 0.02, 1.0)),
        },
        "chunk": {
            "max_chars": draw.choice((30, 40, 100, 200, 512, 512, 1000, 2048, 2048)),
            "oversize": draw.choice(("split", "split", "split", "keep")),
        },
        "encoder": {"lsa": {"dimensions": 8}},
        "mine": {
            "near_duplicates": draw.choice((0.8, 0.8, 0.8, 0.5, 0.65, 0.95, 1.0, 0.3))
        },
        "tokenizer": {"source": str(tokenizer)},
        "compose": {
            "sequences": draw.choice((2, 5)),
            "target_tokens": target_tokens(corpus, draw),
            "fit": draw.choice(("exact", "exact", "exact", "paper")),
            "position": draw.choice(("head", "tail", "random")),
            "method": draw.choice((*["nextlong"] * 14, *METHODS)),
            "negatives": draw.choice(
                (
                    *["top"] * 4,
                    "mixed",
                    "random-retrieved",
                    "tail",
                    "random-corpus",
                    "self-repeat",
                )
            ),
            "min_meta_chunks": draw.choice((1, 2)),
            "min_gap_tokens": draw.choice(("auto", "auto", 1, 10, 100)),
            "separator": draw.choice(("\n", "\n", "\n", "", "\n--\n")),
        },
        "export": {"formats": ["parquet"]},
    }


def target_tokens(corpus: Corpus, draw: random.Random) -> int:
    """Return a length that most documents are shorter than, or some longer, and the corpus longer."""
    chars = sorted(map(len, corpus.documents))
    longest, whole = chars[int(0.8 * len(chars))], sum(chars)
    return (
        int(
            min(
                4000,
                whole / 4,
                longest
                * draw.choice((0.4, 1.0, 1.5, 2.5, 5.0))
                / draw.choice((1.5, 3.0)),
            )
        )
        + 40
    )


def write_tokenizer(path: Path) -> Path:
    """Train a byte-level tokenizer that any text can be spelled with, on invented corpora."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1000,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(
        (text for seed in range(3) for text in Corpus(seed).documents), trainer
    )
    tokenizer.save(str(path))
    return path


def run_and_verify(plain: dict[str, Any]) -> list[CheckOutcome]:
    """Carry out a recipe and check the run; no outcomes where the corpus gives no sequence."""
    try:
        pipeline.run(Recipe.from_dict(plain))
    except CorpusError:
        return []
    return list(verify(Path(plain["run_dir"]), sample=10_000))


def counted(outcomes: Sequence[CheckOutcome]) -> dict[str, int]:
    """Return how many negatives, gaps between meta-chunks and cuts were checked."""
    units = ("negatives", "gaps", "cuts")
    return {
        unit: max((own.checked for own in outcomes if own.unit == unit), default=0)
        for unit in units
    }


def breaches(outcomes: Sequence[CheckOutcome]) -> list[str]:
    """Return what was found wrong, a line each."""
    return [
        f"{outcome.check}: {example}"
        for outcome in outcomes
        for example in outcome.examples
    ]
