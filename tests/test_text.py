"""None"""

from pathlib import Path

import pytest

from nextlong.text import (
    counted,
    first_sentence,
    similar_path,
    why_no_model,
    wrapped,
)


@pytest.mark.parametrize(
    ("count", "noun", "expected"),
    [
        (0, "chunk", "0 chunks"),
        (1, "chunk", "1 chunk"),
        (2, "query", "2 queries"),
        (1, "query", "1 query"),
        (2, "key", "2 keys"),
        (1024, "sequence", "1,024 sequences"),
    ],
)
def test_a_number_and_its_noun_agree(count, noun, expected):
    assert counted(count, noun) == expected


def test_lines_stay_apart_and_long_words_whole():
    assert wrapped("a b\n\nc /a/path/that-is-longer d", 5) == [
        "a b",
        "",
        "c",
        "/a/path/that-is-longer",
        "d",
    ]


def test_what_goes_on_below_a_line_is_indented():
    assert wrapped("a b c\nd e f", 4, indent="  ") == ["a b", "  c", "d e", "  f"]


@pytest.mark.parametrize("name", ["gpt2", "org/model-8B", "no_such_folder"])
def test_a_name_that_the_hub_may_have_passes(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert why_no_model(name) is None


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("./m", "does not exist"),
        ("/no/such", "does not exist"),
        ("~/no-such-model", "does not exist"),
        ("a/b/c", "does not exist"),
        ("empty", "has no config.json"),
        ("file.bin", "is a file, not a model"),
    ],
)
def test_a_path_that_holds_none_is_told_with_the_cure(name, why, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.bin").touch()
    no_model = why_no_model(name)
    assert why in no_model.problem
    assert "config.json" in no_model.fix


def test_a_folder_with_a_configuration_passes(tmp_path):
    (tmp_path / "config.json").touch()
    assert why_no_model(str(tmp_path)) is None


def test_of_a_message_the_first_line_is_told_whole():
    assert first_sentence(OSError("no 'https://x.y'.\nCheck it.")) == "no 'https://x.y'"
    assert first_sentence(OSError("\n")) == "OSError"


def test_the_path_most_like_one_that_does_not_exist_is_proposed(tmp_path):
    (tmp_path / "runs" / "books").mkdir(parents=True)
    (tmp_path / "my.yaml").touch()
    assert similar_path(tmp_path / "my.yml") == tmp_path / "my.yaml"
    missing = tmp_path / "run" / "boks"
    assert similar_path(missing, accepts=Path.is_dir) == tmp_path / "runs" / "books"
    assert similar_path(missing) is None
    assert similar_path(tmp_path / "unlike") is None
