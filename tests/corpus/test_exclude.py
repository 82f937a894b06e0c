"""The exclusion list: what a line means, and every mistake named with its place."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

import nextlong
from nextlong import pipeline
from nextlong.cli.main import main
from nextlong.corpus.exclude import exclusions_of
from nextlong.errors import CorpusError
from nextlong.recipe import Source
from nextlong.runs import stats
from nextlong.verify import corpus
from nextlong.verify.run_files import StepFiles


def sources(*names):
    return [Source(path="x", name=name) for name in names]


def test_a_line_excludes_a_document_or_a_whole_source(tmp_path):
    path = tmp_path / "marks.jsonl"
    path.write_text('{"source": "a", "id": "1", "note": "spam"}\n{"source": "b"}\n{"source": "gone", "id": "2"}\n')
    (a, b, c), elsewhere = exclusions_of(str(path), sources("a", "b", "c"))
    assert elsewhere == 1
    assert (a.holds("1"), a.holds("2"), b.holds("2"), c.holds("1")) == (True, False, True, False)
    assert a.identity != b.identity != c.identity == ""
    path.write_text('{"source": "b"}\n{"source": "a", "id": "1"}\n')
    assert exclusions_of(str(path), sources("a", "b"))[0][0].identity == a.identity  # neither order nor notes count


def test_a_line_separator_within_an_id_ends_no_line_and_an_empty_line_is_none(tmp_path):
    path = tmp_path / "marks.jsonl"
    path.write_text('\n{"source": "a", "id": "1\u20282\u20293\x854"}\r\n \n', encoding="utf-8")
    assert exclusions_of(str(path), sources("a"))[0][0].ids == {"1\u20282\u20293\x854"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"source": "a"}\n{', ":2 is not"),
        ('{"id": "1"}', ":1 is not"),
        ('{"source": "a", "id": 7}', ":1 is not"),
        ('{"source": "other"}', r"names none of the sources of this recipe \(a\) but other"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, text, message):
    (tmp_path / "marks.jsonl").write_text(text)
    with pytest.raises(CorpusError, match=message):
        exclusions_of(str(tmp_path / "marks.jsonl"), sources("a"))


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(CorpusError, match=r"ingest.exclude=.*none.jsonl' cannot be read"):
        exclusions_of(str(tmp_path / "none.jsonl"), sources("a"))


def test_a_run_excludes_what_was_marked_and_verify_holds_it_to_that(
    small_corpus, recipe_for, tmp_path, capsys, monkeypatch
):
    rows = [json.loads(line) for path in sorted(small_corpus.iterdir()) for line in path.read_text().splitlines()]
    monkeypatch.chdir(tmp_path)
    marks = tmp_path / "marks.jsonl"
    marked = [row["id"] for row in rows[::9]]
    named = [("small", one) for one in marked] + [("small", "gone"), ("other", marked[0])]
    marks.write_text("".join(json.dumps({"source": source, "id": one}) + "\n" for source, one in named * 2))
    run_dir = tmp_path / "run"
    pipeline.run(recipe_for(run_dir, "ingest.exclude=marks.jsonl"))
    run = nextlong.open(run_dir)
    served = {span.source_id for sequence in run.sequences() for span in sequence.spans}
    assert served.isdisjoint(marked)
    measured = stats.measure(run)
    (removed,) = [one for one in measured.left_out if "ingest.exclude" in one.reason]
    assert removed.count == len(marked)
    (told,) = [one.message for one in measured.warnings if one.name == "unmet-exclusions"]
    assert told.startswith(f"2 of {len(named):,} entries of ingest.exclude name no document")

    def verified():
        capsys.readouterr()
        code = main(["verify", str(run_dir), "--json"])
        (check,) = [
            one for one in json.loads(capsys.readouterr().out)["checks"] if one["check"] == "excluded documents"
        ]
        return code, check["result"], check["checked"] > 0, check["note"]

    assert verified() == (0, "pass", True, "")
    with marks.open("a") as file:
        file.write("\n" + json.dumps({"source": "small", "id": next(one for one in served if one)}) + "\n")
    assert verified() == (
        *(0, "pass", True),
        "marks.jsonl names 1 document of the corpus by now; run again to exclude them",
    )
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert verified() == (0, "pass", True, "")
    (kept,) = run.steps["ingest"].files(".excluded.json")
    kept.write_text(json.dumps({"source": "small", "whole": False, "ids": [next(one for one in served if one)]}))
    assert verified()[:2] == (1, "breach")


@pytest.mark.parametrize(("of_source", "result"), [({}, "not needed"), ({"exclude": "1f"}, "skipped")])
def test_a_run_without_a_kept_list_is_not_judged_by_the_list_of_today(of_source, result):
    ingested = StepFiles(
        "ingest", Path(), {"parts": [], "inputs": {}, "fingerprint": "", "config": {"sources": [of_source]}}
    )
    run = SimpleNamespace(
        recipe={"ingest": {"exclude": "marks.jsonl"}}, files=lambda *_: [], steps={"ingest": ingested}
    )
    (outcome,) = corpus._check_excluded(run)
    assert outcome.result == result


def test_every_entry_that_names_a_document_raises_no_warning(small_corpus, recipe_for, tmp_path):
    row = json.loads(next(iter(sorted(small_corpus.iterdir()))).read_text().split("\n")[0])
    (tmp_path / "marks.jsonl").write_text(json.dumps({"source": "small", "id": row["id"]}))
    pipeline.run(recipe_for(tmp_path / "run", f"ingest.exclude={tmp_path / 'marks.jsonl'}"))
    warnings = stats.measure(nextlong.open(tmp_path / "run")).warnings
    assert "unmet-exclusions" not in [one.name for one in warnings]
