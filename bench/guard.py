"""Guard: a change must not make runs slower.

In:  a checkout of nextlong with the commit before the change.
Out: exit code 1 if that commit is more than 10 % faster: the processor time of a run on the documents that every Python
     carries, best of three, the two trees alternating. Memory and other work on the machine do not matter.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from nextlong.cli.demo import write_demo_corpus
from nextlong.python_documentation import documentation_rows
from nextlong.sequences.tokenizer import train_bpe

ROOT = Path(__file__).resolve().parent.parent
MAX_RATIO = 1.1
ROUNDS = 3
NOW, BEFORE = "this checkout", "the commit before"


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
        earlier = folder / "before"
        _git(ROOT, "worktree", "add", "--quiet", "--detach", str(earlier), commit)
        try:
            taken = alternate({NOW: ROOT, BEFORE: earlier}, recipe=write_recipe(folder))
        finally:
            _git(ROOT, "worktree", "remove", "--force", str(earlier))
    if not taken[BEFORE]:
        print(f"not compared: {commit[:10]} cannot run this recipe")
        return 0
    for tree, seconds in taken.items():
        print(
            f"{tree}: {', '.join(f'{value:.2f}' for value in seconds)} processor seconds"
        )
    ratio = slowdown(taken[NOW], taken[BEFORE])
    print(
        f"best of {ROUNDS}: {ratio:.2f} of {commit[:10]}; at most {MAX_RATIO} is accepted"
    )
    return 0 if ratio <= MAX_RATIO else 1


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


def alternate(trees: Mapping[str, Path], *, recipe: Path) -> dict[str, list[float]]:
    """Run the recipe by each tree in turn; return the processor seconds of each.

    None of the earlier tree if it cannot run it. Raises RuntimeError if the new one
    cannot.
    """
    from measure import measure  # needs psutil, which only `make bench` installs

    taken: dict[str, list[float]] = {tree: [] for tree in trees}
    for round_number in range(ROUNDS):
        for tree, root in trees.items():
            run_dir = recipe.parent / f"run-{tree}-{round_number}"
            command = [sys.executable, "-m", "nextlong", "run", str(recipe)]
            environment = {**os.environ, "PYTHONPATH": str(root / "src")}
            # With bytecode, which only the first of its runs compiles.
            environment.pop("PYTHONDONTWRITEBYTECODE", None)
            measured = measure(
                [*command, "--set", f"run_dir={run_dir}"], env=environment
            )
            if measured.rc and tree == NOW:
                raise RuntimeError(measured.stderr)
            if measured.rc:
                return taken
            taken[tree].append(measured.processor_seconds)
    return taken


def slowdown(now: Sequence[float], before: Sequence[float]) -> float:
    """Return how many times as long as before a run takes, by the best of each."""
    return min(now) / min(before)


def _git(root: Path, *arguments: str) -> str | None:
    """Return what git prints; None if it fails, or if there is no git."""
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=root, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
