"""The average over six categories gives the paper's averages from its own columns (Tables 1, 2, 5 and 7)."""

from pathlib import Path

import numpy as np
import pytest
from tests.support.written_results import QUESTIONS, write_result, write_results

from nextlong.evaluate import results, tables
from nextlong.evaluate.data import DEMO
from nextlong.evaluate.results import Score


def test_the_main_table_is_the_papers(two):
    main = next(
        iter(tables.all_tables([results.read_results(folder) for folder in two]))
    )
    assert main.columns == (
        "Avg.",
        "Recall",
        "RAG",
        "ICL",
        "Re-rank",
        "LongQA",
        "RULER",
        "n",
    )
    name, (*scores, n) = main.rows[0]
    assert name == "first & best"
    assert [score.value for score in scores] == pytest.approx(
        [60.0, 80.0, 58.0, 79.0, 29.0, 35.0, 79.0]
    )
    assert n == f"{5 * 1 * QUESTIONS:,}–{5 * 30 * QUESTIONS:,}"
    # In the last two they are equal.
    first, second = main.all_rows(bold="**{}**")
    assert [cell[:2] == "**" for cell in first[1:6]] == [
        True,
        True,
        False,
        False,
        False,
    ]
    assert [cell[:2] == "**" for cell in second[1:6]] == [
        False,
        False,
        True,
        False,
        False,
    ]


def test_a_category_with_a_task_missing_has_no_score(two):
    (two[0] / "vt/8192.json").unlink()
    main, *others = tables.all_tables([results.read_results(two[0])])
    assert main.rows[0][1][0] is None
    assert main.rows[0][1][-2] is None
    assert any(table.title == "RULER, 12 of 13 tasks, by length" for table in others)


def test_parts_count_refused_questions_as_0_like_the_whole(tmp_path):
    folder = write_results(tmp_path / "one", {}, label="one")
    easy, hard = ({"difficulty": kind, "length": "short"} for kind in ("easy", "hard"))
    samples = [
        {"details": easy, "scores": {"accuracy": 1.0}},
        {"details": hard, "scores": {"accuracy": 1.0}},
        {"details": hard, "refused": True},
        {"details": hard, "refused": True},
    ]
    write_result(
        folder,
        "longbench_v2",
        8192,
        metric="accuracy",
        score=50.0,
        n=4,
        refused=2,
        samples=samples,
    )
    table = next(
        one
        for one in tables.all_tables([results.read_results(folder)])
        if "difficulty" in one.title
    )
    assert "refused questions count as 0 in every column" in table.caption
    ((_, (overall, easy, hard, short, *_, n)),) = table.rows
    assert (easy.value, hard.value, short.value) == (
        100.0,
        pytest.approx(100 / 3),
        50.0,
    )
    assert (hard.n, hard.refused) == (3, 2)
    assert overall.value == pytest.approx(
        (easy.value * easy.n + hard.value * hard.n) / 4
    )
    assert n == "1–4, 2 refused = 0"


def test_all_of_helmet_is_one_table_where_cite_or_summ_were_measured(tmp_path):
    scores = {
        "Recall": 80.0,
        "RAG": 60.0,
        "ICL": 70.0,
        "Re-rank": 30.0,
        "LongQA": 40.0,
        "RULER": 90.0,
    }
    without = write_results(tmp_path / "without", scores, label="without")
    assert not any(
        "all seven" in table.title
        for table in tables.all_tables([results.read_results(without)])
    )
    whole = write_results(
        tmp_path / "whole", scores | {"Cite": 20.0, "Summ": 50.0}, label="whole"
    )
    found = next(
        one
        for one in tables.all_tables([results.read_results(whole)])
        if "all seven" in one.title
    )
    assert found.columns[:8] == (
        "Avg.",
        "Recall",
        "RAG",
        "ICL",
        "Cite",
        "Re-rank",
        "LongQA",
        "Summ",
    )
    name, cells = found.rows[0]
    assert name == "whole, 8K"
    assert [cell.value for cell in cells[:8]] == [
        50.0,
        80.0,
        60.0,
        70.0,
        20.0,
        30.0,
        40.0,
        50.0,
    ]


# Avg., Recall, RAG, ICL, Re-rank, LongQA, RULER, as printed.
PRINTED = {
    "Standard": (52.85, 62.33, 58.67, 71.24, 19.18, 28.99, 76.68),
    "KNN": (50.97, 64.24, 56.00, 60.28, 18.77, 32.27, 74.30),
    "Quest": (55.25, 69.13, 57.47, 72.08, 22.35, 33.82, 76.63),
    "NExtLong 128K": (62.58, 82.56, 60.91, 81.76, 31.47, 37.30, 81.50),
    "NExtLong 512K": (65.76, 91.58, 63.68, 84.08, 31.27, 38.42, 85.52),
    "Llama-3.1-8B": (61.07, 83.18, 61.22, 71.40, 29.10, 37.35, 84.20),
    "Tail": (60.01, 72.66, 63.67, 80.68, 30.73, 34.09, 78.26),
    "FineWebEdu": (62.04, 83.56, 61.53, 83.76, 28.31, 34.46, 80.60),
}


@pytest.mark.parametrize("model", PRINTED)
def test_the_average_is_the_papers(model):
    printed, *columns = PRINTED[model]
    average = tables._mean([*map(Score, columns)])
    assert average.value == pytest.approx(
        printed, abs=0.0101
    )  # the columns are rounded to two digits themselves


def test_there_is_no_average_of_five_columns():
    assert tables._mean([*[Score(50.0)] * 5, None]) is None


def test_categories_hold_the_papers_tasks():
    counts = {
        category: len(tables.tasks_of(category)) for category in tables.CATEGORIES
    }
    assert counts == {
        "Recall": 4,
        "RAG": 4,
        "ICL": 5,
        "Re-rank": 1,
        "LongQA": 3,
        "RULER": 13,
    }


def simulated_table(rng, *, shares):
    """Return a table of models that answer each question of six columns at random."""
    rows = []
    for name, share in enumerate(shares):
        cells = []
        for column in range(6):
            right = rng.random(100) < share
            values = {"task": f"t{column}", "length": 1, "metric": "m"}
            values["score"] = 100 * right.mean()
            values["samples"] = [{"scores": {"m": float(one)}} for one in right]
            cells.append(results.Result(Path(), values).measured)
        rows.append((str(name), tuple(cells)))
    return tables.ScoreTable("", "", tuple("abcdef"), tuple(rows))


def test_a_table_of_equal_models_has_a_bold_cell_in_one_of_twenty():
    rng = np.random.default_rng(1)
    made = [simulated_table(rng, shares=[0.6, 0.6]) for _ in range(200)]
    # 5 % of 200 is 10; more than 16 has a probability of 2 %.
    assert sum(bool(table._best_cells()) for table in made) <= 16
    # Each column by itself is significant in a fifth of the tables.
    assert sum(has_low_p_value(table) for table in made) > 30


def has_low_p_value(table):
    for column in range(6):
        scores = [cells[column] for _, cells in table.rows]
        best = max(scores, key=lambda score: score.value)
        scores.remove(best)
        if results.best_p_value(best, scores) < 0.05:
            return True
    return False


def test_a_model_that_is_better_in_all_columns_is_bold_in_all():
    table = simulated_table(np.random.default_rng(5), shares=[0.4, 0.8])
    assert table._best_cells() == {(1, column) for column in range(6)}


def test_scores_of_the_demos_documents_are_marked_in_every_table(tmp_path):
    folder = write_results(tmp_path / "one", {}, label="one")
    samples = [{"details": {}, "scores": {"m": 1.0}}]
    values = {"metric": "m", "score": 100.0, "n": 1, "refused": 0, "samples": samples}
    of_demo = {"depends_on": {"data": {DEMO: "hash"}}}
    write_result(folder, "niah_single_2", 4096, **values, **of_demo)
    write_result(folder, "json_kv", 4096, **values)
    titles = [
        (table.title, table.caption)
        for table in tables.all_tables([results.read_results(folder)])
    ]
    assert titles
    for title, caption in titles:
        is_marked = "RULER" in title or "suite ruler" in title
        assert title.endswith("(not comparable)") == is_marked
        assert ("Not comparable with published scores" in caption) == is_marked
