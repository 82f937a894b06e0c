"""Tables, figures and words of a replication, from scores that are made up."""

import pytest

from scored_rows import row

pytestmark = pytest.mark.heavy  # it imports what trains


def table_of(done, title):
    from nextlong.replicate import tables

    return next(table for table in tables.all_tables(done) if table.title == title)


def test_scores_are_means_with_their_deviation_over_seeds(done, measured):
    table = table_of(done, "Methods: scores")
    assert table.columns == ("Value chosen", "Gain, hard negatives", "Loss, hard negatives")
    cells = dict(table.rows)
    assert cells["nextlong"][0] == (41.0, 1.0)
    assert cells["not extended"][0] == (10.0, 1.0)
    assert "over 3 seeds; means over 512, 1K tokens" in table.about


def test_nextlong_is_compared_with_each_other_seed_by_seed_beside_the_papers_numbers(done, measured):
    table = table_of(done, "Methods: nextlong against the others")
    cells = dict(table.rows)
    assert list(cells) == ["nextlong − not extended", "nextlong − standard", "nextlong − knn"]
    assert cells["nextlong − standard"][0] == (20.0, 0.0)
    assert cells["nextlong − standard"][3] == pytest.approx(62.58 - 52.85)
    assert cells["nextlong − not extended"][3] == pytest.approx(62.58 - 13.37)
    assert table.columns[-3:] == ("Paper: Avg.", "Paper: Recall", "Paper: RULER")
    theirs = table_of(done, "Methods: the paper's numbers")
    assert dict(theirs.rows)["quest"][0] == 55.25


def test_numbers_by_length_and_by_distance_stand_in_their_order(done, measured):
    by_length = table_of(done, "Methods: Value chosen by length")
    assert by_length.columns == ("512", "1K")
    assert [cell.mean for cell in dict(by_length.rows)["standard"]] == [21.0, 22.0]
    by_distance = table_of(done, "Methods: gain by distance, top negatives")
    assert by_distance.columns == ("0 to 256", "256 to 512")
    assert dict(by_distance.rows)["nextlong"][1].mean == pytest.approx(0.41)


def test_a_method_that_gave_fewer_sequences_has_them_read_more_often(done, measured):
    cells = dict(table_of(done, "Methods: data").rows)
    trained = done.recipe.extend.trained_tokens
    assert cells["standard"][:3] == ("250", trained / (250 * 1024), 0.5)
    assert cells["nextlong"][1] == trained / (500 * 1024)
    assert "not extended" not in cells


def test_the_verdict_names_who_is_ahead_and_counts_what_chance_may_have_done(done, measured):
    from nextlong.replicate import tables

    (said,) = tables.verdicts(done)
    assert said.startswith("Methods: nextlong is ahead of standard (Value chosen), standard (Gain, hard negatives)")
    assert "standard (Loss, hard negatives)" in said  # of a loss, less is better
    assert "behind" not in said
    assert "3 of 6 comparisons show no difference beyond chance" in said
    measured[2] = row("knn", 80.0, 81.0, 82.0, arm="knn")
    (said,) = tables.verdicts(done)
    assert "nextlong is behind knn (Value chosen), knn (Gain, hard negatives), knn (Loss, hard negatives)" in said


def test_where_nextlong_is_not_compared_nothing_is_claimed(done, measured):
    from nextlong.replicate import tables

    del measured[3]
    assert list(tables.verdicts(done)) == []
    assert not [table for table in tables.all_tables(done) if "against" in table.title]
