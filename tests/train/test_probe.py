import json

import pytest

from packed_llama import BOUNDS, llama, packed

pytestmark = pytest.mark.heavy


def test_the_probe_sees_a_leak():
    """Stock sdpa with positions that run on, as a trainer gives them that does not know of documents."""
    from nextlong.train.probe import leak

    assert leak(llama("stock"), packed([0, 300])["input_ids"], [0, 300], document=0).moved_inside == 300
    whole = llama("auto")
    forward = whole.model.forward

    def run_on(**given):
        given["cu_seq_lens_q"] = given["cu_seq_lens_q"][[0, -1]]
        return forward(**given)

    whole.model.forward = run_on
    assert leak(whole, packed(BOUNDS)["input_ids"], BOUNDS, document=0).moved_outside > 0


def test_the_command_counts_what_moves_in_a_row_of_the_recipe(train_recipe, tmp_path, capsys):
    from nextlong.cli.main import main

    path = tmp_path / "packed.yaml"
    path.write_text(train_recipe({"data.pack": 4096}).dump())
    assert main(["train", str(path), "--check-attention"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(": ")[1] for line in lines] == ["2,048 outputs of its own moved, 0 of the others"] * 2
    assert lines[1].startswith("document 2 of 2, tokens 2,048 to 4,096")
    path.write_text(train_recipe().dump())
    assert main(["train", str(path), "--check-attention"]) == 0
    assert "each row is one document here" in " ".join(capsys.readouterr().out.split())
    assert not (tmp_path / "trained").exists()


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_the_command_does_not_pass_over_a_leak(train_recipe, tmp_path, capsys, monkeypatch, more):
    from nextlong.cli.main import main
    from nextlong.train import attention

    kernel = attention._sdpa

    def leaking(query, key, value, bounds, *rest):
        return kernel(query, key, value, [bounds[0], bounds[-1]], *rest)

    monkeypatch.setattr(attention, "_sdpa", leaking)
    path = tmp_path / "packed.yaml"
    path.write_text(train_recipe({"data.pack": 4096}).dump())
    assert main(["train", str(path), "--check-attention", *more]) == 2
    captured = capsys.readouterr()
    if more:
        assert [one["moved_outside"] for one in json.loads(captured.out)] == [2048, 0]
    else:
        assert "2,048 of the others" in captured.out
    told = " ".join(captured.err.split())
    assert "attention (sdpa) does not keep documents apart here; train nothing with it, and please report it" in told
    assert "set attention_kernel=sdpa" not in told


def test_another_kernel_that_leaks_has_sdpa_as_its_cure(train_recipe):
    from nextlong.errors import RunError
    from nextlong.train import probe

    leaking = [probe.Changed(1, 2, 0, 2048, 2048, 1)]
    with pytest.raises(RunError, match=r"attention \(varlen\) .*; set attention_kernel=sdpa, and please report it"):
        probe.check(train_recipe({"attention_kernel": "varlen"}), leaking)


def test_one_thing_is_done_instead_of_training(capsys):
    from nextlong.cli.main import main

    with pytest.raises(SystemExit, match="2"):
        main(["train", "t.yaml", "--dry-run", "--check-attention"])
    assert "--check-attention: not allowed with argument --dry-run" in capsys.readouterr().err
    assert main(["train", "init", "t.yaml", "--check-attention"]) == 2
    assert "init only writes the recipe; leave out --check-attention" in capsys.readouterr().err
