"""Peek, stats and compare: what a name of runs means, and when text goes through a pager."""

import os
from pathlib import Path

import pytest

import nextlong
from nextlong.cli import reports
from nextlong.cli.main import main
from nextlong.errors import NextlongError
from nextlong.report.tables import PipeConsole


@pytest.fixture
def variants(monkeypatch):
    monkeypatch.setattr(reports.record, "variant_names", lambda run_dir: ["base", "seed=1", "seed=2", "[x]"])


@pytest.mark.parametrize(
    ("named", "meant"),
    [
        ("run", ["run"]),
        ("run@seed=1", ["run@seed=1"]),
        ("run*", ["run*"]),  # a pattern stands behind the @ only
        ("a*@base", ["a*@base"]),
        ("@*", ["@*"]),
        ("run@*", ["run@base", "run@seed=1", "run@seed=2", "run@[x]"]),
        ("run@seed=?", ["run@seed=1", "run@seed=2"]),
        ("a@b@*2", ["a@b@seed=2"]),
    ],
)
def test_a_name_means_itself_or_the_variants_that_match(variants, named, meant):
    assert list(reports.matching(Path(named))) == meant


def test_a_pattern_that_matches_none_is_told(variants):
    with pytest.raises(NextlongError, match=r"run@SEED\*: no variant matches; run has: base, seed=1, seed=2, \[x\]"):
        list(reports.matching(Path("run@SEED*")))


def test_where_no_terminal_is_nothing_is_paged(monkeypatch):
    monkeypatch.delenv("LESS", raising=False)
    console = PipeConsole(force_terminal=False)
    monkeypatch.setattr(console, "pager", None)
    with reports._paged(console):
        assert "LESS" not in os.environ


@pytest.mark.parametrize(("set_before", "less"), [(None, "-R"), ("-S", "-S")])
def test_a_pager_is_asked_for_colours_unless_the_user_says_otherwise(monkeypatch, set_before, less):
    paged = []
    monkeypatch.delenv("LESS", raising=False)
    if set_before:
        monkeypatch.setenv("LESS", set_before)
    console = PipeConsole(force_terminal=True)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr(type(console), "pager", lambda self, *, styles: paged.append(styles) or _Nothing())
    with reports._paged(console):
        assert os.environ["LESS"] == less
    assert paged == [True]


class _Nothing:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


def test_a_picture_is_drawn_by_the_ending_of_its_name(shared_run, tmp_path, monkeypatch):
    sequence = nextlong.open(shared_run).sequence(0)
    monkeypatch.setattr("nextlong.picture.png.png", lambda spans, *, tokens, name: f"{name} {tokens}".encode())
    for name in ("a.PNG", "b.png"):
        reports._draw(sequence, tmp_path / name)
        assert (tmp_path / name).read_text() == f"{sequence.id} 2048"
    reports._draw(sequence, tmp_path / "c.svg")
    assert (tmp_path / "c.svg").read_text().startswith("<svg ")


def test_a_comparison_is_for_people_for_tools_or_for_tables(shared_run, capsys):
    with pytest.raises(SystemExit) as end:
        main(["compare", str(shared_run), "--json", "--csv"])
    assert end.value.code == 2
    assert "not allowed with argument" in capsys.readouterr().err
