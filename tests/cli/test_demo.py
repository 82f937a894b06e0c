"""What the demo says to do next, as it can be typed where it was started."""

import shutil
import sys

import pytest

from nextlong.cli import demo


@pytest.fixture
def scripts(tmp_path, monkeypatch):
    """A folder of scripts beside Python, in a working directory from whose shell `nextlong` is not found."""
    folder = tmp_path / "my env" / "bin"
    folder.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    monkeypatch.setattr(shutil, "which", lambda _: None)
    return folder


def test_the_environment_is_to_be_activated_where_its_commands_are_not_found(scripts, tmp_path, monkeypatch):
    (scripts / "activate").touch()
    assert demo._first() == [("first", ". 'my env/bin/activate'")]
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert demo._first() == [("first", f". '{scripts}/activate'")]


def test_where_there_is_none_the_folder_of_the_commands_is_to_be_looked_into(scripts):
    assert demo._first() == [("first", f"export PATH='{scripts}':\"$PATH\"")]


def test_nothing_comes_first_where_the_command_is_found(scripts, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _: str(scripts / "nextlong"))
    assert demo._first() == []
