"""Arguments: what is no number, path, word or list is refused with place, value and fix."""

from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import nextlong
from nextlong import arguments
from nextlong.errors import ArgumentError
from tests.support.odd_arguments import accepted

TEXTS = [f"a few words, {number}. " * 9 for number in range(3)]


def whole(value, **limits):
    return arguments.whole_number(value, "rows", fix="give rows", **limits)


@pytest.mark.parametrize("value", [2, np.int64(2), np.uint8(2), np.array(2)])
def test_a_whole_number_is_a_plain_int_whatever_it_was(value):
    assert type(whole(value)) is int
    assert whole(value) == 2


@pytest.mark.parametrize(
    ("value", "limits", "problem"),
    [
        (2.0, {}, "rows=2.0 is not a whole number"),
        (np.float64(2), {}, "is not a whole number"),
        (True, {}, "rows=True is not a whole number"),
        ("2", {}, "rows='2' is not a whole number"),
        (-1, {}, "rows=-1 is below 0"),
        (4, {"max_value": 3}, "rows=4 is above 3"),
        (2**63, {}, "is above 9223372036854775807"),
    ],
)
def test_a_wrong_whole_number_is_told_with_its_name_value_and_fix(
    value, limits, problem
):
    with pytest.raises(ArgumentError, match=problem) as refused:
        whole(value, **limits)
    assert str(refused.value).endswith("; give rows")


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.array(0.5), 0.5),
        (Fraction(1, 3), Fraction(1, 3)),
        (Decimal("0.1"), Decimal("0.1")),
    ],
)
def test_a_number_stays_as_exact_as_it_was_given(value, number):
    assert arguments.number(value, "mix[0]", fix="give a number") == number


@pytest.mark.parametrize("value", ["0.5", None, float("inf"), [1], np.array([1])])
def test_what_is_no_finite_number_is_refused(value):
    with pytest.raises(ArgumentError) as refused:
        arguments.number(value, "mix[0]", fix="give one")
    assert (refused.value.where, refused.value.fix) == ("mix[0]", "give one")


def test_a_long_value_is_shown_in_one_short_line():
    with pytest.raises(ArgumentError) as refused:
        whole(np.arange(9_000).reshape(90, 100))
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 150


# The functions of the package: whatever is passed, a NextlongError or a result.


@pytest.mark.parametrize(
    ("call", "takes"),
    [
        (nextlong.open, set()),
        (nextlong.run, set()),
        (nextlong.Recipe.load, set()),
        (nextlong.Recipe.from_dict, set()),
        (nextlong.chunk_text, {"'x'", "'2'"}),
        (lambda value: nextlong.chunk_text("a b", max_chars=value), set()),
        (lambda value: nextlong.chunk_text("a b", length=value), set()),
        (lambda value: nextlong.chunk_text("a b", oversize=value), set()),
    ],
    ids=[
        "open",
        "run",
        "Recipe.load",
        "Recipe.from_dict",
        "chunk_text",
        "chunk_text-max_chars",
        "chunk_text-length",
        "chunk_text-oversize",
    ],
)
def test_odd_arguments_are_refused(call, takes):
    assert accepted(call) == takes


@pytest.mark.parametrize(
    ("name", "takes"),
    [
        ("meta_chunks", set()),
        ("negatives", set()),
        ("target_tokens", set()),
        ("fit", set()),
        ("min_gap_tokens", set()),
        ("position", set()),
        ("separator", {"[]"}),
        ("bos", {"[]"}),
        ("eos", {"[]"}),
        ("seed", {"-1"}),
    ],
)
def test_odd_arguments_of_compose_are_refused(name, takes):
    usual = {"meta_chunks": [[1, 2]], "negatives": [[[3, 4, 5]]], "target_tokens": 5}
    assert accepted(lambda value: nextlong.compose(**usual | {name: value})) == takes


def test_compose_takes_arrays_and_returns_plain_ids():
    chunks = np.array([[1, 2]])
    composed = nextlong.compose(chunks, chunks[None] + 2, target_tokens=np.int64(4))
    assert composed.input_ids == [1, 2, 3, 4]
    assert {type(token) for token in composed.input_ids} == {int}


@pytest.mark.parametrize(
    "name",
    [
        "tokenizer",
        "seq_len",
        "num_sequences",
        "text",
        "id",
        "folder",
        "settings",
        "progress",
    ],
)
def test_odd_arguments_of_synthesize_are_refused(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    usual = {"seq_len": 4096, "progress": False}  # more tokens than the texts have
    assert (
        accepted(lambda value: nextlong.synthesize(TEXTS, **usual | {name: value}))
        == set()
    )


def test_a_folder_that_is_a_file_is_refused(tmp_path):
    file = tmp_path / f"a-file-with-a-long-name-{'x' * 80}"
    file.touch()
    with pytest.raises(ArgumentError, match="hold folders") as refused:
        nextlong.synthesize(TEXTS, folder=file, progress=False)
    assert f"folder='{file}'" in str(refused.value)


@pytest.mark.parametrize(
    ("name", "takes"), [("reporter", {"None"}), ("changed_inputs", set())]
)
def test_odd_options_of_a_run_are_refused(recipe_for, own_run, name, takes):
    recipe = recipe_for(own_run)
    assert accepted(lambda value: nextlong.run(recipe, **{name: value})) == takes


def test_odd_arguments_of_an_opened_run_are_refused(shared_run):
    run = nextlong.open(Path(shared_run))
    sequence = run.sequence(np.int64(0))
    assert accepted(run.exported) == set()
    assert accepted(lambda value: run.exported("parquet", split=value)) == set()
    assert accepted(sequence.texts_of) == {"[]"}
    with pytest.raises(IndexError):
        run.sequence(-1)
    with pytest.raises(ArgumentError, match="number='2'"):
        run.sequence("2")
    with pytest.raises(ArgumentError, match="is above"):
        sequence.texts_of([len(sequence.spans)])
