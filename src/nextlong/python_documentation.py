"""Python's own documentation: real documents that need no download.

They are the language reference in `pydoc_data.topics` and the docstrings of the
standard library. Source files are parsed and never imported, because an import may have
side effects (`antigravity` opens a browser).
"""

from __future__ import annotations

import ast
import sysconfig
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from nextlong.errors import CorpusError

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


def documentation_rows() -> list[dict[str, str]]:
    """Return one row (`id`, `text`, `source`) per document.

    Raises CorpusError where this Python has none.
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
    return rows


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
