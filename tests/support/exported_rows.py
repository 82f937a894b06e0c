"""What exports.sh made: the files of each export, and the rows that must be found in them."""

import json
import os
from pathlib import Path

import pytest

EXPORTS = Path(os.environ.get("READER_EXPORTS", "READER_EXPORTS is not set"))


def exported(*formats, splits=("train", "validation")):
    """Parametrize a test by every export in one of `formats`: the `folder` of its files and the `reference` for them."""
    references = [
        path for split in splits for path in sorted(EXPORTS.glob(f"*/*/{split}.json"))
    ]
    found = [
        (_folder(reference.parent / name, reference.stem), reference)
        for reference in references
        for name in formats
        if (reference.parent / name).is_dir()
    ] or [(EXPORTS, EXPORTS)]  # so that the test fails where nothing was exported
    return pytest.mark.parametrize(
        ("folder", "reference"),
        found,
        ids=[str(folder.relative_to(EXPORTS)) for folder, _ in found],
    )


def rows_in(reference):
    """Return the rows of a reference, each {"input_ids", "seq_lengths", "text"}."""
    return json.loads(reference.read_text(encoding="utf-8"))


def documents_in(reference):
    """Return the ids of every synthesized document, in order."""
    documents = []
    for row in rows_in(reference):
        ids = iter(row["input_ids"])
        documents += [
            [next(ids) for _ in range(length)] for length in row["seq_lengths"]
        ]
    return documents


def _folder(folder, split):
    return folder / split if (folder / split).is_dir() else folder
