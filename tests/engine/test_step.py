"""Artifact: what a finished step tells, checked where it is read."""

import pickle

import pytest
from pydantic import Field

from nextlong.engine.step import (
    Artifact,
    OnlyFile,
    ShardFiles,
    Step,
    StepFiles,
    TaskResult,
    each_shard,
)
from nextlong.errors import RunError


class Sum(TaskResult):
    total: int
    by_letter: dict[str, int] = Field(default_factory=dict)


def done(folder, *counts, closing=None):
    parts = [{"counts": one, "files": {}} for one in counts]
    if closing is not None:
        parts.append({"counts": closing, "files": {}, "closes": True})
    return Artifact("sum", folder, {"parts": parts, "versions": {"nextlong": "0.0.1"}})


def test_results_are_in_task_order_without_that_of_the_task_that_closed_the_step(
    tmp_path,
):
    finished = done(
        tmp_path,
        {"total": 2},
        {"total": 1, "by_letter": {"a": 1}},
        closing={"parts": 2},
    )
    assert finished.results(Sum) == [Sum(total=2), Sum(total=1, by_letter={"a": 1})]


def test_a_step_of_one_task_has_one_result(tmp_path):
    assert done(tmp_path, {"total": 2}).result(Sum) == Sum(total=2)
    with pytest.raises(ValueError, match="unpack"):
        done(tmp_path, {"total": 2}, {"total": 1}).result(Sum)


@pytest.mark.parametrize(
    ("counts", "lacks"),
    [
        ({}, "total"),
        ({"total": "many"}, "total"),
        ({"total": 1, "by_letter": {"a": "x"}}, "by_letter.a"),
    ],
)
def test_what_is_not_as_it_must_be_is_told_with_its_place(tmp_path, counts, lacks):
    with pytest.raises(RunError) as error:
        done(tmp_path, {"total": 1}, counts).results(Sum)
    assert error.value.where == str(tmp_path)
    assert f" {lacks}," in error.value.problem
    assert "0.0.1" in error.value.problem


def test_the_files_of_a_step_pickle_as_a_folder_and_names(tmp_path):
    parts = [
        {"counts": {}, "files": {f"part-{number:05d}.npy": {}}}
        for number in range(1000)
    ]
    files = Artifact("many", tmp_path, {"parts": parts}).files(".npy")
    stored = pickle.dumps(files)
    assert pickle.loads(stored) == files
    assert pickle.dumps(pickle.loads(stored)) == stored
    assert len(stored) < len(pickle.dumps(list(files))) * 0.7
    assert (
        pickle.loads(
            pickle.dumps(Artifact("none", tmp_path, {"parts": []}).files(".npy"))
        )
        == []
    )


def test_a_task_for_each_shard_gets_the_files_of_that_shard_in_numerical_order(
    tmp_path,
):
    def step(name, *files):
        parts = [{"counts": {}, "files": dict.fromkeys(files)}]
        return Step(name, 1, {}, (), lambda _: []), Artifact(
            name, tmp_path, {"parts": parts}
        )

    (texts, of_texts), (bounds, of_bounds) = (
        step("texts", "10.txt", "9.txt"),
        step("bounds", "10.npy", "9.npy", "x.json"),
    )
    tasks = each_shard(
        print, text=(texts, ShardFiles(".txt")), ends=(bounds, ShardFiles(".npy"))
    )({"texts": of_texts, "bounds": of_bounds})
    assert [task.keywords for task in tasks] == [
        {"text": tmp_path / f"{number}.txt", "ends": tmp_path / f"{number}.npy"}
        for number in (9, 10)
    ]
    with pytest.raises(ValueError, match="shorter"):
        each_shard(
            print, text=(texts, ShardFiles(".txt")), ends=(bounds, ShardFiles(".json"))
        )({"texts": of_texts, "bounds": of_bounds})


class LetterFiles(StepFiles):
    step = "letters"
    letters = ShardFiles(".txt")
    counts = OnlyFile(".json")


def test_the_files_of_a_step_are_asked_for_by_the_names_that_it_declares(tmp_path):
    parts = [
        {"counts": {}, "files": dict.fromkeys(["1.txt", "1.json"])},
        {"counts": {}, "files": {"0.txt": None}},
    ]
    artifact = Artifact("letters", tmp_path, {"parts": parts})
    files = LetterFiles.of({"letters": artifact})
    assert files.letters == [tmp_path / "0.txt", tmp_path / "1.txt"]
    assert files.counts == tmp_path / "1.json"
    assert LetterFiles.letters.of(artifact) == files.letters
