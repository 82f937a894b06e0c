"""Guard: a change must not make runs slower.

In:  a checkout of nextlong with the commit before the change.
Out: exit code 1 if that commit is more than 10 % faster: the processor time of a run on the documents that every Python
     carries, best of three, the two trees alternating; best of six if the first three are above the limit. Memory does not
     matter, and other work on the machine hardly.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import yaml

from nextlong.cli.demo import write_demo_corpus
from nextlong.python_documentation import documentation_rows
from nextlong.sequences.tokenizer import train_bpe

ROOT = Path(__file__).resolve().parent.parent
MAX_RATIO = 1.1
ROUNDS = 3
NOW, BEFORE = "this checkout", "the commit before"


class NotComparedError(Exception):
    """The earlier tree cannot run the recipe; the text is the last line of its error."""


def main() -> int:
    """Print the processor seconds of both trees; return 1 if the new one is slower."""
    commit = commit_before(ROOT)
    if commit is None:
        print(
            "not compared: there is no earlier commit here (a source archive, or a clone of depth 1)"
        )
        return 0
    with tempfile.TemporaryDirectory(prefix="guard-") as name:
        folder = Path(name)
        recipe = write_recipe(folder)
        with checked_out(commit, ROOT, folder=folder / "before") as earlier:
            try:
                taken = measured({NOW: ROOT, BEFORE: earlier}, recipe=recipe)
            except NotComparedError as error:
                print(f"not compared: {commit[:10]} cannot run this recipe: {error}")
                return 0
    for tree, seconds in taken.items():
        print(
            f"{tree}: {', '.join(f'{value:.2f}' for value in seconds)} processor seconds"
        )
    ratio = slowdown(taken)
    rounds = len(taken[NOW])
    print(
        f"best of {rounds}: {ratio:.2f} of {commit[:10]}; at most {MAX_RATIO} is accepted"
    )
    return 0 if ratio <= MAX_RATIO else 1


@contextmanager
def checked_out(commit: str, root: Path, *, folder: Path) -> Iterator[Path]:
    """Check a commit out in a folder, and remove it afterwards.

    Raises RuntimeError if git fails, or if the commit has no package: its run would
    import another nextlong, and this checkout be compared with itself.
    """
    try:
        _run_git(root, "worktree", "add", "--quiet", "--detach", str(folder), commit)
    except subprocess.CalledProcessError as error:
        raise RuntimeError(
            f"{commit[:10]} cannot be checked out: {error.stderr.strip()}"
        ) from None
    try:
        if not (folder / "src" / "nextlong").is_dir():
            raise RuntimeError(f"{commit[:10]} has no src/nextlong")
        yield folder
    finally:
        _git(root, "worktree", "remove", "--force", str(folder))


def commit_before(root: Path) -> str | None:
    """Return the commit that a checkout is compared with; None if it is not there.

    On a branch where it left main, on main the commit before the last one. What CI
    checks out of a pull request is a merge, whose first parent is main.
    """
    head = _git(root, "rev-parse", "HEAD")
    fork = _git(root, "merge-base", "HEAD", "main")
    if fork not in (None, head):
        return fork
    return _git(root, "rev-parse", "--verify", "--quiet", "HEAD^1")


def write_recipe(folder: Path) -> Path:
    """Write documents, a tokenizer and a recipe; return its path."""
    write_demo_corpus(folder / "corpus.jsonl")
    texts = [row["text"] for row in documentation_rows()]
    # Trained here, because training is a library's and would hide the rest.
    tokenizer = train_bpe(texts[::4], vocab_size=8192)
    tokenizer.save(str(folder / "tokenizer.json"))
    recipe = {
        "run_dir": str(folder / "run"),
        "workers": 2,
        "ingest": {"sources": [{"path": str(folder / "corpus.jsonl")}]},
        "tokenizer": {"source": str(folder / "tokenizer.json")},
        "compose": {"sequences": 60, "target_tokens": 65_536},
    }
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    return path


def measured(trees: Mapping[str, Path], *, recipe: Path) -> dict[str, list[float]]:
    """Return the processor seconds of each tree.

    Above the limit they are measured once more, because other work on the machine may
    have slowed the new tree down.
    """
    taken = alternate(trees, recipe=recipe, rounds=range(ROUNDS))
    ratio = slowdown(taken)
    if ratio > MAX_RATIO:
        print(f"best of {ROUNDS}: {ratio:.2f}; measured once more")
        # Rounds of other numbers, because a run that is complete takes no time.
        again = alternate(trees, recipe=recipe, rounds=range(ROUNDS, 2 * ROUNDS))
        for tree, seconds in again.items():
            taken[tree] += seconds
    return taken


def alternate(
    trees: Mapping[str, Path], *, recipe: Path, rounds: range
) -> dict[str, list[float]]:
    """Run the recipe by each tree in turn; return the processor seconds of each.

    Raises NotComparedError if the earlier tree fails in its first run, and RuntimeError
    if it fails later or is killed, or if the new tree fails.
    """
    from measure import measure  # needs psutil, which only `make bench` installs

    taken: dict[str, list[float]] = {tree: [] for tree in trees}
    for round_number in rounds:
        for tree, root in trees.items():
            run_dir = recipe.parent / f"run-{tree}-{round_number}"
            command = [sys.executable, "-m", "nextlong", "run", str(recipe)]
            environment = {**os.environ, "PYTHONPATH": str(root / "src")}
            # With bytecode, which only the first of its runs compiles.
            environment.pop("PYTHONDONTWRITEBYTECODE", None)
            run = measure([*command, "--set", f"run_dir={run_dir}"], env=environment)
            # A tree that ran the recipe before can run it, and so may a killed one.
            if run.rc > 0 and tree == BEFORE and round_number == 0:
                raise NotComparedError(_last_line(run.stderr))
            if run.rc:
                raise RuntimeError(f"{tree} ended with {run.rc}: {run.stderr}")
            taken[tree].append(run.processor_seconds)
    return taken


def slowdown(taken: Mapping[str, Sequence[float]]) -> float:
    """Return how many times as long as before a run takes, by the best of each."""
    return min(taken[NOW]) / min(taken[BEFORE])


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "it printed no error"


def _git(root: Path, *arguments: str) -> str | None:
    """Return what git prints; None if it fails, or if there is no git."""
    try:
        return _run_git(root, *arguments)
    except (OSError, subprocess.CalledProcessError):
        return None


def _run_git(root: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=root, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
