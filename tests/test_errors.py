"""Whatever error of the tree a command raises is told in a line, without a traceback, and ends with 2."""

import ast
import pickle
from pathlib import Path

import pytest

import nextlong
from nextlong import errors, pipeline
from nextlong.cli.main import main

TREE = [
    one
    for one in vars(errors).values()
    if isinstance(one, type) and issubclass(one, Exception)
]


def test_there_is_one_root_which_the_package_shows():
    assert [one for one in TREE if not issubclass(one, errors.NextlongError)] == []
    assert nextlong.NextlongError is errors.NextlongError
    assert len(TREE) > 5


@pytest.mark.parametrize("error", TREE, ids=lambda error: error.__name__)
def test_each_is_told_without_a_traceback(
    recipe_for, tmp_path, monkeypatch, capsys, error
):
    def refused(*_, **__):
        raise error(where="embed.size", value=[7], problem="is wrong", fix="make it 8")

    monkeypatch.setattr(pipeline, "session", refused)
    (tmp_path / "r.yaml").write_text(recipe_for(tmp_path / "run").dump())
    assert main(["run", str(tmp_path / "r.yaml")]) == 2
    assert capsys.readouterr().err == "error: embed.size=[7] is wrong; make it 8\n"


@pytest.mark.parametrize("error", TREE, ids=lambda error: error.__name__)
def test_an_error_keeps_its_parts_between_processes(error):
    raised = error(where="embed.size", value=7, problem="is odd", fix="make it 8")
    arrived = pickle.loads(pickle.dumps(raised))
    assert type(arrived) is error
    assert str(arrived) == "embed.size=7 is odd; make it 8"
    assert (arrived.where, arrived.value) == ("embed.size", "7")
    assert (arrived.problem, arrived.fix) == ("is odd", "make it 8")


def test_an_error_without_a_value_names_the_place_before_a_colon():
    raised = errors.CorpusError(where="a.jsonl", problem="it is empty", fix="drop it")
    assert str(raised) == "a.jsonl: it is empty; drop it"


@pytest.mark.parametrize("error", TREE, ids=lambda error: error.__name__)
def test_a_library_may_raise_an_error_again_from_its_type_and_sentence(error):
    assert str(error("Caught in worker 0: embed.size=7 is odd")).startswith("Caught")


def test_every_error_of_the_source_is_made_of_its_parts():
    names = {error.__name__ for error in TREE}
    source = Path(nextlong.__file__).parent
    positional = []
    for path in source.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            called = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if called in names:
                positional.append(f"{path.relative_to(source)}:{node.lineno}")
    assert positional == []
