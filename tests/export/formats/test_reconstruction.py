"""Reconstruction tasks of a run against a naive reader of its sequences; read back, refused, trained by TRL."""

import importlib.util
import json
import re
from pathlib import Path

import numpy as np
import pytest
from bench.reconstruction import answer_by_vectors, measure

import nextlong
from nextlong.errors import ExportError
from nextlong.export import reward
from nextlong.export.formats import reconstruction
from nextlong.verify.checks import verify

FORMAT = "export.formats=[reconstruction]"


@pytest.fixture(scope="module")
def made(recipe_for, started, tmp_path_factory):
    """A function of overrides that returns a run that exported tasks; all share a run directory."""
    run_dir = started(tmp_path_factory.mktemp("reconstruction") / "run")
    return lambda *overrides: nextlong.run(recipe_for(run_dir, FORMAT, *overrides))


@pytest.fixture(scope="module")
def run(made):
    return made("compose.min_meta_chunks=4")


def tasks_of(run):
    lines = []
    for path in run.exported("reconstruction"):
        lines += path.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def read_task(task):
    """Return the text, the options by number and the true numbers of a task."""
    (message,) = task["prompt"]
    text, _, options = message["content"].partition("\n\nOPTIONS\n")
    text = text.partition("\n\nTEXT\n")[2]
    parts = re.split(r"\[OPTION (\d+)\]\n", options)[1:]
    by_number = {
        int(number): option.strip()
        for number, option in zip(parts[::2], parts[1::2], strict=True)
    }
    truth = [int(one) for one in task["reward_model"]["ground_truth"].split(", ")]
    return text, by_number, truth


def test_each_task_is_that_of_a_naive_reader_of_its_sequence(run):
    sequences = {sequence.id: sequence for sequence in run.sequences()}
    tasks = tasks_of(run)
    assert {task["sequence_id"] for task in tasks} == set(sequences)
    for task in tasks:
        sequence = sequences[task["sequence_id"]]
        text, options, truth = read_task(task)
        option_chunks = task["extra_info"]["option_chunk_ids"]
        assert sorted(options) == list(range(1, len(option_chunks) + 1))
        hidden = [option_chunks[number - 1] for number in truth]
        others = [chunk for chunk in option_chunks if chunk not in hidden]

        # Write the text again, span by span.
        expected = ""
        skips_separator = False
        places = 0
        for span, own in zip(sequence.spans, sequence.texts, strict=True):
            if span.chunk_id in hidden:
                assert span.role == "meta"
                places += 1
                assert hidden[places - 1] == span.chunk_id, "in the order of the text"
                expected += f"[MISSING {places}]" + ("\n" if own.endswith("\n") else "")
            elif span.chunk_id in others:
                assert span.role == "negative"
                skips_separator = True
                continue
            elif not (span.role == "separator" and skips_separator):
                expected += own
            skips_separator = False
        assert text == expected.strip()
        texts = dict(
            zip([s.chunk_id for s in sequence.spans], sequence.texts, strict=True)
        )
        for number, chunk in enumerate(option_chunks, start=1):
            assert options[number] == texts[chunk].strip()


def test_a_third_to_a_half_of_the_chunks_is_hidden_never_the_first(run):
    for task in tasks_of(run):
        shown = task["extra_info"]["shown_chunk_ids"]
        hidden = shown.count(None)
        assert shown[0] is not None
        assert hidden == min(4, len(shown) // 2)


def test_the_other_options_are_the_most_similar_negatives_of_hidden_chunks(run):
    sequences = {sequence.id: sequence for sequence in run.sequences()}
    for task in tasks_of(run):
        spans = sequences[task["sequence_id"]].spans
        option_chunks = task["extra_info"]["option_chunk_ids"]
        _, _, truth = read_task(task)
        hidden = [option_chunks[number - 1] for number in truth]
        expected = []
        last = [span for span in spans if span.role == "negative"][-1]
        for chunk in hidden:
            group = next(span.group for span in spans if span.chunk_id == chunk)
            own = [
                span
                for span in spans
                if (span.role, span.group) == ("negative", group) and span is not last
            ]
            own.sort(key=lambda span: -span.score)
            expected += [span.chunk_id for span in own[:2]]
        assert sorted(expected) == sorted(set(option_chunks) - set(hidden))


def test_the_true_order_is_not_the_order_of_the_options(run):
    truths = [read_task(task)[2] for task in tasks_of(run)]
    assert any(truth != sorted(truth) for truth in truths if len(truth) > 1)
    assert len({truth[0] for truth in truths}) > 1


def test_equal_runs_have_equal_tasks(run, recipe_for, started, tmp_path):
    again = nextlong.run(
        recipe_for(started(tmp_path / "run"), FORMAT, "compose.min_meta_chunks=4")
    )
    assert tasks_of(again) == tasks_of(run)


def test_the_export_is_verified_and_holds_the_reward(run):
    outcomes = {one.check: one for one in verify(Path(run.variant.named))}
    assert not [name for name, one in outcomes.items() if one.breaches]
    assert outcomes["reconstruction rows"].checked == len(run)
    copy = run.exported("reconstruction")[0].with_name("reward.py")
    assert copy.read_bytes() == Path(reward.__file__).read_bytes()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("[MISSING 1]", "[MISSING]"),
        ("[OPTION 1]", "[OPTION]"),
        ('"ground_truth":"', '"ground_truth":"99, '),
    ],
)
def test_a_task_that_contradicts_its_answer_is_found(run, tmp_path, old, new):
    (path, *_) = run.exported("reconstruction")
    lines = path.read_text(encoding="utf-8").splitlines()
    altered = []
    for line in lines:
        head, mark, rest = (
            line.partition("TEXT\\n") if "MISSING" in old else ("", "", line)
        )
        altered.append(head + mark + rest.replace(old, new, 1))
    (tmp_path / "a.jsonl").write_text("\n".join(altered) + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match="contradicts"):
        list(reconstruction._read(tmp_path, ["a.jsonl"]))


def test_sequences_of_whole_documents_hide_chunks_of_documents(made):
    run = made("compose.method=standard")
    for task in tasks_of(run):
        text, options, truth = read_task(task)
        assert sorted(truth) == sorted(options), "without mined negatives"
        assert all(f"[MISSING {place}]" in text for place in range(1, len(truth) + 1))


def test_a_sequence_of_one_chunk_is_refused(made):
    with pytest.raises(ExportError) as caught:
        made("compose.min_meta_chunks=1", "chunk.max_chars=100000")
    assert "sequence" in caught.value.where


def test_embeddings_alone_choose_the_options_next_to_the_places():
    vectors = np.eye(4, dtype=np.float32)
    near = {10: 0, 11: 1, 12: 2, 13: 3, 20: 1, 21: 2, 22: 3}

    def vectors_of(ids):
        return vectors[[near[one] for one in ids]]

    task = {
        # The first place is beside 11, the second beside 12.
        "extra_info": {
            "option_chunk_ids": [22, 21, 20],
            "shown_chunk_ids": [11, None, 10, None, 12],
        },
        "reward_model": {"ground_truth": "3, 2"},
    }
    assert answer_by_vectors(task, vectors_of) == "<answer>3, 2</answer>"
    measured = measure([task], vectors_of)
    assert measured["embeddings: exact"] == 1
    assert 0 < measured["random: mean reward"] < 0.8


# TRL 1.16 sets a deprecated name of transformers 5.
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.heavy
@pytest.mark.skipif(
    importlib.util.find_spec("trl") is None, reason="trl is not installed"
)
def test_trl_trains_a_step_on_the_tasks(run, tmp_path):
    from datasets import load_dataset
    from tests.support.tiny_llama import tiny_llama
    from transformers import PreTrainedTokenizerFast
    from trl import GRPOConfig, GRPOTrainer

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=run.tokenizer,
        eos_token="<|endoftext|>",
        pad_token="<|endoftext|>",
    )
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    )
    folder = run.exported("reconstruction")[0].parent
    tasks = load_dataset(
        "json",
        data_files=str(folder / "*.jsonl"),
        split="train",
        cache_dir=str(tmp_path),
    )
    seen = []

    def observed(completions, reward_model, **columns):
        seen.append((completions, reward_model, sorted(columns)))
        return reward.reward(completions, reward_model, **columns)

    trainer = GRPOTrainer(
        model=tiny_llama(len(tokenizer)),
        reward_funcs=observed,
        args=GRPOConfig(
            output_dir=str(tmp_path / "out"),
            max_steps=1,
            per_device_train_batch_size=2,
            num_generations=2,
            max_completion_length=4,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
        ),
        train_dataset=tasks,
        processing_class=tokenizer,
    )
    trainer.train()
    ((completions, rules, columns),) = seen
    assert len(completions) == 2
    assert all(rule["ground_truth"] for rule in rules)
    assert {"sequence_id", "extra_info", "prompts"} <= set(columns)
