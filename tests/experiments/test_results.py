"""The page of results: its numbers are those of the JSON file, and its verdicts are those of the seeds."""

import copy
import re
from pathlib import Path
from statistics import fmean

import pytest

pytest.importorskip("torch")
from experiments.replicate import results
from experiments.replicate.recipe import Replication
from experiments.replicate.results import Results, SeedMean

from nextlong.engine import store
from nextlong.errors import RunError

pytestmark = pytest.mark.heavy

DOCS = Path(__file__).parents[2] / "docs"
ARMS = ["nextlong", "random negatives", "standard"]


def model(arm, seed, shift):
    recall = {
        kind: {"2": 99.0, "16": 50.0 + shift + seed} for kind in ("hard", "random")
    }
    thirds = {kind: {"first": 20.0 + shift, "last": 50.0} for kind in recall}
    measured = {
        "recall": recall,
        "loss": {"256": 3.0, "1024": 3.5 - shift / 100},
        "attention": thirds,
    }
    made = {
        "loss": 3.2,
        "tokens": 1000,
        "seconds": 12.0,
        "sha256": f"{arm} {seed}",
        "measured": measured,
    }
    return {"arm": arm, "seed": seed, **made} | (
        {"legs": 2 + seed} if arm == "base" else {}
    )


@pytest.fixture
def made():
    keys = {
        "out": "out",
        "preset": "mechanism",
        "seeds": [0, 1, 2],
        "arms": ARMS,
        "measure": {"negatives": [2, 16]},
    }
    recipe = Replication.from_dict(keys).model_dump(
        mode="json", exclude={"out", "workers"}
    )
    shifts = {"base": 0.0, "nextlong": 30.0, "random negatives": 30.1, "standard": 10.0}
    models = [
        model(arm, seed, shift) for seed in (0, 1, 2) for arm, shift in shifts.items()
    ]
    models[3 * 4 - 2]["measured"]["recall"]["hard"]["16"] += (
        5  # random negatives, seed 2: differs by more than by chance
    )
    return {"version": "1", "recipe": recipe, "corpus": "c", "models": models}


def test_a_table_holds_means_and_intervals_over_the_seeds(made):
    page = results.page([Results(made, origin="x")])
    recalled = page.split("## Recall across hard")[1].split("##")[0]
    assert re.search(
        r"\| nextlong \| 99\.00 ± 0\.000 \| 81\.00 ± 2\.48 \|", recalled
    )  # t(0.975, 2) / sqrt(3) = 2.484
    assert "3 of the recipe's 5" not in page
    assert "3 of the recipe's 3 are shown" in page


def test_a_verdict_is_what_the_seeds_say(made):
    page = results.page([Results(made, origin="x")])
    lines = {
        line.split(" **")[0][2:]: line.split("**")[1]
        for line in page.splitlines()
        if "points" in line
    }
    holds = lines[
        "Across hard negatives, NExtLong teaches more than the standard method."
    ]
    assert holds.startswith(
        "Holds (nextlong 81.0 %, standard 61.0 %: +20.0 points, standard error"
    )
    assert lines[
        "Across hard negatives, hard negatives teach more than random ones."
    ].startswith("Not decided")
    worse = copy.deepcopy(made)
    for one in worse["models"]:
        if one["arm"] == "nextlong":
            one["measured"]["recall"]["hard"]["16"] -= 60
    assert (
        "Fails, the opposite holds (nextlong 21.0 %, standard 61.0 %: -40.0 points"
        in results.page([Results(worse, origin="x")])
    )


def test_a_seed_that_is_not_finished_for_every_arm_is_not_shown(made):
    del made["models"][-1]
    shown = Results(made, origin="x")
    assert shown.seeds == [0, 1]
    assert "2 of the recipe's 3 are shown (0, 1)" in results.page([shown])
    made["models"] = made["models"][:2]
    with pytest.raises(RunError) as error:
        Results(made, origin="x")
    assert error.value.where == "x"


def test_another_json_file_is_refused_with_the_file_to_give(tmp_path):
    store.write_json(tmp_path / "metrics.json", {"loss": 1.0})
    with pytest.raises(RunError) as error:
        results.write([tmp_path / "metrics.json"], tmp_path)
    assert error.value.where == str(tmp_path / "metrics.json")
    assert "results.json" in error.value.fix


def test_one_seed_has_no_interval_and_no_verdict(made):
    made["models"] = made["models"][:4]
    page = results.page([Results(made, origin="x")])
    assert (
        "One seed, so not tested (nextlong 80.0 %, standard 60.0 %: +20.0 points)"
        in page
    )
    assert SeedMean.of([4.0]) == (4.0, None)


def test_hypotheses_are_about_more_negatives_than_a_short_row_holds(made):
    shown = Results(made, origin="x")
    assert shown.many == [16]
    assert shown.few == []
    assert shown.mean_recall("nextlong", "hard", [2, 16]) == [89.5, 90.0, 90.5]
    made["recipe"]["measure"]["negatives"] = [2, 4, 16, 60]
    shown = Results(made, origin="x")
    assert (shown.few, shown.many) == ([4], [16, 60])


def test_a_base_model_that_all_seeds_share_has_no_interval(made):
    assert "| base | 99.00 ± 0.000 | 51.00 ± 2.48 |" in results.page(
        [Results(made, origin="x")]
    )
    made["recipe"]["pretrain"]["models"] = "one"
    assert "| base | 99.00 | 50.00 |" in results.page([Results(made, origin="x")])


def test_the_command_names_what_differs_from_the_preset(made):
    made["recipe"]["pretrain"]["models"] = "one"
    page = results.page([Results(made, origin="x")])
    assert "--set 'seeds=[0, 1, 2]'" in page
    assert "--set 'pretrain.models=\"one\"'" in page
    assert "--set 'measure.negatives=[2, 16]'" in page
    assert "extend." not in page.split("## How to repeat it")[1]


def test_the_page_in_the_documentation_is_what_its_json_files_say(tmp_path):
    names = re.findall(
        r"from which this page is generated|\(results/(\S+\.json)\)",
        (DOCS / "results.md").read_text(),
    )
    sources = [DOCS / "results" / name for name in names if name]
    assert {path.name for path in (DOCS / "results").glob("*.json")} == {
        path.name for path in sources
    }
    for path in results.write(sources, tmp_path):
        assert path.read_bytes() == (DOCS / path.relative_to(tmp_path)).read_bytes()
    shown = Results(store.read_json(DOCS / "results" / "mechanism.json"), origin="x")
    row = re.search(
        r"\| nextlong \|(.*)",
        (DOCS / "results.md").read_text().split("## Recall across hard")[1],
    ).group(1)
    cell = row.split("|")[shown.negatives.index(8)].strip()
    assert cell.startswith(f"{fmean(shown.mean_recall('nextlong', 'hard', [8])):.2f}")


def test_arms_of_a_later_session_are_told_and_two_files_of_one_preset_refused(
    made, tmp_path
):
    made["later"] = [{"arms": ["standard"], "same": 3}]
    store.write_json(tmp_path / "a.json", made)
    page, *_ = results.write([tmp_path / "a.json"], tmp_path)
    assert (
        "later session than the other arms: standard. 3 models were trained again"
        in page.read_text()
    )
    with pytest.raises(RunError) as error:
        results.write([tmp_path / "a.json", tmp_path / "a.json"], tmp_path)
    assert error.value.where == str(tmp_path / "a.json")
    assert "preset mechanism" in error.value.problem


def real(made):
    """Return the same results of real documents."""
    corpus = {
        "kind": "documents",
        "sources": [{"path": "a.jsonl", "name": ""}],
        "held_out": 0.2,
        "vocabulary": 512,
        "fact_every_words": 4,
    }
    return {
        **made,
        "recipe": {**made["recipe"], "preset": "cpu-night", "corpus": corpus},
    }


def test_real_text_is_a_section_of_its_own_with_its_own_command(made):
    page = results.page([Results(made, origin="x"), Results(real(made), origin="y")])
    assert page.count("\n## ") == 2
    mechanism, text = page.split("\n## Real text")
    assert "(cpu-night.json)" not in mechanism
    assert "the documents of a.jsonl, 20 % of them held out" in text
    assert (
        "python -m experiments.replicate run --preset cpu-night --out OUT \\\n      --corpus a.jsonl \\\n"
        in text
    )
    assert "--set corpus.vocabulary=512" in text
    assert "values from the 12 words most typical" in text
    assert "sources=" not in text
    assert "### Recall across hard negatives (same input document)" in text


def test_hypotheses_about_real_text_count_its_own_tokens(made):
    made["recipe"]["measure"]["negatives"] = [2, 4, 8, 16]
    assert Results(made, origin="x").many == [
        16
    ]  # of 24 tokens each; a short row has 256
    assert Results(real(made), origin="x").many == [8, 16]  # of 44
