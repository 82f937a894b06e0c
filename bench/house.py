"""House: how large and how tangled `src` is, from its syntax trees: signs to watch, not aims.

    python bench/house.py            # the table
    python bench/house.py --list     # and what each count names

"Functions that a small run passes" are those of nextlong that are called, in this process, by one run of the demo's kind.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import io
import json
import sys
import tempfile
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SRC = Path(__file__).parents[1] / "src"
SMALL_FILE_LINES = 60


def modules() -> dict[str, Path]:
    """Return the files of the package by the dotted name of their module."""
    found = {}
    for path in sorted((SRC / "nextlong").rglob("*.py")):
        parts = path.relative_to(SRC).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield every function and method of a module."""
    return (
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def public_names(tree: ast.Module) -> list[str]:
    """Return the public functions, classes and constants that a module defines at its top level."""
    names = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.append(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names += [target.id for target in targets if isinstance(target, ast.Name)]
    return [name for name in names if not name.startswith("_")]


def used_once(trees: dict[str, ast.Module]) -> tuple[list[str], int]:
    """Return the private functions of modules that one place names, and how many private functions there are."""
    once, total = [], 0
    for module, tree in trees.items():
        private = [
            node.name
            for node in tree.body
            if isinstance(node, ast.FunctionDef)
            and node.name.startswith("_")
            and not node.name.startswith("__")
        ]
        uses = Counter(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
        once += [f"{module}.{name}" for name in private if uses[name] == 1]
        total += sum(1 for _ in functions(tree))
    return once, total


def comment_lines(text: str) -> int:
    """Return how many lines hold a comment."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return len({token.start[0] for token in tokens if token.type == tokenize.COMMENT})


def imports_of(
    module: str, path: Path, tree: ast.Module, known: dict[str, Path]
) -> set[str]:
    """Return the modules of the package that a module imports when it is imported itself."""
    found: set[str] = set()
    for node in tree.body:  # not inside functions, nor under TYPE_CHECKING
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {
                node.module
            }
    return {
        name
        for name in found
        if name in known and name != module and known[name] != path
    }


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
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


def siblings(graph: dict[str, set[str]]) -> Iterator[dict[str, set[str]]]:
    """Yield the same imports between the files and folders of each folder; `__init__.py` stands for its folder."""
    folders = {module.rpartition(".")[0] for module in graph} - {""}
    for folder in sorted(folders):
        between: dict[str, set[str]] = defaultdict(set)
        for module, others in graph.items():
            if (here := _within(folder, module)) is not None:
                between[here] |= {
                    there
                    for other in others
                    if (there := _within(folder, other)) not in (None, here)
                }
        yield {
            one: {other for other in others if other in between}
            for one, others in between.items()
        }


def _within(folder: str, module: str) -> str | None:
    """Return the child of a folder that a module is, or is in; None if it is in none."""
    inside = module.removeprefix(f"{folder}.")
    return None if inside == module else f"{folder}.{inside.partition('.')[0]}"


def passed_by_a_small_run() -> int:
    """Return how many functions of the package a run of a few small documents calls in this process."""
    import nextlong
    from nextlong.cli.demo import write_demo_corpus

    seen: set[Any] = set()

    def profile(frame: Any, event: str, _: object) -> None:
        code = frame.f_code
        # Until Python 3.12, comprehensions are functions too; the bodies of modules and classes have no fast locals.
        is_function = code.co_flags & inspect.CO_OPTIMIZED and (
            code.co_name[0] != "<" or code.co_name == "<lambda>"
        )
        if event == "call" and is_function and f"{SRC}/nextlong" in code.co_filename:
            seen.add(code)

    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "corpus.jsonl"
        write_demo_corpus(corpus)
        corpus.write_text(
            "".join(corpus.read_text(encoding="utf-8").splitlines(keepends=True)[:300]),
            encoding="utf-8",
        )
        recipe = nextlong.Recipe.from_dict(
            {
                "run_dir": f"{folder}/run",
                "executor": "serial",
                "ingest": {"sources": [{"path": str(corpus)}]},
                "tokenizer": {"train": 2000},
                "compose": {"sequences": 2, "target_tokens": 8192},
            }
        )
        sys.setprofile(profile)
        try:
            nextlong.run(recipe)
        finally:
            sys.setprofile(None)
    return len(seen)


def measure() -> tuple[dict[str, float | int | str], dict[str, list[str]]]:
    """Return the figures by name, and what some of them count."""
    known = modules()
    texts = {module: path.read_text(encoding="utf-8") for module, path in known.items()}
    trees = {module: ast.parse(text) for module, text in texts.items()}
    lines = {module: text.count("\n") for module, text in texts.items()}
    once, function_count = used_once(trees)
    classes = Counter(
        node.name
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    )
    twice = sorted(name for name, count in classes.items() if count > 1)
    small = sorted(
        module
        for module, path in known.items()
        if path.name != "__init__.py" and lines[module] < SMALL_FILE_LINES
    )
    longest = max(
        (node.end_lineno - node.lineno + 1, f"{module}.{node.name}")
        for module, tree in trees.items()
        for node in functions(tree)
        if node.end_lineno is not None
    )
    graph = {
        module: imports_of(module, known[module], tree, known)
        for module, tree in trees.items()
    }
    found = [
        *circles(graph),
        *(circle for between in siblings(graph) for circle in circles(between)),
    ]
    any_words = sum(
        isinstance(node, ast.Name) and node.id == "Any"
        for tree in trees.values()
        for node in ast.walk(tree)
    )
    total = sum(lines.values())
    return {
        "lines": total,
        "files": len(known),
        "public names": sum(len(public_names(tree)) for tree in trees.values()),
        "private functions used once, %": round(100 * len(once) / function_count, 1),
        f"files under {SMALL_FILE_LINES} lines": len(small),
        "class names defined twice": len(twice),
        "comment lines, %": round(
            100 * sum(map(comment_lines, texts.values())) / total, 1
        ),
        "the word Any": any_words,
        "circles": len(found),
        "longest function": longest[0],
        "longest file": max(lines.values()),
    }, {
        "private functions used once": once,
        "small files": small,
        "class names defined twice": twice,
        "circles": [" ".join(component) for component in found],
        "longest function": [longest[1]],
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--list", action="store_true", help="also print what the counts name"
    )
    parser.add_argument(
        "--run",
        action="store_true",
        help="also count the functions that a small run passes",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args()
    figures, named = measure()
    if given.run:
        figures["functions that a small run passes"] = passed_by_a_small_run()
    if given.json:
        print(
            json.dumps({"figures": figures, **(named if given.list else {})}, indent=1)
        )
        return
    for name, value in figures.items():
        print(f"{name:36} {value:>10}")
    for name, values in named.items() if given.list else ():
        print(f"\n{name}:", *values, sep="\n  ")


if __name__ == "__main__":
    main()
