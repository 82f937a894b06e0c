"""Tasks that other programs measure: `nextlong evaluate import` reads their results.

Each of these programs gives the published scores; docs/evaluate/import.md says how to
run them, and why lm-eval's tasks of the same names are not read instead.
"""

from __future__ import annotations

from typing import Final

from nextlong.evaluate.task import ImportedTask, table_of
from nextlong.text import Json


def _task(fields: Json) -> ImportedTask:
    lengths = tuple(fields.pop("lengths", ()))
    splits = tuple(map(tuple, fields.pop("splits", ())))
    return ImportedTask(**fields, lengths=lengths, splits=splits)


TASKS: Final = tuple(map(_task, table_of("imported")))
