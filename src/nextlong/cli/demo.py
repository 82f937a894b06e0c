"""The command `nextlong demo`: a run on real documents that need no download, in half a minute.

The corpus is Python's own documentation: the language reference in `pydoc_data.topics` and the docstrings of the standard
library. Source files are parsed and never imported, because an import may have side effects (`antigravity` opens a browser).
"""

from __future__ import annotations

import argparse
import ast
import json
import shlex
import shutil
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from nextlong.cli.common import console
from nextlong.cli.run import run_recipe
from nextlong.engine import store
from nextlong.errors import CorpusError
from nextlong.recipe import Recipe
from nextlong.recipe.recipe import commented
from nextlong.report import tables
from nextlong.text import counted

_NEXT = (
    ("one sequence", "nextlong peek {run} 0"),
    ("its text", "nextlong peek {run} 0 --text"),
    ("shorter sequences", "nextlong run {recipe} --set compose.target_tokens=8192"),
)
_SEQUENCES, _TARGET_TOKENS, _VOCABULARY = 24, 16_384, 8_192
# As `nextlong init` proposes for this corpus: with 2, 40 % of the tokens would stand
# after the last meta-chunk.
_MIN_META_CHUNKS: Final = 3
_MIN_DOCUMENT_CHARS: Final = 200

# Tests, applications and vendored or third-party code: no documentation, or not Python's own.
_SKIPPED_FOLDERS = {
    "__pycache__",
    "_vendor",
    "idlelib",
    "lib2to3",
    "pydoc_data",
    "test",
    "tests",
    "turtledemo",
}


def run_demo(args: argparse.Namespace) -> None:
    """Write corpus and recipe to the folder, run or resume the recipe, and print the next commands."""
    folder: Path = args.dir
    shown = console(stderr=args.json)
    corpus, recipe_path = folder / "corpus.jsonl", folder / "demo.yaml"
    if not corpus.exists():
        documents, chars = write_demo_corpus(corpus)
        what = f"{counted(documents, 'document')}, {chars / 1e6:.1f} MB of Python's documentation"
        tables.show_facts([("corpus", what)], shown, beside=_NEXT)
    absolute = folder.absolute()  # so that the recipe runs from every working directory
    recipe = Recipe.from_dict(
        {
            "run_dir": str(absolute / "run"),
            "ingest": {
                "sources": [
                    {
                        "path": str(absolute / "corpus.jsonl"),
                        "name": "python-documentation",
                    }
                ]
            },
            "tokenizer": {"train": _VOCABULARY, "eos": "<|endoftext|>"},
            "compose": {
                "sequences": _SEQUENCES,
                "target_tokens": _TARGET_TOKENS,
                "min_meta_chunks": _MIN_META_CHUNKS,
            },
            "export": {"formats": ["parquet", "jsonl"]},
        }
    )
    heading = "The recipe of `nextlong demo`. Set the files and the tokenizer to yours, then `nextlong run` this file."
    recipe_path.write_text(commented(recipe, heading=heading), encoding="utf-8")
    run_recipe(recipe, args)
    if not args.json:
        places = {
            "run": shlex.quote(recipe.run_dir),
            "recipe": shlex.quote(str(recipe_path)),
        }
        tables.show_facts(
            [*_first(), *((name, command.format(**places)) for name, command in _NEXT)],
            shown,
        )


def _first() -> list[tuple[str, str]]:
    """Return the command that puts `nextlong` on the PATH, nothing if it already is."""
    scripts = Path(sys.executable).parent
    command = f'export PATH={shlex.quote(str(scripts))}:"$PATH"'
    if (activate := scripts / "activate").is_file():
        shown = (
            activate.relative_to(Path.cwd())
            if scripts.is_relative_to(Path.cwd())
            else activate
        )
        command = f". {shlex.quote(str(shown))}"
    return [] if shutil.which("nextlong") else [("activate", command)]


def write_demo_corpus(path: Path) -> tuple[int, int]:
    """Write the demo corpus as JSONL, whole or not at all; return its documents and characters. Raises CorpusError."""
    rows = list(stdlib_rows(Path(sysconfig.get_path("stdlib"))))
    with suppress(ImportError):  # some distributions omit the topics
        from pydoc_data.topics import topics

        rows = [
            row
            for name in sorted(topics)
            for row in _row("python-topics", name, str(topics[name]))
        ] + rows
    if not rows:
        missing = f"no documentation (no pydoc_data, no sources in {sysconfig.get_path('stdlib')})"
        raise CorpusError(
            f"this Python has {missing}; use a full CPython, or documents of your own"
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        store.write_file(
            path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        )
    except OSError as error:
        raise CorpusError(
            f"the corpus cannot be written to {path}: {error.strerror}; choose another folder"
        ) from None
    return len(rows), sum(len(row["text"]) for row in rows)


def stdlib_rows(stdlib: Path) -> Iterator[dict[str, str]]:
    """Yield one row (`id`, `text`, `source`) per documented module below the folder `stdlib`, by name, without tests."""
    modules, folders = [], [(stdlib, "")]
    while folders:
        folder, package = folders.pop()
        for entry in (
            folder.iterdir() if folder.is_dir() else ()
        ):  # the standard library may be zipped
            name = f"{package}.{entry.stem}".lstrip(
                "."
            )  # `site-packages` and `lib-dynload` are no identifiers
            if (
                entry.suffix == ".py"
                and entry.stem.isidentifier()
                and name != "__init__"
            ):
                modules.append((package if entry.stem == "__init__" else name, entry))
            elif (
                entry.name.isidentifier()
                and entry.name not in _SKIPPED_FOLDERS
                and entry.is_dir()
            ):
                folders.append((entry, name))
    for module, file in sorted(modules):
        with suppress(OSError):  # a dangling link in a trimmed installation
            yield from _row(
                "python-stdlib", module, module_text(file.read_bytes(), module=module)
            )


def _row(source: str, name: str, text: str) -> Iterator[dict[str, str]]:
    if len(text) >= _MIN_DOCUMENT_CHARS:
        # A docstring may spell a lone surrogate, which UTF-8 cannot hold.
        yield {
            "id": f"{source}/{name}",
            "text": text.encode("utf-8", "replace").decode(),
            "source": source,
        }


def module_text(source: bytes, *, module: str) -> str:
    """Return the documentation in the source of `module` as plain text, one blank line between entries.

    The module's docstring below its name, then each documented public definition below its signature; "" if there is
    none, or if the source cannot be parsed (standard libraries hold a few broken files on purpose).
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in old modules
            tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return ""
    docstring = ast.get_docstring(tree)
    entries = [
        *([f"{module}\n{docstring}"] if docstring else []),
        *_entries(tree.body, owner=module),
    ]
    return "\n\n".join(entries) + "\n" if entries else ""


def _entries(body: list[ast.stmt], *, owner: str) -> Iterator[str]:
    """Yield the documented definitions, also those under `if` and `try`: else they would depend on the platform."""
    for node in body:
        if isinstance(node, ast.If | ast.Try):
            handlers = [
                statement
                for handler in getattr(node, "handlers", ())
                for statement in handler.body
            ]
            yield from _entries(
                [*node.body, *handlers, *node.orelse, *getattr(node, "finalbody", ())],
                owner=owner,
            )
        elif (
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            and node.name[0] != "_"
        ):
            name, is_class, docstring = (
                f"{owner}.{node.name}",
                isinstance(node, ast.ClassDef),
                ast.get_docstring(node),
            )
            takes = ", ".join(
                map(
                    ast.unparse,
                    node.bases if isinstance(node, ast.ClassDef) else [node.args],
                )
            )
            if docstring:
                yield f"{'class ' * is_class}{name}{f'({takes})' if takes or not is_class else ''}\n{docstring}"
            if is_class:
                yield from _entries(node.body, owner=name)
