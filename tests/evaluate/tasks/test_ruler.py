"""RULER: an oracle scores 100 and a blind model 0, at every length and for any
tokenizer."""

import random
import re
from collections import Counter
from functools import partial
from itertools import islice
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.answering_models import Blind, Oracle
from tests.support.evaluation_data import TOKENIZERS, word_tokenizer, write, write_data

from nextlong.errors import EvaluateError
from nextlong.evaluate.data import DataFiles
from nextlong.evaluate.registry import all_tasks
from nextlong.evaluate.task import Sample, TaskRequest, TextTokenizer
from nextlong.evaluate.tasks import ruler
from nextlong.evaluate.tasks.ruler import _FORMS, _fitting, _largest, _needle_question

RULER = [name for name, task in all_tasks().items() if task.suite == "ruler"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return DataFiles(write_data(tmp_path_factory.mktemp("data")))


def made(name, data, backend, *, length, samples=3):
    request = TaskRequest(length, TextTokenizer(backend), data, samples)
    return list(islice(all_tasks()[name].make(request), samples))


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("kind", "length"),
    [("bytes", 24_576), ("unigram", 8192), ("bpe", 8192), ("bpe", 20_000)],
)
@pytest.mark.parametrize("name", RULER)
def test_an_oracle_scores_all_and_a_blind_model_nothing(name, length, kind, data):
    backend = TOKENIZERS[kind]()
    task, oracle, blind = all_tasks()[name], Oracle(backend), Blind(backend)
    samples = made(name, data, backend, length=length, samples=2)
    assert len(samples) == 2
    for sample in samples:
        tokens = oracle.tokenizer.count(sample.text)
        assert tokens + sample.max_new_tokens <= length
        assert task.score(oracle.read(sample.text), sample)[task.metric] == 1.0
        assert task.score(blind.read(sample.text), sample)[task.metric] == 0.0


@pytest.mark.heavy
@pytest.mark.parametrize(
    "name", ["niah_single_1", "vt", "cwe", "fwe", "niah_multikey_3"]
)
def test_the_length_is_used(name, data):
    """The context is the largest that fits, so that a longer question is a longer context."""
    tokenizer = TextTokenizer(TOKENIZERS["bpe"]())
    for length in (12_000, 24_000):
        (sample,) = made(name, data, tokenizer.backend, length=length, samples=1)
        assert tokenizer.count(sample.text) + sample.max_new_tokens > 0.75 * length


@pytest.mark.heavy
def test_a_length_without_room_is_refused(data):
    with pytest.raises(EvaluateError) as error:
        made("vt", data, word_tokenizer(), length=512)
    assert error.value.where == "--lengths"
    assert "1,024 tokens" in error.value.problem


WORDS = SimpleNamespace(count=lambda text: len(text.split()))


def request(length):
    return TaskRequest(length, WORDS, None)


def built(size, *, question=3, budget=0):
    return Sample("w " * (size + question), ("x",), budget, "A:")


@given(length=st.integers(1, 400), budget=st.integers(0, 20), upper=st.integers(1, 500))
def test_the_largest_context_that_fits_is_found(length, budget, upper):
    fits = [size for size in range(1, upper + 1) if size + 4 + budget <= length]
    found = _largest(
        request(length), partial(built, budget=budget), upper=upper, step=1
    )
    assert found == max(fits, default=1)


@given(length=st.integers(20, 4000))
def test_the_bound_is_above_what_fits(length):
    assert _largest(request(length), built, step=5) == _largest(
        request(length), built, upper=length, step=5
    )


@given(size=st.integers(1, 60), step=st.integers(1, 9), length=st.integers(10, 60))
def test_a_sample_takes_steps_less_until_it_fits(size, step, length):
    (sample,) = _fitting(
        request(length), [partial(built, budget=2)], size=size, step=step
    )
    fits = [used for used in range(size, 0, -step) if used + 6 <= length]
    assert (sample is None) == (not fits)
    if sample is not None:
        assert WORDS.count(sample.text) == max(fits) + 4


def test_it_ends_where_there_are_no_more_questions_and_goes_on_behind_one_that_never_fits():
    builds = [lambda _, size=size: built(size) for size in (1, 99, 1)]
    made = _fitting(request(20), builds, size=1, step=1)
    assert [sample is None for sample in made] == [False, True, False]


ESSAY = ("The tide came in. A ship sailed out. " * 60).split()


VALUES = {"numbers": r"\d{7}", "uuids": r"[0-9a-f-]{36}", "words": r"\S+"}


@pytest.mark.heavy
@pytest.mark.parametrize("name", _FORMS)
@pytest.mark.parametrize("seed", [1, 42])
def test_the_answers_are_the_values_of_the_keys_that_are_asked_for(
    name, seed, monkeypatch
):
    monkeypatch.setattr(
        ruler, "_hyphenated", lambda: [f"sea-{n}" for n in range(10_000)]
    )
    form = _FORMS[name]
    built = _needle_question(
        60, form=form, draw=random.Random(seed), seed=seed, essay=ESSAY
    )
    context, _, question = built.prompt.rpartition("\nWhat ")
    found = re.findall(
        rf"special magic {form.value_kind} for (\S+) is: ({VALUES[form.value_kind]})\.",
        context,
    )
    asked = [
        (key, value)
        for key, value in found
        if re.search(rf"\b{re.escape(key)}\b", question)
    ]
    assert len({key for key, _ in asked}) == form.queries
    assert len(asked) == form.queries * form.values
    assert {value for _, value in asked} == set(built.references)


@pytest.mark.parametrize("seed", [1, 42])
def test_the_answers_are_the_variables_that_have_the_value(seed):
    request = TaskRequest(1024, TextTokenizer(word_tokenizer()), None, seed=seed)
    for sample in islice(all_tasks()["vt"].make(request), 3):
        question = sample.prompt.rpartition("Memorize and track")[
            2
        ]  # behind the example
        held = {}
        for name, source in re.findall(r"VAR (\w+) = (?:VAR )?(\w+)", question):
            held[name] = held.get(source, source)
        (value,) = re.findall(r"assigned the value (\d+)", question)
        assert sorted(sample.references) == sorted(
            name for name, own in held.items() if own == value
        )
        assert len(sample.references) == 5


@pytest.mark.heavy
def test_cwe_needs_its_word_list_where_wonderwords_end(tmp_path):
    with pytest.raises(
        EvaluateError,
        match=r"cwe at 200,000 tokens needs more than 8,\d+ different words, and ruler/english_words",
    ):
        made("cwe", DataFiles(tmp_path), word_tokenizer(), length=200_000)


@pytest.mark.heavy
def test_the_answers_are_the_most_frequent_words_behind_the_dots():
    request = TaskRequest(2048, TextTokenizer(word_tokenizer()), None)
    for sample in islice(all_tasks()["fwe"].make(request), 3):
        text = sample.prompt.partition("coded words. ")[2].partition("\nQuestion")[0]
        counts = Counter(text.split()).most_common(4)
        assert counts[0][0] == "..."
        assert {word for word, _ in counts[1:]} == set(sample.references)
        assert request.fits(sample)


@pytest.mark.heavy
def test_a_missing_file_is_named_with_its_source(tmp_path):
    with pytest.raises(EvaluateError, match=r"SQuAD 2\.0") as error:
        made("qa_1", DataFiles(tmp_path), word_tokenizer(), length=4096)
    assert error.value.where == str(tmp_path / "ruler/squad.json")


@pytest.mark.heavy
def test_essays_are_repeated_where_they_are_too_short(tmp_path):
    write(tmp_path / "ruler/essays.txt", "Tide and anchor. " * 300)
    essay = ruler.essay_words(DataFiles(tmp_path))
    (sample,) = made(
        "niah_single_2", DataFiles(tmp_path), word_tokenizer(), length=4096, samples=1
    )
    assert len(sample.text.split()) > 2 * len(essay)


@pytest.mark.heavy
def test_hyphenated_words_are_those_of_a_sorted_set():
    adjectives, nouns = (
        ["self", "self-made", "a", "a-b", "zealous"],
        ["made-up", "b-c", "c", "c", "up", "made"],
    )
    assert list(ruler._Hyphenated(adjectives, nouns)) == sorted(
        {f"{one}-{two}" for one in adjectives for two in nouns}
    )
