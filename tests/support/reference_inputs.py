"""Invented inputs that the reference code was run on, where they are too long to stand in the recordings."""

import random

from tests.support.evaluation_data import sentences, write, write_csv


def write_intents(folder):
    """Write BANKING77 and TREC in their published form: as many labels, and more questions than HELMET asks, not balanced."""
    draw = random.Random(5)
    for name, count in (("train", 900), ("test", 620)):
        rows = [
            (f"{sentences(draw, 1)[0]} {n}", f"intent_{min(n * n, n + 40) % 77:02}")
            for n in range(count)
        ]
        rows += (
            [(f"{sentences(draw, 1)[0]} once", f"intent_{n:02}") for n in range(77)]
            if name == "train"
            else []
        )
        write_csv(
            folder / f"icl/banking77/{name}.csv",
            [{"text": text, "category": label} for text, label in rows],
        )
    kinds = ("ABBR:exp", "DESC:def", "ENTY:animal", "HUM:ind", "LOC:city", "NUM:date")
    for name, count in (("train_5500", 300), ("TREC_10", 620)):
        lines = [
            f"{kinds[n % 11 % 6]} {sentences(draw, 1)[0]} {n} ?\n" for n in range(count)
        ]
        write(folder / f"icl/trec/{name}.label", "".join(lines))
