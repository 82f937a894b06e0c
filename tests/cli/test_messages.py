"""The words of refusals: where, which value, and what to do."""

import pytest

from nextlong.cli.main import main


@pytest.fixture
def told(capsys, tmp_path, monkeypatch):
    """Run a command that is refused; returns what it says."""
    monkeypatch.chdir(tmp_path)

    def told(*arguments):
        assert main(list(arguments)) == 2
        return capsys.readouterr().err

    return told


def test_a_recipe_never_overwrites_documents(told, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "word"}\n')
    assert told("init", "a.jsonl", "--force") == (
        "error: a.jsonl: it is the name of a data file, not of a recipe; use: nextlong "
        "init my.yaml a.jsonl\n"
    )
    (tmp_path / "a.json").write_text('[{"text": "compose"}]')
    assert told("init", "a.json", "--force") == (
        "error: a.json: it is not a recipe, so it is not overwritten; choose another "
        "name\n"
    )


def test_a_recipe_is_overwritten_only_with_force(told, tmp_path):
    (tmp_path / "my.yaml").write_text("tokenizer: mine")
    assert told("init", "my.yaml") == (
        "error: my.yaml: it exists; choose another name, or add --force to overwrite "
        "it\n"
    )


def test_a_folder_to_write_into_must_exist(told):
    assert told("init", "new/my.yaml") == (
        "error: new/my.yaml: it cannot be written: new is not a folder; create it or "
        "choose another path\n"
    )


def test_a_preset_is_copied_without_options(told):
    assert told("init", "my.yaml", "--preset", "quickstart", "--full") == (
        "error: --preset: it copies a recipe unchanged; remove --full, then edit the "
        "copy\n"
    )


def test_an_unknown_preset_is_told_with_those_there_are(told):
    assert told("init", "my.yaml", "--preset", "paper") == (
        "error: preset=paper is unknown; choose one of: mixed-64k, paper-128k, "
        "paper-512k, paper-64k, quickstart\n"
    )
