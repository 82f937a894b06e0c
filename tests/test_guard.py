"""The guard of CI: what it compares, and that a slower change fails it, by figures alone."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def guard(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    spec = importlib.util.spec_from_file_location("guard", ROOT / "bench" / "guard.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def git(folder, *arguments):
    identity = ["-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false"]
    command = ["git", *identity, *arguments]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path):
    """A repository with two commits on main."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    for message in ("first", "second"):
        git(folder, "commit", "-q", "--allow-empty", "-m", message)
    return folder


def commit_of(folder, name):
    return git(folder, "rev-parse", name)


def test_main_is_compared_with_the_commit_before(guard, checkout):
    assert guard.commit_before(checkout) == commit_of(checkout, "HEAD^")


def test_a_branch_is_compared_with_the_commit_where_it_left_main(guard, checkout):
    git(checkout, "checkout", "-q", "-b", "change")
    for message in ("third", "fourth"):
        git(checkout, "commit", "-q", "--allow-empty", "-m", message)
    assert guard.commit_before(checkout) == commit_of(checkout, "main")


def test_nothing_is_compared_without_an_earlier_commit(
    guard, checkout, tmp_path, monkeypatch, capsys
):
    shallow = tmp_path / "shallow"
    git(tmp_path, "clone", "-q", "--depth", "1", checkout.as_uri(), str(shallow))
    archive = tmp_path / "archive"
    archive.mkdir()
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    for folder in (shallow, archive):
        monkeypatch.setattr(guard, "ROOT", folder)
        assert guard.main() == 0
        assert capsys.readouterr().out.startswith("not compared: ")


@pytest.mark.parametrize(
    ("now", "before", "code"),
    [
        ([6.0, 5.4, 5.6], [5.0, 7.0, 5.3], 0),
        ([6.0, 5.6, 5.9], [5.0, 7.0, 5.3], 1),  # a planted slowdown of 12 %
        ([3.0, 9.0, 9.0], [5.0, 5.0, 5.0], 0),
        ([5.0, 5.0, 5.0], [], 0),
    ],
)
def test_a_change_fails_if_the_best_run_before_it_was_over_a_tenth_faster(
    guard, checkout, monkeypatch, now, before, code
):
    seen = {}

    def figures(trees, *, recipe):
        seen.update(trees)
        assert (trees[guard.BEFORE] / ".git").exists()
        return {guard.NOW: now, guard.BEFORE: before}

    monkeypatch.setattr(guard, "ROOT", checkout)
    monkeypatch.setattr(guard, "alternate", figures)
    monkeypatch.setattr(guard, "write_recipe", lambda folder: folder / "recipe.yaml")
    assert guard.main() == code
    assert seen[guard.NOW] == checkout
    assert not seen[guard.BEFORE].exists()
    assert len(git(checkout, "worktree", "list").splitlines()) == 1


def test_it_runs_both_trees_in_turn(guard, tmp_path, monkeypatch):
    ran = []

    def measured(command, *, env):
        ran.append(env["PYTHONPATH"])
        assert "PYTHONDONTWRITEBYTECODE" not in env
        outcome = type("Measurement", (), {})()
        outcome.rc = 0
        outcome.processor_seconds = float(len(ran))
        return outcome

    monkeypatch.setitem(sys.modules, "measure", type(sys)("measure"))
    sys.modules["measure"].measure = measured
    trees = {guard.NOW: tmp_path / "now", guard.BEFORE: tmp_path / "before"}
    taken = guard.alternate(trees, recipe=tmp_path / "recipe.yaml")
    assert taken == {guard.NOW: [1.0, 3.0, 5.0], guard.BEFORE: [2.0, 4.0, 6.0]}
    assert ran == [str(tmp_path / name / "src") for name in ("now", "before")] * 3
