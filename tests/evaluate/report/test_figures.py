import pytest

from nextlong.evaluate import results
from written_results import SCORES, write_results


@pytest.mark.heavy
def test_a_setting_in_the_labels_makes_curves(tmp_path):
    from nextlong.evaluate.report import figures

    folders = [
        write_results(tmp_path / str(size), SCORES, label=f"chunk.max_chars={size}") for size in (512, 1024, 2048)
    ]
    made = {figure.name: figure for figure in figures.all_figures([results.read_results(folder) for folder in folders])}
    assert "chunk.max_chars" in made["by-setting"].svg
    assert made["by-setting"].png.startswith(b"\x89PNG")


@pytest.mark.heavy
def test_the_negatives_similarity_is_drawn_where_runs_are_named(tmp_path):
    from nextlong.evaluate.report import figures

    kinds = {"top": 0.7, "random-retrieved": 0.5, "random-corpus": 0.1}
    folders = [write_results(tmp_path / kind, SCORES, label=kind, cosine=cosine) for kind, cosine in kinds.items()]
    made = {
        figure.name: figure.svg for figure in figures.all_figures([results.read_results(folder) for folder in folders])
    }
    assert "median cosine of the negatives" in made["similarity"]
    assert "0.70" in made["similarity"]
