"""Sequences whose meta-chunks do not need the earlier ones are dropped, and every number is kept."""

import math

import numpy as np
import pyarrow as pa
import pytest
from tests.support.copying_model import CopyingModel

import nextlong
from nextlong import checks, schemas
from nextlong.artifacts.results import ComposeFiles
from nextlong.cli import main as cli_main
from nextlong.errors import CorpusError, RecipeError
from nextlong.recipe.keys import Scorer
from nextlong.report.page import write as report
from nextlong.runs.card import card_numbers
from nextlong.runs.statistics import dependence as statistics
from nextlong.runs.statistics.measure import measure
from nextlong.schemas import CONTEXT, DOCUMENT, META, NEGATIVE, SEPARATOR
from nextlong.sequences import verify_dependence
from nextlong.sequences.dependence import Dependence, dependence, score_meta_chunks
from nextlong.sequences.verify_dependence import DependenceFiles, Unrelated

MIN_GAIN = 2.0
SIZES = (
    "executor=serial",
    "compose.sequences=6",
    "compose.target_tokens=1024",
    "scorer.model=tests/copying",
)


@pytest.fixture(scope="module")
def runs(recipe_for, started, tmp_path_factory):
    """A run that is filtered by its dependence, by a model that copies, and one that is not; read-only."""
    folder = started(tmp_path_factory.mktemp("dependence") / "run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify_dependence, "load_scorer", lambda _: CopyingModel())
        patch.setattr(checks, "check_scorer", lambda *_, **__: None)
        filtered = nextlong.run(
            recipe_for(folder, *SIZES, f"compose.verify_dependence={MIN_GAIN}")
        )
    return filtered, nextlong.run(recipe_for(folder, *SIZES))


def stored(run):
    rows = []
    for path in DependenceFiles.of(run.steps).dependence:
        with pa.ipc.open_file(pa.memory_map(str(path))) as reader:
            rows += reader.read_all().to_pylist()
    return rows


def sequence_ids(step):
    names = []
    for path in ComposeFiles(step).sequences:
        with pa.ipc.open_file(pa.memory_map(str(path))) as reader:
            names += reader.read_all().column("sequence_id").to_pylist()
    return names


def naive_gain(row):
    """The mean over all tokens of all meta-chunks, from the numbers of each."""
    total = sum(
        gain * tokens
        for gain, tokens in zip(row["gain"], row["tokens"], strict=True)
        if tokens
    )
    return total / sum(row["tokens"]) if any(row["tokens"]) else math.nan


def test_only_sequences_above_the_minimum_are_kept(runs):
    filtered, _ = runs
    rows = stored(filtered)
    assert [row["sequence_id"] for row in rows] == sequence_ids(
        filtered.steps["composed"]
    )
    kept = [row["sequence_id"] for row in rows if naive_gain(row) > MIN_GAIN]
    assert kept == sequence_ids(filtered.steps["compose"])
    assert [row["is_kept"] for row in rows] == [
        naive_gain(row) > MIN_GAIN for row in rows
    ]
    assert 0 < len(kept) < len(rows)
    dropped = measure(filtered).yields.dropped
    assert dropped[schemas.DropReason.NO_DEPENDENCE] == len(rows) - len(kept)


def test_the_stored_numbers_are_those_of_the_texts(runs):
    filtered, _ = runs
    numbers = {row["sequence_id"]: row for row in stored(filtered)}
    for sequence in filtered.sequences():
        used = {span.doc_id for span in sequence.spans}
        metas = [span for span in sequence.spans if span.role == "meta"]
        chars = sum(span.char_end - span.char_start for span in metas)
        text = verify_dependence.SequenceText(
            texts=sequence.texts,
            roles=[schemas.ROLES.index(span.role) for span in sequence.spans],
            unrelated=Unrelated(filtered.corpus).text(
                used, chars=1.5 * chars, key=sequence.id
            ),
        )
        (chunks,) = score_meta_chunks(CopyingModel(), [text])
        row = numbers[sequence.id]
        found = [
            Dependence(*values)
            for values in zip(row["tokens"], row["gain"], row["gap"], strict=True)
        ]
        expected = [dependence(chunk) for chunk in chunks]
        assert len(found) == len(metas) - 1
        for mine, theirs in zip(found, expected, strict=True):
            assert (mine.tokens, mine.gap) == (theirs.tokens, theirs.gap)
            assert mine.gain == pytest.approx(theirs.gain, nan_ok=True)


def test_a_filtered_run_passes_verify_and_tells_its_dependence(runs, capsys):
    filtered, plain = runs
    assert cli_main.main(["verify", str(filtered)]) == 0
    found = measure(filtered).dependence
    rows = stored(filtered)
    assert (found.model, found.min_gain) == ("tests/copying", MIN_GAIN)
    assert found.sequences == len(rows)
    assert found.kept == sum(row["is_kept"] for row in rows)
    gains = [gain for gain in map(naive_gain, rows) if not math.isnan(gain)]
    assert found.gain.mean == pytest.approx(np.mean(gains), abs=0.01)
    error = np.std(gains, ddof=1) / math.sqrt(len(gains))
    assert found.standard_error == pytest.approx(error)
    assert sum(gap.meta_chunks for gap in found.by_gap) == found.tokens.count
    for gap in found.by_gap:
        inside = [
            (tokens, gain)
            for row in rows
            for tokens, gain, distance in zip(
                row["tokens"], row["gain"], row["gap"], strict=True
            )
            if gap.low <= distance <= gap.high
        ]
        assert (len(inside), sum(tokens for tokens, _ in inside)) == (
            gap.meta_chunks,
            gap.tokens,
        )
    assert (
        "tests/copying" in card_numbers(measure(filtered))["gain of the earlier text"]
    )
    assert "Gain of the earlier text" in report.page([filtered])
    assert measure(plain).dependence is None
    assert "Gain of the earlier text" not in report.page([plain])


def test_stats_measure_a_finished_run_without_filtering_it(runs, capsys, monkeypatch):
    filtered, plain = runs
    monkeypatch.setattr(statistics, "SurprisalModel", lambda _: named_model())
    found = statistics.measure_dependence(filtered, Scorer(model="x"))
    kept = [row for row in stored(filtered) if row["is_kept"]][: len(filtered)]
    gains = list(map(naive_gain, kept))
    assert (found.sequences, found.kept, found.min_gain) == (len(kept), len(kept), None)
    assert found.gain.mean == pytest.approx(np.mean(gains), abs=0.01)
    before = len(plain)
    assert cli_main.main(["stats", str(plain), "--dependence", "x"]) == 0
    printed = capsys.readouterr().out
    assert "gain, nats: mean" in printed
    assert len(nextlong.open(str(plain))) == before


def named_model():
    model = CopyingModel()
    model.name = "copying"
    return model


def test_without_meta_chunks_later_documents_take_their_place(
    runs, recipe_for, monkeypatch
):
    _, plain = runs
    standard = nextlong.run(
        recipe_for(plain.path, "compose.method=standard", "compose.sequences=2")
    )
    monkeypatch.setattr(statistics, "SurprisalModel", lambda _: named_model())
    found = statistics.measure_dependence(standard, Scorer(model="x"))
    later = 0
    for sequence in standard.sequences():
        later += len({span.doc_id for span in sequence.spans if span.doc_id >= 0}) - 1
    assert found.tokens.count == later > 0


def test_the_chunks_of_a_document_are_one_part_and_contexts_are_none():
    roles = [CONTEXT, SEPARATOR, DOCUMENT, SEPARATOR, DOCUMENT, NEGATIVE, DOCUMENT]
    texts, parts = verify_dependence._document_parts(
        ["c", ";", "d1", ",", "d2", "n", "e"],
        np.array(roles),
        np.array([7, -1, 1, -1, 1, 8, 2]),
    )
    assert texts == ["c", ";", "d1,d2", "n", "e"]
    assert parts == [CONTEXT, SEPARATOR, META, NEGATIVE, META]


@pytest.mark.parametrize(
    ("override", "where"),
    [
        ("compose.method=standard", "compose.verify_dependence"),
        ("scorer.model=null", "scorer.model"),
    ],
)
def test_what_cannot_be_verified_is_refused_before_anything_runs(
    override, where, recipe_for, tmp_path
):
    recipe = recipe_for(
        tmp_path / "run", *SIZES, "compose.verify_dependence=0", override
    )
    with pytest.raises(RecipeError) as error:
        nextlong.run(recipe)
    assert error.value.where == where
    assert not list((tmp_path / "run").glob("*-ingest-*"))


def test_unrelated_text_is_of_other_documents_and_the_same_for_a_key(runs):
    _, plain = runs
    unrelated = Unrelated(plain.corpus)
    texts = {key: unrelated.text(set(), chars=500, key=key) for key in "abcab"}
    assert len(set(texts.values())) == 3
    assert unrelated.text(set(), chars=500, key="a") == texts["a"]
    assert all(len(text) >= 500 for text in texts.values())
    sequence = plain.sequence(0)
    used = {span.doc_id for span in sequence.spans}
    others = unrelated.text(used, chars=3000, key="a").split("\n")
    own = "\n".join(span for span in sequence.texts)
    assert not [line for line in others if len(line) > 60 and line in own]


def test_a_sequence_of_all_documents_is_refused(runs):
    _, plain = runs
    shards = range(len(plain.corpus.chunks))
    # More rows than a shard has documents.
    rows = np.arange(10_000)
    used = {one for shard in shards for one in schemas.pack_ids(shard, rows).tolist()}
    with pytest.raises(CorpusError) as error:
        Unrelated(plain.corpus).text(used, chars=1, key="a")
    assert error.value.where == "sequence a"
