import pytest

from nextlong.evaluate import results
from written_results import LENGTHS, SCORES, write_result, write_results


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


@pytest.mark.heavy
def test_needles_attention_with_longqa_and_dependence_are_drawn(tmp_path):
    from nextlong.evaluate.report import figures

    folder = write_results(tmp_path / "one", {"LongQA": 40.0}, label="a model")
    found = [{"details": {"depth": depth}, "scores": {"found": float(depth < 60)}} for depth in (0.0, 50.0, 100.0)]
    write_result(folder, "needle", 8192, score=66.7, samples=[*found, {"refused": True}])
    write_result(folder, "attention", 8192, score=31.25)
    distances = [
        {"from_tokens": low, "to_tokens": 2 * low, "chunks": 3, "gain_nats": gain, "gain_standard_error": 0.1}
        for low, gain in ((64, 0.5), (128, 0.25))
    ]
    write_result(folder, "dependency", None, score=0.4, by_distance=distances)
    made = {figure.name: figure for figure in figures.all_figures([results.read_results(folder)])}
    assert {"needle-a-model", "attention-longqa", "dependence"} <= set(made)
    assert [">100<" in made["needle-a-model"].svg, ">50 %<" in made["needle-a-model"].svg] == [True, True]
    assert ">31.25<" in made["attention-longqa"].svg
    assert "LongQA, percent" in made["attention-longqa"].svg
    assert "tokens to the nearest earlier meta-chunk" in made["dependence"].svg


@pytest.mark.heavy
def test_bars_of_nothing_but_zeros_and_two_numbers_of_shots_have_whole_axes(tmp_path):
    from nextlong.evaluate.report import figures

    folder = write_results(tmp_path / "one", {"ICL": 4.0}, label="one")  # 4 down to 0
    for length in LENGTHS[:3]:
        for path in folder.glob(f"*/{length}.json"):
            path.unlink()
    made = {figure.name: figure.svg for figure in figures.all_figures([results.read_results(folder)])}
    assert ">400<" in made["icl-by-shots"]
    assert ">500<" in made["icl-by-shots"]
    assert ">100<" in made["task-types"]
