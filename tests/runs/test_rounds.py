"""Rounds: what depends on the model is made again by the next checkpoint, and the rest is reused."""

import pytest
from tests.support.copying_model import KNOWN, UNKNOWN, CopyingModel

import nextlong
from nextlong import checks
from nextlong.cli import main as cli_main
from nextlong.errors import RunError
from nextlong.retrieval.surprisal import Surprisal
from nextlong.runs.rounds import next_round
from nextlong.sequences import verify_dependence
from nextlong.sequences.verify_dependence import DependenceFiles

SIZES = (
    "executor=serial",
    "compose.sequences=4",
    "compose.target_tokens=1024",
    "scorer.model=tests/first",
    "compose.verify_dependence=0.5",
)


class _Forgetful(CopyingModel):
    """Knows only words that stood among the last 200 of a row."""

    def _scored(self, row, first):
        scored = super()._scored(row, first)
        for place in range(first, len(row)):
            is_near = row[place] in row[max(0, place - 200) : place]
            scored.loss[place] = KNOWN if is_near else UNKNOWN
        return Surprisal(scored.loss, scored.loss)


def load(known):
    return CopyingModel() if known.scorer.model == "tests/first" else _Forgetful()


@pytest.fixture(scope="module")
def run(recipe_for, started, tmp_path_factory):
    folder = started(tmp_path_factory.mktemp("rounds") / "run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify_dependence, "load_scorer", load)
        patch.setattr(checks, "check_scorer", lambda *_, **__: None)
        yield nextlong.run(recipe_for(folder, *SIZES))


def folders(run, *steps):
    return [run.steps[step].folder for step in steps]


def test_a_round_filters_again_by_the_checkpoint_and_reuses_the_rest(run, capsys):
    assert cli_main.main(["refresh", str(run), "--model", "tests/second"]) == 0
    again = nextlong.open(f"{run.path}@round-2")
    assert again.recipe.scorer.model == "tests/second"
    assert folders(again, "mine", "composed") == folders(run, "mine", "composed")
    first, second = (DependenceFiles.of(one.steps).dependence for one in (run, again))
    assert [path.read_bytes() for path in first] != [
        path.read_bytes() for path in second
    ]
    # The run itself is what it was.
    assert nextlong.open(run.path).recipe.scorer.model == "tests/first"
    changed = ["--model", "tests/third", "--set", "compose.verify_dependence=0.1"]
    assert cli_main.main(["refresh", str(run), *changed]) == 0
    third = nextlong.open(f"{run.path}@round-3")
    assert third.recipe.compose.verify_dependence == 0.1


def test_a_run_whose_documents_a_model_chooses_has_rounds(run, recipe_for, monkeypatch):
    plain = nextlong.run(
        recipe_for(run.path, "compose.method=standard", "compose.sequences=2")
    )
    again = next_round(plain, "tests/second", overrides=["ingest.long_filter=0.5"])
    assert (again.name, again.scorer.model) == ("round-4", "tests/second")


def test_a_run_without_a_model_has_no_rounds(run, recipe_for):
    plain = nextlong.run(
        recipe_for(run.path, "compose.method=standard", "compose.sequences=2")
    )
    with pytest.raises(RunError) as error:
        next_round(plain, "tests/second")
    assert str(error.value.where) == str(plain)
