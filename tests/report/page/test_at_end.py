"""The page that a run leaves: where it belongs, and when it is written."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from nextlong.report.page import at_end, pictures, write


def runs(folder, *names):
    return [SimpleNamespace(path=folder, variant=SimpleNamespace(name=name)) for name in names]


@pytest.fixture
def written(monkeypatch):
    """The runs of every page that was written; the page says nothing but what it is of."""
    pages = []

    def page(of):
        pages.append([run.variant.name for run in of])
        return f"<style></style>{write.identity(of)}"

    monkeypatch.setattr(write, "identity", lambda of: "id:" + ",".join(run.variant.name for run in of))
    monkeypatch.setattr(write, "page", page)
    monkeypatch.setattr(at_end, "find_spec", lambda name: name)
    monkeypatch.setattr(at_end.record, "current", lambda run_dir: "base")
    return pages


def test_of_the_variant_that_the_directory_stands_for_it_is_report_html(written, tmp_path):
    assert at_end.place_of(runs(tmp_path, "base")) == tmp_path / "report.html"
    other, both = at_end.place_of(runs(tmp_path, "other")), at_end.place_of(runs(tmp_path, "base", "other"))
    assert len({other, both, tmp_path / "report.html"}) == 3
    assert other.parent == both.parent == tmp_path
    assert at_end.place_of([*runs(tmp_path, "base"), *runs(tmp_path / "b", "base")]) == Path("report.html")


def test_a_page_that_shows_just_that_is_left_as_it_was(written, tmp_path):
    path = tmp_path / "report.html"
    assert at_end.leave(runs(tmp_path, "base")) == str(path)
    assert at_end.leave(runs(tmp_path, "base")) == str(path)
    assert written == [["base"]]
    path.write_text(path.read_text().replace("id:base", "id:earlier"))
    at_end.leave(runs(tmp_path, "base"))
    assert written == [["base"], ["base"]]


def test_of_a_sweep_the_first_are_shown_and_the_rest_told(written, tmp_path):
    names = [f"s{number}" for number in range(pictures.MAX_RUNS + 2)]
    told = at_end.leave(runs(tmp_path, *names))
    assert told == f"{tmp_path / 'sweep.html'} (the first {pictures.MAX_RUNS} of {len(names)})"
    assert written == [names[: pictures.MAX_RUNS]]
    assert at_end.leave(runs(tmp_path, "a", "b")) == str(tmp_path / "sweep.html")
    assert not (tmp_path / "report.html").exists()


def test_without_what_draws_nothing_is_written_and_how_to_get_it_is_told(written, tmp_path, monkeypatch):
    monkeypatch.setattr(at_end, "find_spec", lambda name: None)
    assert at_end.leave(runs(tmp_path, "base")) == at_end.HOW
    assert written == []
    assert not list(tmp_path.iterdir())
