"""A checkpoint gives back what was put into it, and is never missing while it is written again."""

import pytest

pytestmark = pytest.mark.heavy


def counting_optimizer(parameters):
    """An optimizer that counts its steps in an int and shares a table among parameters."""
    import torch

    class Counting(torch.optim.Optimizer):
        table = torch.linspace(-1, 1, 256)

        def __init__(self, parameters):
            super().__init__(parameters, {"lr": 0.1, "betas": (0.9, 0.95)})

        def step(self, closure=None):
            for parameter in (one for group in self.param_groups for one in group["params"]):
                state = self.state[parameter]
                state["step"] = state.get("step", 0) + 1
                state["qmap1"] = self.table

    return Counting(parameters)


def test_states_that_are_no_tensors_and_tables_that_are_shared_come_back(tmp_path):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from nextlong.train import checkpoint

    def stepped(times):
        model = torch.nn.Linear(3, 2)
        optimizer = counting_optimizer(model.parameters())
        for _ in range(times):
            model(torch.ones(3)).sum().backward()
            optimizer.step()
        optimizer.zero_grad()
        return model, optimizer

    def small():
        return LlamaForCausalLM(
            LlamaConfig(vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2)
        )

    _, optimizer = stepped(3)
    checkpoint.save(tmp_path, 3, model=small(), optimizer=optimizer, tokenizer=None)
    other, restored = stepped(0)
    checkpoint.load(checkpoint.finished(tmp_path)[0], model=small(), optimizer=restored)
    for one in other.parameters():
        assert restored.state[one]["step"] == 3
        assert type(restored.state[one]["step"]) is int
        assert torch.equal(restored.state[one]["qmap1"], optimizer.table)


def test_the_same_step_again_replaces_only_the_record(train_recipe, quiet, monkeypatch):
    """A training that goes on and stops at once: the checkpoint is whole at every moment, and tells the new reason."""
    from pathlib import Path

    from nextlong.errors import RunError
    from nextlong.train import checkpoint
    from nextlong.train.loop import train
    from nextlong.train.metrics import Metrics

    monkeypatch.setattr(Metrics, "fault", lambda _logs, number, *_: "first" if number == 3 else None)
    recipe = train_recipe()
    with pytest.raises(RunError, match="first; stopped .*choose another `out` with a lower training.lr"):
        train(recipe, quiet)
    kept = Path(recipe.out) / "checkpoints" / "step-000002"
    before = {path.name: path.stat().st_ino for path in kept.iterdir()}
    monkeypatch.setattr(Metrics, "fault", lambda _logs, number, *_: "second" if number == 3 else None)
    with pytest.raises(RunError, match="second"):
        train(recipe, quiet)
    after = {path.name: path.stat().st_ino for path in kept.iterdir()}
    assert {name for name in before if after.get(name) != before[name]} == {checkpoint.RECORD}
    assert '"second"' in (kept / checkpoint.RECORD).read_text()
    monkeypatch.undo()
    assert (train(recipe, quiet) / "model.safetensors").exists()


def test_more_than_a_million_steps_are_pruned_in_order(tmp_path):
    from nextlong.train import checkpoint

    for step in (999_999, 1_000_000, 1_000_001):
        (tmp_path / "checkpoints" / f"step-{step:06d}").mkdir(parents=True)
        (tmp_path / "checkpoints" / f"step-{step:06d}" / checkpoint.RECORD).touch()
    checkpoint.remove_old(tmp_path, keep_last=2)
    names = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    assert names == {"step-1000000", "step-1000001"}
