"""The command `python -m experiments.real_text`: measure documents, and write the summary.

    python -m experiments.real_text --corpus docs.jsonl --model MODEL --out OUT
    python -m experiments.real_text --out OUT --report docs/results/real-text.json \\
        --page docs/results.md

A stopped experiment resumes by the same command.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from experiments.real_text import measure, summary
from nextlong.cli.common import check_installed, console, write
from nextlong.errors import NextlongError
from nextlong.report import tables

_USER_MISTAKE: Final = 2
_INTERRUPTED: Final = 130
# Between these lines of a page stand the tables.
_BEGIN: Final = "<!-- experiments.real_text: begin -->"
_END: Final = "<!-- experiments.real_text: end -->"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    args = _parser().parse_args(arguments)
    try:
        if args.report is None:
            _measure(args)
        else:
            _report(args.out, args.report, args.page)
    except NextlongError as error:
        tables.say(str(error), console(stderr=True), label="error: ")
        return _USER_MISTAKE
    except KeyboardInterrupt:
        tables.say("stopped; run the same command to resume", console(stderr=True))
        return _INTERRUPTED
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.real_text",
        description="Score real documents among each choice of negatives.",
    )
    add = parser.add_argument
    add("--out", type=Path, required=True, metavar="DIR", help="folder of the results")
    add("--corpus", action="append", default=[], metavar="FILE", help="documents")
    add("--model", metavar="MODEL", help="causal model: folder, Hub name, .gguf file")
    add("--dtype", choices=("float32", "bfloat16"), default="float32")
    add("--documents", type=int, default=200, help="documents to score (%(default)s)")
    add("--max-documents", type=int, default=4_000, help="read from each file")
    add("--tokens", type=int, default=1024, help="per sequence (%(default)s)")
    add("--chunk-chars", type=int, default=600, help="per chunk (%(default)s)")
    add("--seed", type=int, default=0)
    add("--processes", type=int, default=1, help="of one thread (%(default)s)")
    add(
        "--report",
        type=Path,
        metavar="JSON",
        help="write the summary here instead",
    )
    add("--page", type=Path, metavar="FILE", help="with --report: fill in its tables")
    return parser


def _measure(args: argparse.Namespace) -> None:
    for option, value in (("--corpus", args.corpus), ("--model", args.model)):
        if not value:
            raise NextlongError(
                where=option,
                problem="nothing is named",
                fix="name documents with --corpus and a model with --model",
            )
    check_installed("real_text", "torch", "transformers", extra="scorer")
    setting = measure.Setting(
        corpus=tuple(args.corpus),
        max_documents=args.max_documents,
        model=args.model,
        dtype=args.dtype,
        documents=args.documents,
        tokens=args.tokens,
        chunk_chars=args.chunk_chars,
        seed=args.seed,
        processes=args.processes,
    )
    shown = console()
    measure.measure(setting, args.out, lambda line: tables.say(line, shown))
    _report(args.out, args.out / "summary.json")


def _report(out: Path, path: Path, page: Path | None = None) -> None:
    records = measure.read_documents(out)
    if not records:
        raise NextlongError(
            where=out,
            problem="no document was scored",
            fix="run the experiment with --corpus and --model first",
        )
    setting = json.loads((out / measure.SETTING).read_text(encoding="utf-8"))
    found = summary.summary(records, setting)
    write(path, json.dumps(found, indent=1) + "\n", overwrite=True)
    if page is not None:
        _fill_in(page, summary.page(found))
    tables.say(f"{len(records):,} documents in {path}", console())


def _fill_in(page: Path, text: str) -> None:
    """Replace what stands between the marks of this experiment in a page."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not end:
        raise NextlongError(
            where=page,
            problem=f"it has no lines {_BEGIN} and {_END}",
            fix="add them where the tables belong",
        )
    filled = f"{before}{begin}\n\n{text}\n{end}{after}"
    write(page, filled, overwrite=True)


if __name__ == "__main__":
    sys.exit(main())
