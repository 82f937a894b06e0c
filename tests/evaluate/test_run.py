"""A run: one file a task and length; killed and resumed it gives what an uninterrupted one does; bad input is told with its
cure."""

import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from tests.support.answering_models import Blind, Oracle, asked
from tests.support.evaluation_data import word_tokenizer, write
from tests.support.killed import kill_at

from nextlong.errors import EvaluateError, RunError
from nextlong.evaluate import results
from nextlong.evaluate.probe import Probe
from nextlong.evaluate.progress import TaskProgress
from nextlong.evaluate.registry import all_tasks, registered
from nextlong.evaluate.results import Shard
from nextlong.evaluate.run import evaluate
from nextlong.evaluate.task import Sample

TIMES = {"seconds"}


def run(model, what):
    sink = io.StringIO()
    found = evaluate(
        lambda: model, what, progress=TaskProgress(Console(file=sink, width=120))
    )
    return found, sink.getvalue().splitlines()


def content(folder):
    """Return every finished file without what differs from run to run."""
    return {
        str(path.relative_to(folder)): {
            key: value
            for key, value in json.loads(path.read_text()).items()
            if key not in TIMES
        }
        for path in sorted(folder.glob("*/*.json"))
    }


def test_a_run_writes_every_prompt_answer_reference_and_score(tmp_path):
    found, lines = run(
        Oracle(word_tokenizer()),
        asked(tmp_path / "r", "json_kv", lengths=(8192, 16_384)),
    )
    assert [(one.task, one.length, one.score) for one in found.finished] == [
        ("json_kv", 16_384, 100.0),
        ("json_kv", 8192, 100.0),
    ]
    values = found.finished[1].values
    assert (values["n"], values["refused"], values["metric"], values["format"]) == (
        4,
        0,
        "substring_exact_match",
        2,
    )
    assert values["interval"] == [100.0, 100.0]
    sample = values["samples"][0]
    assert len(sample["prompt_sha256"]) == 64
    assert sample["answer"] == sample["references"][0]
    assert sample["scores"] == {"substring_exact_match": 1.0}
    assert lines[0].startswith("[1/2] json_kv")


def test_what_is_finished_is_kept(tmp_path):
    model = Oracle(word_tokenizer())
    run(model, asked(tmp_path / "r", "json_kv"))
    before = len(model.asked)
    _, lines = run(model, asked(tmp_path / "r", "json_kv"))
    assert len(model.asked) == before
    assert lines[0].endswith("cached")


def test_a_probe_that_is_measured_already_is_not_checked_again(tmp_path, monkeypatch):
    looked = []
    measured = lambda *_: {"scores": {"score": 1.0}, "n": 1}  # noqa: E731
    probe = Probe(
        "mine",
        "mine",
        "Probes",
        "score",
        5,
        measured,
        check_model=lambda *_: looked.append("model"),
    )
    monkeypatch.setattr("nextlong.evaluate.run.local_model", lambda model, _: model)
    for _ in range(2):
        run(Oracle(word_tokenizer()), replace(asked(tmp_path / "r"), tasks=[probe]))
        assert looked == ["model"]


def test_a_probe_that_finds_no_prompt_stops_alone(tmp_path, monkeypatch):
    def refused(*_):
        raise EvaluateError(
            where="mine", problem="no prompt fits 512 tokens", fix="give more"
        )

    monkeypatch.setattr("nextlong.evaluate.run.local_model", lambda model, _: model)
    what = asked(tmp_path / "r", "json_kv")
    with pytest.raises(EvaluateError, match="^1 of 2 .+: mine: no prompt"):
        run(
            Oracle(word_tokenizer()),
            replace(
                what,
                tasks=[
                    Probe("mine", "mine", "Probes", "score", 5, refused),
                    *what.tasks,
                ],
            ),
        )
    assert [one.task for one in results.read_results(tmp_path / "r").finished] == [
        "json_kv"
    ]


def test_a_label_is_kept_and_changes_nothing_that_is_measured(tmp_path):
    model = Oracle(word_tokenizer())
    run(model, asked(tmp_path / "r", "json_kv", label="first", negatives_cosine=0.5))
    before = len(model.asked)
    found, _ = run(model, asked(tmp_path / "r", "json_kv"))
    assert (found.name, found.model["negatives_cosine"]) == ("first", 0.5)
    found, _ = run(model, asked(tmp_path / "r", "json_kv", label="second"))
    assert found.name == "second"
    assert len(model.asked) == before


def test_a_run_that_broke_off_asks_only_what_is_missing(tmp_path):
    class Failing(Oracle):
        def answer(self, sample):
            if len(self.asked) >= 6:
                raise EvaluateError(
                    where="server", problem="it is gone", fix="start it"
                )
            return super().answer(sample)

    what = asked(tmp_path / "r", "json_kv", samples=8)
    with pytest.raises(EvaluateError, match="server: it is gone"):
        run(Failing(word_tokenizer()), what)
    partial = tmp_path / "r/json_kv/8192.partial.jsonl"
    partial.write_bytes(partial.read_bytes() + b'{"answer": "torn by a ki')
    model = Oracle(word_tokenizer())
    model.identity = lambda: {"kind": "test", "name": "Failing"}
    _, lines = run(model, what)
    assert len(model.asked) == 2
    assert "resumes after 6 of 8" in lines[0]
    whole = Oracle(word_tokenizer())
    whole.identity = model.identity
    run(whole, replace(what, out=tmp_path / "whole"))
    assert content(tmp_path / "r") == content(tmp_path / "whole")
    assert not partial.exists()


def test_what_is_answered_of_later_tasks_takes_no_time_any_more(tmp_path):
    class Failing(Oracle):
        def answer(self, sample):
            if len(self.asked) >= 6:
                raise EvaluateError(
                    where="server", problem="it is gone", fix="start it"
                )
            return super().answer(sample)

    what = asked(tmp_path / "r", "vt", "json_kv", samples=8)
    model = Failing(word_tokenizer())
    with pytest.raises(EvaluateError, match="server: it is gone"):
        run(model, replace(what, tasks=what.tasks[1:]))
    progress = TaskProgress(Console(quiet=True))
    with pytest.raises(EvaluateError, match="server: it is gone"):
        evaluate(lambda: model, what, progress=progress)
    assert progress.tokens == [8 * 8192, 2 * 8192]


def shard_of(what, number, count):
    return replace(what, shard=Shard(number, count))


@pytest.mark.parametrize("count", [2, 3, 9])
def test_shards_merge_to_the_bytes_of_one_run(tmp_path, monkeypatch, count):
    monkeypatch.setattr("nextlong.evaluate.run.time.monotonic", lambda: 0.0)
    whole = asked(tmp_path / "whole", "json_kv", "vt", samples=7)
    run(Oracle(word_tokenizer()), whole)
    what = replace(whole, out=tmp_path / "shards")
    models = [Oracle(word_tokenizer()) for _ in range(count)]
    for number, model in enumerate(models, start=1):
        _, lines = run(model, shard_of(what, number, count))
        is_last = number == count
        assert ("100.00" in lines[0]) == is_last
        assert (what.out / "json_kv/8192.json").exists() == is_last
    # Each sample is asked once; of nine shards two have none.
    assert sum(len(model.asked) for model in models) == 14
    assert len({text for model in models for text in model.asked}) == 14
    files = {
        folder: {
            str(path.relative_to(folder)): path.read_bytes()
            for path in folder.rglob("*.json*")
        }
        for folder in (whole.out, what.out)
    }
    assert files[what.out] == files[whole.out]


def test_a_shard_that_broke_off_resumes(tmp_path):
    class Failing(Oracle):
        def answer(self, sample):
            if len(self.asked) >= 1:
                raise EvaluateError(where="server", problem="it is gone", fix="go")
            return super().answer(sample)

        def identity(self):
            return {"kind": "test", "name": "Oracle"}

    what = asked(tmp_path / "r", "json_kv", samples=8)
    with pytest.raises(EvaluateError, match="it is gone"):
        run(Failing(word_tokenizer()), shard_of(what, 1, 4))
    model = Oracle(word_tokenizer())
    for number in (4, 1, 3, 2):
        run(model, shard_of(what, number, 4))
    found = results.read_results(what.out)
    assert [(one.score, one.values["n"]) for one in found.finished] == [(100.0, 8)]
    assert len(model.asked) == 8 - 1


def test_a_shard_is_measured_by_one_process_and_beside_other_shards(tmp_path):
    what = asked(tmp_path / "r", "json_kv", samples=2)
    model = Oracle(word_tokenizer())
    inner = []

    def measured_beside(*_):
        if not inner:
            inner.append("begun")
            for number, count in ((1, 2), (1, 1)):
                with pytest.raises(RunError, match="in use"):
                    run(model, shard_of(what, number, count))
            run(model, shard_of(what, 2, 2))
        return "1"

    first = Oracle(word_tokenizer())
    first.read = measured_beside
    run(first, shard_of(what, 1, 2))
    assert results.read_results(what.out).finished[0].values["n"] == 2


def test_shards_of_different_settings_are_not_merged(tmp_path):
    what = asked(tmp_path / "r", "json_kv", samples=4)
    run(Oracle(word_tokenizer()), shard_of(what, 1, 2))
    with pytest.raises(EvaluateError) as error:
        run(Oracle(word_tokenizer()), shard_of(replace(what, seed=7), 2, 2))
    assert error.value.where == str(what.out / "json_kv")


def test_a_probe_is_measured_by_one_shard(tmp_path, monkeypatch):
    measured = []
    probe = Probe(
        "mine",
        "mine",
        "Probes",
        "score",
        5,
        lambda *_: measured.append(1) or {"scores": {"score": 1.0}, "n": 1},
    )
    monkeypatch.setattr("nextlong.evaluate.run.local_model", lambda model, _: model)
    what = replace(asked(tmp_path / "r"), tasks=[probe])
    for number in (1, 2, 3):
        run(Oracle(word_tokenizer()), shard_of(what, number, 3))
    assert len(measured) == 1
    assert len(results.read_results(what.out).finished) == 1


def test_samples_over_the_length_are_refused_and_counted(tmp_path):
    model = Oracle(word_tokenizer())
    model.context = 8192
    short = replace(
        all_tasks()["json_kv"],
        make=lambda request: iter(
            [*list(all_tasks()["json_kv"].make(request))[:2], None]
        ),
    )
    long = replace(short, make=lambda _: iter([Sample("w " * 8192, ("w",), 1)]))
    with pytest.raises(EvaluateError, match=r"json_kv fits 8,192 .+ 1 were refused"):
        run(
            Oracle(word_tokenizer()),
            replace(asked(tmp_path / "long", samples=1), tasks=[long]),
        )
    what = replace(asked(tmp_path / "r", "json_kv", samples=3), tasks=[short])
    found, lines = run(model, what)
    assert (found.finished[0].values["n"], found.finished[0].values["refused"]) == (
        3,
        1,
    )
    assert found.finished[0].score == pytest.approx(
        100 * 2 / 3
    )  # a refused sample counts as 0
    assert found.finished[0].values["interval"] == [0.0, 100.0]
    assert found.finished[0].values["samples"][2] == {"refused": True}
    assert "1 refused: too long" in lines[0]


def test_another_model_other_settings_and_another_version_are_told_apart(tmp_path):
    out = tmp_path / "r"
    run(Oracle(word_tokenizer()), asked(out, "json_kv"))
    other = Oracle(word_tokenizer())
    other.identity = lambda: {"kind": "test", "name": "other"}
    with pytest.raises(EvaluateError, match="Oracle") as error:
        run(other, asked(out, "json_kv"))
    assert error.value.where == str(out)
    with pytest.raises(EvaluateError) as error:
        run(Oracle(word_tokenizer()), asked(out, "json_kv", samples=5))
    assert error.value.where == str(out / "json_kv/8192.json")
    for name in ("evaluation.json", "json_kv/8192.json"):
        values = json.loads((out / name).read_text())
        (out / name).write_text(json.dumps(values | {"format": 7, "nextlong": "9.9"}))
        with pytest.raises(EvaluateError, match=r"format 7.+\(9\.9\)") as error:
            results.read_results(out)
        assert error.value.where == str(out / name)
        (out / name).write_text(json.dumps(values))


@pytest.mark.parametrize(
    ("task", "length", "changed"),
    [
        ("cwe", 2048, "ruler/english_words.json"),
        ("json_kv", 8192, "helmet/json_kv/test_k105_dep6.jsonl"),
        ("niah_single_2", 2048, "ruler/essays.txt"),
        ("needle", 2048, "ruler/PaulGrahamEssays.json"),
    ],
)
def test_every_file_that_is_read_counts(tmp_path, task, length, changed):
    write(tmp_path / "data" / changed, "before")
    what = asked(
        tmp_path / "r", task, lengths=(length,), samples=1, data=tmp_path / "data"
    )
    what = replace(
        what,
        tasks=[
            replace(
                what.tasks[0], make=lambda _: iter([Sample("Where?", ("here",), 4)])
            )
        ],
    )
    blind = Blind(word_tokenizer())
    found, _ = run(blind, what)
    assert list(found.finished[0].values["depends_on"]["data"]) == [changed]
    write(tmp_path / "data" / changed, "after")
    with pytest.raises(EvaluateError) as error:
        run(blind, what)
    assert error.value.where == str(tmp_path / f"r/{task}/{length}.json")


def test_lengths_beyond_the_model_and_missing_files_are_told_before_it_is_asked(
    tmp_path,
):
    model = Oracle(word_tokenizer())
    model.context = 4096
    with pytest.raises(EvaluateError, match="4,096") as error:
        run(model, asked(tmp_path / "r", "json_kv"))
    assert error.value.where == "--lengths 8,192"
    with pytest.raises(EvaluateError, match=r"^helmet/kilt/nq-train.+ HELMET"):
        evaluate(
            lambda: pytest.fail("loaded"),
            asked(tmp_path / "r", "nq"),
            progress=TaskProgress(Console(file=io.StringIO())),
        )
    with pytest.raises(EvaluateError, match="8,192, 16,384, 32,768, 65,536, 131,072"):
        run(model, asked(tmp_path / "r", "nq", lengths=(4096,)))
    assert not (tmp_path / "r").exists()


def test_a_task_that_cannot_be_asked_is_told_and_the_others_are_measured(tmp_path):
    tasks = {name: all_tasks()[name] for name in ("json_kv", "vt", "niah_single_1")}
    tasks["vt"] = replace(tasks["vt"], make=lambda _: iter([None, None]))
    what = replace(
        asked(tmp_path / "r", lengths=(512, 8192)), tasks=list(tasks.values())
    )
    told = r"^2 of 6 not measured: .*vt fits 512 tokens .*, 2 were refused; .* \(and 1 more, see above\); the others: .*report"
    model = Oracle(word_tokenizer())
    with pytest.raises(EvaluateError, match=told):
        run(
            model,
            replace(what, tasks=[tasks["json_kv"], tasks["vt"], tasks["json_kv"]]),
        )
    found = results.read_results(tmp_path / "r")
    assert {(one.task, one.length) for one in found.finished} == {
        ("json_kv", 512),
        ("json_kv", 8192),
    }
    before = len(model.asked)
    with pytest.raises(EvaluateError, match="2 of 4 not measured"):
        run(model, replace(what, tasks=[tasks["json_kv"], tasks["vt"]]))
    assert len(model.asked) == before


@pytest.mark.parametrize(
    ("task", "length", "why"),
    [
        ("vt", 512, "vt needs at least 1,024 tokens, not 512; leave"),
        ("qa_1", 2048, r"squad\.json: not JSON .*download it"),
    ],
)
def test_a_length_without_room_and_a_damaged_file_stop_their_task_alone(
    task, length, why, tmp_path
):
    write(tmp_path / "data/ruler/squad.json", "[")
    what = asked(
        tmp_path / "r", task, "json_kv", lengths=(length,), data=tmp_path / "data"
    )
    with pytest.raises(EvaluateError, match=f"^1 of 2 not measured: .*{why}"):
        run(Oracle(word_tokenizer()), what)
    assert [one.task for one in results.read_results(tmp_path / "r").finished] == [
        "json_kv"
    ]


def test_what_probes_need_is_told_before_anything_is_asked(tmp_path):
    probes = {
        name: replace(
            asked(tmp_path / "r", "json_kv"), tasks=[all_tasks()["json_kv"], probe]
        )
        for name, probe in registered().items()
    }
    model = Oracle(word_tokenizer())
    with pytest.raises(EvaluateError, match="add --run RUN") as error:
        evaluate(
            lambda: pytest.fail("loaded"),
            probes["dependency"],
            progress=TaskProgress(Console(file=io.StringIO())),
        )
    assert error.value.where == "dependency"
    for name in ("attention", "piqa"):
        with pytest.raises(EvaluateError) as error:
            run(model, probes[name])
        assert error.value.where == name
    with pytest.raises(EvaluateError, match="dependency: a server"):
        run(model, replace(probes["dependency"], run=tmp_path))
    assert not model.asked
    assert not (tmp_path / "r").exists()


def command(tiny_model, data_folder, out, *more):
    what = [
        "--tasks",
        "niah_single_1,fwe,needle,attention",
        "--lengths",
        "1k,2k",
        "--samples",
        "6",
        "--batch-tokens",
        "2048",
    ]
    return [
        sys.executable,
        "-m",
        "nextlong",
        "evaluate",
        "run",
        str(tiny_model),
        *what,
        "--data",
        str(data_folder),
        "--out",
        str(out),
        *more,
    ]


@pytest.mark.heavy
def test_a_tiny_llama_end_to_end_killed_and_resumed(tiny_model, data_folder, tmp_path):
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(results.__file__).parents[2]),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    subprocess.run(
        command(tiny_model, data_folder, whole),
        check=True,
        env=environment,
        capture_output=True,
    )
    assert len(content(whole)) == 8
    for place in ("niah_single_1/1024.partial.jsonl", "fwe/2048.partial.jsonl"):
        # Renamed into place with its first line, opened, then a line or more each time
        # it is brought to the disk.
        kill_at(
            command(tiny_model, data_folder, killed)[3:],
            str(killed / place),
            4,
            environment=environment,
        )
        assert len((killed / place).read_bytes().splitlines()) > 1
    subprocess.run(
        command(tiny_model, data_folder, killed),
        check=True,
        env=environment,
        capture_output=True,
    )
    assert content(killed) == content(whole)
    assert not list(killed.glob("*/*.partial.jsonl"))
