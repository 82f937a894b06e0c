"""Every method and every choice of negatives, end to end on the small corpus: what each promises, read from its output."""

import math
from collections import Counter
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from tests.support.larger_cases import thorough

import nextlong
from nextlong import pipeline
from nextlong.cli import main as cli_main
from nextlong.methods import extend
from nextlong.reading.listing import input_files
from nextlong.runs.statistics.measure import measure

NEGATIVES = ("self-repeat", "top", "random-retrieved", "tail", "random-corpus")


@pytest.fixture(scope="module")
def one_run(recipe_for, started, tmp_path_factory):
    """A run directory that all tests of this module add variants to."""
    run_dir = started(tmp_path_factory.mktemp("methods") / "run")

    @cache
    def make(*overrides):
        return nextlong.run(recipe_for(run_dir, *overrides))

    make.run_dir = run_dir
    return make


@pytest.fixture(scope="module")
def with_negatives(one_run):
    """A function that returns the run with some choice of negatives; few candidates, so that the choices differ."""
    few = (
        "mine.reorder_top=40",
        "mine.candidates=60",
        "compose.sequences=3",
        "compose.target_tokens=1024",
    )
    return lambda negatives: one_run(f"compose.negatives={negatives}", *few)


def embedded(run_dir):
    return {
        path.name: (path / "manifest.json").stat().st_mtime_ns
        for path in run_dir.glob("*-embed-*")
    }


@pytest.mark.parametrize(
    "method", ["knn", "quest", "litelong", *thorough("standard", "iclm", "splice")]
)
def test_a_method_gives_whole_documents_cut_at_the_target(one_run, method):
    one_run()
    before = embedded(one_run.run_dir)
    run = one_run(
        f"compose.method={method}", "compose.sequences=6", "iclm.max_similarity=null"
    )
    assert embedded(one_run.run_dir) == before, "a method must not embed again"
    assert len(run) > 0
    for sequence in run.sequences():
        assert len(sequence.input_ids) == 2048
        assert sequence.method == method
        documents = [span for span in sequence.spans if span.role == "document"]
        order = list(dict.fromkeys(span.group for span in documents))
        assert order == list(range(len(order)))
        for group in order:
            own = [span for span in documents if span.group == group]
            assert len({span.doc_id for span in own}) == 1
            assert own[0].char_start == 0
            assert [span.char_start for span in own[1:]] == [
                span.char_end for span in own[:-1]
            ]
        starts = [span.token_start for span in sequence.spans]
        assert starts == [0, *(span.token_end for span in sequence.spans[:-1])]
        doc_ids = [
            next(s.doc_id for s in documents if s.group == group) for group in order
        ]
        assert len(set(doc_ids)) == len(doc_ids)


def test_untied_documents_stand_in_parts_that_keep_their_order(one_run):
    run = one_run("compose.method=untie_the_knots", "compose.sequences=6")
    parted = 0
    for sequence in run.sequences():
        assert len(sequence.input_ids) == 2048
        reached, last = {}, None
        for span in sequence.spans:
            if span.role == "document":
                assert span.char_start == reached.get(span.doc_id, 0)
                parted += span.doc_id in reached and span.doc_id != last
                reached[span.doc_id], last = span.char_end, span.doc_id
    assert parted > 20
    assert measure(run).distance_tokens.count == parted
    assert cli_main.main(["verify", str(one_run.run_dir)]) == 0


def test_an_iclm_document_has_its_cosine_to_the_one_before(one_run):
    run = one_run(
        "compose.method=iclm", "compose.sequences=6", "iclm.max_similarity=null"
    )
    vectors = [
        np.load(path).astype(np.float32)
        for path in run.steps["document_vectors"].files(".document_vectors.npy")
    ]
    docs = np.load(run.steps["documents"].file(".docs.npy"))
    chunk_docs = {int(first): place for place, first in enumerate(docs["first_chunk"])}
    known = 0
    for sequence in run.sequences():
        firsts = [span for span in sequence.spans if span.chunk_id in chunk_docs]
        assert math.isnan(firsts[0].score)
        for before, span in pairwise(firsts):
            if not math.isnan(span.score):
                own, other = (
                    np.concatenate(vectors)[chunk_docs[one.chunk_id]]
                    for one in (span, before)
                )
                assert span.score == pytest.approx(float(own @ other), abs=2e-3)
                known += 1
    assert known > 10
    assert cli_main.main(["verify", str(one_run.run_dir)]) == 0


@pytest.mark.parametrize(
    "words",
    [
        ["run", "RECIPE"],
        ["peek", "RUN"],
        ["stats", "RUN"],
        ["compare", "RUN"],
        pytest.param(
            ["plan", "RECIPE", "--set", "compose.sequences=5"],
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            ["sweep", "RECIPE", "--over", "compose.seed=0"], marks=pytest.mark.thorough
        ),
    ],
    ids=lambda words: words[0],
)
def test_every_report_names_the_stand_in_for_queries(one_run, capsys, words):
    run = one_run(
        "compose.method=quest", "compose.sequences=6", "iclm.max_similarity=null"
    )
    recipe = one_run.run_dir.parent / "quest.yaml"
    recipe.write_text(run.recipe.dump(), encoding="utf-8")
    places = {"RECIPE": str(recipe), "RUN": str(run)}
    assert cli_main.main([places.get(word, word) for word in words]) == 0
    assert "extractive stand-in" in capsys.readouterr().out


def test_mean_similarity_has_the_order_of_the_ablation(with_negatives):
    means = []
    for negatives in NEGATIVES:
        run = with_negatives(negatives)
        scores = [
            span.score
            for sequence in run.sequences()
            for span in sequence.spans
            if span.role == "negative"
        ]
        means.append(np.mean(scores))
        assert all(len(sequence.input_ids) == 1024 for sequence in run.sequences())
    assert means == sorted(means, reverse=True)
    assert means[0] == 1.0
    assert len(set(means)) == len(means)


def test_self_repeat_repeats_the_meta_chunk_of_its_group(with_negatives):
    for sequence in with_negatives("self-repeat").sequences():
        meta_of = {
            span.group: span.chunk_id for span in sequence.spans if span.role == "meta"
        }
        assert all(
            span.chunk_id == meta_of[span.group]
            for span in sequence.spans
            if span.role == "negative"
        )


@pytest.mark.parametrize(
    "negatives", ["mixed", "random-corpus", "random-retrieved", "tail"]
)
def test_no_negative_is_from_the_own_document_or_twice(with_negatives, negatives):
    for sequence in with_negatives(negatives).sequences():
        own = next(span.doc_id for span in sequence.spans if span.role == "meta")
        used = [span.chunk_id for span in sequence.spans if span.role == "negative"]
        assert len(set(used)) == len(used)
        assert own not in {
            span.doc_id for span in sequence.spans if span.role == "negative"
        }


def test_mixed_negatives_are_harder_than_random_ones_and_pass_verify(
    with_negatives, capsys
):
    means = {}
    for negatives in ("top", "mixed", "random-corpus"):
        run = with_negatives(negatives)
        means[negatives] = measure(run).similarity.cosine.mean
    assert means["top"] > means["mixed"] > means["random-corpus"]
    run = with_negatives("mixed")
    statistics = measure(run)
    assert (statistics.setting.hard_share, statistics.control) == (0.5, "")
    assert cli_main.main(["verify", str(run)]) == 0
    assert "share of hard negatives" in capsys.readouterr().out


def test_a_cap_on_uses_holds_over_the_whole_data_set(one_run):
    def most_used(*overrides):
        run = one_run(*overrides)
        uses = Counter(
            s.chunk_id
            for sequence in run.sequences()
            for s in sequence.spans
            if s.role == "negative"
        )
        return max(uses.values()), len(run)

    free, count = most_used()
    assert free > 2
    assert most_used("compose.max_uses=2") == (2, count)


def test_steps_of_a_method_are_its_own():
    def names(method):
        recipe = nextlong.Recipe.from_dict(
            {
                "run_dir": "r",
                "ingest": {"sources": [{"path": __file__, "format": "text"}]},
                "tokenizer": {"train": 300},
            },
            overrides=[f"compose.method={method}"],
        )
        return [
            step.name for step in pipeline.route(recipe, input_files(recipe.ingest))
        ]

    assert "embed" not in names("standard") + names("quest")
    assert {"document_vectors", "neighbours"} <= set(names("iclm")) & set(names("knn"))


@pytest.mark.parametrize(
    ("enough", "drafted"),
    [
        (None, 6),
        (1, 2),
        (2, 3),
        (3, 6),
        (9, 6),
    ],  # up to the document before the next that is surely short enough
)
def test_documents_are_drafted_until_enough_are_most_likely_shorter_than_a_sequence(
    enough, drafted
):
    chars = np.array([10, 900, 20, 30, 901, 900])
    assert extend._surely_enough(chars, enough=enough, sure_chars=30) == drafted
