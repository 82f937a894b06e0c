from nextlong.export.splits import RowsResult, SplitResult


def test_the_splits_of_rows_are_those_that_there_are():
    split = SplitResult(rows=1, sequences=2, documents=3, tokens=4)
    assert RowsResult(left_out=0, train=split).splits == {"train": split}
    assert [*RowsResult(left_out=0, train=split, validation=split).splits] == ["train", "validation"]
