"""The page of results: its numbers are those of the JSON file, and its verdicts are those of the seeds."""

import copy
import re

import pytest

from nextlong.errors import RunError
from nextlong.replicate import results
from nextlong.replicate.mechanism import Mechanism
from nextlong.replicate.results import Results, interval

ARMS = ["nextlong", "random negatives", "standard"]


def model(arm, seed, shift):
    recall = {kind: {"2": 99.0, "16": 50.0 + shift + seed} for kind in ("hard", "random")}
    thirds = {kind: {"first": 20.0 + shift, "last": 50.0} for kind in recall}
    measured = {"recall": recall, "loss": {"256": 3.0, "1024": 3.5 - shift / 100}, "attention": thirds}
    made = {"loss": 3.2, "tokens": 1000, "seconds": 12.0, "sha256": "ab", "measured": measured}
    return {"arm": arm, "seed": seed, **made} | ({"legs": 2 + seed} if arm == "base" else {})


@pytest.fixture
def made():
    keys = {"out": "out", "seeds": [0, 1, 2], "arms": ARMS, "measure": {"negatives": [2, 16]}}
    recipe = Mechanism.from_dict(keys).model_dump(mode="json", exclude={"out", "workers"})
    shifts = {"base": 0.0, "nextlong": 30.0, "random negatives": 30.1, "standard": 10.0}
    models = [model(arm, seed, shift) for seed in (0, 1, 2) for arm, shift in shifts.items()]
    models[3 * 4 - 2]["measured"]["recall"]["hard"]["16"] += (
        5  # random negatives, seed 2: differs by more than by chance
    )
    return {"version": "1", "recipe": recipe, "corpus": "c", "models": models}


def test_a_table_holds_means_and_intervals_over_the_seeds(made):
    page = results.page(Results(made, origin="x"))
    recalled = page.split("## Recall across hard")[1].split("##")[0]
    assert re.search(r"\| nextlong \| 99\.00 ± 0\.000 \| 81\.00 ± 2\.48 \|", recalled)  # t(0.975, 2) / sqrt(3) = 2.484
    assert "3 of the recipe's 5" not in page
    assert "3 of the recipe's 3 are finished" in page


def test_a_verdict_is_what_the_seeds_say(made):
    page = results.page(Results(made, origin="x"))
    lines = {
        line.split(" **")[0][2:]: line.split("**")[1] for line in page.splitlines() if "**" in line and "−" in line
    }
    holds = lines["Across hard negatives, NExtLong teaches more than the standard method."]
    assert holds.startswith("Holds (nextlong − standard: +20.0 points")
    assert lines["Across hard negatives, hard negatives teach more than random ones."].startswith("Not decided")
    worse = copy.deepcopy(made)
    for one in worse["models"]:
        if one["arm"] == "nextlong":
            one["measured"]["recall"]["hard"]["16"] -= 60
    assert "Fails, the opposite holds (nextlong − standard: -40.0" in results.page(Results(worse, origin="x"))


def test_a_seed_that_is_not_finished_for_every_arm_is_not_shown(made):
    del made["models"][-1]
    shown = Results(made, origin="x")
    assert shown.seeds == [0, 1]
    assert "2 of the recipe's 3 are finished and shown (0, 1)" in results.page(shown)
    made["models"] = made["models"][:2]
    with pytest.raises(RunError, match="no seed is finished for every arm; resume the experiment"):
        Results(made, origin="x")


def test_one_seed_has_no_interval_and_no_verdict(made):
    made["models"] = made["models"][:4]
    page = results.page(Results(made, origin="x"))
    assert "One seed, so not tested (nextlong − standard: +20.0 points)" in page
    assert interval([4.0]) == (4.0, None)


def test_hypotheses_are_about_more_negatives_than_a_short_row_holds(made):
    shown = Results(made, origin="x")
    assert shown.many == [16]
    assert shown.far("nextlong", "hard") == [80.0, 81.0, 82.0]
