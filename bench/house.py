"""Measure how dense the source is, beside the codebases that this field holds up.

    python bench/house.py                     # src and tests; exit 1 if a row is missed
    python bench/house.py --since COMMIT      # the files of src that changed since then
    python bench/house.py --list [PATH …]     # also name each place that rows count

In:  syntax trees of `src/nextlong` and `tests`, and radon's cyclomatic complexity.
Out: one line per measure: its value, its goal, and the range of datatrove, httpx,
     torchtitan, lm-eval, OLMo-core, semhash and nanochat, measured in the same way.

A goal that the source once met is *held*: from then on, missing it fails (see GOALS).
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from radon.complexity import cc_visit

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "nextlong"
TESTS = ROOT / "tests"
COMPLEX = 10  # radon's complexity above which a function counts
PROSE = re.compile(r"[A-Za-z]{2,}[,.;:]? [A-Za-z]{2,}[,.;:]? [A-Za-z]{2,}")
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
# Statements whose body is other statements: their calls are counted there.
COMPOUND = (
    ast.If,
    ast.For,
    ast.While,
    ast.With,
    ast.Try,
    ast.FunctionDef,
    ast.ClassDef,
    ast.Match,
)


@dataclass(frozen=True)
class Goal:
    """A measure, the bound that it should keep, and the range of the other codebases.

    `is_held` says that the source met the goal before, so that CI fails if it does not.
    """

    name: str
    bound: float
    others: str
    kind: str = "at most"
    is_held: bool = True

    def is_met(self, value: float) -> bool:
        """Return whether a value keeps the bound."""
        return value <= self.bound if self.kind == "at most" else value >= self.bound


GOALS = (
    Goal("AST nodes per code line", 8.5, "5.6 to 9.3"),
    Goal("line length, mean", 44, "36 to 48"),
    Goal("line length, 90th percentile", 84, "64 to 84"),
    Goal("statements with 3 calls or more, %", 3.5, "1.7 to 3.5"),
    Goal("tuple assignments per 1,000 code lines", 2, "0 to 1.4 (one 9.7)"),
    Goal("nested comprehensions per 1,000", 2, "0 to 1.8"),
    Goal("conditional expressions per 1,000", 18, "2 to 14"),
    Goal("walrus per 1,000", 3, "0 to 1.8 (one 7.2)"),
    Goal("complexity over 10, % of functions", 5, "0 to 7.0"),
    Goal("comment lines of their own, %", 4, "3.4 to 11.9", kind="at least"),
    Goal("AST nodes", 335_000, "", is_held=False),
    Goal("private classes in public signatures", 0, ""),
    Goal("import cycles", 0, ""),
    Goal("tests that assert on prose, %", 12, ""),
)
# These rows say nothing about a few files alone.
WHOLE_TREE_ONLY = ("AST nodes", "import cycles", "tests that assert on prose, %")


@dataclass
class Density:
    """Counts over files of source; `line_lengths` has one entry per code line."""

    nodes: int = 0
    statements: int = 0
    busy_statements: int = 0
    tuple_assignments: int = 0
    nested_comprehensions: int = 0
    conditional_expressions: int = 0
    walruses: int = 0
    comments: int = 0
    functions: int = 0
    complex_functions: int = 0
    line_lengths: list[int] = field(default_factory=list)
    places: list[str] = field(default_factory=list)  # PATH:LINE KIND of what is counted

    def add(self, source: str, name: str) -> None:
        """Count the source of the file `name`."""
        tree = ast.parse(source)
        for node in ast.walk(tree):
            self.nodes += 1
            kinds = list(kinds_of(node))
            self.tuple_assignments += "tuple assignment" in kinds
            self.nested_comprehensions += "nested comprehension" in kinds
            self.conditional_expressions += "conditional expression" in kinds
            self.walruses += "walrus" in kinds
            self.busy_statements += "3 calls or more" in kinds
            self.statements += is_simple_statement(node)
            for kind in kinds:
                self.places.append(f"{name}:{node.lineno} {kind}")  # type: ignore[attr-defined]
        for block in cc_visit(source):
            if block.letter not in "FM":  # functions and methods, not classes
                continue
            self.functions += 1
            if block.complexity > COMPLEX:
                self.complex_functions += 1
                kind = f"complexity {block.complexity} of {block.name}"
                self.places.append(f"{name}:{block.lineno} {kind}")
        docstrings = docstring_lines(tree)
        for number, line in enumerate(source.splitlines(), start=1):
            text = line.strip()
            if not text or number in docstrings:
                continue
            if text.startswith("#"):
                self.comments += 1
            else:
                self.line_lengths.append(len(line))

    def figures(self) -> dict[str, float]:
        """Return each measure by the name that GOALS gives it."""
        lengths = sorted(self.line_lengths)
        code = max(1, len(lengths))
        per_thousand = 1000 / code
        return {
            "AST nodes per code line": self.nodes / code,
            "line length, mean": sum(lengths) / code,
            "line length, 90th percentile": lengths[int(0.9 * len(lengths))],
            "statements with 3 calls or more, %": percent(
                self.busy_statements, self.statements
            ),
            "tuple assignments per 1,000 code lines": self.tuple_assignments
            * per_thousand,
            "nested comprehensions per 1,000": self.nested_comprehensions
            * per_thousand,
            "conditional expressions per 1,000": self.conditional_expressions
            * per_thousand,
            "walrus per 1,000": self.walruses * per_thousand,
            "complexity over 10, % of functions": percent(
                self.complex_functions, self.functions
            ),
            "comment lines of their own, %": percent(
                self.comments, self.comments + code
            ),
        }


def kinds_of(node: ast.AST) -> Iterator[str]:
    """Yield the kinds of dense code that a node is."""
    if is_tuple_assignment(node):
        yield "tuple assignment"
    if is_nested_comprehension(node):
        yield "nested comprehension"
    if isinstance(node, ast.IfExp):
        yield "conditional expression"
    if isinstance(node, ast.NamedExpr):
        yield "walrus"
    if is_simple_statement(node):
        calls = sum(isinstance(inner, ast.Call) for inner in ast.walk(node))
        if calls >= 3:
            yield "3 calls or more"


def is_simple_statement(node: ast.AST) -> bool:
    """Return whether a node is a statement without a body of other statements."""
    return isinstance(node, ast.stmt) and not isinstance(node, COMPOUND)


def percent(part: int, whole: int) -> float:
    """Return a share in percent, 0 of nothing."""
    return 100 * part / max(1, whole)


def docstring_lines(tree: ast.AST) -> set[int]:
    """Return the numbers of the lines that docstrings occupy."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        if not isinstance(node, DOCUMENTED) or not node.body:
            continue
        first = node.body[0]
        if not isinstance(first, ast.Expr) or not isinstance(first.value, ast.Constant):
            continue
        if isinstance(first.value.value, str):
            last_line = first.end_lineno or first.lineno
            lines.update(range(first.lineno, last_line + 1))
    return lines


def is_nested_comprehension(node: ast.AST) -> bool:
    """Return whether a comprehension has a second loop or another one inside it."""
    if not isinstance(node, COMPREHENSIONS):
        return False
    inner = (child for child in ast.walk(node) if child is not node)
    return len(node.generators) > 1 or any(
        isinstance(child, COMPREHENSIONS) for child in inner
    )


def is_tuple_assignment(node: ast.AST) -> bool:
    """Return whether a statement is `a, b = x, y`, but not a swap."""
    if not isinstance(node, ast.Assign) or len(node.targets) != 1:
        return False
    target = node.targets[0]
    value = node.value
    if not isinstance(target, ast.Tuple) or not isinstance(value, ast.Tuple):
        return False
    assigned = sorted(ast.unparse(element) for element in target.elts)
    given = sorted(ast.unparse(element) for element in value.elts)
    return assigned != given


def private_classes_in_signatures(module: str, tree: ast.Module) -> list[str]:
    """Return the public functions and methods whose signature names a private class."""
    private = {
        node.name
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name.startswith("_")
    }
    found = []
    owners: list[ast.Module | ast.ClassDef] = [tree]
    owners += [node for node in tree.body if isinstance(node, ast.ClassDef)]
    for owner in owners:
        if isinstance(owner, ast.ClassDef) and owner.name.startswith("_"):
            continue
        for node in owner.body:
            if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
                continue
            if private & set(names_in_signature(node)):
                found.append(f"{module}.{node.name}")
    return found


def names_in_signature(function: ast.FunctionDef) -> Iterator[str]:
    """Yield the names in the annotations of a function."""
    parts: list[ast.AST | None] = [function.returns]
    arguments = function.args
    every = [
        *arguments.posonlyargs,
        *arguments.args,
        *arguments.kwonlyargs,
        arguments.vararg,
        arguments.kwarg,
    ]
    parts += [argument.annotation for argument in every if argument is not None]
    for part in parts:
        for node in ast.walk(part) if part is not None else []:
            if isinstance(node, ast.Name):
                yield node.id
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield from re.findall(r"\w+", node.value)


def imports_of(module: str, tree: ast.Module, known: set[str]) -> set[str]:
    """Return the modules that a module imports, also for type checks or in functions.

    `from package import module` imports the module; the package itself only if a name
    that is no module is taken from it.
    """
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names & known
            if not names <= known:
                found.add(node.module)
    return (found & known) - {module}


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected components of more than one node (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in graph[node]:
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            component = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(component) > 1:
                found.append(sorted(component))

    sys.setrecursionlimit(10_000)
    for node in graph:
        if node not in index:
            visit(node)
    return found


def between_siblings(graph: dict[str, set[str]]) -> Iterator[dict[str, set[str]]]:
    """Yield, for each folder, the imports between the files and folders in it."""
    folders = {module.rpartition(".")[0] for module in graph} - {""}
    for folder in sorted(folders):
        between: dict[str, set[str]] = defaultdict(set)
        for module, others in graph.items():
            here = child_of(folder, module)
            if here is None:
                continue
            for other in others:
                there = child_of(folder, other)
                if there is not None and there != here:
                    between[here].add(there)
                    between.setdefault(there, set())
        yield between


def child_of(folder: str, module: str) -> str | None:
    """Return the child of a folder that a module is, or is in; None if in none."""
    inside = module.removeprefix(f"{folder}.")
    return None if inside == module else f"{folder}.{inside.partition('.')[0]}"


def asserts_on_prose(test: ast.FunctionDef) -> bool:
    """Return whether a test compares with three words of prose or more."""
    for node in ast.walk(test):
        compared: list[ast.AST] = []
        if isinstance(node, ast.Assert):
            compared.append(node.test)
        elif isinstance(node, ast.keyword) and node.arg == "match":
            compared.append(node.value)
        for part in compared:
            for inner in ast.walk(part):
                is_text = isinstance(inner, ast.Constant) and isinstance(
                    inner.value, str
                )
                if is_text and PROSE.search(inner.value):  # type: ignore[attr-defined]
                    return True
    return False


def tests_on_prose() -> tuple[list[str], int]:
    """Return the tests that assert on prose, and the number of all tests."""
    found = []
    count = 0
    for path in sorted(TESTS.rglob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                count += 1
                if asserts_on_prose(node):
                    found.append(f"{path.relative_to(ROOT)}::{node.name}")
    return found, count


def changed_since(commit: str) -> list[Path]:
    """Return the files of `src` that changed since a commit and still exist."""
    command = ["git", "diff", "--name-only", commit, "--", "src"]
    printed = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    paths = [ROOT / name for name in printed.splitlines()]
    return [path for path in paths if path.suffix == ".py" and path.exists()]


def files_below(paths: Iterable[Path]) -> list[Path]:
    """Return the Python files that paths are, or that are in them."""
    files: list[Path] = []
    for path in paths:
        files += [path] if path.is_file() else sorted(path.rglob("*.py"))
    return files


def measure(files: Iterable[Path]) -> tuple[dict[str, float], dict[str, list[str]]]:
    """Return each measure of some files of `src`, and what the last rows count."""
    density = Density()
    trees = {}
    for path in files:
        source = path.read_text(encoding="utf-8")
        density.add(source, str(path.relative_to(ROOT)))
        parts = path.relative_to(SRC.parent).with_suffix("").parts
        if parts[-1] == "__init__":
            parts = parts[:-1]
        module = ".".join(parts)
        trees[module] = ast.parse(source)
    private = []
    graph = {}
    for module, tree in trees.items():
        private += private_classes_in_signatures(module, tree)
        graph[module] = imports_of(module, tree, set(trees))
    found = cycles(graph)
    for between in between_siblings(graph):
        found += [cycle for cycle in cycles(between) if cycle not in found]
    on_prose, tests = tests_on_prose()
    figures = density.figures() | {
        "AST nodes": density.nodes,
        "private classes in public signatures": len(private),
        "import cycles": len(found),
        "tests that assert on prose, %": percent(len(on_prose), tests),
    }
    named = {
        "places": density.places,
        "private classes in public signatures": private,
        "import cycles": [" ".join(cycle) for cycle in found],
        "tests that assert on prose": on_prose,
    }
    return figures, named


def main() -> int:
    """Print the table; return 1 if a held goal is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--since", metavar="COMMIT", help="only files changed since")
    parser.add_argument("--list", action="store_true", help="name what rows count")
    parser.add_argument("paths", nargs="*", type=Path, help="files or folders of src")
    given = parser.parse_args()
    is_part = bool(given.since or given.paths)
    if given.since:
        files = changed_since(given.since)
    else:
        files = files_below([path.absolute() for path in given.paths] or [SRC])
    if not files:
        print("no file of src to measure")
        return 0
    figures, named = measure(files)
    has_failed = False
    for goal in GOALS:
        if is_part and goal.name in WHOLE_TREE_ONLY:
            continue
        value = figures[goal.name]
        is_missed = not goal.is_met(value)
        has_failed |= is_missed and goal.is_held
        mark = "!" if is_missed else " "
        bound = f"{goal.kind} {goal.bound:,}"
        others = f"; others {goal.others}" if goal.others else ""
        print(f"{mark} {value:10,.1f}  {goal.name} ({bound}{others})")
    if given.list:
        for name, values in named.items():
            is_shown = not is_part or name == "places"
            if is_shown:
                print(f"\n{name}:", *values, sep="\n  ")
    return int(has_failed)


if __name__ == "__main__":
    sys.exit(main())
