"""The experiment on real text: sums by hand, intervals and Holm's procedure, and the command from documents to tables."""

import json

import numpy as np
import pytest
from experiments.real_text import measure, summary
from experiments.real_text.__main__ import main
from tests.support.copying_model import CopyingModel
from tests.support.scoring_models import scoring_model

from nextlong.sequences.dependence import Kind, ScoredMetaChunk


def sums(tokens, loss, replaced, alone):
    names = ("tokens", "loss", "replaced", "alone")
    return dict(zip(names, (tokens, loss, replaced, alone), strict=True))


def record(number, *, shift=0.0, tokens=10):
    """A document whose losses differ by arm: top 1 nat a token, then 2 …, and `shift` more."""
    arms = {}
    for place, arm in enumerate(measure.ARMS, start=1):
        loss = (place + shift) * tokens
        of_group = sums(tokens, loss, loss + 2 * tokens, loss - tokens)
        arms[arm] = {"gap": 100} | dict.fromkeys(measure.GROUPS, of_group)
    return {"id": f"d{number:03d}", "tokens": tokens, "arms": arms}


def test_sums_are_of_the_tokens_of_each_kind():
    kinds = [Kind.OWN, Kind.OWN, Kind.BOTH, Kind.NO_WORD, Kind.NEITHER]
    chunk = ScoredMetaChunk(
        words=np.zeros(5, np.uint64),
        kinds=np.array(kinds, np.int8),
        loss=np.array([1, 2, 4, 8, 16], np.float32),
        replaced_loss=np.array([2, 4, 8, 16, 32], np.float32),
        gap=7,
    )
    alone = np.array([0, 1, 2, 3, 4], np.float32)
    is_common = np.array([True, False, False, False, False])
    assert measure._sums(chunk, alone, is_common) == {
        "all": sums(5, 31, 62, 10),
        "own in every arm": sums(1, 1, 2, 0),
        "only own": sums(2, 3, 6, 1),
        "only negatives": sums(0, 0, 0, 0),
        "both": sums(1, 4, 8, 2),
        "neither": sums(1, 16, 32, 4),
    }


def test_means_count_each_token_and_differences_are_paired():
    # Documents differ much more than arms, and by the same in each arm.
    rng = np.random.default_rng(0)
    shifts = rng.normal(0, 5, 80)
    sizes = rng.integers(5, 50, 80)
    records = [
        record(number, shift=shift, tokens=int(size))
        for number, (shift, size) in enumerate(zip(shifts, sizes, strict=True))
    ]
    found = summary.summary(records, {"model": "m"})
    assert found["setting"] == {"model": "m", "documents": 80}
    loss = found["means"]["top"]["all"]["loss"]
    mean = float((1 + shifts) @ sizes / sizes.sum())
    assert loss["mean"] == pytest.approx(mean)
    # The standard error of a ratio, by its linear approximation.
    residuals = sizes * (1 + shifts - mean)
    error = np.sqrt((residuals**2).sum()) / sizes.sum()
    assert loss["high"] - loss["low"] == pytest.approx(2 * 1.96 * error, rel=0.1)
    for planned in found["planned"]:
        assert planned["low"] == pytest.approx(planned["mean"], abs=1e-6)
    assert found["planned"][0]["mean"] == pytest.approx(-3)  # top − random-corpus
    assert found["means"]["mixed"]["both"]["gain"]["mean"] == (pytest.approx(2))


def test_p_values_are_those_of_a_normal_test_after_holm():
    rng = np.random.default_rng(1)
    records = []
    for number in range(200):
        one = record(number)
        for arm in measure.ARMS:
            for group in (measure.ALL, measure.COMMON):
                noise = 10 * float(rng.normal(0.1, 1.0))
                of_group = dict(one["arms"][arm][group])
                of_group["loss"] = 10.0 + noise
                of_group["replaced"] = 10.0
                of_group["alone"] = 10.0
                one["arms"][arm][group] = of_group
        records.append(one)
    planned = summary.summary(records, {})["planned"]
    values = []
    for one in planned:
        columns = []
        for arm, group in (one["left"], one["right"]):
            numbers = [of["arms"][arm][group] for of in records]
            sign = -1 if one["measure"] == "gain" else 1
            columns.append(
                np.array([sign * (of["loss"] - 10.0) / 10 for of in numbers])
            )
        difference = columns[0] - columns[1]
        z = difference.mean() / (difference.std(ddof=1) / len(records) ** 0.5)
        values.append(abs(z))
        assert one["mean"] == pytest.approx(float(difference.mean()), abs=1e-6)
    from scipy.stats import norm

    expected = [2 * norm.sf(z) for z in values]
    for one, p in zip(planned, expected, strict=True):
        assert one["p"] == pytest.approx(p, rel=0.15, abs=0.01)
    order = sorted(planned, key=lambda one: one["p"])
    holm = 0.0
    for rank, one in enumerate(order):
        holm = max(holm, min(1.0, one["p"] * (len(order) - rank)))
        assert one["p_holm"] == pytest.approx(holm)


def test_a_group_without_tokens_has_no_mean():
    one = record(0)
    nothing = sums(0, 0, 0, 0)
    for arm in measure.ARMS:
        one["arms"][arm]["only own"] = nothing
    found = summary.summary([one, one], {})
    of_group = found["means"]["top"]["only own"]["loss"]
    assert of_group == {"mean": None, "low": None, "high": None}
    assert "–" in summary.page(found)


def test_an_incomplete_line_is_measured_again(tmp_path):
    line = json.dumps(record(1)) + "\n"
    (tmp_path / "documents-0.jsonl").write_text(line + '{"id": "d0')
    (tmp_path / "documents-1.jsonl").write_text(json.dumps(record(0)) + "\n" + line)
    assert [one["id"] for one in measure.read_documents(tmp_path)] == ["d000", "d001"]
    assert (tmp_path / "documents-0.jsonl").read_text() == line


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--model", "m"], "--corpus"),
        (["--corpus", "c.jsonl"], "--model"),
        (["--report", "r.json"], "no document was scored"),
    ],
)
def test_what_is_missing_is_named(arguments, said, tmp_path, capsys):
    assert main(["--out", str(tmp_path), *arguments]) == 2
    assert said in capsys.readouterr().err


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    """Documents of a few paragraphs about six towns, and long enough to be scored."""
    rng = np.random.default_rng(0)
    words = [f"{a}{b}{c}" for a in "bdgklmnprst" for b in "aeiou" for c in "nrstl"]
    path = tmp_path_factory.mktemp("towns") / "towns.jsonl"
    lines = []
    for number in range(80):
        town = words[number % 6]
        text = "\n\n".join(
            " ".join([town, *rng.choice(words, 60)]) + "." for _ in range(3)
        )
        lines.append(json.dumps({"id": str(number), "text": text}) + "\n")
    path.write_text("".join(lines))
    return path


@pytest.mark.heavy
def test_the_command_measures_resumes_and_reports(documents, tmp_path):
    model = scoring_model(tmp_path / "model", context=4096)
    command = ["--corpus", str(documents), "--model", str(model), "--tokens", "1600"]
    out = tmp_path / "out"
    command += ["--chunk-chars", "300", "--out", str(out)]
    assert main([*command, "--documents", "2"]) == 0
    first = measure.read_documents(out)
    assert len(first) == 2
    for one in first:
        for arm in measure.ARMS:
            of_arm = one["arms"][arm]
            assert of_arm["all"]["tokens"] == one["tokens"] >= 64
            kinds = [of_arm[kind]["tokens"] for kind in measure.KINDS]
            assert sum(kinds) <= one["tokens"]
            common = of_arm["own in every arm"]["tokens"]
            assert common <= of_arm["only own"]["tokens"]
            assert of_arm["all"]["alone"] == one["arms"]["top"]["all"]["alone"]
    assert main([*command, "--documents", "2"]) == 0
    assert measure.read_documents(out) == first
    assert main([*command, "--documents", "2", "--seed", "1"]) == 2


def test_a_report_fills_in_the_tables_of_a_page(tmp_path):
    lines = [json.dumps(record(number)) + "\n" for number in range(3)]
    (tmp_path / "documents-0.jsonl").write_text("".join(lines))
    (tmp_path / "setting.json").write_text('{"model": "m"}')
    page, numbers = tmp_path / "page.md", tmp_path / "numbers.json"
    command = ["--out", str(tmp_path), "--report", str(numbers), "--page", str(page)]
    page.write_text("# Results\n")
    assert main(command) == 2
    marks = [f"<!-- experiments.real_text: {mark} -->" for mark in ("begin", "end")]
    page.write_text("before\n{}\nold\n{}\nafter\n".format(*marks))
    for _ in range(2):
        assert main(command) == 0
        text = page.read_text()
        assert text.startswith(f"before\n{marks[0]}\n\n| nats per token |")
        assert text.endswith(f"\n\n{marks[1]}\nafter\n")
        assert "old" not in text
        assert "| all tokens: gain | 2.00±0.00 |" in text
    assert json.loads(numbers.read_text())["setting"] == {"model": "m", "documents": 3}


def test_a_document_alone_is_scored_after_its_own_chunks_only():
    model = CopyingModel()
    text = measure.SequenceText(
        texts=["a b ", "c d ", "b c"], roles=[0, 1, 0], unrelated="x"
    )
    # "b" stood in the document, "c" only in the negative.
    assert measure._loss_alone(model, text).tolist() == [1.0, 5.0]
