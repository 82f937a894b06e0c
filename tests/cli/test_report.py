"""`nextlong report`: where the page is written, what is told of it, and what is refused."""

import json

import pytest

from nextlong.cli.main import main
from nextlong.report.page import write


@pytest.fixture
def drawn(monkeypatch):
    """The runs of each page that was drawn; the page is two words."""
    pages = []
    monkeypatch.setattr(write, "page", lambda runs: pages.append([str(run) for run in runs]) or "a page")
    return pages


def test_a_page_is_left_in_its_run_directory(drawn, own_run, capsys):
    assert main(["report", str(own_run)]) == 0
    assert (own_run / "report.html").read_text() == "a page"
    assert capsys.readouterr().out == f"wrote {own_run / 'report.html'}\n"
    assert drawn == [[str(own_run)]]


def test_of_several_directories_it_is_left_here(drawn, own_run, shorter_run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["report", f"{own_run}@*", str(shorter_run), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"page": "report.html", "bytes": 6, "runs": [f"{own_run}@base", str(shorter_run)]}
    assert drawn == [told["runs"]]
    assert (tmp_path / "report.html").is_file()


def test_it_goes_where_it_is_asked_for_and_nowhere_else(drawn, shared_run, tmp_path, capsys):
    assert main(["report", str(shared_run), "-o", str(tmp_path / "x.html")]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["x.html"]
    assert not (shared_run / "report.html").exists()
    assert main(["report", str(shared_run), "-o", str(tmp_path / "new" / "x.html")]) == 2
    assert f"{tmp_path / 'new'} is not a folder; create it" in capsys.readouterr().err
    assert len(drawn) == 1  # it is not drawn for nothing


def test_a_place_that_cannot_be_written_is_told(drawn, shared_run, tmp_path, capsys):
    (tmp_path / "folder").mkdir()
    assert main(["report", str(shared_run), "-o", str(tmp_path / "folder")]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: {tmp_path / 'folder'} cannot be written: ")
    assert err.endswith("; choose another place with -o\n")
    assert list((tmp_path / "folder").iterdir()) == []


def test_a_variant_that_is_none_is_told_with_those_there_are(drawn, shared_run, capsys):
    assert main(["report", f"{shared_run}@x*"]) == 2
    assert f"{shared_run}@x*: no variant matches; {shared_run} has: base" in " ".join(capsys.readouterr().err.split())
    assert drawn == []
