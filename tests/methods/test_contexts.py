"""The contexts of six hand-written documents, found by a model that copies, against a naive version."""

import json
import re

import numpy as np
import pytest
from tests.support.copying_model import KNOWN, UNKNOWN, CopyingModel
from tests.support.scoring_models import scoring_model

import nextlong
from nextlong import checks, pipeline
from nextlong.artifacts.corpus_files import corpus, documents_of, source_ids
from nextlong.checks import Corpus
from nextlong.cli import main as cli_main
from nextlong.engine.executor import SerialExecutor
from nextlong.engine.runner import run_steps
from nextlong.errors import CorpusError, RecipeError
from nextlong.methods import contexts
from nextlong.methods.contexts import Candidate, Screening
from nextlong.recipe import Recipe
from nextlong.recipe.keys import Scorer
from nextlong.report.page.write import page
from nextlong.retrieval.embed import EmbedFiles, prepared_encoder
from nextlong.retrieval.encoders.base import kind_of
from nextlong.retrieval.surprisal import Surprisal, SurprisalModel
from nextlong.schemas import DropReason

# A model that copies is uncertain of the words that a text has not had yet: refrains
# make those few.
ROW = "Row the boat and row the boat and row the boat and row the boat.\n"
BAKE = "Knead the dough and bake the dough and knead the dough and bake the dough.\n"
DOCUMENTS = {
    "ferry": ROW * 2 + "Anna and the boat and the row.\n" + ROW,
    "pier": "Anna waits at the pier.\n" + "The pier is old and cold.\n",
    "baker": BAKE * 2 + "The dough and the yeast.\nKnead and knead.\n",
    "mill": "The yeast is in the mill.\nThe mill is far from the boat.\n",
    "copy": "The yeast is in the mill.\nThe sky is wide and Anna is small.\n",
    "sky": "The sky is wide.\nA star is far from the sky.\nBake and bake.\nThe moon "
    "and the tide.\nRow and wait.\nThe light is old.\nThe night and the star.\n"
    "Knead and wait.\nThe tide is cold.\nBoat and moon.\nThe dough rises.\n",
}


@pytest.fixture(scope="module")
def patched():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contexts, "load_scorer", lambda _: CopyingModel())
        patch.setattr(checks, "check_scorer", lambda *_, **__: None)
        yield


def recipe_of(folder, *overrides):
    lines = [json.dumps({"id": name, "text": text}) for name, text in DOCUMENTS.items()]
    (folder / "c.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return Recipe.from_dict(
        {
            "run_dir": str(folder / "run"),
            "executor": "serial",
            "ingest": {"sources": [{"path": str(folder / "c.jsonl"), "id": "id"}]},
            "chunk": {"max_chars": 40},
            "tokenizer": {"train": 300},
            "scorer": {"model": "tests/copying"},
            "compose": {"method": "entropy", "target_tokens": 172, "sequences": "all"},
            "entropy": {"candidates": 9},
        },
        overrides=overrides,
    )


@pytest.fixture(scope="module")
def run(patched, tmp_path_factory):
    folder = tmp_path_factory.mktemp("contexts")
    return nextlong.run(recipe_of(folder))


def naive_reductions(done, recipe, name):
    """Return the reductions of the candidates of a document by their texts, one forward for each anchor."""
    text = corpus(done)
    vectors = np.concatenate(
        [np.load(path).astype(np.float32) for path in EmbedFiles.of(done).vectors]
    )
    ids = np.arange(len(vectors))
    chunks = text.texts(ids).tolist()
    owners = source_ids(documents_of(ids, text.chunks), text.documents).tolist()
    prepared = prepared_encoder(recipe.encoder, done)
    encoder = kind_of(recipe.encoder).load(recipe.encoder, prepared)

    model = CopyingModel()
    document = DOCUMENTS[name]
    (encoded,) = model.encode([document])
    row = encoded.ids
    alone = [KNOWN if row[t] in row[:t] else UNKNOWN for t in range(len(row))]
    limit = np.mean(alone) + 2 * np.std(alone)
    best = {}
    for t in [t for t, entropy in enumerate(alone) if entropy > limit]:
        start = encoded.offsets[max(0, t - 16)][0]
        stop = encoded.offsets[min(len(row) - 1, t + 16)][1]
        (query,) = encoder.encode([document[start:stop]])
        taken = []
        for chunk in np.argsort(-(vectors @ query), kind="stable").tolist():
            words = re.findall(r"\w+", chunks[chunk].lower())
            is_equal = any(
                words == re.findall(r"\w+", chunks[one].lower()) for one in taken
            )
            if (
                owners[chunk] != name
                and not is_equal
                and len(taken) < recipe.options.candidates
            ):
                taken.append(chunk)
        for chunk in taken:
            (before,) = model.encode([chunks[chunk]])
            known = [*before.ids.tolist(), *row[:t].tolist()]
            reduction = (alone[t] - (KNOWN if row[t] in known else UNKNOWN)) / alone[t]
            key = chunks[chunk]
            best[key] = max(best.get(key, -9.0), reduction)
    return best


@pytest.mark.parametrize("candidates", [1, 3, 9])
def test_candidates_are_those_of_the_naive_version(patched, tmp_path, candidates):
    recipe = recipe_of(tmp_path, f"entropy.candidates={candidates}")
    steps = pipeline.route(recipe, Corpus(recipe).files)
    names = [step.name for step in steps]
    steps = steps[: names.index("contexts") + 1]
    done = run_steps(steps, run_dir=recipe.run_path, executor=SerialExecutor())
    rows = np.load(done["documents"].file(".docs.npy"))
    text = corpus(done)
    paths = contexts.ContextsFiles.of(done).contexts
    found = contexts.read_contexts(paths, rows)
    ids = documents_of(rows["first_chunk"][found.documents], text.chunks)
    names = source_ids(ids, text.documents).tolist()
    assert set(names) == DOCUMENTS.keys()
    for index, name in enumerate(names):
        part = slice(*found.offsets[index : index + 2])
        chunks = rows["first_chunk"][found.owners[part]] + found.numbers[part]
        texts = text.texts(chunks).tolist()
        assert len(set(texts)) == len(texts)
        mine = dict(zip(texts, found.reductions[part].tolist(), strict=True))
        assert mine == pytest.approx(naive_reductions(done, recipe, name))
    if candidates == 1:
        assert {0.0, 0.8} == {round(float(one), 3) for one in found.reductions}


def test_contexts_hold_the_words_that_their_document_has_not_had(run):
    sequence = next(run.sequences())
    kept = [
        text
        for span, text in zip(sequence.spans, sequence.texts, strict=True)
        if span.role == "context"
    ]
    assert any("Anna" in text or "yeast" in text for text in kept)
    assert next(span.role for span in sequence.spans if span.group == 0) == "context"


def test_the_run_passes_verify_and_tells_its_contexts(run, capsys):
    assert cli_main.main(["verify", str(run)]) == 0
    assert cli_main.main(["stats", str(run), "--json"]) == 0
    stats = json.loads(capsys.readouterr().out.partition("\n{")[2].join(["{", ""]))
    assert stats["tokens"]["by_role"]["context"] > 0
    spans = [span for sequence in run.sequences() for span in sequence.spans]
    found = stats["contexts"]
    assert found["contexts"] == sum(span.role == "context" for span in spans)
    assert found["documents"] == len(DOCUMENTS)
    assert 0 < found["anchors"] <= found["candidates"]
    assert "uncertain tokens in them" in page([run])


def test_the_end_of_a_row_is_its_last_anchor():
    model = CopyingModel()
    document = contexts.read_document(model, "a " * 20 + "b" + " a" * 20, Screening())
    assert document.anchors.tolist() == [0, 20]
    first, second = document.queries()
    assert first == "a" + " a" * 16
    assert second == " a" * 16 + " b" + " a" * 16
    model.rows.clear()
    (reduction,) = contexts.measure_reductions(
        model, document, [Candidate(0, document.anchors, 0.5)], ["b c"]
    )
    assert reduction == pytest.approx((UNKNOWN - KNOWN) / UNKNOWN)
    ((row),) = model.rows
    assert len(row) == 2 + 21


class _Fog(CopyingModel):
    """Less certain of everything behind the word fog."""

    def score(self, rows, *, first):
        fog = self.ids.get("fog")
        scored = super().score(rows, first=first)
        return [
            Surprisal(scores.loss, scores.entropy * (2 if fog in row else 1))
            for row, scores in zip(rows, scored, strict=True)
        ]


def test_a_chunk_that_raises_the_entropy_has_a_negative_reduction():
    model = _Fog()
    document = contexts.read_document(model, "a " * 20 + "b", Screening())
    found = [Candidate(chunk, document.anchors, 0.5) for chunk in range(2)]
    reductions = contexts.measure_reductions(model, document, found, ["fog", "b"])
    assert reductions == pytest.approx([-1.0, 0.8])


def test_a_document_and_a_candidate_get_half_of_the_context_each():
    model = CopyingModel()
    model.context = 41
    document = contexts.read_document(model, "a " * 19 + "b a a", Screening())
    assert len(document.encoded.ids) == 20
    assert document.anchors.tolist() == [0, 19]
    model.rows.clear()
    found = [Candidate(0, document.anchors, 0.5)]
    contexts.measure_reductions(model, document, found, ["c " * 40])
    assert len(model.rows[0]) == 20 + 20


@pytest.mark.parametrize("text", ["", "word"])
def test_a_text_without_predictions_has_no_anchor(text):
    document = contexts.read_document(CopyingModel(), text, Screening())
    assert not len(document.anchors)


def test_each_anchor_names_its_nearest_chunks():
    found = [np.array([5, 6, 7]), np.array([6, 8, 5])]
    cosines = [np.array([0.9, 0.8, 0.7]), np.array([0.85, 0.6, 0.5])]
    named = contexts.nearest_candidates(found, cosines, np.array([3, 9]), count=2)
    assert [(one.chunk, one.anchors.tolist(), one.cosine) for one in named] == [
        (5, [3], 0.9), (6, [3, 9], 0.85), (8, [9], 0.6)
    ]  # fmt: skip


def test_documents_are_scored_in_the_order_of_their_keys_until_they_suffice():
    rows = np.zeros(4, [("key", "u8"), ("chars", "i8")])
    rows["key"] = [40, 10, 30, 20]
    rows["chars"] = [100, 500, 100, 100]
    order = contexts._in_order(rows, max_chars=200)
    assert order.tolist() == [3, 2, 0]
    chars = rows["chars"][order]
    counts = [
        contexts._count(chars, sequences=sequences, sequence_chars=100)
        for sequences in (0, 1, 6, 14, 99, None)
    ]
    assert counts == [0, 1, 2, 3, 3, 3]


def test_each_attempt_scores_other_documents_than_those_before_it(patched, tmp_path):
    recipe = recipe_of(tmp_path, "compose.sequences=1", "compose.target_tokens=172")
    scored = []
    for attempt in range(3):
        steps = pipeline.route(recipe, Corpus(recipe).files, attempt=attempt)
        names = [step.name for step in steps]
        steps = steps[: names.index("draft")]
        done = run_steps(steps, run_dir=recipe.run_path, executor=SerialExecutor())
        shards = []
        for number in range(attempt + 1):
            name = f"contexts_{number}" if number else "contexts"
            shards += contexts.ContextsFiles(done[name]).contexts
        rows = np.load(done["documents"].file(".docs.npy"))
        found = contexts.read_contexts(shards, rows)
        assert len(set(found.documents.tolist())) == len(found.documents)
        assert found.documents[: len(scored)].tolist() == scored
        scored = found.documents.tolist()
    assert len(scored) == len(DOCUMENTS)
    assert found.are_all


def test_documents_longer_than_half_a_sequence_are_counted(patched, tmp_path):
    recipe = recipe_of(tmp_path, "compose.target_tokens=20")
    with pytest.raises(CorpusError) as error:
        nextlong.run(recipe)
    assert (error.value.where, error.value.value) == ("compose.method", "entropy")
    assert DropReason.OVER_HALF in str(error.value)
    assert DropReason.NO_CONTEXTS not in str(error.value)


def test_without_contexts_the_model_is_named_as_the_reason(patched, tmp_path):
    with pytest.raises(CorpusError) as error:
        nextlong.run(recipe_of(tmp_path, "entropy.min_reduction=0.999"))
    assert DropReason.NO_CONTEXTS in str(error.value)
    assert DropReason.OVER_HALF not in str(error.value)


def test_too_long_documents_are_counted_as_far_as_the_search_went():
    rows = np.zeros(5, [("key", "u8"), ("chars", "i8")])
    rows["key"] = [50, 10, 40, 20, 30]
    rows["chars"] = [1, 9, 9, 1, 1]
    order = contexts._in_order(rows, max_chars=5)
    assert order.tolist() == [3, 4, 0]
    counted = [contexts._passed_over(rows, order, last=last) for last in range(4)]
    assert counted == [1, 1, 2, 2]


def test_a_recipe_without_a_model_is_refused_before_anything_runs(tmp_path):
    with pytest.raises(RecipeError) as error:
        nextlong.run(recipe_of(tmp_path, "scorer.model=null"))
    assert error.value.where == "scorer.model"
    assert not list(tmp_path.glob("run/*-ingest-*"))


@pytest.mark.heavy
def test_one_forward_of_a_candidate_serves_all_of_its_anchors(tmp_path):
    model = SurprisalModel(Scorer(model=str(scoring_model(tmp_path)), device="cpu"))
    document = contexts.read_document(
        model, " ".join(DOCUMENTS.values()), Screening(deviations=1.0)
    )
    assert len(document.anchors) > 4
    texts = list(DOCUMENTS.values())
    found = [
        Candidate(chunk, document.anchors[chunk::2], 0.5) for chunk in range(len(texts))
    ]
    reductions = contexts.measure_reductions(model, document, found, texts)
    for candidate, text, reduction in zip(found, texts, reductions, strict=True):
        (before,) = model.encode([text])
        best = -np.inf
        for anchor in candidate.anchors.tolist():
            row = np.concatenate([before.ids, document.encoded.ids[: anchor + 1]])
            (scores,) = model.score([row], first=[len(row) - 1])
            alone = float(document.entropy[anchor])
            best = max(best, (alone - float(scores.entropy[-1])) / alone)
        assert reduction == pytest.approx(best, abs=1e-5)
