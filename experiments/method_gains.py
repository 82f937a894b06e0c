"""The gains of methods: a table of what `nextlong stats --dependence` measured.

    nextlong sweep recipe.yaml --over compose.method=nextlong,entropy,litelong,quest
    nextlong stats RUN@NAME --dependence MODEL --json > GAINS/NAME.json
    python -m experiments.method_gains GAINS --to docs

In:  a folder with the output of `stats` for each method, by its name.
Out: `results/method-gains.json`, and the table in `results.md`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from nextlong.cli.common import write
from nextlong.errors import NextlongError

_BEGIN: Final = "<!-- experiments.method_gains: begin -->"
_END: Final = "<!-- experiments.method_gains: end -->"
_HEADER: Final = (
    "| method | sequences | later parts | counted tokens | gain, nats | its median "
    "| of all counted tokens |\n|---|---:|---:|---:|---:|---:|---:|"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.method_gains",
        description="Write the table of the gains of methods.",
    )
    parser.add_argument("gains", type=Path, help="folder with NAME.json of each method")
    parser.add_argument("--to", type=Path, required=True, help="the folder docs")
    args = parser.parse_args(arguments)
    try:
        _write(args.gains, args.to)
    except NextlongError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _write(gains: Path, docs: Path) -> None:
    measured = {
        path.stem: json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(gains.glob("*.json"))
    }
    page = docs / "results.md"
    before, begin, rest = page.read_text(encoding="utf-8").partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not measured or not end:
        raise NextlongError(
            where=gains,
            problem=f"it has no NAME.json, or {page} has no lines {_BEGIN} and {_END}",
            fix="write the output of `nextlong stats --json` there, and add the lines",
        )
    numbers = f"{json.dumps(measured, indent=1)}\n"
    write(docs / "results/method-gains.json", numbers, overwrite=True)
    filled = f"{before}{begin}\n\n{table(measured)}\n\n{end}{after}"
    write(page, filled, overwrite=True)


def table(measured: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the table of the dependence of each method, the largest gain first."""
    names = sorted(measured, key=lambda name: -float(measured[name]["gain"]["mean"]))
    rows = [_row(name, measured[name]) for name in names]
    return "\n".join([_HEADER, *rows])


def _row(name: str, found: Mapping[str, Any]) -> str:
    gain = found["gain"]
    parts = found["tokens"]["count"]
    gaps = found["by_gap"]
    tokens = sum(gap["tokens"] for gap in gaps)
    total = sum(gap["tokens"] * gap["gain"] for gap in gaps if gap["tokens"])
    cells = (
        name,
        found["sequences"],
        parts,
        f"{tokens:,}",
        f"{gain['mean']:.2f} ± {found['standard_error']:.2f}",
        f"{gain['p50']:.2f}",
        f"{total / tokens:.2f}",
    )
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    sys.exit(main())
