"""The command `nextlong evaluate`: what it refuses, with exit code 2 and the cure; a dry run; a report."""

import json
import re
import socket
from pathlib import Path

import pytest
from tests.support.answering_models import Oracle
from tests.support.evaluation_data import word_tokenizer

import nextlong
from nextlong.cli.main import main
from nextlong.evaluate import engines, run
from nextlong.evaluate.results import ModelResults
from nextlong.runs.statistics.measure import measure


def refused(capsys, *arguments):
    assert main(["evaluate", "run", *map(str, arguments)]) == 2
    return capsys.readouterr().err.replace("\n", " ")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["m"], "unknown command 'm'; nextlong evaluate --help lists all commands"),
        (["reprot"], "unknown command 'reprot'; did you mean 'report'?"),
        (["report"], "the following arguments are required: RESULTS"),
        (["import", "x.json"], "the following arguments are required: --out"),
        (["judge", "r", "--model", "m"], "are required: --url"),
        (["data", "--out", "d"], "the following arguments are required: --suite"),
        (["run", "m", "n"], "unrecognized arguments: n"),
        (["run", "m", "--samples", "0"], "0 is not a whole number of at least 1"),
        (["run", "m", "--output", "t.md"], "unrecognized arguments: --output"),
    ],
)
def test_a_wrong_command_line_is_refused_by_the_parser(arguments, told, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["evaluate", *arguments])
    assert stopped.value.code == 2
    assert told in capsys.readouterr().err


def test_a_report_of_no_results_is_refused(capsys):
    assert main(["evaluate", "report", "no-such-folder"]) == 2
    assert "no-such-folder: it is not a folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ["m", "--suite", "rular"],
            "--suite rular: unknown suite; did you mean 'ruler'? Or choose from attention, choice, dependency",
        ),
        (["m", "--tasks", "niah"], "--tasks niah: unknown task"),
        (
            ["m", "--suite", "needle", "--tasks", "vt"],
            "--tasks vt: unknown task; choose from needle",
        ),
        (["m", "--lengths", "64k..8k"], "the second is smaller than the first"),
        (
            ["./m", "--tasks", "qa_1"],
            "./m: it does not exist",
        ),
        (
            ["m", "--data", "no-such-folder"],
            "--data no-such-folder: it is not a folder",
        ),
        (
            ["m", "--url", "localhost:8000"],
            "--url localhost:8000: it is not",
        ),
        (
            ["m", "--prompt-format", "messages"],
            "--prompt-format messages: it is",
        ),
        (
            ["m", "--tokenizer", "t.json"],
            "--tokenizer t.json: it is",
        ),
        (["m", "--shard", "9/8"], "--shard=9/8 is not a shard"),
        (["m", "--shard", "x"], "--shard=x is not a shard"),
    ],
)
def test_a_mistake_is_told_with_its_cure(
    arguments, told, capsys, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    assert told in refused(capsys, *arguments)
    assert not list(tmp_path.iterdir())


def test_the_missing_files_of_all_tasks_are_told(tmp_path, capsys):
    url = ("--url", "http://127.0.0.1:9/v1")
    told = refused(capsys, "m", *url, "--tasks", "qa_1,qa_2", "--data", tmp_path)
    assert "is missing; it comes from SQuAD 2.0's" in told
    assert "is missing; it comes from namlh2004/hotpotqa" in told


def test_what_was_asked_reaches_the_measurement(
    tmp_path, capsys, monkeypatch, shared_run
):
    seen = []
    monkeypatch.setattr(
        run,
        "evaluate",
        lambda _, asked, progress: seen.append(asked) or ModelResults(tmp_path, {}, ()),
    )
    asked = [
        "m",
        "--tasks",
        "vt",
        "--lengths",
        "2k,1k",
        "--samples",
        "3",
        "--seed",
        "5",
        "--label",
        "x",
        "--json",
    ]
    asked += [
        "--url",
        "http://127.0.0.1:9/v1",
        "--thinking",
        "9",
        "--context",
        "100",
        "--trained-on",
        str(shared_run),
    ]
    assert main(["evaluate", "run", *asked]) == 0
    (found,) = seen
    assert ([task.name for task in found.tasks], found.lengths) == (
        ["vt"],
        [1024, 2048],
    )
    assert (found.samples, found.seed, found.label) == (3, 5, "x")
    assert (found.model.name, found.model.url) == ("m", "http://127.0.0.1:9/v1")
    assert (found.model.thinking, found.model.context, found.model.max_attempts) == (
        9,
        100,
        8,
    )
    assert (
        found.negatives_cosine
        == measure(nextlong.open(shared_run)).similarity.cosine.p50
    )
    assert json.loads(capsys.readouterr().out) == []


def test_helmets_results_become_a_table(tmp_path, capsys):
    arguments = {
        "datasets": "kilt_nq",
        "input_max_length": 8192,
        "model_name_or_path": "org/m-8B",
    }
    (tmp_path / "x.json").write_text(
        json.dumps(
            {
                "args": arguments,
                "averaged_metrics": {"substring_exact_match": 51.5},
                "data": [],
            }
        )
    )
    assert (
        main(
            [
                "evaluate",
                "import",
                str(tmp_path / "x.json"),
                "--out",
                str(tmp_path / "results"),
            ]
        )
        == 0
    )
    assert (
        main(
            [
                "evaluate",
                "report",
                str(tmp_path / "results"),
                "-o",
                str(tmp_path / "table.md"),
            ]
        )
        == 0
    )
    assert "| nq | 51.50 |" in (tmp_path / "table.md").read_text()
    assert "RAG, 1 of 4 tasks, by length" in (tmp_path / "table.md").read_text()


@pytest.mark.heavy
def test_a_dry_run_says_what_is_missing_and_the_memory(tmp_path, capsys):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path / "model")
    capsys.readouterr()
    arguments = [
        "evaluate",
        "run",
        str(tmp_path / "model"),
        "--tasks",
        "vt,qa_1",
        "--lengths",
        "1k,2k",
        "--samples",
        "10",
        "--dry-run",
    ]
    arguments += ["--data", str(tmp_path)]
    assert main([*arguments, "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr()
    assert "to read: 61,440 tokens at most" in said.out
    assert "missing: ruler/squad.json" in " ".join(said.out.split())
    assert (
        "memory at 2K in float32: weights 0.00 GiB, key-value cache 0.00 GiB"
        in said.out
    )
    assert "it comes from SQuAD 2.0's" in said.err
    assert not (tmp_path / "out").exists()


def test_a_dry_run_of_the_papers_tables_gives_the_hours_in_the_docs(capsys, tmp_path):
    """The model is on a server, so the hours are those of an 8B model."""
    asked = ["--suite", "ruler,helmet", "--lengths", "8k..128k", "--url", "http://h/v1"]
    main(["evaluate", "run", "m", *asked, "--data", str(tmp_path), "--dry-run"])
    said = " ".join(capsys.readouterr().out.split())
    found = re.search(r"to read: ([\d,]+) tokens at most, about (\d+) H100-hours", said)
    page = (Path(__file__).parents[2] / "docs/evaluate/README.md").read_text()
    assert f"{found[1]} tokens, about {found[2]} H100-hours" in page


@pytest.mark.heavy
def test_the_hours_of_a_dry_run_are_those_of_the_model():
    from transformers import LlamaConfig

    from nextlong.evaluate.dry_run import _h100_hours

    shape = {"num_key_value_heads": 8, "intermediate_size": 14_336}
    config = LlamaConfig(vocab_size=128_256, **shape)
    tasks = [{"length": 131_072, "tokens": 10**9}, {"length": None, "tokens": 0}]
    assert _h100_hours(config, tasks) == pytest.approx(_h100_hours(None, tasks))
    half = LlamaConfig(vocab_size=128_256, num_hidden_layers=16, **shape)
    assert 0.5 < _h100_hours(half, tasks) / _h100_hours(config, tasks) < 0.6


@pytest.mark.heavy
def test_a_wrong_model_is_told_before_missing_data(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    told = refused(capsys, "nosuch/model", "--tasks", "nq", "--out", tmp_path / "r")
    assert told.startswith("error: nosuch/model: it is not a model")
    (tmp_path / "empty").mkdir()
    told = refused(capsys, tmp_path / "empty", "--tasks", "nq")
    assert f"{tmp_path / 'empty'}: it" in told


def test_json_of_a_run_with_a_task_that_cannot_be_asked_has_the_others(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(run, "opened", lambda _: Oracle(word_tokenizer()))
    monkeypatch.setattr(engines, "check_model", lambda _: None)
    asked = [
        "evaluate",
        "run",
        "m",
        "--tasks",
        "vt,json_kv",
        "--lengths",
        "512",
        "--samples",
        "2",
        "--json",
    ]
    assert main([*asked, "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr()
    scored = {
        "score": 100.0,
        "comparable": True,
        "interval": [100.0, 100.0],
        "n": 2,
        "refused": 0,
    }
    assert json.loads(said.out) == [
        {"model": "Oracle", "task": "json_kv", "length": 512, **scored}
    ]
    assert "1 of 2 not measured: vt needs at least" in " ".join(said.err.split())


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_dry_run_of_a_server_shows_what_is_missing_before_it_refuses(
    tmp_path, capsys, more
):
    asked = [
        "evaluate",
        "run",
        "m",
        "--url",
        "http://127.0.0.1:9/v1",
        "--tasks",
        "vt,qa_1",
        "--lengths",
        "1k",
        "--dry-run",
    ]
    asked += ["--data", str(tmp_path)]
    assert main([*asked, "--out", str(tmp_path / "out"), *more]) == 2
    said = capsys.readouterr()
    assert "missing: ruler/squad.json" in " ".join(said.out.split())
    assert "it comes from SQuAD 2.0's" in said.err


@pytest.mark.heavy
def test_a_dry_run_says_what_stands_in_the_way_of_each_task_and_what_the_machine_holds(
    tmp_path, capsys, monkeypatch
):
    from transformers import LlamaConfig, LlamaForCausalLM

    from nextlong.evaluate import memory

    config = LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=1024,
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path / "model")
    asked = [
        "evaluate",
        "run",
        str(tmp_path / "model"),
        "--suite",
        "needle,dependency,short",
        "--tasks",
        "dependency,piqa,needle",
    ]
    (tmp_path / "needle").mkdir()
    (tmp_path / "needle/haystack.txt").write_text("A long text.")
    asked += [
        "--data",
        str(tmp_path),
        "--lengths",
        "1k,2k",
        "--out",
        str(tmp_path / "out"),
        "--dry-run",
    ]
    monkeypatch.setattr(memory, "memory_bytes", lambda: 2**20)
    capsys.readouterr()
    assert main(asked) == 2
    said = capsys.readouterr()
    rows = {" ".join(line.split()) for line in said.out.splitlines()}
    assert rows >= {
        "needle 1K 11 11,264 to do",
        "needle 2K 11 22,528 too long: the model's context is 1,024",
        "dependency – 20 – missing: --run RUN",
        "piqa – all – to do",
    }
    assert (
        "this machine has 0.00 GiB, which is too little: lower --batch-tokens, give --dtype bfloat16"
        in said.out
    )
    assert "add --run RUN" in said.err


@pytest.mark.heavy
def test_a_dry_run_asks_no_hub(tmp_path, capsys, monkeypatch):
    def no_network(*_, **__):
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    asked = [
        "evaluate",
        "run",
        "nosuch/model",
        "--tasks",
        "vt",
        "--lengths",
        "1k",
        "--dry-run",
        "--out",
        str(tmp_path / "out"),
    ]
    assert main(asked) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "vt 1K 500 512,000 to do" in out
    unknown = "The memory of nosuch/model is unknown, because it is neither a folder"
    assert unknown in out


def test_a_dry_run_of_a_server_refuses_probes(tmp_path, capsys):
    asked = [
        "m",
        "--url",
        "http://127.0.0.1:9/v1",
        "--tasks",
        "attention",
        "--lengths",
        "1k",
        "--dry-run",
    ]
    assert "attention: a server gives no access to the inside of its model" in refused(
        capsys, *asked
    )


@pytest.mark.heavy
def test_a_dry_run_counts_weights_as_they_are_loaded_and_the_batch_that_takes_most(
    tmp_path, capsys
):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=64000,
        hidden_size=256,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
    )
    LlamaForCausalLM(config).bfloat16().save_pretrained(tmp_path / "model")
    asked = [
        "evaluate",
        "run",
        str(tmp_path / "model"),
        "--tasks",
        "json_kv",
        "--dry-run",
        "--out",
        str(tmp_path / "out"),
    ]
    assert (
        main(
            [
                *asked,
                "--lengths",
                "1000,1500",
                "--batch-tokens",
                "2048",
                "--dtype",
                "float32",
            ]
        )
        == 0
    )
    said = " ".join(capsys.readouterr().out.split())
    # 34 million weights of 4 bytes; two prompts of 1,000 tokens together are more than
    # one of 1,500.
    assert (
        "memory at 1,000 in float32: weights 0.13 GiB, key-value cache 0.02 GiB" in said
    )
    assert main([*asked, "--lengths", "1500"]) == 0
    assert "in bfloat16: weights 0.06 GiB" in " ".join(capsys.readouterr().out.split())
