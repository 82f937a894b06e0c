"""Files: the one importer, which asks each format whether a file is its own.

In:  result files of one model, by HELMET, lm-eval, LongBench v2 or BABILong. Out: one
file per task and length, with each question's score but without the answers, marked as
imported.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console

import nextlong
from nextlong.engine import store
from nextlong.errors import EvaluateError
from nextlong.evaluate import results
from nextlong.evaluate.importing import babilong, harness, helmet, longbench
from nextlong.evaluate.importing.result import ImportedResult, ResultFormat, parsed
from nextlong.report import tables

_FORMATS: Final = (helmet.FORMAT, harness.FORMAT, longbench.FORMAT, babilong.FORMAT)


def import_results(
    files: Sequence[Path], *, out: Path, label: str | None, console: Console
) -> results.ModelResults:
    """Read files of one model into `out`; return its results. Raises EvaluateError."""
    found = list(_results_in(files))
    model = _only_model([result.model for _, result in found])
    written: dict[Path, Path] = {}
    for file, result in found:
        path = results.path_of(out, result.task.name, result.length)
        if path in written:
            raise EvaluateError(
                where="import",
                problem=f"{written[path]} and {file} both have {result.task.name} at "
                f"{result.length}",
                fix="leave one out",
            )
        with store.explained(out):
            path.parent.mkdir(parents=True, exist_ok=True)
        values = {"format": results.FORMAT, "nextlong": nextlong.__version__}
        results.write(path, values | result.as_values(file))
        written[path] = file
    results.write_index(out, {"kind": "imported", "name": model, "label": label})
    tables.say(f"read {len(written)} results of {model} into {out}", console)
    return results.read_results(out)


def _results_in(files: Sequence[Path]) -> Iterator[tuple[Path, ImportedResult]]:
    """Yield every result with its file, each file read once."""
    recognized: list[tuple[Path, ResultFormat, Any]] = []
    unknown = []
    parts: set[Path] = set()
    for file in files:
        content = parsed(file)
        matching = [each for each in _FORMATS if each.recognizes(file, content)]
        if matching:
            recognized.append((file, matching[0], content))
            parts.update(matching[0].parts(file))
        else:
            unknown.append(file)
    # A glob such as *.json* also gives the files that are read with others.
    for file in unknown:
        if file not in parts:
            programs = ", ".join(each.program for each in _FORMATS)
            raise EvaluateError(
                where=file,
                problem="it is not a result file of a known program",
                fix=f"give result files of {programs}",
            )
    for file, form, content in recognized:
        if file not in parts:
            for result in _read(form, file, content):
                yield file, result


def _read(form: ResultFormat, file: Path, content: Any) -> Iterator[ImportedResult]:
    """Yield the results of a file that may not be as its program writes it."""
    try:
        yield from form.read(file, content)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        problem = f"it has no {error}" if isinstance(error, KeyError) else f"{error}"
        raise EvaluateError(
            where=file, problem=problem, fix=f"give a file as {form.program} wrote it"
        ) from None


def _only_model(names: Sequence[str]) -> str:
    """Return the name of the files' model; raise if there are several, or none."""
    models = sorted(set(names))
    if not models:
        raise EvaluateError(
            where="import",
            problem="the files hold no task of nextlong's tables",
            fix="docs/evaluate/import.md lists the tasks of each program",
        )
    if len(models) > 1:
        raise EvaluateError(
            where="import",
            problem=f"the files are of {len(models)} models, {models[0]} and "
            f"{models[1]}",
            fix="import each into its own --out",
        )
    return models[0]
