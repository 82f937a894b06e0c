"""What is said of rows that are not full, and of validation that train reads too."""

import pytest

from nextlong.export.splits import SplitResult
from nextlong.runs.row_warnings import of_rows


@pytest.mark.parametrize(("tokens", "names"), [(1900, ()), (1899, ("empty-rows",))])
def test_rows_with_room_to_spare(tokens, names):
    told = of_rows("train", SplitResult(rows=20, sequences=20, documents=9, tokens=tokens), room=100)
    assert tuple(warned.name for warned in told) == names


@pytest.mark.parametrize(("in_train", "names"), [(5, ()), (6, ("read-in-train",))])
def test_validation_that_train_reads_too(in_train, names):
    split = SplitResult(rows=20, sequences=20, documents=9, tokens=2000, chunks=100, chunks_in_train=in_train)
    assert tuple(warned.name for warned in of_rows("validation", split, room=100)) == names
