"""Tasks with known answers in the sequences of a run: exact length, share, other sequences unchanged, verified, planted faults."""

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import nextlong
from nextlong.errors import RecipeError
from nextlong.plugins import KNOWN_ANSWERS
from nextlong.rng import rng_for
from nextlong.runs.statistics.measure import measure
from nextlong.verify.checks import verify

LONG = ("compose.target_tokens=4096", "compose.sequences=10")
SHARE = 0.6
WITH_TASKS = (*LONG, f"compose.tasks.share={SHARE}")
# The words of the small corpus are not capitalized, so nothing can be counted in it.
INSERTED = {"coreference", "key_value"}


@pytest.fixture(scope="module")
def made(recipe_for, started, tmp_path_factory):
    """A function of overrides that returns a run with tasks; all share a run directory."""
    run_dir = started(tmp_path_factory.mktemp("tasks") / "run")
    return lambda *overrides: nextlong.run(recipe_for(run_dir, *overrides))


@pytest.fixture(scope="module")
def with_tasks(made):
    return made(*WITH_TASKS)


def has_tasks(sequence):
    return any(span.role == "task" for span in sequence.spans)


def outcomes_of(run):
    return {outcome.check: outcome for outcome in verify(run.path)}


def breaches(outcomes):
    return {name: one.examples for name, one in outcomes.items() if one.breaches}


def test_chosen_sequences_have_every_kind_and_exactly_t_tokens(with_tasks):
    found = {sequence.id: has_tasks(sequence) for sequence in with_tasks.sequences()}
    chosen = {name: rng_for(0, "tasks", name).random() < SHARE for name in found}
    assert found == chosen
    assert 0 < sum(found.values()) < len(found)
    for sequence in with_tasks.sequences():
        assert len(sequence.input_ids) == 4096
        ends = [span.token_end for span in sequence.spans]
        assert [span.token_start for span in sequence.spans] == [0, *ends[:-1]]
        kinds = {
            span.source_id.partition(":")[0]
            for span in sequence.spans
            if span.role == "task"
        }
        assert kinds == (INSERTED if found[sequence.id] else set())


def test_tasks_are_between_the_first_and_the_last_meta_chunk(with_tasks):
    for sequence in with_tasks.sequences():
        roles = [span.role for span in sequence.spans]
        if "task" in roles:
            first = roles.index("meta")
            last = len(roles) - 1 - roles[::-1].index("meta")
            places = [place for place, role in enumerate(roles) if role == "task"]
            assert first < min(places)
            assert max(places) < last


def test_the_text_of_a_sequence_is_what_its_ids_decode_to(with_tasks):
    sequence = next(filter(has_tasks, with_tasks.sequences()))
    decoded = with_tasks.tokenizer.decode(sequence.input_ids.tolist())
    assert decoded == sequence.text


def test_other_sequences_are_those_of_a_run_without_tasks(with_tasks, made):
    plain = {sequence.id: sequence for sequence in made(*LONG).sequences()}
    for sequence in with_tasks.sequences():
        same = np.array_equal(sequence.input_ids, plain[sequence.id].input_ids)
        assert same != has_tasks(sequence)


def test_a_run_without_tasks_is_known_by_the_same_hash_as_before(made):
    config = made(*LONG).steps["compose"].manifest["config"]
    assert "tasks" not in config


@pytest.mark.parametrize(
    "overrides",
    [
        ("compose.position=tail",),
        ("compose.position=random", "compose.tasks.kinds=[key_value]"),
        ("compose.fit=paper",),
        ('compose.separator=""', "compose.max_uses=3"),
        ("tokenizer.eos=<|endoftext|>",),
    ],
)
def test_every_answer_is_recomputed(made, tmp_path, overrides):
    run = made(*WITH_TASKS, *overrides)
    assert any(map(has_tasks, run.sequences()))
    outcomes = {one.check: one for one in verify(Path(run.variant.named))}
    assert not breaches(outcomes)
    assert outcomes["answers recomputed"].checked > 0


def test_statistics_count_the_tasks(with_tasks):
    counted = measure(with_tasks).tasks
    spans = [
        span
        for sequence in with_tasks.sequences()
        for span in sequence.spans
        if span.role == "task"
    ]
    assert counted.sequences == sum(map(has_tasks, with_tasks.sequences()))
    assert sum(counted.texts.values()) == len(spans)
    assert set(counted.texts) == INSERTED
    assert measure(with_tasks).tokens.by_role["task"] == sum(
        span.length for span in spans
    )


def test_a_wrong_answer_is_found(recipe_for, started, tmp_path):
    run = nextlong.run(recipe_for(started(tmp_path / "run"), *WITH_TASKS))
    folder = run.steps["compose"].folder
    changed = 0
    for path in sorted(folder.glob("*.documents.arrow")):
        with pa.ipc.open_file(path) as reader:
            table = reader.read_all()
        texts = table.column("text").to_pylist()
        for row, text in enumerate(texts):
            if "?" in text:
                words = text.split()
                texts[row] = text.replace(words[-1], "bwabwabwabwa.")
                changed += 1
        column = table.schema.get_field_index("text")
        table = table.set_column(
            column, table.schema.field(column), pa.array(texts, pa.large_string())
        )
        with (
            pa.OSFile(str(path), "wb") as sink,
            pa.ipc.new_file(sink, table.schema) as writer,
        ):
            writer.write_table(table)
    assert changed
    assert "answers recomputed" in breaches(outcomes_of(run))


def test_too_little_room_leaves_the_sequence_as_it_is(made):
    short = ("compose.target_tokens=1024", "compose.sequences=6")
    run = made(*short, "compose.tasks.share=1")
    counted = measure(run).tasks
    assert counted.without_room > 0
    assert len(run) == 6
    plain = {one.id: one for one in made(*short).sequences()}
    for sequence in run.sequences():
        if not has_tasks(sequence):
            assert np.array_equal(sequence.input_ids, plain[sequence.id].input_ids)


def test_a_method_without_meta_chunks_is_refused(recipe_for, tmp_path):
    with pytest.raises(RecipeError) as caught:
        recipe_for(tmp_path, "compose.method=standard", "compose.tasks.share=0.1")
    assert "compose.tasks.share" in str(caught.value)


def test_an_unknown_kind_is_refused(recipe_for, tmp_path):
    with pytest.raises(RecipeError) as caught:
        recipe_for(tmp_path, "compose.tasks.kinds=[riddles]")
    assert "riddles" in str(caught.value)


def test_built_in_kinds_are_the_modules_of_the_folder():
    assert {"coreference", "counting", "key_value"} <= set(KNOWN_ANSWERS.built_in)


def test_workers_write_the_same_bytes(recipe_for, started, hashes_of, tmp_path):
    hashes = []
    for number, executor in enumerate(("serial", "local")):
        run_dir = started(tmp_path / f"run{number}")
        nextlong.run(recipe_for(run_dir, *WITH_TASKS, f"executor={executor}"))
        (folder,) = run_dir.glob("*-compose-*")
        hashes.append(hashes_of(folder))
        shutil.rmtree(run_dir)
    assert hashes[0] == hashes[1]
