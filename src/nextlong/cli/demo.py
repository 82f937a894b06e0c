"""The command `nextlong demo`: a run on real documents that need no download.

It takes half a minute. The corpus is Python's own documentation.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import sys
from pathlib import Path
from typing import Final

from nextlong.cli.common import console
from nextlong.cli.run import run_recipe
from nextlong.engine import store
from nextlong.errors import CorpusError
from nextlong.python_documentation import documentation_rows
from nextlong.recipe import Recipe
from nextlong.recipe.recipe import commented
from nextlong.report import tables
from nextlong.text import counted

_NEXT = (
    ("one sequence", "nextlong peek {run} 0"),
    ("its text", "nextlong peek {run} 0 --text"),
    ("shorter sequences", "nextlong run {recipe} --set compose.target_tokens=8192"),
)
_SEQUENCES: Final = 24
_TARGET_TOKENS: Final = 16_384
_VOCABULARY: Final = 8_192
# As `nextlong init` proposes for this corpus: with 2, 40 % of the tokens would stand
# after the last meta-chunk.
_MIN_META_CHUNKS: Final = 3


def run_demo(args: argparse.Namespace) -> None:
    """Write corpus and recipe, run or resume it, and print the next commands."""
    folder: Path = args.dir
    shown = console(stderr=args.json)
    corpus = folder / "corpus.jsonl"
    recipe_path = folder / "demo.yaml"
    if not corpus.exists():
        documents, chars = write_demo_corpus(corpus)
        size = (
            f"{counted(documents, 'document')}, {chars / 1e6:.1f} MB of Python's "
            "documentation"
        )
        tables.show_facts([("corpus", size)], shown, beside=_NEXT)
    # Absolute paths, so that the recipe runs from every working directory.
    recipe = _recipe(folder.absolute())
    heading = (
        "The recipe of `nextlong demo`. Set the files and the tokenizer to yours, then "
        "`nextlong run` this file."
    )
    recipe_path.write_text(commented(recipe, heading=heading), encoding="utf-8")
    run_recipe(recipe, args)
    if args.json:
        return
    run = shlex.quote(recipe.run_dir)
    recipe_name = shlex.quote(str(recipe_path))
    next_commands = [
        (meaning, command.format(run=run, recipe=recipe_name))
        for meaning, command in _NEXT
    ]
    tables.show_facts([*_activation(), *next_commands], shown)


def _recipe(folder: Path) -> Recipe:
    source = {"path": str(folder / "corpus.jsonl"), "name": "python-documentation"}
    return Recipe.from_dict(
        {
            "run_dir": str(folder / "run"),
            "ingest": {"sources": [source]},
            "tokenizer": {"train": _VOCABULARY, "eos": "<|endoftext|>"},
            "compose": {
                "sequences": _SEQUENCES,
                "target_tokens": _TARGET_TOKENS,
                "min_meta_chunks": _MIN_META_CHUNKS,
            },
            "export": {"formats": ["parquet", "jsonl"]},
        }
    )


def _activation() -> list[tuple[str, str]]:
    """Return the command that puts `nextlong` on the PATH; none if it already is."""
    if shutil.which("nextlong"):
        return []
    scripts = Path(sys.executable).parent
    activate = scripts / "activate"
    if not activate.is_file():
        return [("activate", f'export PATH={shlex.quote(str(scripts))}:"$PATH"')]
    if scripts.is_relative_to(Path.cwd()):
        activate = activate.relative_to(Path.cwd())
    return [("activate", f". {shlex.quote(str(activate))}")]


def write_demo_corpus(path: Path) -> tuple[int, int]:
    """Write the demo corpus as JSONL, whole or not at all.

    Returns its documents and characters. Raises CorpusError.
    """
    rows = documentation_rows()
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        store.write_file(path, "".join(lines))
    except OSError as error:
        raise CorpusError(
            where=path,
            problem=f"the corpus cannot be written: {error.strerror}",
            fix="choose another folder",
        ) from None
    return len(rows), sum(len(row["text"]) for row in rows)
