"""Whether to train on a run: the decision, its reasons, and the checks that passed."""

import pytest
from tests.support.invented_stats import plain

from nextlong.recipe.keys import NEGATIVES
from nextlong.report.page import verdict as verdicts
from nextlong.report.page.verdict import verdict
from nextlong.runs.statistics.texts import CHECKS
from nextlong.runs.statistics.warnings import FROM_SCRATCH
from nextlong.schemas import Layout


def test_every_check_is_said_once_and_only_of_the_layouts_that_it_is_made_for():
    assert sorted(verdicts._PASSED) == sorted(CHECKS)
    of_documents = " ".join(
        verdict(plain(Layout.CONCATENATED, setting__negatives=None)).passed
    )
    assert "negative" not in of_documents
    assert "meta-" not in of_documents


def test_the_decision_is_said_with_its_reasons():
    warned = plain(
        Layout.EXTENDED,
        warnings=[
            {
                "name": "x",
                "message": "the corpus is small",
                "change": "compose.max_uses=4",
            }
        ],
    )
    said = verdict(warned)
    assert said[:3] == (
        "look",
        "Not yet: solve this problem and build the data again.",
        ("The corpus is small.",),
    )
    assert (said.settings, said.solved) == (("compose.max_uses=4",), "this problem")
    more = [
        {"name": "y", "message": "m", "change": f"compose.target_tokens={tokens}"}
        for tokens in (1024, 4096)
    ]
    said = verdict(plain(Layout.EXTENDED, warnings=[*warned["warnings"], *more]))
    assert (said.settings, said.solved) == (
        ("compose.max_uses=4",),
        "1 of these 3 problems",
    )  # not two lengths at once
    leak = {"name": "repeated-chunks", "message": "1 chunk occurs twice", "change": ""}
    assert (
        verdict(plain(Layout.EXTENDED, warnings=[*warned["warnings"], leak])).level
        == "stop"
    )
    assert (
        "No sequence contains the same chunk twice."
        not in verdict(plain(Layout.EXTENDED, warnings=[leak])).passed
    )
    level, decision, reasons, passed, settings, _ = verdict(plain(Layout.EXTENDED))
    assert settings == ()
    assert (level, decision) == ("good", "No defects found: you can train on it.")
    assert reasons[0] == (
        f"All {len(passed)} data-quality checks passed. For its effect on models, see the page Results of the documentation."
    )
    assert (
        "Negatives are similar to their meta-chunk: mean cosine 0.50. Random pairs of chunks have 0.12."
        in reasons
    )
    assert (
        "Chunks that followed each other in their document are now 1,234 tokens apart (median)."
        in reasons
    )
    assert "No negative comes from the document that it interrupts." in passed
    assert "The run produced as many sequences as the recipe asks for." in passed
    documents = plain(
        Layout.CONCATENATED,
        setting__negatives=None,
        similarity__random=None,
        distance_tokens=None,
    )
    documents["yields"] = {"asked": "all"}
    assert len(verdict(documents).reasons) == 1


def test_a_check_without_anything_to_look_at_is_not_said_to_be_passed():
    every = verdict(plain(Layout.EXTENDED)).passed
    for changed, text in (
        (
            {"setting__target_tokens": 16384},
            "The tokenizer is that of a model, not one trained on this corpus.",
        ),
        (
            {"yields": {"asked": "all"}},
            "The run produced as many sequences as the recipe asks for.",
        ),
        (
            {"negatives__near_identical": None},
            verdicts._PASSED["near-identical-negatives"],
        ),
        ({"similarity__random": None}, verdicts._PASSED["unrelated-negatives"]),
        ({"tokens__by_source": {"a": 1}}, verdicts._PASSED["one-source"]),
    ):
        passed = verdict(plain(Layout.EXTENDED, **changed)).passed
        assert text in every
        assert set(every) - set(passed) == {text}


def test_what_forbids_training_is_a_check_that_exists():
    assert set(verdicts._FATAL) <= set(CHECKS)


@pytest.mark.parametrize("negatives", NEGATIVES)
def test_only_the_most_similar_negatives_are_called_similar_and_others_a_control(
    negatives,
):
    why = "" if negatives == "top" else "Why they are a control of it."
    of_run = plain(Layout.EXTENDED, setting__negatives=negatives, control=why)
    said = verdict(of_run)
    assert ("control" in said.decision) is (negatives != "top")
    assert any("Negatives are similar to" in reason for reason in said.reasons) is (
        negatives == "top"
    )
    if negatives != "top":
        assert said.reasons == (why,)
    repeated = verdict(
        {**of_run, "warnings": [{"name": "x", "message": "m", "change": ""}]}
    )
    assert any("a control of" in reason for reason in repeated.reasons) is (
        negatives != "top"
    )


def test_data_of_a_tokenizer_that_no_model_knows_are_for_models_trained_from_scratch():
    said = verdict(plain(Layout.EXTENDED), is_stand_in=True)
    assert (
        said.decision == f"No defects found: you can train on it, but {FROM_SCRATCH}."
    )
    named = verdict(
        plain(Layout.EXTENDED, setting__negatives="tail", control="It is."),
        is_stand_in=True,
    ).reasons
    assert any(FROM_SCRATCH in reason for reason in named)
    warning = {"name": "stand-in-tokenizer", "message": "m", "change": ""}
    assert verdict(
        plain(Layout.EXTENDED, warnings=[warning]), is_stand_in=True
    ).reasons == ("M.",)
