"""The section of results: its numbers are those of the JSON files, its verdicts those of the planned tests."""

import copy
import re
from importlib.resources import files
from pathlib import Path

import pytest
import yaml
from scipy.stats import ttest_1samp

pytest.importorskip("torch")
from experiments.replicate import results
from experiments.replicate.recipe import ARMS, PRESETS, recipe_from
from experiments.replicate.results import Results, SeedMean
from experiments.replicate.small_llama import KINDS

from nextlong.engine import store
from nextlong.errors import RunError

pytestmark = pytest.mark.heavy

DOCS = Path(__file__).parents[2] / "docs"
# Recall across look-alikes and across unrelated paragraphs, by arm.
RECALLS = {
    "base": (5.0, 20.0),
    "top": (60.0, 70.0),
    "random-corpus": (50.0, 80.0),
    "unrelated only": (40.0, 81.0),
    "mixed": (62.0, 79.0),
}


def model(arm, seed, recalls):
    recall = {
        kind: {str(n): value + seed * (arm == "top") for n in (2, 4, 8)}
        for kind, value in zip(KINDS, recalls, strict=True)
    }
    measured = {"recall": recall, "loss": 2.0 + seed / 10}
    return {
        "arm": arm,
        "seed": seed,
        "tokens": 1000,
        "seconds": 12.0,
        "sha256": f"{arm} {seed}",
        "measured": measured,
    }


def made_of(preset, recalls=RECALLS, seeds=(0, 1, 2)):
    recipe = recipe_from(
        preset,
        out="out",
        overrides=[
            f"seeds={list(seeds)}",
            f"arms={[arm for arm in recalls if arm != 'base']}",
            "measure.negatives=[2, 4, 8]",
        ],
    )
    models = [
        model(arm, seed, values) for seed in seeds for arm, values in recalls.items()
    ]
    return {
        "version": "1",
        "recipe": recipe.model_dump(mode="json", exclude={"out", "workers"}),
        "corpus": "c",
        "look_alikes": {"top": 94.4, "random-corpus": 3.1},
        "models": models,
    }


@pytest.fixture
def made():
    return made_of("mechanism")


def test_every_planned_test_is_about_arms_kinds_and_presets_that_there_are():
    plan = yaml.safe_load(
        (files("experiments.replicate") / "planned.yaml").read_text(encoding="utf-8")
    )
    for test in plan:
        arms = {arm for arm, _ in [*test["plus"], *test["minus"]]}
        assert arms <= set(ARMS)
        assert {kind for _, kind in [*test["plus"], *test["minus"]]} <= set(KINDS)
        for preset in [*test["presets"], test.get("less", "mechanism")]:
            assert arms <= set(recipe_from(preset, out="out").arms)
            assert preset in PRESETS


def test_a_planned_test_is_a_paired_t_test_corrected_for_all_that_were_run(made):
    tests = results.planned_tests({"mechanism": Results(made)})
    by_name = {test.claim[:3]: test for test in tests[:2]}
    # top: +0, +1, +2 by seed; the difference of differences takes it away again.
    assert by_name["(a)"].differences == [20.0, 20.0, 20.0]
    assert by_name["(b)"].differences == [20.0, 21.0, 22.0]
    p = ttest_1samp([20.0, 21.0, 22.0], 0).pvalue
    assert results.p_value([20.0, 21.0, 22.0]) == pytest.approx(p)
    # No arm of (d) is there, nor any other preset.
    assert len(tests) == 4
    assert by_name["(b)"].p_holm == pytest.approx(3 * p)  # after (a), whose p is 0
    assert by_name["(b)"].verdict == "holds"


def test_a_test_is_named_by_its_letter_and_what_it_compares():
    named = [
        results.PlannedTest("(a) A claim: top less tail.", "mechanism", [1.0], 1.0),
        results.PlannedTest("(e) Top against tail.", "mechanism", [1.0], 1.0),
    ]
    assert [test.short for test in named] == [
        "(a) top less tail",
        "(e) Top against tail",
    ]


def test_a_difference_that_is_not_certain_is_not_decided_and_the_opposite_is_told(made):
    worse = copy.deepcopy(made)
    for one in worse["models"]:
        if one["arm"] == "top":
            shift = -30 if one["seed"] else 30
            for n in ("4", "8"):
                one["measured"]["recall"]["same"][n] += shift
    tests = results.planned_tests({"mechanism": Results(worse)})
    assert tests[1].verdict == "not decided"
    assert SeedMean.of([-1.0, -1.1, -0.9]).half == pytest.approx(0.2484, abs=1e-4)
    opposite = results.PlannedTest("c", "mechanism", [-1.0, -1.1, -0.9], 0.01)
    assert opposite.verdict == "the opposite holds"


def test_bases_that_discriminate_are_subtracted_within_a_seed(made):
    recalls = {**RECALLS, "unrelated only": (58.0, 81.0)}
    other = made_of("discriminating", recalls, seeds=(0, 1))
    both = {"mechanism": Results(made), "discriminating": Results(other)}
    tests = {
        (test.claim[:3], test.preset): test for test in results.planned_tests(both)
    }
    assert tests["(e)", "discriminating"]
    assert tests["(f)", "mechanism"].differences == [18.0, 18.0]


def test_a_test_takes_the_seeds_that_have_all_its_arms(made):
    made["models"] = [
        one
        for one in made["models"]
        if (one["arm"], one["seed"]) != ("unrelated only", 1)
    ]
    tests = results.planned_tests({"mechanism": Results(made)})
    assert [len(test.differences) for test in tests] == [3, 2, 3, 3]


def test_recall_is_a_guess_where_no_interval_is_above_it(made):
    shown = Results(made)
    assert not shown.is_guess("same", 2)
    low = made_of("mechanism", dict.fromkeys(RECALLS, (33.0, 4.0)))
    assert Results(low).is_guess("same", 2)  # one of three values
    assert not Results(low).is_guess("same", 4)
    assert Results(low).is_guess("far", 8)
    assert Results(low).cell("base", "same", 2) == "(33)"
    assert Results(low).cell("base", "same", 4) == "33"


def test_the_section_holds_the_means_and_replaces_what_it_wrote_before(made, tmp_path):
    store.write_json(tmp_path / "a.json", made)
    page = tmp_path / "results.md"
    page.write_text("# Results\n\nBefore.\n\n" + results._BEGIN + "\nstale text\n")
    with page.open("a") as file:
        file.write(results._END + "\n\n## Real text\n")
    for _ in range(2):
        written = results.write([tmp_path / "a.json"], tmp_path)
        text = page.read_text()
        assert text.startswith("# Results\n\nBefore.\n\n")
        assert text.endswith(results._END + "\n\n## Real text\n")
        assert "stale text" not in text
        assert re.search(
            r"\| top \| 3 \| 94 \| 61 \| 61 \| 61 \| 71 \| 71 \| 71 \| 2\.10 \|", text
        )
    assert {path.name for path in written} == {
        "results.md",
        "mechanism.svg",
        "mechanism.json",
    }
    assert "--set 'seeds=[0, 1, 2]'" in text


def test_another_json_file_is_refused_with_the_file_to_give(made, tmp_path):
    store.write_json(tmp_path / "metrics.json", {"loss": 1.0})
    with pytest.raises(RunError) as error:
        results.write([tmp_path / "metrics.json"], tmp_path)
    assert error.value.where == str(tmp_path / "metrics.json")
    assert "PRESET.json" in error.value.fix
    store.write_json(tmp_path / "a.json", made)
    with pytest.raises(RunError) as error:
        results.write([tmp_path / "a.json", tmp_path / "a.json"], tmp_path)
    assert error.value.where == str(tmp_path / "a.json")
    assert "preset mechanism" in error.value.problem


def test_the_section_in_the_documentation_is_what_its_json_files_say(tmp_path):
    sources = [
        path for path in (DOCS / "results").glob("*.json") if path.stem in PRESETS
    ]
    (tmp_path / "results.md").write_bytes((DOCS / "results.md").read_bytes())
    for path in results.write(sources, tmp_path):
        assert path.read_bytes() == (DOCS / path.relative_to(tmp_path)).read_bytes()
