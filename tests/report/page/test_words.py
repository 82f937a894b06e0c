"""What the page says in words: true of the run that it is said of.

Rows of numbers, from hand-made statistics: each cell says where its value stands, and what is missing is a dash.
"""

import pytest
from tests.support.changed_stats import changed_json

from nextlong.recipe.keys import NEGATIVES
from nextlong.report.page import words
from nextlong.report.page.words import Cell, Numbers, TableRow
from nextlong.runs.statistics.texts import CHECKS
from nextlong.runs.statistics.warnings import FROM_SCRATCH
from nextlong.schemas import Layout


def plain(layout, **values):
    """Statistics of an invented run with other values, by paths with `__` for the dot."""
    is_extended = layout == Layout.EXTENDED
    stats = {
        "setting": {
            "layout": layout,
            "negatives": "top",
            "position": "head",
            "min_meta_chunks": 2 if is_extended else None,
            "encoder": "lsa",
            "max_chars": 2048,
            "target_tokens": 32768,
        },
        "sequences": 4,
        "yields": {"asked": 4, "documents": 200, "drafts": 10},
        "tokens": {
            "by_source": {"a": 1, "b": 1},
            "meta_share": 0.05 if is_extended else None,
            "chars_per_token": 4.0,
            "cut_off": None if is_extended else {"tokens": 1},
        },
        "similarity": {
            "cosine": {"mean": 0.5, "count": 60},
            "random": {"mean": 0.125, "p90": 0.25},
        },
        "distance_tokens": {"p50": 1234.0},
        "negatives": None,
        "meta_chunks": None,
        "chunks": {"tokens": {"max": 604}},
        "documents": {"in_parts": None},
        "corpus": {"keywords": None, "unshared_keywords": None, "left_out": []},
        "near_duplicates": {"chunks": 5, "documents": None},
        "warnings": [],
        "control": "",
    }
    if is_extended:
        stats["negatives"] = {
            "from_own_document": 0,
            "near_identical": {"share": 0.0},
            "tokens_by_source": {"a": 1},
        }
        stats["meta_chunks"] = {"after_last": {"share": 0.2}}
    return with_values(stats, values)


def with_values(stats, values):
    return changed_json(
        stats, {path.replace("__", "."): value for path, value in values.items()}
    )


@pytest.mark.parametrize("layout", Layout)
def test_every_layout_has_an_opening_of_its_own(layout):
    others = [words.opening(plain(other)) for other in Layout if other != layout]
    assert words.opening(plain(layout)) not in others


def test_a_page_without_an_extended_run_is_read_otherwise_where_that_matters():
    extended, concatenated = plain(Layout.EXTENDED), plain(Layout.CONCATENATED)
    assert "negatives" in words.reading("rank", [concatenated, extended], ["a", "b"])
    assert words.reading("cost", [concatenated], ["a"]) == words.reading(
        "cost", [extended], ["a"]
    )
    concatenated = plain(
        Layout.CONCATENATED, near_duplicates__chunks=None, similarity__random=None
    )
    of_documents = {
        name: words.reading(name, [concatenated], ["a"])
        for name in words._WORDS["read"]
    }
    assert not [
        name
        for name, said in of_documents.items()
        if "negative" in said or "meta-" in said
    ]


def test_the_usual_cosine_is_told_only_for_encoders_of_which_it_is_known():
    extended = plain(Layout.EXTENDED)
    low, high = words._COSINES["lsa"]
    usual = f"With lsa, five corpora that passed all checks had means of {low} to {high}; this run has 0.50. A check warns"
    assert usual in words.reading("similarity", [extended], ["a"])
    assert "five corpora" not in words.reading(
        "similarity", [plain(Layout.EXTENDED, setting__encoder="static")], ["a"]
    )
    assert "five corpora" not in words.reading(
        "similarity", [plain(Layout.EXTENDED, similarity__random=None)], ["a"]
    )


def test_numbers_stand_beside_what_they_are_to_be_compared_to():
    extended = plain(Layout.EXTENDED)
    told = words.reading("near", [extended], ["a"])
    assert told.endswith(
        "Filtered out: 5 chunks in 10 drafts, 0.5 per draft. A sequence has 15.0 negatives on average."
    )
    documents = plain(
        Layout.CONCATENATED, near_duplicates__chunks=None, near_duplicates__documents=3
    )
    assert words.reading("near", [documents], ["a"]).endswith(
        "Filtered out: 3 of 200 documents (1.5%)."
    )
    random = "Random pairs of chunks have a mean cosine of 0.12 (90th percentile 0.25)."
    assert random in words.reading("similarity", [extended], ["a"])
    assert "lsa" in words.reading("similarity", [extended], ["a"])
    assert "lsa" not in words.reading(
        "similarity", [plain(Layout.EXTENDED, setting__encoder="static:x")], ["a"]
    )
    other = plain(Layout.EXTENDED, similarity__random={"mean": 0.5, "p90": 0.75})
    assert words.reading(
        "source-cosine", [extended, extended], ["base", "tail"]
    ).endswith(f"corpus. {random}")
    assert f"base: {random} tail: Random" in words.reading(
        "source-cosine", [extended, other], ["base", "tail"]
    )
    assert "In this run that is 328 tokens." in words.reading(
        "distance", [extended], ["a"]
    )
    assert words.reading("chunks", [extended], ["a"]).endswith(
        "so a chunk of 2,048 characters (chunk.max_chars) has about 512 tokens on average; the longest chunk has 604."
    )
    assert "at least 2 chunks" in words.reading("yield", [extended], ["a"])


def test_every_check_is_said_once_and_only_of_the_layouts_that_it_is_made_for():
    assert sorted(words._PASSED) == sorted(CHECKS)
    of_documents = " ".join(
        words.verdict(plain(Layout.CONCATENATED, setting__negatives=None)).passed
    )
    assert "negative" not in of_documents
    assert "meta-" not in of_documents


def test_only_terms_that_a_run_has_a_use_for_are_explained():
    nothing = plain(
        Layout.CONCATENATED,
        setting__negatives=None,
        similarity=None,
        near_duplicates__chunks=None,
    )
    assert list(words.glossary([nothing])) == ["token", "sequence", "chunk", "draft"]
    assert "near-duplicate" in words.glossary(
        [nothing, with_values(nothing, {"near_duplicates__documents": 0})]
    )
    assert words.glossary(
        [
            plain(Layout.EXTENDED),
            plain(Layout.EXTENDED, setting__negatives="random-corpus"),
        ]
    )["negative"] == (
        "a distractor chunk between two meta-chunks; in this run the chunks of other documents that are most similar to "
        "the meta-chunk before "
        "them; or random chunks of other documents."
    )
    meaning = words.glossary([plain(Layout.EXTENDED)])["cosine"]
    assert meaning.endswith(
        "0 no common direction; unrelated text of this corpus has about 0.12."
    )


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
    said = words.verdict(warned)
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
    said = words.verdict(plain(Layout.EXTENDED, warnings=[*warned["warnings"], *more]))
    assert (said.settings, said.solved) == (
        ("compose.max_uses=4",),
        "1 of these 3 problems",
    )  # not two lengths at once
    leak = {"name": "repeated-chunks", "message": "1 chunk occurs twice", "change": ""}
    assert (
        words.verdict(
            plain(Layout.EXTENDED, warnings=[*warned["warnings"], leak])
        ).level
        == "stop"
    )
    assert (
        "No sequence contains the same chunk twice."
        not in words.verdict(plain(Layout.EXTENDED, warnings=[leak])).passed
    )
    level, decision, reasons, passed, settings, _ = words.verdict(
        plain(Layout.EXTENDED)
    )
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
    assert len(words.verdict(documents).reasons) == 1


def test_a_check_without_anything_to_look_at_is_not_said_to_be_passed():
    every = words.verdict(plain(Layout.EXTENDED)).passed
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
            words._PASSED["near-identical-negatives"],
        ),
        ({"similarity__random": None}, words._PASSED["unrelated-negatives"]),
        ({"tokens__by_source": {"a": 1}}, words._PASSED["one-source"]),
    ):
        passed = words.verdict(plain(Layout.EXTENDED, **changed)).passed
        assert text in every
        assert set(every) - set(passed) == {text}


def test_what_forbids_training_is_a_check_that_exists():
    assert set(words._FATAL) <= set(CHECKS)


@pytest.mark.parametrize("negatives", NEGATIVES)
def test_only_the_most_similar_negatives_are_called_similar_and_others_a_control(
    negatives,
):
    why = "" if negatives == "top" else "Why they are a control of it."
    of_run = plain(Layout.EXTENDED, setting__negatives=negatives, control=why)
    said = words.verdict(of_run)
    assert ("control" in said.decision) is (negatives != "top")
    assert any("Negatives are similar to" in reason for reason in said.reasons) is (
        negatives == "top"
    )
    if negatives != "top":
        assert said.reasons == (why,)
    repeated = words.verdict(
        {**of_run, "warnings": [{"name": "x", "message": "m", "change": ""}]}
    )
    assert any("a control of" in reason for reason in repeated.reasons) is (
        negatives != "top"
    )


def test_data_of_a_tokenizer_that_no_model_knows_are_for_models_trained_from_scratch():
    said = words.verdict(plain(Layout.EXTENDED), is_stand_in=True)
    assert (
        said.decision == f"No defects found: you can train on it, but {FROM_SCRATCH}."
    )
    named = words.verdict(
        plain(Layout.EXTENDED, setting__negatives="tail", control="It is."),
        is_stand_in=True,
    ).reasons
    assert any(FROM_SCRATCH in reason for reason in named)
    warning = {"name": "stand-in-tokenizer", "message": "m", "change": ""}
    assert words.verdict(
        plain(Layout.EXTENDED, warnings=[warning]), is_stand_in=True
    ).reasons == ("M.",)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (
            {},
            "the chunks of other documents that are most similar to the meta-chunk before them. To predict",
        ),
        (
            {"setting__position": "tail"},
            "are most similar to the meta-chunk after them. To predict",
        ),
        (
            {"setting__negatives": "tail"},
            "the least similar of the chunks that were retrieved for the meta-chunk before them. To predict",
        ),
        (
            {"setting__negatives": "random-retrieved"},
            "to the meta-chunk before them, in random order. To predict",
        ),
        (
            {"setting__negatives": "random-corpus"},
            "between them: random chunks of other documents. To predict",
        ),
        (
            {"setting__negatives": "self-repeat"},
            "between them: copies of the meta-chunk before them. To predict",
        ),
        (
            {"setting__negatives": None},
            "between them: chunks of other documents. To predict",
        ),
        (
            {},
            "must use the one before it, 1,234 tokens earlier (median); it must ignore the similar text in between.",
        ),
        ({"distance_tokens": None}, "must use the one before it; it must ignore"),
    ],
)
def test_the_opening_says_what_the_settings_do(settings, told):
    assert told in words.opening(plain(Layout.EXTENDED, **settings))


NOTHING = Cell("–")


def of(*plain):
    """Return the numbers of runs that have no name."""
    return Numbers(plain, [""] * len(plain))


def test_a_cell_holds_the_value_as_it_is_and_as_it_is_shown():
    plain = [{"a": {"b": 1234567}}, {"a": None}, {}, {"a": {"b": "word"}}]
    assert of(*plain).row("n", "a", "b") == TableRow(
        "n",
        (
            Cell("1,234,567", 1234567, ("a", "b")),
            NOTHING,
            NOTHING,
            Cell("word", "word", ("a", "b")),
        ),
    )
    assert of({"x": 0}).row("n", "x").cells == (
        Cell("0", 0, ("x",)),
    )  # 0 is a number, not nothing
    assert of({"x": 0.256}).row("n", "x", form="{:.1%}").cells == (
        Cell("25.6%", 0.256, ("x",)),
    )


def test_a_bin_that_one_run_lacks_is_a_dash_for_it():
    counts = [
        [{"low": 64, "high": 127, "count": 3}],
        [{"low": 1, "high": 1, "count": 2000}],
    ]
    plain = [{"h": one} for one in counts]
    assert [
        (row.name, [cell.text for cell in row.cells])
        for row in of(*plain).bins("h", form="{} tokens")
    ] == [
        ("1 tokens", ["–", "2,000 (100.0%)"]),
        ("64–127 tokens", ["3 (100.0%)", "–"]),
    ]
    below_0 = of({"h": [{"low": -0.05, "high": 0.0, "count": 1}]})
    assert below_0.bins("h", form="from {}")[0].name == "from -0.05"


def test_negatives_are_named_only_where_documents_are_extended():
    names = []
    for layout in (Layout.EXTENDED, Layout.CONCATENATED):
        stats = plain(layout, distance_tokens=None, similarity__random=None)
        names.append({row.name for row in of(stats).first()})
    assert "mean cosine of the negatives" in names[0]
    assert "mean cosine of the documents" in names[1]
    assert not [name for name in names[0] if name.startswith("tokens between")]


def test_a_mean_cosine_stands_beside_that_of_random_pairs():
    stats = plain(Layout.EXTENDED, similarity__random={"mean": 0.0625})
    names = [row.name for row in of(stats).first()]
    assert "mean cosine of the negatives (random pairs: 0.06)" in names


def test_words_of_a_recipe_are_explained_and_their_values_stay_as_they_are():
    path = ("setting", "negatives")
    (row,) = of(
        {"setting": {"negatives": "tail"}}, {"setting": {"negatives": "of tomorrow"}}
    ).settings()
    assert row.cells == (
        Cell("tail: the most similar chunks, least similar first", "tail", path),
        Cell("of tomorrow", "of tomorrow", path),
    )
