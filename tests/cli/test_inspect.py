"""The commands that look at runs and at the installation."""

import io
import json
import os
import pydoc
import re
from importlib import metadata
from pathlib import Path

import pytest
from rich.console import Console
from tests.support.installed import REQUIRES, installed

import nextlong
from nextlong.artifacts import variant_records
from nextlong.cli import inspect
from nextlong.cli.main import main
from nextlong.engine.executor import usable_cpus
from nextlong.errors import NextlongError
from nextlong.report import installation
from nextlong.report.page import write
from nextlong.report.tables import PipeConsole


@pytest.fixture
def variants(monkeypatch):
    monkeypatch.setattr(
        variant_records,
        "names",
        lambda run_dir: ["base", "seed=1", "seed=2", "[x]"],
    )


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
    assert list(inspect.matching(Path(named))) == meant


def test_a_pattern_that_matches_none_is_told(variants):
    with pytest.raises(NextlongError) as caught:
        list(inspect.matching(Path("run@SEED*")))
    assert caught.value.where == "run@SEED*"
    assert caught.value.fix.endswith("base, seed=1, seed=2, [x]")


def test_a_run_that_does_not_exist_is_told_before_its_variants(tmp_path, capsys):
    assert main(["compare", f"{tmp_path}/zz@*"]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: {tmp_path}/zz@*: {tmp_path}/zz does")


@pytest.fixture
def terminal(monkeypatch):
    """What is printed on a terminal of 80 columns."""
    printed = io.StringIO()
    shown = PipeConsole(file=printed, force_terminal=True, width=80)
    monkeypatch.setattr(inspect, "console", lambda *, stderr=False: shown)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    return printed


@pytest.mark.parametrize(("set_before", "less"), [(None, "-R"), ("-S", "-S")])
def test_text_on_a_terminal_goes_through_a_pager_with_colours_unless_the_user_says_otherwise(
    terminal, shared_run, monkeypatch, set_before, less
):
    paged = []
    monkeypatch.delenv("LESS", raising=False)
    if set_before:
        monkeypatch.setenv("LESS", set_before)
    monkeypatch.setattr(
        pydoc, "pager", lambda text: paged.append((os.environ["LESS"], text))
    )
    assert main(["peek", str(shared_run), "0", "--text"]) == 0
    ((told, text),) = paged
    assert told == less
    assert "\x1b[" in text
    assert "meta-chunk of " in text
    assert terminal.getvalue() == ""


def test_verify_says_on_a_terminal_what_it_is_checking(terminal, shared_run):
    assert main(["verify", str(shared_run), "--sample", "1"]) == 0
    assert {"hashes", "tokens"} <= set(
        re.findall(r"checking ([\w-]+)", terminal.getvalue())
    )


def test_a_picture_is_drawn_by_the_ending_of_its_name(
    shared_run, tmp_path, monkeypatch
):
    sequence = nextlong.open(shared_run).sequence(0)
    monkeypatch.setattr(
        "nextlong.picture.before_after.png",
        lambda spans, *, tokens, name: f"{name} {tokens}".encode(),
    )
    for name in ("a.PNG", "b.png"):
        assert main(["peek", str(shared_run), "0", "--svg", str(tmp_path / name)]) == 0
        assert (tmp_path / name).read_text() == f"{sequence.id} 2048"
    assert main(["peek", str(shared_run), "0", "--svg", str(tmp_path / "c.svg")]) == 0
    assert (tmp_path / "c.svg").read_text().startswith("<svg ")


def test_a_comparison_is_for_people_for_tools_or_for_tables(shared_run, capsys):
    with pytest.raises(SystemExit) as end:
        main(["compare", str(shared_run), "--json", "--csv"])
    assert end.value.code == 2
    assert "with argument" in capsys.readouterr().err


@pytest.fixture
def drawn(monkeypatch):
    """The runs of each page that was drawn; the page is two words."""
    pages = []
    monkeypatch.setattr(
        write, "page", lambda runs: pages.append([str(run) for run in runs]) or "a page"
    )
    return pages


def test_a_page_is_left_in_its_run_directory(drawn, own_run, capsys):
    assert main(["report", str(own_run)]) == 0
    assert (own_run / "report.html").read_text() == "a page"
    assert capsys.readouterr().out == f"wrote {own_run / 'report.html'}\n"
    assert drawn == [[str(own_run)]]


def test_of_several_directories_it_is_left_here(
    drawn, own_run, shorter_run, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert main(["report", f"{own_run}@*", str(shorter_run), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {
        "page": "report.html",
        "bytes": 6,
        "runs": [f"{own_run}@base", str(shorter_run)],
    }
    assert drawn == [told["runs"]]
    assert (tmp_path / "report.html").is_file()


def test_it_goes_where_it_is_asked_for_and_nowhere_else(
    drawn, shared_run, tmp_path, capsys
):
    assert main(["report", str(shared_run), "-o", str(tmp_path / "x.html")]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["x.html"]
    assert not (shared_run / "report.html").exists()
    assert (
        main(["report", str(shared_run), "-o", str(tmp_path / "new" / "x.html")]) == 2
    )
    assert f"{tmp_path / 'new'} is not" in capsys.readouterr().err
    assert len(drawn) == 1  # it is not drawn for nothing


def test_a_place_that_cannot_be_written_is_told(drawn, shared_run, tmp_path, capsys):
    (tmp_path / "folder").mkdir()
    assert main(["report", str(shared_run), "-o", str(tmp_path / "folder")]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: {tmp_path / 'folder'}: ")
    assert err.endswith(" with -o\n")
    assert list((tmp_path / "folder").iterdir()) == []


def test_a_variant_that_is_none_is_told_with_those_there_are(drawn, shared_run, capsys):
    assert main(["report", f"{shared_run}@x*"]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: {shared_run}@x*: ")
    assert f"{shared_run} has: base" in err
    assert drawn == []


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            ["--sample", "-1"],
            "--sample -1: it is neither a whole number nor the word all; give a number such as 100, or all",
        ),
        (
            ["--sample", "2.5"],
            "--sample 2.5: it is neither a whole number nor the word all; give a number such as 100, or all",
        ),
        (
            ["--sample", "some"],
            "--sample some: it is neither a whole number nor the word all; give a number such as 100, or all",
        ),
        (
            ["--workers", "0"],
            "--workers 0: it is below 1; give the number of processes",
        ),
        (["--run", "other"], "is not the folder of a delivered export"),
    ],
)
def test_an_option_that_has_no_sense_is_told(shared_run, capsys, options, told):
    assert main(["verify", str(shared_run), *options]) == 2
    assert told in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("missing", ["starlette", "uvicorn"])
def test_what_serves_the_pages_is_named_where_it_is_missing(
    monkeypatch, capsys, missing
):
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == missing else name
    )
    assert main(["view", "run"]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert f"needs {missing};" in told
    assert "'nextlong[view]'" in told


def test_this_machine():
    found = installation.examine()
    assert found["nextlong"] == nextlong.__version__
    assert found["hardware"]["cpus"] == usable_cpus()
    assert found["hardware"]["memory_bytes"] > 1 << 28
    for package in found["core"]:
        assert package["installed"] == metadata.version(package["name"])


def test_a_broken_core_is_no_success(monkeypatch):
    installed(monkeypatch, {"numpy": "1.20.0"}, REQUIRES)
    found = installation.examine()
    assert not found["is_whole"]
    file = io.StringIO()
    installation.show(found, Console(file=file, width=80))
    assert (
        "broken: numpy>=1.26 (1.20.0); repair it with pip install --upgrade nextlong"
        in file.getvalue()
    )


def test_what_is_missing_stands_once_with_its_cure(monkeypatch):
    installed(monkeypatch, {"numpy": "2.0.0", "ray": "2.50.0"}, REQUIRES)
    file = io.StringIO()
    installation.show(installation.examine(), Console(file=file, width=120))
    rows = [" ".join(line.split()) for line in file.getvalue().splitlines()]
    assert [row for row in rows if "s3" in row] == [
        "s3 s3:// inputs and exports missing s3fs: pip install 'nextlong[s3]'"
    ]
    assert "ray executor: ray ready" in rows
