import pytest

from nextlong.evaluate import results
from nextlong.evaluate.report import tables
from written_results import QUESTIONS, write_result, write_results


def test_the_main_table_is_the_papers(two):
    main = next(iter(tables.all_tables([results.read_results(folder) for folder in two])))
    assert main.columns == ("Avg.", "Recall", "RAG", "ICL", "Re-rank", "LongQA", "RULER", "n")
    name, (*scores, n) = main.rows[0]
    assert name == "first & best"
    assert [score.value for score in scores] == pytest.approx([60.0, 80.0, 58.0, 79.0, 29.0, 35.0, 79.0])
    assert n == f"{5 * 1 * QUESTIONS:,}–{5 * 30 * QUESTIONS:,}"
    assert [main.is_best(0, column) for column in range(3)] == [True, True, False]
    assert main.is_best(1, 2)
    assert not any(main.is_best(row, 4) for row in range(2))  # they are equal there


def test_a_category_with_a_task_missing_has_no_score(two):
    (two[0] / "vt/8192.json").unlink()
    main, *others = tables.all_tables([results.read_results(two[0])])
    assert main.rows[0][1][0] is None
    assert main.rows[0][1][-2] is None
    assert any(table.title == "RULER, 12 of 13 tasks, by length" for table in others)


def test_copying_and_values_by_key_have_a_table(tmp_path):
    folder = write_results(tmp_path / "one", {}, label="one")
    copied = {"gain_nats": 1.5, "with_copy_nats": 2.0, "without_copy_nats": 3.5}
    write_result(folder, "copying", 8192, score=1.5, scores=copied, outcomes=[1.0, 1.5, 2.0], n=3)
    chosen = {"accuracy": 87.5, "chance": 12.5}
    write_result(folder, "key_values", 8192, score=87.5, scores=chosen, outcomes=[75.0, 100.0], n=16)
    (table,) = tables.all_tables([results.read_results(folder)])
    ((name, cells),) = table.rows
    assert table.columns[-1] == "n"
    assert [name, *map(tables.text_of, cells)] == [
        "one, 8K",
        "1.50 [1.0, 2.0]",
        "2.00",
        "3.50",
        "87.50 [75.0, 100.0]",
        "12.50",
        "3–16",
    ]


def test_all_of_helmet_is_one_table_where_cite_or_summ_were_measured(tmp_path):
    scores = {"Recall": 80.0, "RAG": 60.0, "ICL": 70.0, "Re-rank": 30.0, "LongQA": 40.0, "RULER": 90.0}
    without = write_results(tmp_path / "without", scores, label="without")
    assert not any("all seven" in table.title for table in tables.all_tables([results.read_results(without)]))
    whole = write_results(tmp_path / "whole", scores | {"Cite": 20.0, "Summ": 50.0}, label="whole")
    found = next(one for one in tables.all_tables([results.read_results(whole)]) if "all seven" in one.title)
    assert found.columns[:8] == ("Avg.", "Recall", "RAG", "ICL", "Cite", "Re-rank", "LongQA", "Summ")
    name, cells = found.rows[0]
    assert name == "whole, 8K"
    assert [cell.value for cell in cells[:8]] == [50.0, 80.0, 60.0, 70.0, 20.0, 30.0, 40.0, 50.0]
