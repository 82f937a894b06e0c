"""The command `nextlong demo`: a run on real documents that need no download.

It takes half a minute. The corpus is Python's own documentation: the language reference
in `pydoc_data.topics` and the docstrings of the standard library. Source files are
parsed and never imported, because an import may have side effects (`antigravity` opens
a browser).
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
_SEQUENCES: Final = 24
_TARGET_TOKENS: Final = 16_384
_VOCABULARY: Final = 8_192
# As `nextlong init` proposes for this corpus: with 2, 40 % of the tokens would stand
# after the last meta-chunk.
_MIN_META_CHUNKS: Final = 3
_MIN_DOCUMENT_CHARS: Final = 200

# Tests, applications and vendored or third-party code: no documentation, or not
# Python's own.
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
    stdlib = sysconfig.get_path("stdlib")
    rows: list[dict[str, str]] = []
    with suppress(ImportError):  # some distributions omit the topics
        from pydoc_data.topics import topics

        for name in sorted(topics):
            rows += _row("python-topics", name, str(topics[name]))
    rows += stdlib_rows(Path(stdlib))
    if not rows:
        raise CorpusError(
            where="this Python",
            problem=f"it has no documentation (no pydoc_data, no sources in {stdlib})",
            fix="use a full CPython, or documents of your own",
        )
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


def stdlib_rows(stdlib: Path) -> Iterator[dict[str, str]]:
    """Yield one row (`id`, `text`, `source`) per documented module, by name.

    The modules are those below the folder `stdlib`, without tests.
    """
    modules: list[tuple[str, Path]] = []
    folders = [(stdlib, "")]
    while folders:
        folder, package = folders.pop()
        if not folder.is_dir():
            continue  # the standard library may be zipped
        for entry in folder.iterdir():
            stem = entry.stem
            name = f"{package}.{stem}".lstrip(".")
            # `site-packages` and `lib-dynload` are no identifiers.
            if entry.suffix == ".py" and stem.isidentifier() and name != "__init__":
                modules.append((package if stem == "__init__" else name, entry))
            elif _is_package(entry):
                folders.append((entry, name))
    for module, file in sorted(modules):
        with suppress(OSError):  # a dangling link in a trimmed installation
            text = module_text(file.read_bytes(), module=module)
            yield from _row("python-stdlib", module, text)


def _is_package(entry: Path) -> bool:
    is_named_so = entry.name.isidentifier() and entry.name not in _SKIPPED_FOLDERS
    return is_named_so and entry.is_dir()


def _row(source: str, name: str, text: str) -> Iterator[dict[str, str]]:
    if len(text) >= _MIN_DOCUMENT_CHARS:
        # A docstring may spell a lone surrogate, which UTF-8 cannot hold.
        yield {
            "id": f"{source}/{name}",
            "text": text.encode("utf-8", "replace").decode(),
            "source": source,
        }


def module_text(source: bytes, *, module: str) -> str:
    """Return the documentation in the source of `module` as plain text.

    The module's docstring below its name, then each documented public definition below
    its signature, with one blank line between them; "" if there is none, or if the
    source cannot be parsed (standard libraries hold a few broken files on purpose).
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in old modules
            tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return ""
    entries = list(_entries(tree.body, owner=module))
    docstring = ast.get_docstring(tree)
    if docstring:
        entries.insert(0, f"{module}\n{docstring}")
    return "\n\n".join(entries) + "\n" if entries else ""


def _entries(body: list[ast.stmt], *, owner: str) -> Iterator[str]:
    """Yield the documented definitions.

    Also those under `if` and `try`: else they would depend on the platform.
    """
    for node in body:
        if isinstance(node, ast.If | ast.Try):
            yield from _entries(_branches(node), owner=owner)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if node.name[0] == "_":
                continue
            name = f"{owner}.{node.name}"
            docstring = ast.get_docstring(node)
            if docstring:
                yield f"{_signature(node, name)}\n{docstring}"
            if isinstance(node, ast.ClassDef):
                yield from _entries(node.body, owner=name)


def _branches(node: ast.If | ast.Try) -> list[ast.stmt]:
    """Return the statements in all branches, in order."""
    if isinstance(node, ast.If):
        return [*node.body, *node.orelse]
    statements = list(node.body)
    for handler in node.handlers:
        statements += handler.body
    return [*statements, *node.orelse, *node.finalbody]


def _signature(
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, name: str
) -> str:
    if not isinstance(node, ast.ClassDef):
        return f"{name}({ast.unparse(node.args)})"
    bases = ", ".join(ast.unparse(base) for base in node.bases)
    return f"class {name}({bases})" if bases else f"class {name}"
