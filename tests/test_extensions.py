"""The files in docs/extend.md, each installed as a package of its own, found by its entry point, and run."""

import json
import re
import sys
from pathlib import Path

import pytest

import nextlong
from nextlong.evaluate.registry import all_tasks, registered
from nextlong.evaluate.task import TaskRequest
from nextlong.plugins import INDEXES
from nextlong.reading import formats
from nextlong.retrieval.indexes.base import IndexKind
from nextlong.verify.checks import verify

PAGE = Path(__file__).parents[1] / "docs" / "extend.md"
FILES = dict(
    re.findall(
        r"```python\n# (\w+)\.py\n(.*?)```",
        PAGE.read_text(encoding="utf-8"),
        flags=re.DOTALL,
    )
)
GROUPS = {
    "shortest": ("methods", "METHOD"),
    "lines": ("formats", "FORMAT"),
    "paragraphs": ("input_formats", "FORMAT"),
    "letters": ("encoders", "ENCODER"),
    "brute": ("indexes", "INDEX"),
    "echo": ("tasks", "TASKS"),
}


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Every file of the page, as pip leaves it: a module beside the metadata of its distribution."""
    caches = (registered, formats.input_formats, formats._by_suffix)
    for name, (group, attribute) in GROUPS.items():
        site = tmp_path / f"site-{name}"
        info = site / f"more_{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (site / f"{name}.py").write_text(FILES[name], encoding="utf-8")
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: more-{name}\nVersion: 1.0\n",
            encoding="utf-8",
        )
        entry = f"[nextlong.{group}]\n{name} = {name}:{attribute}\n"
        (info / "entry_points.txt").write_text(entry, encoding="utf-8")
        monkeypatch.syspath_prepend(site)
    for cache in caches:
        cache.cache_clear()
    yield
    for name in GROUPS:
        sys.modules.pop(name, None)
    for cache in caches:
        cache.cache_clear()


def outcomes(run):
    return {outcome.check: outcome.result for outcome in verify(run.path, sample=50)}


def test_each_kind_has_one_complete_file():
    assert FILES.keys() == GROUPS.keys()


@pytest.mark.usefixtures("installed")
def test_an_input_format_an_encoder_an_index_and_an_output_format_make_a_sound_run(
    recipe_for, small_corpus, tmp_path
):
    lines = [
        line
        for path in sorted(small_corpus.glob("*.jsonl"))
        for line in path.read_text("utf-8").splitlines()
    ]
    texts = [json.loads(line)["text"] for line in lines if '"text"' in line]
    (tmp_path / "documents.paragraphs").write_text(
        "\n%%\n".join(texts), encoding="utf-8"
    )
    changes = (
        f"ingest.sources=[{{path: {tmp_path}/documents.paragraphs}}]",
        "ingest.shard_mb=auto",
        "encoder={model: letters, letters: {dimensions: 24}}",
        "search.index=brute",
        "export.formats=[lines]",
        "compose.sequences=4",
    )
    run = nextlong.run(recipe_for(tmp_path / "run", *changes))
    assert len(run) == 4
    assert run.recipe.encoder.options.dimensions == 24
    checked = outcomes(run)
    assert "breach" not in checked.values()
    passed = {check for check, result in checked.items() if result == "pass"}
    assert passed >= {
        "lines rows",
        "candidates searched again",
        "scores are cosines",
        "vectors encoded again",
    }


@pytest.mark.usefixtures("installed")
def test_a_method_makes_a_sound_run(recipe_for, started, tmp_path):
    changes = (
        "compose.method=shortest",
        "shortest.least_tokens=3",
        "compose.sequences=2",
    )
    run = nextlong.run(recipe_for(started(tmp_path / "run"), *changes))
    assert {sequence.method for sequence in run.sequences()} == {"shortest"}
    assert "breach" not in outcomes(run).values()


@pytest.mark.usefixtures("installed")
def test_a_task_is_found_with_the_others():
    task = all_tasks()["echo"]
    samples = [*task.make(TaskRequest(64, None, None))]
    assert [task.score(f"word{number}", samples[0])["echoed"] for number in (0, 1)] == [
        1.0,
        0.0,
    ]


@pytest.mark.usefixtures("installed")
def test_a_suffix_that_two_formats_claim_is_refused(monkeypatch):
    monkeypatch.setattr(
        sys.modules["nextlong.reading.tables"].FORMAT[0], "suffixes", (".paragraphs",)
    )
    with pytest.raises(
        nextlong.NextlongError, match="both read the suffix .paragraphs"
    ):
        formats.format_by_name("a.paragraphs")


@pytest.mark.usefixtures("installed")
def test_an_index_has_the_name_of_its_entry_point():
    assert INDEXES.load("brute", IndexKind).takes == "brute"
    with pytest.raises(nextlong.NextlongError, match=r"use auto, exact or .* or brute"):
        nextlong.Recipe.from_dict(
            {
                "run_dir": "r",
                "ingest": {"sources": [{"path": "a"}]},
                "tokenizer": "gpt2",
                "search": {"index": "brut"},
            }
        )
