"""Python's documentation: the text of a module, and the rows of a standard library."""

from pathlib import Path

import pytest

from nextlong.python_documentation import module_text, stdlib_rows

LONG = "Long enough." * 20

SOURCE = b'''"""Shapes.

    Indented.
"""
import sys

def area(width, *, height: int = 2) -> int:
    """Return the area."""

def undocumented(): ...

def _private():
    """Not shown."""

if sys.platform == "nowhere":
    async def fetch(url): "Fetch one."
else:
    try:
        import missing
    except ImportError:
        def fallback(): "Stand in."

class Box(Base, metaclass=Meta):
    """A box."""

    def __init__(self):
        """Not shown."""

    def open(self, /, force=False):
        """Open it."""

        def inner():
            """Not shown."""

    class Lid:
        def lift(self):
            """Lift it."""
'''

TEXT = """shapes
Shapes.

Indented.

shapes.area(width, *, height: int=2)
Return the area.

shapes.fetch(url)
Fetch one.

shapes.fallback()
Stand in.

class shapes.Box(Base)
A box.

shapes.Box.open(self, /, force=False)
Open it.

shapes.Box.Lid.lift(self)
Lift it.
"""


def test_module_text_is_name_docstrings_and_signatures():
    assert module_text(SOURCE, module="shapes") == TEXT


def test_module_text_reads_the_declared_encoding():
    source = "# -*- coding: latin-1 -*-\n'Füße'\n".encode("latin-1")
    assert module_text(source, module="m") == "m\nFüße\n"


@pytest.mark.parametrize(
    "source",
    [b"", b"x = 1", b"print 'python 2'", b"'\xff'", b"a\x00b", b"'''\\d'''\nx ="],
)
def test_module_text_of_undocumented_or_broken_source_is_empty(source):
    assert module_text(source, module="m") == ""


def test_module_text_survives_invalid_escapes():
    assert module_text(b"'''A \\d.'''", module="m") == "m\nA \\d.\n"


def test_stdlib_rows_are_sorted_and_skip_tests_short_and_foreign_modules(
    tmp_path: Path,
):
    for name in [
        "zebra.py",
        "json/__init__.py",
        "json/decoder.py",
        "json/__pycache__/decoder.py",
        "test/test_json.py",
        "sqlite3/test/dbapi.py",
        "site-packages/numpy.py",
        "config-3.11-x86_64-linux-gnu/python-config.py",
        "__init__.py",
    ]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f'"""{LONG}"""')
    (tmp_path / "short.py").write_text('"""Short."""')
    (tmp_path / "notes.txt").write_text(f'"""{LONG}"""')

    rows = list(stdlib_rows(tmp_path))

    assert [row["id"] for row in rows] == [
        "python-stdlib/json",
        "python-stdlib/json.decoder",
        "python-stdlib/zebra",
    ]
    assert rows[1]["text"] == "json.decoder\n" + LONG + "\n"
    assert {row["source"] for row in rows} == {"python-stdlib"}


def test_stdlib_rows_hold_only_what_utf8_can(tmp_path: Path):
    (tmp_path / "odd.py").write_text("'''" + "x" * 300 + " \\ud800'''")
    (row,) = stdlib_rows(tmp_path)
    assert row["text"].endswith("x ?\n")


def test_stdlib_rows_of_a_zipped_library_are_none(tmp_path: Path):
    assert list(stdlib_rows(tmp_path / "python311.zip")) == []
