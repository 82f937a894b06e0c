"""Stats page: the numbers of a data set on a terminal, or as plain text, one record a line.

In:  `Stats`. Out: what it is, then the tables of the report's cards, what was filtered out of the corpus, and the warnings.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from rich.console import Console

from nextlong.report import tables
from nextlong.report.page import cards, numbers
from nextlong.runs.stats import Stats
from nextlong.text import counted

_WITH_BINS = ("exposure", "reuse")  # cards of which a terminal has room for the histogram, too


def show(stats: Stats, console: Console) -> None:
    """Print one data set."""
    plain = stats.as_json()
    of = numbers.Numbers([plain], [""])
    title = f"{counted(stats.sequences, 'sequence')} of {stats.target_tokens:,} tokens in {stats.run}"
    tables.show_pairs(title, _pairs(of.settings()), console)
    for card in (card for section in cards.sections(of).values() for card in section if card.name != "cost"):
        for table in card.tables:
            rows = (row for row in table.rows if not row.is_bin or card.name in _WITH_BINS)
            tables.show_pairs(table.caption, _pairs(rows), console)
    left_out = []
    for one in stats.left_out:
        left_out.append(("", f"{counted(one.count, one.unit.removesuffix('s'))}: {one.reason}"))
        for example in one.examples:
            head = json.dumps(example.head, ensure_ascii=False) if example.head else ""
            left_out.append(("", f"  {' · '.join(filter(None, (example.source_id, example.note, head)))}"))
    warnings = [("only as a control", plain["control"])] if plain["control"] else []
    warnings += [(warned.name, warned.message) for warned in stats.warnings]
    for title, pairs in (("Left out of the corpus", left_out), ("Look before you train", warnings)):
        if pairs:
            tables.show_pairs(title, pairs, console)


def _pairs(rows: Iterable[numbers.TableRow]) -> list[tuple[str, str]]:
    return [(row.name, row.cells[0].text) for row in rows]
