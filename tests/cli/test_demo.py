"""The demo: its corpus, and the commands that it proposes."""

import json
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from nextlong.cli import demo
from nextlong.cli.demo import write_demo_corpus
from nextlong.cli.init import new_recipe
from nextlong.cli.main import main
from nextlong.errors import CorpusError
from nextlong.recipe import Recipe


@pytest.fixture
def scripts(tmp_path, monkeypatch):
    """A folder of scripts beside Python, in a working directory from whose shell `nextlong` is not found."""
    folder = tmp_path / "my env" / "bin"
    folder.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    monkeypatch.setattr(shutil, "which", lambda _: None)
    return folder


def test_the_environment_is_to_be_activated_where_its_commands_are_not_found(
    scripts, tmp_path, monkeypatch
):
    (scripts / "activate").touch()
    assert demo._activation() == [("activate", ". 'my env/bin/activate'")]
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert demo._activation() == [("activate", f". '{scripts}/activate'")]


def test_where_there_is_none_the_folder_of_the_commands_is_to_be_looked_into(scripts):
    assert demo._activation() == [("activate", f"export PATH='{scripts}':\"$PATH\"")]


def test_nothing_comes_first_where_the_command_is_found(scripts, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _: str(scripts / "nextlong"))
    assert demo._activation() == []


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> tuple[Path, tuple[int, int]]:
    path = tmp_path_factory.mktemp("demo") / "new folder" / "corpus.jsonl"
    return path, write_demo_corpus(path)


def test_this_interpreter_gives_a_corpus_worth_running(written):
    path, corpus = written
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert corpus == (len(rows), sum(len(row["text"]) for row in rows))
    assert corpus[0] > 250
    assert corpus[1] > 1_000_000
    assert len({row["id"] for row in rows}) == len(rows)
    assert {row["source"] for row in rows} == {"python-topics", "python-stdlib"}
    assert all(len(row["text"]) >= 200 for row in rows)
    assert "json.dumps(obj, *, skipkeys=False" in next(
        r["text"] for r in rows if r["id"] == "python-stdlib/json"
    )
    assert '"lambda"' in next(
        r["text"].lower() for r in rows if r["id"] == "python-topics/lambda"
    )


def test_the_recipe_of_the_demo_extends_the_documents_that_init_would(
    written, tmp_path, monkeypatch
):
    corpus, _ = written
    shutil.copy(corpus, tmp_path / "corpus.jsonl")
    monkeypatch.setattr(demo, "run_recipe", lambda recipe, args: None)
    assert main(["demo", "--dir", str(tmp_path), "--json"]) == 0
    recipe = Recipe.load(tmp_path / "demo.yaml")
    proposed = new_recipe(tmp_path / "my.yaml", [str(corpus)]).recipe
    assert recipe.compose.min_meta_chunks == proposed.compose.min_meta_chunks == 3


@pytest.mark.thorough
def test_the_demo_and_the_run_that_it_proposes_end_without_a_warning(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert main(["demo"]) == 0
    shown = capsys.readouterr()
    assert "warning:" not in shown.out + shown.err
    *_, last = shown.out.strip().splitlines()
    command = last[last.index("nextlong run") :]
    assert main(shlex.split(command)[1:]) == 0
    shown = capsys.readouterr()
    assert "sequences:" in shown.out
    assert "warning:" not in shown.out + shown.err


def write_again(path, corpus):
    before = path.read_bytes()
    path.write_bytes(b"stale")
    assert write_demo_corpus(path) == corpus
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.thorough
def test_writing_all_again_gives_the_same_bytes(written):
    write_again(*written)


LONG = "Long enough." * 20


@pytest.fixture
def one_module_stdlib(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("stdlib")
    (folder / "only.py").write_text(f'"""{LONG}"""')
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(folder))


@pytest.mark.usefixtures("one_module_stdlib")
def test_writing_again_replaces_with_the_same_bytes_and_leaves_nothing_else(
    tmp_path: Path,
):
    path = tmp_path / "new" / "corpus.jsonl"
    write_again(path, write_demo_corpus(path))


@pytest.mark.usefixtures("one_module_stdlib")
def test_without_pydoc_data_the_docstrings_remain(tmp_path: Path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    write_demo_corpus(tmp_path / "corpus.jsonl")
    assert (
        json.loads((tmp_path / "corpus.jsonl").read_bytes())["id"]
        == "python-stdlib/only"
    )


def test_without_any_documentation_the_error_says_what_to_do(
    tmp_path: Path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path / "python311.zip"))
    with pytest.raises(CorpusError, match=r"python311\.zip"):
        write_demo_corpus(tmp_path / "corpus.jsonl")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("one_module_stdlib")
def test_an_unwritable_path_is_named_and_leaves_nothing(tmp_path: Path):
    target = tmp_path / "corpus.jsonl"
    target.mkdir()
    with pytest.raises(CorpusError) as caught:
        write_demo_corpus(target)
    assert caught.value.where == str(target)
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.usefixtures("one_module_stdlib")
def test_a_file_in_place_of_the_folder_is_a_users_error(tmp_path: Path):
    (tmp_path / "taken").write_text("mine")
    path = tmp_path / "taken" / "corpus.jsonl"
    with pytest.raises(CorpusError) as caught:
        write_demo_corpus(path)
    assert caught.value.where == str(path)
    assert (tmp_path / "taken").read_text() == "mine"
