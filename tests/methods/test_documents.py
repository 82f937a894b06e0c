"""Methods of whole documents on documents that differ: prose beside Chinese text, long ones beside many short ones."""

import io
import json
import random
from collections import Counter

import numpy as np
import pytest
from rich.console import Console
from tests.support.larger_cases import thorough

import nextlong
from nextlong.artifacts.results import ComposeResult
from nextlong.engine.progress import Lines
from nextlong.methods.documents import separator_follows

WORDS = "the river of stone and winter was in a candle market by the bridge with garden letter window and silver"
NOUNS = [
    f"{one}{other}"
    for one in ("sal", "mor", "tin", "bel", "cor")
    for other in ("den", "ver", "lock", "may")
]
ENGLISH = [f"{one} {other}" for one in NOUNS for other in NOUNS]
CHINESE = [
    "".join(chr(0x4E00 + 37 * row + place) for place in range(8)) for row in range(400)
]


def write_mixed(path):
    """Write 80 documents of English and 80 of Chinese, of about as many tokens but a quarter of the characters."""
    draw = random.Random(5)
    with open(path, "w", encoding="utf-8") as file:
        for number in range(160):
            if number % 2:
                lines = [
                    " of the ".join(draw.choices(ENGLISH, k=4)) + "."
                    for _ in range(draw.randint(10, 30))
                ]
            else:
                lines = [
                    "，".join(draw.choices(CHINESE, k=6)) + "。"
                    for _ in range(draw.randint(2, 6))
                ]
            name = f"{'en' if number % 2 else 'zh'}-{number}"
            file.write(json.dumps({"id": name, "text": "\n".join(lines)}) + "\n")


def run(run_dir, source, *overrides):
    plain = {
        "run_dir": str(run_dir),
        "executor": "serial",
        "ingest": {
            "sources": [{"path": str(source), "name": "mixed"}],
            "shard_mb": 0.2,
        },
        "encoder": {"lsa": {"dimensions": 8}},
        "tokenizer": {"train": 700},
        "compose": {"sequences": 20, "target_tokens": 2048},
        "export": {"formats": ["jsonl"]},
    }
    told = io.StringIO()
    recipe = nextlong.Recipe.from_dict(plain, overrides=overrides)
    return nextlong.run(
        recipe, reporter=Lines(Console(file=told, width=200))
    ), told.getvalue()


@pytest.fixture(scope="module")
def mixed(tmp_path_factory, warm_workers):
    """A function of a method that returns its run on the mixed corpus; all share a run directory."""
    folder = tmp_path_factory.mktemp("mixed")
    write_mixed(folder / "c.jsonl")

    def make(method, *overrides):
        return run(
            folder / "run", folder / "c.jsonl", f"compose.method={method}", *overrides
        )[0]

    return make


@pytest.mark.parametrize(
    ("method", "overrides"),
    [
        ("knn", []),
        ("iclm", ["iclm.max_similarity=null"]),
        *thorough(("standard", []), ("quest", ["quest.min_keyword_score=1"])),
    ],
)
def test_both_languages_have_their_share(mixed, method, overrides):
    made = mixed(method, *overrides)
    assert len(made) == 20
    assert made.steps["compose"].result(ComposeResult).dropped == {}, (
        "a draft of counted tokens cannot fall short"
    )
    chars, tokens = Counter(), Counter()
    for sequence in made.sequences():
        for span in sequence.spans:
            chars[span.source_id[:2]] += span.char_end - span.char_start
            tokens[span.source_id[:2]] += span.token_end - span.token_start
    of_document = {
        language: chars[language] / tokens[language] for language in ("en", "zh")
    }
    assert of_document["en"] > 2 * of_document["zh"], (
        "the corpus must be one that a mean E misjudges"
    )
    share = tokens["zh"] / (tokens["zh"] + tokens["en"])
    assert abs(share - share_of_chinese(made)) < 0.2


def test_a_separator_follows_where_a_document_does_not_continue():
    # Two documents of four and two chunks; 5 characters are removed within the first,
    # and its last chunk ends in a newline.
    table = {
        "doc_row": np.array([0, 0, 0, 0, 1, 1]),
        "start": np.array([0, 10, 25, 30, 0, 8]),
        "end": np.array([10, 20, 30, 40, 8, 12]),
        "separator": np.array([True, True, True, False, True, True]),
    }
    assert separator_follows(table).tolist() == [False, True, False, False, False, True]


def share_of_chinese(made):
    """Return the share that Chinese has of the corpus: of its tokens, or of the documents, if these are the seeds."""
    docs = np.load(made.steps["documents"].file(".docs.npy"))
    lengths = np.concatenate(
        [np.load(path) for path in made.steps["lengths"].files(".lengths.npy")]
    )
    tokens = np.add.reduceat(lengths, np.cumsum(docs["chunks"]) - docs["chunks"])
    is_chinese = [text[0] > "z" for text in made.corpus.texts(docs["first_chunk"])]
    return np.average(
        is_chinese, weights=None if made.recipe.compose.method == "knn" else tokens
    )


def test_a_document_whose_neighbours_are_short_gets_more_of_them(
    tmp_path, warm_workers
):
    draw = random.Random(3)
    source = tmp_path / "c.jsonl"
    with open(source, "w", encoding="utf-8") as file:
        for number in range(320):
            words = (
                [f"salt{word}" for word in WORDS.split()]
                if number < 20
                else WORDS.split()
            )
            length = 2400 if number < 20 else 12
            text = "\n".join(
                " ".join(draw.choices(words, k=12)) for _ in range(length // 12)
            )
            file.write(
                json.dumps(
                    {
                        "id": f"{'long' if number < 20 else 'short'}-{number}",
                        "text": text,
                    }
                )
                + "\n"
            )
    made, told = run(
        tmp_path / "run", source, "compose.method=knn", "compose.target_tokens=1024"
    )
    assert len(made) == 20
    firsts = Counter(
        next(iter(sequence.spans)).source_id.partition("-")[0]
        for sequence in made.sequences()
    )
    assert firsts["short"] >= 15, firsts  # of 320 documents 300 are
    assert "ran out of neighbours; looking further for neighbours" in told
