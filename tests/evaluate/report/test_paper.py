"""The average over six categories gives the paper's averages from its own columns (Tables 1, 2, 5 and 7)."""

import pytest

from nextlong.evaluate.report import paper
from nextlong.evaluate.statistics import Score

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
    average = paper.average(dict(zip(paper.CATEGORIES, map(Score, columns), strict=True)))
    assert average.value == pytest.approx(printed, abs=0.0101)  # the columns are rounded to two digits themselves


def test_there_is_no_average_of_five_columns():
    assert paper.average(dict.fromkeys(paper.CATEGORIES[:-1], Score(50.0))) is None


def test_categories_hold_the_papers_tasks():
    counts = {category: len(paper.tasks_of(category)) for category in paper.CATEGORIES}
    assert counts == {"Recall": 4, "RAG": 4, "ICL": 5, "Re-rank": 1, "LongQA": 3, "RULER": 13}
