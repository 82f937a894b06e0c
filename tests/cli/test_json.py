"""What `--json` prints has the keys that docs/reference/json.md names, and the numbers that the run has."""

import json
import shutil
from pathlib import Path

import pytest
from tests.support.every_command import documented

import nextlong
from nextlong.cli import main
from nextlong.recipe import Recipe


@pytest.fixture(scope="module")
def ran(shared_run, tmp_path_factory):
    """A finished run that commands may complete."""
    return Path(shutil.copytree(shared_run, tmp_path_factory.mktemp("json") / "run"))


@pytest.fixture(scope="module")
def recipe_file(ran, recipe_for):
    path = ran.with_name("r.yaml")
    path.write_text(recipe_for(ran).dump())
    return path


@pytest.fixture
def printed(capsys):
    """A function that runs a command with --json and returns what it printed, whole."""

    def call(*arguments):
        assert main.main([*map(str, arguments), "--json"]) in (0, None)
        return json.loads(capsys.readouterr().out)

    return call


def test_a_finished_plan_has_no_costs(printed, recipe_file, ran):
    told = printed("plan", recipe_file)
    assert list(told) == documented("plan")
    assert told["run_dir"] == str(ran)
    assert [step for step in told["steps"] if step["costs"]] == told["all_to_do"] == []
    assert all(step["state"].startswith("done") for step in told["steps"])


def test_a_plan_of_what_is_to_do_adds_up(printed, recipe_file):
    told = printed("plan", recipe_file, "--set", "chunk.max_chars=300")
    todo = [step["costs"][0] for step in told["steps"] if step["costs"]]
    assert told["documents"] == 260
    (total,) = told["all_to_do"]
    assert total["disk_bytes"] == pytest.approx(
        sum(cost["disk_bytes"] for cost in todo)
    )
    assert total["disk_bytes"] > 0


def test_run_and_export(printed, recipe_file, ran, own_run):
    run = nextlong.open(ran)
    told = printed("run", recipe_file)
    assert list(told) == documented("run")
    assert (told["run"], told["sequences"], told["target_tokens"]) == (
        str(ran),
        12,
        2048,
    )
    assert told["rows"]["train"]["tokens"] == 12 * 2048
    assert told["exports"]["parquet"] == str(run.data / "parquet")
    exported = printed("export", own_run, "--to", "jsonl", "--set", "export.pack=3000")
    assert list(exported) == documented("export")
    assert "empty-rows" in [warned["name"] for warned in exported["warnings"]]


def test_peek(printed, shared_run):
    run = nextlong.open(shared_run)
    told = printed("peek", shared_run, "--first", 3)
    assert [list(one) for one in told] == [documented("peek")] * 3
    assert [one["id"] for one in told] == [
        run.sequence(number).id for number in range(3)
    ]
    one = printed("peek", shared_run, 2)
    assert "".join(span["text"] for span in one["spans"]) == run.sequence(2).text
    assert {key: one[key] for key in told[2]} == told[2]


def test_stats_list_gc_verify_doctor(printed, shared_run, own_run):
    assert set(printed("stats", shared_run)) == set(documented("stats"))
    assert [list(one) for one in printed("list", shared_run)] == [documented("list")]
    (own_run / "99-nothing-0123456789ab").mkdir()
    told = printed("gc", own_run)
    assert list(told) == documented("gc")
    assert not told["removed"]
    assert (own_run / "99-nothing-0123456789ab").exists() == any(
        "99-nothing" in one["path"] for one in told["folders"]
    )
    assert list(printed("verify", shared_run, "--sample", 2)) == documented("verify")
    assert list(printed("doctor")) == documented("doctor")


def test_the_recipe_of_the_fixture_is_that_of_the_run(recipe_file, ran, shared_run):
    assert Recipe.load(recipe_file) == nextlong.open(shared_run).recipe.model_copy(
        update={"run_dir": str(ran)}
    )
