"""A training goes on where it was killed, gives the same with micro batches, and stops when it goes wrong.

A checkpoint gives back what was put into it, and is never missing while it is written
again.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.killed import kill_at

from nextlong.errors import RecipeError, RunError

pytestmark = pytest.mark.heavy


def logged(out, name="metrics.jsonl"):
    rows = [json.loads(line) for line in (out / name).read_text().splitlines()]
    return [
        {key: value for key, value in row.items() if key != "seconds"} for row in rows
    ]


def weights(folder):
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def same_weights(one, other):
    import torch

    first, second = weights(one), weights(other)
    return first.keys() == second.keys() and all(
        torch.equal(first[name], second[name]) for name in first
    )


def train(recipe, console):
    from nextlong.train.loop import train as start

    return start(recipe, console)


def saved(recipe, path):
    path.write_text(recipe.dump())
    return path


def test_loss_falls_and_is_measured_by_role_position_and_distance(train_recipe, quiet):
    recipe = train_recipe({"training.steps": 10})
    final = train(recipe, quiet)
    steps, measured = logged(final.parent), logged(final.parent, "held_out.jsonl")
    assert [row["step"] for row in steps] == list(range(1, 11))
    assert [row["step"] for row in measured] == [0, 3, 6, 9, 10]
    assert measured[-1]["loss"] < measured[0]["loss"] - 0.2
    for group in ("role", "position", "distance"):
        assert sum(tokens for _, tokens in measured[-1][group].values()) > 0
    assert {"meta", "negative"} <= measured[-1]["role"].keys()
    assert (final.parent / "loss.svg").stat().st_size > 1000


def test_what_is_saved_loads_as_any_model_and_gives_the_held_out_loss(
    train_recipe, quiet
):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from nextlong.torch import SequenceDataset

    recipe = train_recipe()
    final = train(recipe, quiet)
    model, info = AutoModelForCausalLM.from_pretrained(final, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert AutoTokenizer.from_pretrained(final).get_vocab()
    rows = SequenceDataset(list(recipe.data.runs), split="validation", validation=0.3)
    with torch.no_grad():
        losses = [
            model(
                **{name: column[None] for name, column in rows[row].items()}
            ).loss.item()
            for row in range(2)
        ]
    assert sum(losses) / 2 == pytest.approx(
        logged(final.parent, "held_out.jsonl")[-1]["loss"], abs=1e-5
    )


def test_killed_anywhere_it_ends_as_if_it_had_not_been(train_recipe, quiet, tmp_path):
    """SIGKILL at every ninth change of a file, until none is left; curve and weights equal, bit for bit."""
    whole = train(train_recipe({"checkpoints.every_steps": 1}, out="whole"), quiet)
    recipe = train_recipe({"checkpoints.every_steps": 1}, out="killed")
    path, out = saved(recipe, tmp_path / "killed.yaml"), Path(recipe.out)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for changes in (25, 60, 40):
        kill_at(["train", path], f"{out}/*", changes, environment=environment)
    subprocess.run(
        [sys.executable, "-m", "nextlong", "train", str(path)],
        env=environment,
        check=True,
        capture_output=True,
    )
    assert logged(out) == logged(whole.parent)
    assert logged(out, "held_out.jsonl") == logged(whole.parent, "held_out.jsonl")
    assert same_weights(out / "final", whole)


@pytest.mark.parametrize("rows", [2])
def test_micro_batches_do_not_change_the_result(train_recipe, quiet, rows):
    one = train(train_recipe(out="one"), quiet)
    more = train(
        train_recipe(
            {"training.micro_batch_rows": rows, "memory.checkpointing": "layers"},
            out="more",
        ),
        quiet,
    )
    assert [row["loss"] for row in logged(more.parent)] == pytest.approx(
        [row["loss"] for row in logged(one.parent)], abs=1e-5
    )


def test_packed_rows_cost_what_their_sequences_cost(train_recipe, quiet):
    one = train(
        train_recipe(
            {
                "data.validation": 0.0,
                "training.steps": 1,
                "training.warmup_steps": 0,
                "training.tokens_per_step": 12 * 2048,
            },
            out="one",
        ),
        quiet,
    )
    packed = train(
        train_recipe(
            {
                "data.validation": 0.0,
                "training.steps": 1,
                "training.warmup_steps": 0,
                "training.tokens_per_step": 12 * 2048,
                "data.pack": 4 * 2048,
            },
            out="packed",
        ),
        quiet,
    )
    assert logged(packed.parent)[0]["loss"] == pytest.approx(
        logged(one.parent)[0]["loss"], abs=1e-5
    )


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"training.lr": 1e30, "training.clip": None}, "is (nan|inf)"),
        (
            {"watch.spike": 1.00001, "training.lr": 1e-9, "training.steps": 40},
            "times the median",
        ),
    ],
)
def test_a_training_that_goes_wrong_stops_with_a_checkpoint_and_a_reason(
    train_recipe, quiet, changes, told
):
    from nextlong.train.loop import checkpoints_in

    recipe = train_recipe({"training.steps": 30, "training.warmup_steps": 0, **changes})
    with pytest.raises(RunError, match=told):
        train(recipe, quiet)
    last = checkpoints_in(Path(recipe.out))[0]
    record = json.loads((last / "trainer.json").read_text())
    assert record["stopped_because"]
    assert record["step"] == logged(Path(recipe.out))[-1]["step"]


def test_only_the_last_checkpoints_are_kept(train_recipe, quiet):
    final = train(
        train_recipe({"checkpoints.every_steps": 1, "checkpoints.keep_last": 3}), quiet
    )
    assert sorted(path.name for path in (final.parent / "checkpoints").iterdir()) == [
        "step-000004",
        "step-000005",
        "step-000006",
    ]


def test_the_operations_of_a_step_are_those_of_the_documents_of_each_row(
    train_recipe, standard_run, quiet, monkeypatch
):
    from contextlib import nullcontext

    from nextlong.train import metrics, sizes
    from nextlong.train.prepare import prepare

    shown = []
    monkeypatch.setattr(
        metrics,
        "shown_progress",
        lambda *_, **__: nullcontext(lambda step, flops: shown.append(flops)),
    )
    changes = {"data.runs": [str(standard_run)], "attention": "document"}
    recipe = train_recipe({**changes, "training.steps": 4})
    train(recipe, quiet)
    ready = prepare(recipe)
    own = sizes.sizes_of(ready.config)
    for step, found in enumerate(shown):
        rows = [ready.rows[row] for row in ready.micro_batches(step).ravel().tolist()]
        documents = [length for row in rows for length in row.bounds.diff().tolist()]
        assert found == pytest.approx(sizes.flops(own, documents))
    assert len(set(shown)) == 4  # the rows differ in their documents


def losses(final):
    return [
        json.loads(line)["loss"]
        for line in (final.parent / "metrics.jsonl").read_text().splitlines()
    ]


def test_conversations(train_recipe, quiet, llama, tmp_path):
    turns = [
        "harbour tide anchor",
        "sail current reef",
        "flour yeast oven",
        "dough crust knead",
    ]
    said = {
        "messages": [
            {"role": ("user", "assistant")[place % 2], "content": text}
            for place, text in enumerate(turns)
        ]
    }
    (tmp_path / "chat.jsonl").write_text((json.dumps(said) + "\n") * 60)
    recipe = train_recipe(
        {
            "data.runs": [],
            "data.chat": str(tmp_path / "chat.jsonl"),
            "data.pack": 512,
            "data.validation": 0.0,
            "training.tokens_per_step": 1024,
            "model.scratch": None,
            "model.path": llama,
        }
    )
    final = train(recipe, quiet)
    assert losses(final)[-1] < losses(final)[0]


def test_a_bare_on_or_off_of_yaml_is_a_word(train_recipe):
    from nextlong.train.recipe import TrainRecipe

    plain = train_recipe().model_dump(mode="json")
    made = TrainRecipe.from_dict(
        plain, overrides=["torchtitan.float8=on", "compile=off"]
    )
    assert (made.torchtitan.float8, made.compile) == ("on", "off")
    with pytest.raises(RecipeError, match="compile must be 'off' or 'on'"):
        TrainRecipe.from_dict(plain, overrides=["compile=offline"])


def training_of(model, optimizer, out, keep_last=2):
    """What the loop trains: a model and its optimizer, and a recipe of which only the number of checkpoints is read."""
    from types import SimpleNamespace

    from nextlong.train.loop import _Training

    recipe = SimpleNamespace(checkpoints=SimpleNamespace(keep_last=keep_last))
    return _Training(
        SimpleNamespace(out=out, recipe=recipe, tokenizer=None), None, model, optimizer
    )


def counting_optimizer(parameters):
    """An optimizer that counts its steps in an int and shares a table among parameters."""
    import torch

    class Counting(torch.optim.Optimizer):
        table = torch.linspace(-1, 1, 256)

        def __init__(self, parameters):
            super().__init__(parameters, {"lr": 0.1, "betas": (0.9, 0.95)})

        def step(self, closure=None):
            for parameter in (
                one for group in self.param_groups for one in group["params"]
            ):
                state = self.state[parameter]
                state["step"] = state.get("step", 0) + 1
                state["qmap1"] = self.table

    return Counting(parameters)


def small_llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    return LlamaForCausalLM(LlamaConfig(vocab_size=8, **sizes))


def test_states_that_are_no_tensors_and_tables_that_are_shared_come_back(
    tmp_path, quiet
):
    import torch

    def stepped(times):
        model = torch.nn.Linear(3, 2)
        optimizer = counting_optimizer(model.parameters())
        for _ in range(times):
            model(torch.ones(3)).sum().backward()
            optimizer.step()
        optimizer.zero_grad()
        return model, optimizer

    _, optimizer = stepped(3)
    training_of(small_llama(), optimizer, tmp_path).save(3)
    other, restored = stepped(0)
    assert training_of(small_llama(), restored, tmp_path).resume(quiet) == 3
    for one in other.parameters():
        assert restored.state[one]["step"] == 3
        assert type(restored.state[one]["step"]) is int
        assert torch.equal(restored.state[one]["qmap1"], optimizer.table)


def test_the_same_step_again_replaces_only_the_record(train_recipe, quiet, monkeypatch):
    """A training that goes on and stops at once: the checkpoint is whole at every moment, and tells the new reason."""
    from nextlong.train.metrics import Metrics

    monkeypatch.setattr(
        Metrics, "fault", lambda _logs, number, *_: "first" if number == 3 else None
    )
    recipe = train_recipe()
    with pytest.raises(RunError) as error:
        train(recipe, quiet)
    assert error.value.where == "step 3"
    assert error.value.problem.startswith("first; ")
    kept = Path(recipe.out) / "checkpoints" / "step-000002"
    before = {path.name: path.stat().st_ino for path in kept.iterdir()}
    monkeypatch.setattr(
        Metrics, "fault", lambda _logs, number, *_: "second" if number == 3 else None
    )
    with pytest.raises(RunError, match="second"):
        train(recipe, quiet)
    after = {path.name: path.stat().st_ino for path in kept.iterdir()}
    assert {name for name in before if after.get(name) != before[name]} == {
        "trainer.json"
    }
    assert '"second"' in (kept / "trainer.json").read_text()
    monkeypatch.undo()
    assert (train(recipe, quiet) / "model.safetensors").exists()


def test_more_than_a_million_steps_are_pruned_in_order(tmp_path):
    model = small_llama()
    training = training_of(model, counting_optimizer(model.parameters()), tmp_path)
    for step in (999_999, 1_000_000, 1_000_001):
        training.save(step)
    names = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    assert names == {"step-1000000", "step-1000001"}
