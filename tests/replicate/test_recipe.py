"""A replication's recipe: what is compared, and mistakes that are told."""

import pytest

from nextlong.cli.main import main
from nextlong.errors import RecipeError
from nextlong.replicate.recipe import Replication


def test_init_writes_the_ablations_that_are_asked_for(tmp_path):
    path = tmp_path / "r.yaml"
    assert main(["replicate", "init", str(path), "--preset", "smoke", "--ablate", "position"]) == 0
    assert Replication.load(path).experiments == ("methods", "position")


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        (
            {"extend": {"tokens": 512, "tokens_per_step": 1024}},
            "extend.tokens=512 is no longer than pretrain.tokens=512; raise it",
        ),
        ({"pretrain": {"tokens": 300}}, "tokens_per_step=16384 is not a multiple of tokens=300; make it one"),
        ({"pretrain": {"warmup_steps": 100}}, "warmup_steps=100 is not less than steps=100; lower it"),
        ({"seeds": [1, 1]}, "seeds=[1, 1] is empty or names one twice; name each once"),
        ({"seeds": []}, "seeds=[] is empty"),
        ({"measure": {"lengths": [4096]}}, "measure.lengths holds 4096, longer than extend.tokens=2048; leave it out"),
        ({"preset": "none"}, "preset"),
        (
            {"corpus": {"sources": [{"path": "x", "weight": 2}]}},
            "x has weight, but all its documents are taken; leave it out",
        ),
        ({"experiments": ["size"]}, "experiments"),
        ({"modell": {}}, "modell"),
    ],
)
def test_a_mistake_is_told_with_its_cure(keys, told):
    with pytest.raises(RecipeError) as error:
        Replication.from_dict({"out": "out", **keys})
    assert told in str(error.value)


@pytest.mark.heavy
def test_a_corpus_that_is_not_there_and_a_task_that_is_none_end_with_2(capsys, tmp_path):
    out = ["--out", str(tmp_path / "out")]
    assert main(["replicate", "--preset", "smoke", "--corpus", "no.jsonl", *out]) == 2
    assert "corpus.sources[0].path='no.jsonl'" in capsys.readouterr().err
    assert main(["replicate", "--preset", "smoke", "--set", "measure.tasks=[needles]", *out]) == 2
    assert "measure.tasks: needles: there is no such task; choose from" in capsys.readouterr().err.replace("\n", " ")
    for more in ([], ["--dry-run"]):
        assert main(["replicate", "--preset", "smoke", "--set", "measure.tasks=[dependency]", *out, *more]) == 2
        assert "dependency is not measured at lengths; leave it out" in capsys.readouterr().err.replace("\n", " ")
