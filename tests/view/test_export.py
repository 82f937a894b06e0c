"""A static copy: every link leads to a file of it, and its pages need nothing else."""

import re

import pytest

import nextlong
from nextlong.cli.main import main

pytestmark = pytest.mark.browser  # whose part of CI has the viewer's packages


@pytest.fixture(scope="module")
def folder(shared_run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("static") / "copy"
    assert main(["view", str(shared_run), "--export", str(folder), "--first", "3"]) == 0
    return folder


def test_every_link_leads_to_a_page_of_the_copy(folder):
    names = {path.name for path in folder.iterdir()}
    assert {
        "index.html",
        "sequence-0.html",
        "sequence-2.html",
        "filtered.html",
    } <= names
    assert "sequence-3.html" not in names
    for path in folder.iterdir():
        text = path.read_text(encoding="utf-8")
        assert {
            link
            for link in re.findall(r'href="([^"]+)"', text)
            if not link.startswith(("#", "data:"))
        } <= names
        assert not re.search(r'src="|action="/|http://(?!www.w3.org)', text)


def test_a_sequence_holds_its_texts(folder, shared_run):
    text = (folder / "sequence-1.html").read_text(encoding="utf-8")
    first = nextlong.open(shared_run).sequence(1).texts[0].split()[:8]
    assert " ".join(first) in " ".join(text.split())


def test_a_folder_that_holds_something_is_refused(folder, shared_run, capsys):
    assert main(["view", str(shared_run), "--export", str(folder)]) == 2
    assert f"--export {folder}" in " ".join(capsys.readouterr().err.split())
