"""The whole route, measured: nextlong against the handwritten script, plain and tuned, and against itself on growing corpora.

In:  JSONL(.zst) files, a tokenizer.json.
Out: Markdown tables on standard output, OUT/results.json. Figures of one machine at one time: read the ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from growth import PARTS, write_parts
from routes import Order, Route, run_handwritten, run_nextlong, run_tuned

# Row of the table → stages of the handwritten script and steps of nextlong.
ROWS: Mapping[str, frozenset[str]] = {
    "read, chunk": frozenset({"read", "ingest", "select", "chunk"}),
    "embed (TF-IDF, SVD)": frozenset({"tfidf", "svd", "encoder", "embed"}),
    "search": frozenset({"search", "meta_documents", "mine"}),
    "draft, tokenize, compose": frozenset(
        {
            "tokenize",
            "tokenizer",
            "shingles",
            "weights",
            "draft",
            "referenced_chunks",
            "tokens",
            "compose",
        }
    ),
    "write": frozenset({"write", "rows", "parquet"}),
}
OTHER = "other"


def main() -> int:
    options = _options()
    order = Order(
        tokenizer=options.tokenizer,
        sequences=options.sequences,
        target_tokens=options.target_tokens,
    )
    options.out.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "corpus": [file.name for file in options.corpus],
        "sequences": order.sequences,
        "target_tokens": order.target_tokens,
    }
    print(
        f"{results['machine']}; {order.sequences} sequences of {order.target_tokens:,} tokens\n"
    )
    if options.measure in ("all", "compare"):
        results["compare"] = compare(
            options.corpus, order=order, repeats=options.repeats, out=options.out
        )
    if options.measure in ("all", "growth"):
        results["growth"] = grow(
            options.corpus,
            order=order,
            sizes=options.growth,
            copies=options.inflate,
            out=options.out,
        )
    (options.out / "results.json").write_text(
        json.dumps(results, indent=1) + "\n", encoding="utf-8"
    )
    return (
        0
        if all(
            results[part]["passed"] for part in ("compare", "growth") if part in results
        )
        else 1
    )


def compare(
    files: Sequence[Path], *, order: Order, repeats: int, out: Path
) -> dict[str, Any]:
    """Run the three programs alternately on the same files; print medians, stage by stage, and their ratios."""
    programs: Mapping[str, Callable[..., Route]] = {
        "handwritten": run_handwritten,
        "tuned": run_tuned,
        "nextlong": run_nextlong,
    }
    taken: dict[str, list[Route]] = {name: [] for name in programs}
    for repeat in range(repeats):
        for name, program in programs.items():
            print(f"{name}, run {repeat + 1} of {repeats}", file=sys.stderr)
            taken[name].append(_fresh(program, files, order=order, out=out))
    for name, routes in taken.items():
        _print_outcome(name, routes, order=order)
    passed = all(
        _gave_all(route, order=order) for routes in taken.values() for route in routes
    )
    if all(not route.error for routes in taken.values() for route in routes):
        print(comparison_table(taken))
    return {
        "passed": passed,
        "runs": {
            name: [asdict(route) for route in routes] for name, routes in taken.items()
        },
    }


def grow(
    files: Sequence[Path], *, order: Order, sizes: Sequence[int], copies: int, out: Path
) -> dict[str, Any]:
    """Run nextlong on growing corpora; print seconds, peak memory and vector bytes per size, and their ratios."""
    taken: dict[int, Route] = {}
    corpus_mb: dict[int, float] = {}
    with tempfile.TemporaryDirectory(prefix="corpora-", dir=out) as folder:
        parts = write_parts(files, copies=range(copies), out=Path(folder))
        for size in sorted(sizes):
            print(f"nextlong, size {size}x", file=sys.stderr)
            corpus_mb[size] = sum(part.stat().st_size for part in parts[:size]) / 1e6
            taken[size] = _fresh(run_nextlong, parts[:size], order=order, out=out)
            _print_outcome(f"nextlong {size}x", [taken[size]], order=order)
    finished = {size: route for size, route in taken.items() if not route.error}
    if finished:
        print(growth_table(finished, corpus_mb=corpus_mb))
    return {
        "passed": all(_gave_all(route, order=order) for route in taken.values()),
        "runs": {
            str(size): {"corpus_mb": corpus_mb[size], **asdict(route)}
            for size, route in taken.items()
        },
    }


def comparison_table(taken: Mapping[str, Sequence[Route]]) -> str:
    """Return the medians of each program, row by row, as Markdown, and how many times nextlong's the others' totals are.

    Stages of the scripts are wall seconds, those of nextlong the seconds of its tasks,
    of which several run at once: only the totals have a ratio.
    """
    rows = {name: [_rows(route) for route in routes] for name, routes in taken.items()}
    lines = [
        "",
        f"| | {' | '.join(rows)} | ratios |",
        "|---|" + "---:|" * (len(rows) + 1),
    ]
    for row in rows["nextlong"][0]:
        medians = {
            name: statistics.median(run[row] for run in runs)
            for name, runs in rows.items()
        }
        if not any(medians.values()):
            continue
        unit = "MB" if "peak" in row else "s"
        ours = medians["nextlong"]
        ratios = [
            _ratio(value, ours)
            for name, value in medians.items()
            if name != "nextlong" and row.startswith("**")
        ]
        lines.append(
            f"| {row} | {' | '.join(f'{value:,.1f} {unit}' for value in medians.values())} | {', '.join(ratios)} |"
        )
    steps = ", ".join(
        f"{name} {seconds:.1f}"
        for name, seconds in taken["nextlong"][-1].stage_seconds.items()
    )
    return "\n".join(
        [
            *lines,
            "",
            f"seconds of the tasks of nextlong's steps (last run): {steps}",
            "",
        ]
    )


def growth_table(routes: Mapping[int, Route], *, corpus_mb: Mapping[int, float]) -> str:
    """Return a column a size and the ratio of the last to the first, as Markdown."""
    sizes = list(routes)
    last_over_first = f"{sizes[-1]}x / {sizes[0]}x"
    lines = [
        "",
        f"| | {' | '.join(f'{size}x' for size in sizes)} | {last_over_first} |",
    ]
    lines.append("|---|" + "---:|" * (len(sizes) + 1))
    values: dict[str, list[float]] = {
        "corpus (MB)": [corpus_mb[size] for size in sizes]
    }
    for name in dict.fromkeys(
        name for route in routes.values() for name in route.stage_seconds
    ):
        values[f"{name} (s)"] = [
            route.stage_seconds.get(name, 0.0) for route in routes.values()
        ]
    values["**total, wall (s)**"] = [route.seconds for route in routes.values()]
    values["**total, processor (s)**"] = [
        route.processor_seconds for route in routes.values()
    ]
    values["load at the end"] = [route.load for route in routes.values()]
    for name in dict.fromkeys(
        name for route in routes.values() for name in route.step_peaks_mb
    ):
        values[f"peak of a task of {name} (MB)"] = [
            route.step_peaks_mb.get(name, 0.0) for route in routes.values()
        ]
    values[f"**peak memory, {routes[sizes[0]].memory} (MB)**"] = [
        route.peak_mb for route in routes.values()
    ]
    values["vectors, memory-mapped by the search (MB)"] = [
        route.vectors_mb for route in routes.values()
    ]
    values["**peak − vectors (MB)**"] = [
        route.peak_mb - route.vectors_mb for route in routes.values()
    ]
    for name, row in values.items():
        lines.append(
            f"| {name} | {' | '.join(f'{value:,.1f}' for value in row)} | {_ratio(row[-1], row[0])} |"
        )
    return "\n".join([*lines, ""])


def _rows(route: Route) -> dict[str, float]:
    """Return the rows of the comparison for one run; what no row claims is OTHER."""
    rows = dict.fromkeys([*ROWS, OTHER], 0.0)
    for stage, seconds in route.stage_seconds.items():
        rows[next((row for row, stages in ROWS.items() if stage in stages), OTHER)] += (
            seconds
        )
    rows["**total**"] = route.seconds
    rows[f"**peak memory, {route.memory}**"] = route.peak_mb
    return rows


def _fresh(
    program: Callable[..., Route], files: Sequence[Path], *, order: Order, out: Path
) -> Route:
    """Run in a folder that did not exist before and does not afterwards."""
    with tempfile.TemporaryDirectory(prefix="run-", dir=out) as folder:
        return program(files, order=order, out=Path(folder) / "out")


def _gave_all(route: Route, *, order: Order) -> bool:
    return not route.error and (route.exact_sequences, route.other_sequences) == (
        order.sequences,
        0,
    )


def _print_outcome(name: str, routes: Sequence[Route], *, order: Order) -> None:
    for route in routes:
        if route.error:
            print(f"- {name}: FAILED after {route.seconds:.1f} s, {route.error}")
        else:
            verdict = "ok" if _gave_all(route, order=order) else "WRONG"
            print(
                f"- {name}: {verdict}, {route.exact_sequences} of {order.sequences} sequences at exactly "
                f"{order.target_tokens:,} tokens, {route.other_sequences} at another length"
            )


def _ratio(above: float, below: float) -> str:
    return f"{above / below:.2f}" if below > 0.05 else ""


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--corpus",
        nargs="+",
        type=_file,
        required=True,
        metavar="FILE",
        help="JSONL, plain or .zst",
    )
    parser.add_argument(
        "--tokenizer",
        type=_file,
        required=True,
        metavar="FILE",
        help="a tokenizer.json",
    )
    parser.add_argument("--sequences", type=int, default=100)
    parser.add_argument("--target-tokens", type=int, default=131_072)
    parser.add_argument(
        "--measure", choices=("all", "compare", "growth"), default="all"
    )
    parser.add_argument(
        "--repeats",
        type=int,
        default=1,
        help="runs of each program, alternating; medians are shown",
    )
    parser.add_argument(
        "--growth",
        type=_sizes,
        default=(1, 2, 4, 8),
        help="sizes in eighths of the corpus: 1,2,4,8",
    )
    parser.add_argument(
        "--inflate",
        type=int,
        default=1,
        help="corpora to have: sizes up to 8 times this are possible",
    )
    parser.add_argument("--out", type=Path, default=Path(".bench"), metavar="DIR")
    options = parser.parse_args()
    if max(options.growth) > PARTS * options.inflate:
        needed = -(-max(options.growth) // PARTS)
        parser.error(
            f"--growth {max(options.growth)} is more than the whole corpus (8); add --inflate {needed}"
        )
    return options


def _file(text: str) -> Path:
    path = Path(text)
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"{text} is not a file")
    return path.resolve()


def _sizes(text: str) -> tuple[int, ...]:
    sizes = tuple(int(size) for size in text.split(","))
    if min(sizes) < 1:
        raise argparse.ArgumentTypeError("sizes start at 1")
    return sizes


if __name__ == "__main__":
    sys.exit(main())
