import io
from dataclasses import replace
from types import SimpleNamespace

import pytest
from rich.console import Console

from answering_models import Oracle
from evaluation_data import word_tokenizer
from nextlong.errors import EvaluateError
from nextlong.evaluate import results
from nextlong.evaluate.asked import Asked
from nextlong.evaluate.data import DataFiles
from nextlong.evaluate.models.huggingface import HuggingFaceModel
from nextlong.evaluate.progress import Progress
from nextlong.evaluate.run import evaluate
from nextlong.evaluate.task import all_tasks


def asked(out, *names, lengths=(8192,), samples=4, data=None, **more):
    tasks = [all_tasks()[name] for name in names]
    return Asked(tasks=tasks, lengths=lengths, out=out, data=DataFiles(data), samples=samples, **more)


def run(model, what):
    sink = io.StringIO()
    found = evaluate(lambda: model, what, progress=Progress(Console(file=sink, width=120)))
    return found, sink.getvalue().splitlines()


def test_answers_with_any_line_separator_are_kept(tmp_path):
    odd = [{"answer": "one\u2028two\u2029three\u0085four"}, {"answer": "five"}]
    first = results.Partial(tmp_path / "a.partial.jsonl", "mark")
    first.append(odd)
    first.close()
    again = results.Partial(tmp_path / "a.partial.jsonl", "mark")
    again.close()
    assert again.samples == odd


class Local(Oracle, HuggingFaceModel):
    """One that probes may look into."""


def test_a_run_counts_by_its_sequences_not_by_its_place(tmp_path, monkeypatch):
    from nextlong.evaluate.probe import Probe
    from nextlong.runs import opened

    composed = {"value": "abc"}
    steps = SimpleNamespace(steps={"compose": SimpleNamespace(manifest={"fingerprint": ""})})

    def run_at(_):
        steps.steps["compose"].manifest["fingerprint"] = composed["value"]
        return steps

    monkeypatch.setattr(opened, "Run", run_at)
    probe = Probe("p", "p", "x", lambda *_: {"scores": {"x": 1.0}, "n": 1}, lengths="none", samples=1)
    what = replace(asked(tmp_path / "r", run=tmp_path / "one"), tasks=[probe])
    run(Local(word_tokenizer()), what)
    _, lines = run(Local(word_tokenizer()), replace(what, run=tmp_path / "two"))
    assert lines[0].endswith("kept")
    composed["value"] = "def"
    with pytest.raises(EvaluateError, match="was measured with other settings, samples or data"):
        run(Local(word_tokenizer()), what)


def test_what_is_no_results_directory_is_told(tmp_path):
    with pytest.raises(EvaluateError, match=r"has no evaluation\.json; give a folder that"):
        results.read_results(tmp_path)
    with pytest.raises(EvaluateError, match="is not a folder"):
        results.read_results(tmp_path / "none")
