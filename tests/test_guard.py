"""The guard of CI: what it compares, and that a slower change fails it, by figures alone."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

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


@pytest.fixture
def trees(checkout):
    """Two commits with a package each, whose content names the tree."""
    package = checkout / "src" / "nextlong"
    package.mkdir(parents=True)
    for tree in ("before", "now"):
        (package / "__init__.py").write_text(tree)
        git(checkout, "add", ".")
        git(checkout, "commit", "-q", "-m", tree)
    return checkout


@pytest.fixture
def plan(guard, trees, monkeypatch):
    """Make each run of a tree take what a test says, in its order; return the runs.

    A number is the processor seconds of a run, a pair the exit code and the error.
    """
    ran = []

    def planned(**outcomes):
        left = {tree: iter(values) for tree, values in outcomes.items()}

        def measure(command, *, env):
            assert "PYTHONDONTWRITEBYTECODE" not in env
            package = Path(env["PYTHONPATH"]) / "nextlong"
            tree = (package / "__init__.py").read_text()
            ran.append((tree, command[-1]))
            outcome = next(left[tree])
            if isinstance(outcome, tuple):
                return SimpleNamespace(rc=outcome[0], stderr=outcome[1])
            return SimpleNamespace(rc=0, processor_seconds=outcome)

        module = SimpleNamespace(measure=measure)
        monkeypatch.setitem(sys.modules, "measure", module)
        return ran

    monkeypatch.setattr(guard, "ROOT", trees)
    monkeypatch.setattr(guard, "write_recipe", lambda folder: folder / "recipe.yaml")
    return planned


def worktrees(folder):
    return git(folder, "worktree", "list").splitlines()


@pytest.mark.parametrize(
    ("now", "before", "code"),
    [
        ([6.0, 5.4, 5.6], [5.0, 7.0, 5.3], 0),
        ([3.0, 9.0, 9.0], [5.0, 5.0, 5.0], 0),
        # A planted slowdown of 12 %, twice.
        ([6.0, 5.6, 5.9, 5.7, 5.6, 5.8], [5.0, 7.0, 5.3, 5.1, 5.0, 5.2], 1),
        # Other work on the machine during the first three rounds.
        ([6.0, 5.6, 5.9, 5.7, 5.2, 5.8], [5.0, 7.0, 5.3, 5.1, 5.2, 5.2], 0),
        # The second three do not count alone.
        ([6.0, 5.6, 5.9, 5.7, 5.6, 5.8], [5.0, 7.0, 5.3, 5.6, 5.6, 5.6], 1),
    ],
)
def test_a_change_fails_if_the_best_run_before_it_was_over_a_tenth_faster(
    guard, trees, plan, now, before, code
):
    ran = plan(now=now, before=before)
    assert guard.main() == code
    assert [tree for tree, _ in ran] == ["now", "before"] * len(now)
    # A run that is complete already would take no time.
    assert len(set(ran)) == len(ran)
    assert len(worktrees(trees)) == 1


def test_a_commit_that_cannot_run_the_recipe_is_not_compared(
    guard, trees, plan, capsys
):
    plan(now=[5.0], before=[(2, "warning: old\nerror: compose: unknown key\n")])
    assert guard.main() == 0
    commit = commit_of(trees, "HEAD^")[:10]
    assert capsys.readouterr().out == (
        f"not compared: {commit} cannot run this recipe: error: compose: unknown key\n"
    )
    assert len(worktrees(trees)) == 1


@pytest.mark.parametrize(
    ("now", "before"),
    [
        ([(1, "broken")], []),
        ([5.0], [(-9, "broken")]),  # killed
        ([5.0, 5.0], [5.0, (1, "broken")]),  # it ran the recipe before
        ([6.0] * 4, [5.0] * 3 + [(1, "broken")]),
    ],
)
def test_a_run_that_fails_is_not_accepted(guard, trees, plan, now, before):
    plan(now=now, before=before)
    with pytest.raises(RuntimeError, match="broken"):
        guard.main()
    assert len(worktrees(trees)) == 1


def test_the_earlier_commit_is_checked_out_and_removed(guard, trees, tmp_path):
    folder = tmp_path / "earlier"
    commit = commit_of(trees, "HEAD^")
    with guard.checked_out(commit, trees, folder=folder) as earlier:
        assert (earlier / "src/nextlong/__init__.py").read_text() == "before"
        assert commit_of(earlier, "HEAD") == commit
        assert len(worktrees(trees)) == 2
    assert not folder.exists()
    assert len(worktrees(trees)) == 1


def test_a_commit_that_git_cannot_check_out_is_an_error(guard, trees, plan):
    ran = plan(now=[5.0] * 3, before=[5.0] * 3)
    (trees / ".git" / "worktrees").write_text("")
    with pytest.raises(RuntimeError, match="cannot be checked out: fatal: "):
        guard.main()
    assert not ran


def test_a_commit_without_the_package_is_an_error(guard, trees, plan):
    ran = plan(now=[5.0] * 3, before=[5.0] * 3)
    git(trees, "rm", "-q", "-r", "src")
    git(trees, "commit", "-q", "-m", "without")
    git(trees, "commit", "-q", "--allow-empty", "-m", "after")
    with pytest.raises(RuntimeError, match="has no src/nextlong"):
        guard.main()
    assert not ran
    assert len(worktrees(trees)) == 1
