"""A run that finds too few sequences tries more documents, says so, and exports once."""

import io
import json
import random
import re
from collections import Counter

import pytest
from rich.console import Console
from tests.support.counted import counts_of, total
from tests.support.larger_cases import thorough

import nextlong
from nextlong import pipeline
from nextlong.cli.main import main
from nextlong.engine import runner
from nextlong.engine.progress import Lines
from nextlong.errors import CorpusError
from nextlong.recipe import keys
from nextlong.retrieval.sample import DrawResult
from nextlong.runs.statistics.measure import measure
from nextlong.schemas import DropReason
from nextlong.sequences.shortfall import Attempt, dropped_examples
from nextlong.sequences.tokenizer import train_bpe

DROPPED = "dropped: too few negatives to reach target_tokens"
EMPTY = "dropped: too few negatives for compose.min_gap_tokens between its chunks"


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """One directory for all, so that they embed once."""
    return tmp_path_factory.mktemp("few") / "run"


@pytest.fixture
def half(small_corpus):
    """What makes the corpus half of it."""
    return f"ingest.sources.0.path={small_corpus}/[01].jsonl"


def run(recipe):
    """Return the finished steps and the lines that were told, without those of steps that were kept."""
    sink = io.StringIO()
    done = pipeline.run(recipe, reporter=Lines(Console(file=sink)))
    return done, [
        line for line in sink.getvalue().splitlines() if not line.startswith("reused: ")
    ]


def test_more_documents_are_drawn_and_only_what_they_give_is_exported(
    recipe_for, half, run_dir
):
    few = [half, "compose.max_uses=1", "compose.sequences=20"]
    done, lines = run(recipe_for(run_dir, *few))
    told = [
        line for line in lines if line.startswith("compose: ") and "documents" in line
    ]
    begin = r"compose: \d+ of 20 sequences from {} documents; "
    assert len(told) == 2
    assert re.fullmatch(
        rf"{begin.format(25)}\d+ {DROPPED}; \d+ {EMPTY}; sampling 66 of 72", told[0]
    )
    assert re.fullmatch(
        rf"{begin.format(50)}\d+ {DROPPED}; \d+ {EMPTY}; sampling 72 of 72", told[1]
    )
    assert 5 < total(done["compose"], "sequences") < 20
    assert total(done["meta_documents"], "drawn") == 72
    labels = [line.partition(":")[0] for line in lines]
    assert [
        labels.count(name)
        for name in ("ingest", "embed", "meta_documents", "draft", "rows", "parquet")
    ] == [
        1,
        1,
        3,
        3,
        1,
        1,
    ]
    assert len([*run_dir.glob("*-rows-*")]) == 1
    assert [*done][-4:] == ["compose", "rows", "parquet", "jsonl"]

    again, lines = run(recipe_for(run_dir, *few))
    assert [line for line in lines if "of 20 sequences" not in line] == []
    assert {name: step.folder for name, step in again.items()} == {
        name: step.folder for name, step in done.items()
    }


def test_spare_drafts_are_tried_once_all_documents_are_drawn(recipe_for, half, run_dir):
    done, lines = run(
        recipe_for(run_dir, half, "compose.max_uses=5", "compose.sequences=58")
    )
    (told,) = [
        line for line in lines if line.startswith("compose: ") and "documents" in line
    ]
    assert re.fullmatch(
        rf"compose: \d\d of 58 sequences from 65 documents; .*\d+ {DROPPED}; .*sampled documents",
        told,
    )
    assert (
        total(done["referenced_chunks"], "drafts")
        == total(done["draft"], "drafts")
        == 72
    )
    assert 30 < total(done["compose"], "sequences") < 58


def test_nothing_is_told_where_there_is_enough(recipe_for, half, run_dir):
    _, lines = run(recipe_for(run_dir, half))
    assert lines
    assert all(" done in " in line for line in lines)


@pytest.mark.parametrize("families", [1, 3])
def test_near_identical_pages_are_refused_after_a_sample_and_the_cure_is_named(
    recipe_for, tmp_path, families
):
    draw = random.Random(7)
    words = [f"w{number}" for number in range(400)]
    pages = [[draw.choices(words, k=12) for _ in range(24)] for _ in range(families)]
    rows = []
    for number in range(120):
        copy = [line[:] for line in pages[number % families]]
        for _ in range(3):
            copy[draw.randrange(24)][draw.randrange(12)] = draw.choice(words)
        rows.append(
            json.dumps({"id": str(number), "text": "\n".join(map(" ".join, copy))})
            + "\n"
        )
    (tmp_path / "pages.jsonl").write_text("".join(rows), encoding="utf-8")
    source = json.dumps([{"path": str(tmp_path / "pages.jsonl")}])
    recipe = recipe_for(
        tmp_path / "run",
        f"ingest.sources={source}",
        "compose.sequences=20",
        "compose.target_tokens=8192",
    )
    with pytest.raises(CorpusError) as error:
        pipeline.run(recipe)
    assert error.value.where == "compose.target_tokens"
    assert "ingest.dedup: minhash" in error.value.fix
    (folder,) = (tmp_path / "run").glob("*-draft-*")
    drafted = runner.open_done("draft", folder)
    assert total(drafted, "drafts") == 0


def lines_of(draw, count, *, words, topic=""):
    """Lines of invented words; those of one topic share no word with others."""
    names = [f"{topic}w{number}" for number in range(400)]
    return [" ".join(draw.choices(names, k=words)) for _ in range(count)]


def recipe_over(folder, texts, *overrides):
    rows = [json.dumps({"id": str(n), "text": text}) for n, text in enumerate(texts)]
    (folder / "c.jsonl").write_text("\n".join(rows), encoding="utf-8")
    plain = {
        "run_dir": str(folder / "run"),
        "executor": "serial",
        "ingest": {"sources": [{"path": str(folder / "c.jsonl")}]},
        "chunk": {"max_chars": 256},
        "encoder": {"lsa": {"dimensions": 16}},
        "tokenizer": {"train": 512},
        "export": {"formats": ["arrow"]},
    }
    return nextlong.Recipe.from_dict(plain, overrides=overrides)


def candidates_of(done):
    return done["mine"].manifest["config"]["neighbours"]


def dropped_of(done):
    return dict(
        sum(
            (Counter(part["dropped"]) for part in counts_of(done["compose"])), Counter()
        )
    )


@pytest.mark.parametrize("sequences", [2, "all"])
def test_short_texts_get_as_many_candidates_as_fill_a_sequence(tmp_path, sequences):
    draw = random.Random(3)
    short = lines_of(draw, 4000, words=4)
    long = ["\n".join(lines_of(draw, 6, words=12)) for _ in range(10)]
    target = 24_000
    done, lines = run(
        recipe_over(
            tmp_path,
            [*short, *long],
            f"compose.target_tokens={target}",
            f"compose.sequences={sequences}",
        )
    )
    sequences_made = total(done["compose"], "sequences")
    assert sequences_made >= 2 if sequences == 2 else sequences_made == 10
    assert dropped_of(done) == {}
    chunks = total(done["chunk"], "chunks")
    chunk_chars = total(done["chunk"], "chars") / chunks
    assert candidates_of(done) > target * 4 / chunk_chars
    assert not [line for line in lines if "candidates" in line]


def test_more_candidates_are_searched_for_where_the_nearest_ones_do_not_suffice(
    tmp_path, monkeypatch
):
    """The chunks of one topic are shorter than the mean chunk of the corpus."""
    monkeypatch.setattr(keys, "_FEWEST_CANDIDATES", 16)
    draw = random.Random(3)
    short = lines_of(draw, 800, words=2, topic="a")
    long = ["\n".join(lines_of(draw, 8, words=6, topic="a")) for _ in range(8)]
    others = ["\n".join(lines_of(draw, 8, words=40, topic="b")) for _ in range(150)]
    done, lines = run(
        recipe_over(
            tmp_path,
            [*short, *long, *others],
            "compose.target_tokens=2048",
            "compose.sequences=all",
        )
    )
    told = [line for line in lines if "candidates" in line]
    asked = [re.search(r"searching for ([\d,]+) candidates", line)[1] for line in told]
    assert asked
    assert candidates_of(done) == int(asked[-1].replace(",", ""))
    assert dropped_of(done).keys() <= {DropReason.TOO_LONG}
    assert len([*(tmp_path / "run").glob("*-meta_documents-*")]) == 1


def test_more_candidates_are_searched_for_behind_those_that_are_mostly_copies(
    tmp_path, monkeypatch
):
    """The nearest chunks of each document are copies of one, but not those behind them."""
    monkeypatch.setattr(keys, "_FEWEST_CANDIDATES", 16)
    draw = random.Random(3)
    words = [f"w{number}" for number in range(24)]
    copies = []
    for number in range(455):
        copy = words.copy()
        copy[draw.randrange(24)] = f"c{number}"
        copies.append(" ".join(copy))
    long = [
        "\n".join(" ".join(draw.sample(words, 24)) for _ in range(4)) for _ in range(6)
    ]
    others = lines_of(draw, 700, words=24)
    done, lines = run(
        recipe_over(
            tmp_path,
            [*copies, *long, *others],
            "compose.target_tokens=4096",
            "compose.sequences=all",
        )
    )
    assert total(done["draft"], "near_duplicates") > 0
    assert [line for line in lines if "candidates" in line]
    assert total(done["compose"], "sequences") == 6


def test_a_number_of_candidates_in_the_recipe_is_kept_and_named(tmp_path):
    draw = random.Random(3)
    texts = ["\n".join(lines_of(draw, 8, words=12)) for _ in range(60)]
    with pytest.raises(CorpusError, match=r"mine\.candidates=8\b"):
        run(
            recipe_over(
                tmp_path, texts, "mine.candidates=8", "compose.target_tokens=4096"
            )
        )


def test_documents_dropped_for_their_length_are_not_taken_for_copies(tmp_path):
    """All end in the same lines, which are near-duplicates; most fill a sequence alone."""
    draw = random.Random(3)
    foot = lines_of(draw, 1, words=30)
    long = ["\n".join([*lines_of(draw, 24, words=6), *foot]) for _ in range(120)]
    short = ["\n".join(lines_of(draw, 6, words=6)) for _ in range(5)]
    done, _ = run(
        recipe_over(
            tmp_path,
            [*long, *short],
            "compose.target_tokens=512",
            "compose.sequences=2",
            "chunk.max_chars=128",
        )
    )
    assert total(done["compose"], "sequences") >= 2
    assert total(done["draft"], "near_duplicates") > 0


@pytest.fixture
def short_lengths_are_checked(monkeypatch):
    """Documents are checked at the length of these sequences rather than at 128K tokens."""
    monkeypatch.setattr(keys, "_SHARED_TOKENS", 1)


@pytest.mark.usefixtures("short_lengths_are_checked")
def test_a_document_longer_than_a_sequence_is_counted_and_not_searched_for(tmp_path):
    draw = random.Random(3)
    pages = ["\n".join(lines_of(draw, 9, words=12)) for _ in range(40)]
    book = "\n".join(lines_of(draw, 900, words=12))
    overrides = ["compose.target_tokens=2048", "compose.sequences=all"]
    done, _ = run(recipe_over(tmp_path, [*pages, book], *overrides))
    assert total(done["compose"], "sequences") == len(pages)
    of_pages = done["meta_documents"].result(DrawResult).meta_chunks
    assert total(done["mine"], "queries") == of_pages < 5 * len(pages)
    assert dropped_of(done) == {}
    assert Attempt(done).dropped == {DropReason.TOO_LONG: 1}
    (example,) = dropped_examples(done)[DropReason.TOO_LONG]
    assert example.startswith("40 (")
    yields = measure(nextlong.open(tmp_path / "run")).yields
    assert yields.dropped == {DropReason.TOO_LONG: 1}
    assert yields.drafts == yields.kept + yields.spare + yields.untried + 1


@pytest.mark.usefixtures("short_lengths_are_checked")
@pytest.mark.parametrize("filler", ["=" * 40_000, " " * 40_000, "-=" * 20_000])
def test_a_document_of_many_characters_and_few_tokens_makes_a_sequence(
    tmp_path, filler
):
    draw = random.Random(3)
    pages = ["\n".join(lines_of(draw, 9, words=12)) for _ in range(40)]
    own = lines_of(draw, 2, words=30)
    unusual = "\n".join([own[0] + filler, own[1]])
    tokenizer = train_bpe([filler, *pages], vocab_size=400)
    (tmp_path / "tokenizer.json").write_text(tokenizer.to_str())
    done, _ = run(
        recipe_over(
            tmp_path,
            [*pages, unusual],
            "compose.target_tokens=2048",
            "compose.sequences=all",
            "chunk.oversize=keep",
            "tokenizer.train=null",
            f"tokenizer.source={tmp_path / 'tokenizer.json'}",
            "tokenizer.chars_per_token=2",
        )
    )
    assert "tokenizer" in done["meta_documents"].manifest["inputs"]
    assert DropReason.TOO_LONG not in Attempt(done).dropped
    opened = nextlong.open(tmp_path / "run")
    extended = {sequence.spans[0].source_id for sequence in opened.sequences()}
    assert "40" in extended


def test_another_length_shares_the_search_where_no_document_is_too_long(tmp_path):
    draw = random.Random(3)
    pages = ["\n".join(lines_of(draw, 9, words=12)) for _ in range(40)]
    folders = []
    for tokens in (1024, 2048):
        done, _ = run(
            recipe_over(
                tmp_path,
                pages,
                f"compose.target_tokens={tokens}",
                "compose.sequences=4",
            )
        )
        folders.append(done["mine"].folder)
    assert folders[0] == folders[1]


def run_command(recipe, tmp_path, capsys):
    (tmp_path / "r.yaml").write_text(recipe.dump())
    code = main(["run", str(tmp_path / "r.yaml")])
    out, err = capsys.readouterr()
    return (
        code,
        next((line for line in out.splitlines() if line.startswith("sequences:")), ""),
        err,
    )


@pytest.fixture
def few(small_corpus):
    """What makes the corpus a quarter of it."""
    return f"ingest.sources.0.path={small_corpus / '0.jsonl'}"


def test_all_that_can_be_made_says_what_fell_out_and_why(
    recipe_for, few, tmp_path, capsys
):
    recipe = recipe_for(
        tmp_path / "run", few, "compose.sequences=all", "compose.max_uses=1"
    )
    code, told, _ = run_command(recipe, tmp_path, capsys)
    assert code == 0
    assert "(38 of 65 documents " in told
    assert f"dropped: {DropReason.TOO_FEW_NEGATIVES}, " in told
    assert "compose.max_uses=1 times" in told


@pytest.mark.parametrize(
    "method",
    [
        "knn",
        *thorough("standard", "iclm", "quest", "splice", "untie_the_knots", "litelong"),
    ],
)
def test_fewer_than_asked_is_never_without_a_reason(
    recipe_for, few, tmp_path, capsys, method
):
    recipe = recipe_for(
        tmp_path / "run",
        few,
        f"compose.method={method}",
        "compose.sequences=5000",
        "compose.target_tokens=2048",
    )
    code, told, _ = run_command(recipe, tmp_path, capsys)
    assert code == 0
    assert "compose.sequences=5,000 (65 documents " in told
    assert "()" not in told


@pytest.mark.thorough
def test_a_corpus_of_few_texts_ends_with_the_reason_and_not_with_every_document(
    tmp_path, capsys
):
    draw = random.Random(1)
    paragraphs = [
        " ".join(f"w{draw.randrange(500)}" for _ in range(60)) for _ in range(5)
    ]
    texts = [
        f"Document {number}\n" + "\n".join(draw.choices(paragraphs, k=2))
        for number in range(200)
    ]
    (tmp_path / "c.jsonl").write_text(
        "".join(json.dumps({"text": text}) + "\n" for text in texts)
    )
    recipe = nextlong.Recipe.from_dict(
        {
            "run_dir": str(tmp_path / "run"),
            "executor": "serial",
            "ingest": {"sources": [{"path": str(tmp_path / "c.jsonl")}]},
            "chunk": {"max_chars": 256},
            "encoder": {"lsa": {"dimensions": 16}},
            "tokenizer": {"train": 512},
            "mine": {"candidates": 64},
            "compose": {"sequences": 100, "target_tokens": 2048},
        }
    )
    code, _, err = run_command(recipe, tmp_path, capsys)
    assert code == 2
    assert "200 of 200 documents " in err
    assert "; 133 of them " in err
    assert f" dropped: {DropReason.TOO_FEW_CANDIDATES}, such as c.jsonl:" in err
    assert "filtered out" in err
    assert "ingest.dedup: minhash" in err
