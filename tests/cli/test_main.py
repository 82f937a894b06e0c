"""The command line: exit codes, what goes where, no traceback for a user's mistake, and shell completion."""

import gzip
import itertools
import json
import os
import pty
import re
import runpy
import select
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.every_command import commands
from tests.support.larger_cases import thorough

import nextlong
from nextlong import pipeline
from nextlong.cli import main
from nextlong.recipe import Recipe
from nextlong.recipe.text import preset_path

TEXTS = [
    "\n".join(
        f"Line {n}.{k} of a text about tides and gulls." for k in range(n % 9 + 1)
    )
    for n in range(80)
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a corpus, a recipe and its finished run."""
    folder = tmp_path_factory.mktemp("cli")
    (folder / "c.jsonl").write_text(
        "".join(
            json.dumps({"doc_id": n, "text": text}) + "\n"
            for n, text in enumerate(TEXTS)
        )
    )
    recipe = {
        "run_dir": str(folder / "run"),
        "executor": "serial",
        "ingest": {"sources": [{"path": str(folder / "c.jsonl")}]},
        "chunk": {"max_chars": 128},
        "encoder": {"lsa": {"dimensions": 8}},
        "mine": {"near_duplicates": None},  # its lines are few and much alike
        "tokenizer": {"train": 300},
        "compose": {"sequences": 5, "target_tokens": 512},
    }
    (folder / "r.yaml").write_text(json.dumps(recipe))
    assert main.main(["run", str(folder / "r.yaml")]) == 0
    return folder


@pytest.fixture
def call(capfd):
    """Run one command; returns exit code, stdout and stderr."""

    def call(*arguments):
        capfd.readouterr()
        code = main.main([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return code, out, err

    return call


def test_version(capsys):
    with pytest.raises(SystemExit) as caught:
        main.main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"nextlong {nextlong.__version__}\n"


@pytest.mark.parametrize(
    ("command", "missing"), [("evaluate", "COMMAND"), ("init", "RECIPE")]
)
def test_only_required_arguments_are_reported_as_missing(command, missing, capsys):
    with pytest.raises(SystemExit) as caught:
        main.main([command])
    assert caught.value.code == 2
    assert capsys.readouterr().err.endswith(
        f"the following arguments are required: {missing}\n"
    )


@pytest.mark.parametrize(
    "arguments",
    [["dance"], ["run"], ["peek", "x", "first"], ["run", "r.yaml", "--set"]],
)
def test_a_command_that_is_none_explains_itself(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main.main(arguments)
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith("usage: nextlong")


def test_the_commands_are_listed(capsys):
    with pytest.raises(SystemExit):
        main.main(["--help"])
    out = capsys.readouterr().out
    assert all(
        f"\n    {name} " in out for name in ("demo", "init", "plan", "run", "peek")
    )


# init


def test_init_says_what_to_mend_before_a_run(call, tmp_path):
    (tmp_path / "a.jsonl.gz").write_bytes(
        gzip.compress(b'{"text": "one text of words"}\n' * 9)[:-12]
    )
    code, out, err = call("init", tmp_path / "my.yaml", tmp_path / "a.jsonl.gz")
    assert code == 2
    assert "a.jsonl.gz cannot" in out
    assert err.startswith(f"error: {tmp_path}/my.yaml: ")
    assert Recipe.load(tmp_path / "my.yaml").ingest.sources[0].path == str(
        tmp_path / "a.jsonl.gz"
    )


def test_init_passes_over_a_bad_line_and_refuses_more_than_a_run_takes(call, tmp_path):
    lines = [
        f'{{"uid": {n}, "body": "one text of words, number {n}"}}' for n in range(400)
    ]
    (tmp_path / "a.jsonl").write_text("\n".join([*lines[:3], "{broken", *lines[3:]]))
    code, out, _ = call(
        "init", tmp_path / "my.yaml", tmp_path / "a.jsonl", "--tokenizer", "400"
    )
    assert code == 0
    assert "text column 'body', id column 'uid'" in out
    assert "rejected (0.2%)" in out
    (tmp_path / "b.jsonl").write_text("\n".join([*lines, *["{broken"] * 20]))
    assert (
        call("init", tmp_path / "b.yaml", tmp_path / "b.jsonl", "--tokenizer", "400")[0]
        == 2
    )


def test_init_lists_the_columns_where_none_looks_like_text(call, tmp_path):
    (tmp_path / "a.csv").write_text("ref,score\nA1,0.5\nA2,0.25\n")
    code, out, _ = call("init", tmp_path / "my.yaml", tmp_path / "a.csv")
    assert code == 2
    assert "columns: ref (A1), score (0.5)" in out


def test_init_refuses_a_tokenizer_that_is_not_there(call, tmp_path):
    code, _, err = call(
        "init", tmp_path / "my.yaml", "--tokenizer", tmp_path / "none.json"
    )
    assert code == 2
    assert f"{tmp_path}/none.json" in err
    assert not (tmp_path / "my.yaml").exists()


def test_init_writes_a_recipe_that_loads(call, tmp_path):
    path = tmp_path / "my.yaml"
    code, out, err = call("init", path)
    assert (code, err) == (0, "")
    assert out.startswith(f"wrote {path}; ")
    assert out.endswith(f" nextlong run {path}\n")
    assert Recipe.load(path).run_dir == str(tmp_path / "runs/my")


def test_init_names_the_column_of_ids_only_where_it_found_one(call, tmp_path):
    (tmp_path / "without.jsonl").write_text(
        "".join(json.dumps({"text": text}) + "\n" for text in TEXTS)
    )
    out = call("init", tmp_path / "a.yaml", tmp_path / "without.jsonl")[1]
    assert "column 'text', no" in out
    assert " id: " not in (tmp_path / "a.yaml").read_text()
    (tmp_path / "with.jsonl").write_text(
        "".join(
            json.dumps({"doc_id": n, "text": text}) + "\n"
            for n, text in enumerate(TEXTS)
        )
    )
    assert (
        "'text', id column 'doc_id'"
        in call("init", tmp_path / "b.yaml", tmp_path / "with.jsonl")[1]
    )
    assert " id: doc_id " in (tmp_path / "b.yaml").read_text()


def test_a_recipe_that_init_wrote_runs_from_another_folder(call, tmp_path, monkeypatch):
    (tmp_path / "sub").mkdir()
    (tmp_path / "tides.jsonl").write_text(
        "".join(json.dumps({"text": text}) + "\n" for text in TEXTS)
    )
    monkeypatch.chdir(tmp_path)
    assert call("init", "my.yaml", "tides.jsonl")[0] == 0
    monkeypatch.chdir(tmp_path / "sub")
    sets = (
        "tokenizer.train=300",
        "compose.target_tokens=1024",
        "compose.min_meta_chunks=1",
    )
    code, out, err = call(
        "plan", "../my.yaml", *(part for one in sets for part in ("--set", one))
    )
    assert (code, err) == (0, "")
    assert out.startswith("80 documents, ")
    code, _, err = call("init", "other.yaml", "tides.jsonl")
    assert code == 2
    assert err.startswith(f"error: FILE='{tmp_path}/sub/tides.jsonl' ")
    assert (
        call("init", "other.yaml", "../tides.jsonl", "--preset", "quickstart")[0] == 2
    )
    assert not (tmp_path / "sub/other.yaml").exists()


def test_init_tells_the_columns_that_it_found_and_full_writes_every_key(call, tmp_path):
    (tmp_path / "a.csv").write_text("doc_id,content\n1,a text\n2,another\n")
    code, out, _ = call(
        "init", tmp_path / "my.yaml", tmp_path / "a.csv", "--tokenizer", "2000"
    )
    assert code == 0
    assert out.splitlines()[0] == "a: text column 'content', id column 'doc_id'"
    assert (
        call(
            "init",
            tmp_path / "full.yaml",
            tmp_path / "a.csv",
            "--tokenizer",
            "2000",
            "--full",
        )[0]
        == 0
    )
    full = Recipe.load(
        tmp_path / "full.yaml", overrides=[f"run_dir={tmp_path}/runs/my"]
    )
    assert Recipe.load(tmp_path / "my.yaml") == full
    short, long = (
        (tmp_path / name).read_text().count("\n") for name in ("my.yaml", "full.yaml")
    )
    assert short <= 45 < 100 < long


@pytest.mark.parametrize("option", [["--full"], ["--tokenizer", "gpt2"]])
def test_a_preset_is_copied_as_it_is(call, tmp_path, option):
    code, _, err = call("init", tmp_path / "my.yaml", "--preset", "quickstart", *option)
    assert code == 2
    assert err.startswith("error: --preset: ")
    assert f"remove {option[0]}" in err


def test_init_refuses_to_overwrite_unless_told(call, tmp_path):
    path = tmp_path / "my.yaml"
    path.write_text("tokenizer: mine")
    code, out, err = call("init", path)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {path}: it exists; ")
    assert path.read_text() == "tokenizer: mine"
    assert call("init", path, "--force")[0] == 0
    assert path.read_text() != "tokenizer: mine"


def test_init_where_nothing_can_be_written(call, tmp_path):
    (tmp_path / "file").touch()
    code, _, err = call("init", tmp_path / "file" / "my.yaml")
    assert code == 2
    assert err.startswith(f"error: {tmp_path}/file/my.yaml: ")
    code, _, err = call("init", tmp_path, "--force")
    assert code == 2
    assert err.startswith(f"error: {tmp_path}: it is a folder; ")


def test_init_copies_a_preset_with_its_comments(call, tmp_path):
    path = tmp_path / "my.yaml"
    assert call("init", path, "--preset", "paper-128k")[0] == 0
    assert path.read_text() == preset_path("paper-128k").read_text()
    assert Recipe.load(path).compose.target_tokens == 131_072
    code, _, err = call("init", tmp_path / "other.yaml", "--preset", "paper")
    assert code == 2
    assert err.startswith("error: preset=paper ")
    assert not (tmp_path / "other.yaml").exists()


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("pla", "unknown command 'pla'; did you mean 'plan'?"),
        ("trian", "unknown command 'trian'; did you mean 'train'?"),
        ("xyzzy", "unknown command 'xyzzy'; nextlong --help lists all commands"),
    ],
)
def test_a_mistyped_command_is_asked_for_by_the_nearest(typed, told, capsys):
    with pytest.raises(SystemExit) as ended:
        main.main([typed])
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith(f"nextlong: error: {told}\n")


# run and plan


def test_help_groups_every_command_and_names_those_of_the_first_day(capsys):
    with pytest.raises(SystemExit):
        main.main(["--help"])
    shown = capsys.readouterr().out
    groups, _, first_day = shown.partition("the first day:\n")
    named = re.findall(r"^    (\w+) ", groups, re.MULTILINE)
    assert named == list(commands())
    headings = re.findall(r"^  ([a-z ]+):$", groups, re.MULTILINE)
    assert headings == list(main._FIRST_OF_GROUP.values())
    today = re.findall(r"^  nextlong (\w+)", first_day, re.MULTILINE)
    assert len(today) == 5
    assert set(today) <= set(named)


def test_a_name_is_set_like_every_other_key(call, folder):
    with pytest.raises(SystemExit):
        call("run", folder / "r.yaml", "--name", "mine")
    # A name such as 2024 is a number in YAML.
    recipe = Recipe.load(folder / "r.yaml", overrides=["name=2024"])
    assert recipe.name == "2024"


def test_run_tells_what_it_made(call, folder):
    code, out, err = call("run", folder / "r.yaml")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    phases = [line.partition(":")[0] for line in lines[:6]]
    assert phases == ["read", "encode", "search", "compose", "write", "measure"]
    assert lines[0] == "read: reused; 80 documents, 182 chunks"
    told = dict(line.split(":", 1) for line in lines[6:])
    assert told["documents"].strip() == "80 kept of 80"
    assert told["sequences"].strip() == "5 of exactly 512 tokens"
    assert told["inspect"].strip() == f"nextlong peek {folder}/run"
    assert told["verify"].strip() == f"nextlong verify {folder}/run"
    (path,) = Path(told["parquet"].strip()).glob("*.parquet")
    assert path.samefile(*nextlong.open(folder / "run").exported("parquet"))


def test_every_step_is_told_with_verbose(call, folder):
    code, out, _ = call("run", folder / "r.yaml", "-v")
    assert code == 0
    lines = out.splitlines()
    kept = list(itertools.takewhile(lambda line: line.startswith("reused: "), lines))
    assert len(kept) < 5  # one before each step that may have to be made
    steps = [
        name for line in kept for name in line.removeprefix("reused: ").split(", ")
    ]
    assert steps == list(nextlong.open(folder / "run").steps)


@pytest.fixture
def own_run(folder, tmp_path):
    """A copy of the run, to run in with other keys."""
    return shutil.copytree(folder / "run", tmp_path / "run")


def test_run_sets_keys(call, folder, own_run):
    code, out, _ = call(
        "run",
        folder / "r.yaml",
        "--set",
        "compose.sequences=2",
        "--set",
        f"run_dir={own_run}",
    )
    assert code == 0
    assert "2 of exactly 512 tokens" in out
    assert len(nextlong.open(f"{own_run}@sequences-2")) == 2


def test_run_says_why_there_are_fewer_sequences(call, folder, own_run):
    code, out, _ = call(
        "run",
        folder / "r.yaml",
        "--set",
        "compose.sequences=90",
        "--set",
        f"run_dir={own_run}",
    )
    assert code == 0
    (line,) = [line for line in out.splitlines() if line.startswith("sequences:")]
    assert "compose.sequences=90 (" in line
    assert "compose.min_meta_chunks=2 chunks" in line


def test_plan_prints_a_table(call, folder):
    code, out, err = call("plan", folder / "r.yaml")
    assert (code, err) == (0, "")
    assert out.splitlines()[0].split() == ["step", "state"]  # no costs of what is done
    assert out.count(" done, ") == len(
        nextlong.open(folder / "run").steps.keys() - {"statistics"}
    )


def test_input_files_that_changed_are_refused_unless_accepted(call, folder, tmp_path):
    (tmp_path / "c.jsonl").write_text('{"text": "One."}\n')
    sets = [
        "--set",
        f"run_dir={tmp_path}/run",
        "--set",
        f"ingest.sources.0.path={tmp_path}/c.jsonl",
    ]
    sets += [
        "--set",
        "compose.target_tokens=2",
    ]  # else a look says that there are too few
    assert "compose.min_meta_chunks=2 is" in call("run", folder / "r.yaml", *sets)[2]
    (tmp_path / "c.jsonl").write_text('{"words": "One and one more."}\n')
    code, _, err = call("run", folder / "r.yaml", *sets)
    assert code == 2
    assert f": {tmp_path}/c.jsonl has 31 bytes" in err
    assert "--accept-changed-inputs" in err
    err = call("run", folder / "r.yaml", *sets, "--accept-changed-inputs")[2]
    assert "c.jsonl: it has" in err


# peek


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--into", ""], "--into: it is empty; give a folder or a URL, or remove it"),
        (
            ["--replace"],
            "--replace: it needs --into, the destination whose files it replaces; add --into DIR-or-URL",
        ),
        (
            ["--by", "sequences"],
            "--by sequences: it needs proportions; add --mix 1,2",
        ),
        (
            ["--to", "parkett"],
            "--to parkett: export.formats: unknown format 'parkett'; did you mean 'parquet'?",
        ),
        (
            ["--set", "export.pack=1"],
            "--set export.pack=1: export.pack=1 is less than the length of a sequence",
        ),
    ],
)
def test_an_option_of_export_that_cannot_be_met_is_named(
    call, folder, options, message
):
    code, out, err = call("export", folder / "run", *options)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {message}")


def test_peek_lists_shows_and_reads(call, folder):
    opened = nextlong.open(folder / "run")
    code, out, _ = call("peek", folder / "run")
    assert code == 0
    assert len(out.splitlines()) == 7
    code, out, _ = call("peek", folder / "run", 4)
    assert code == 0
    assert out.startswith(f"{opened.sequence(4).id}  512 tokens\n")
    code, out, _ = call("peek", folder / "run", 4, "--text")
    assert (code, out) == (0, opened.sequence(4).text)


def test_peek_lists_the_first(call, folder):
    code, out, _ = call("peek", folder / "run", "--first", 2)
    assert (code, out.splitlines()[-1]) == (0, "3 more; --first 0 shows all")
    code, _, err = call("peek", folder / "run", "--first", -1)
    assert code == 2
    assert err.startswith("error: --first -1: ")


def test_peek_draws_a_picture(call, folder, tmp_path):
    code, out, _ = call("peek", folder / "run", 0, "--svg", tmp_path / "x.svg")
    assert (code, out) == (0, f"wrote {tmp_path}/x.svg\n")
    assert (tmp_path / "x.svg").read_text().startswith("<svg ")
    code, _, err = call("peek", folder / "run", 0, "--svg", tmp_path / "x.jpg")
    assert (code, "use .svg or .png" in err) == (2, True)
    assert not (tmp_path / "x.jpg").exists()


def test_a_sequence_of_whole_documents_is_drawn_too(call, folder, tmp_path):
    sets = ["--set", f"run_dir={tmp_path}/run", "--set", "compose.method=standard"]
    assert call("run", folder / "r.yaml", *sets)[0] == 0
    assert (
        call("peek", f"{tmp_path}/run@standard", 0, "--svg", tmp_path / "x.svg")[0] == 0
    )
    assert "other documents" in (tmp_path / "x.svg").read_text()


def test_files_are_written_into_folders_that_are_there(call, folder, tmp_path):
    new = tmp_path / "new"
    over = ["--over", "compose.position=head,tail"]
    for command in (
        ["peek", folder / "run", 0, "--svg", new / "x.svg"],
        ["init", new / "x.svg"],
        ["sweep", folder / "r.yaml", *over, "--csv", new / "x.svg"],
        ["sweep", folder / "r.yaml", *over, "--json", new / "x.svg"],
    ):
        code, out, err = call(*command)
        assert (code, out) == (2, "")
        assert err.startswith(f"error: {new}/x.svg: ")
    assert not new.exists()
    assert not (folder / "run/variants/position=head.json").exists()


@pytest.mark.parametrize(
    "arguments",
    [["plan", "r.yaml"], ["run", "r.yaml"], ["peek", "run"], ["peek", "run", "0"]],
)
def test_pipes_get_no_colours(call, folder, arguments):
    command, path, *rest = arguments
    _, out, err = call(command, folder / path, *rest)
    assert "\x1b" not in out + err


def test_peek_of_nothing(call, folder):
    code, out, err = call("peek", folder / "run", "--text")
    assert (code, out) == (2, "")
    assert err.startswith("error: --text and --svg: ")
    assert err.endswith(f" nextlong peek {folder}/run 0 --text\n")
    for number in ("5", "-1"):
        code, _, err = call("peek", folder / "run", number)
        assert code == 2
        assert err.startswith(f"error: sequence {number}: ")
        assert f"{folder}/run has 5" in err


# ends that are no success


def test_errors_are_one_line_however_long(call, tmp_path):
    path = tmp_path / ("x" * 200 + ".yaml")
    code, _, err = call("run", path)
    assert code == 2
    assert err.startswith(f"error: {path}: ")
    assert err.count("\n") == 1


def test_brackets_in_a_message_are_no_markup(call, tmp_path):
    code, _, err = call("peek", tmp_path / "[red]x[/]")
    assert code == 2
    assert "[red]x[/]" in err


def test_ctrl_c_says_what_is_kept_where_something_is(call, folder, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline, "session", interrupted)
    code, _, err = call("run", folder / "r.yaml")
    assert code == 130
    assert "finished steps" in err
    monkeypatch.setattr("nextlong.verify.checks.verify", interrupted)
    code, _, err = call("verify", folder)
    assert (code, err) == (130, "\nstopped\n")


def test_a_bug_of_ours_keeps_its_traceback(folder, monkeypatch):
    def broken(*args, **kwargs):
        raise ZeroDivisionError

    monkeypatch.setattr(pipeline, "session", broken)
    with pytest.raises(ZeroDivisionError):
        main.main(["run", str(folder / "r.yaml")])


def test_the_package_as_a_program_ends_with_the_code_of_the_command(
    monkeypatch, tmp_path, capsys
):
    monkeypatch.setattr(sys, "argv", ["nextlong", "peek", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("nextlong", run_name="__main__")
    assert ended.value.code == 2
    assert "error: " in capsys.readouterr().err


def test_a_reader_that_leaves_early_is_no_error(folder):
    command = f"{sys.executable} -m nextlong peek {folder}/run 0 --text | head -c 5"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, check=False
    )
    assert (len(done.stdout), done.stderr) == (5, "")


@pytest.mark.parametrize(
    "arguments",
    [
        ["peek", "run"],
        *thorough(["peek", "run", "0"], ["plan", "r.yaml"], ["stats", "run"]),
    ],
)
def test_a_reader_that_never_reads_is_no_error(folder, arguments):
    command, path, *rest = arguments
    called = [sys.executable, "-m", "nextlong", command, str(folder / path), *rest]
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            called, stdout=write, stderr=subprocess.PIPE, text=True, check=False
        )
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_run_that_nobody_reads_does_not_end_as_if_it_were_done(folder):
    command = f"{sys.executable} -m nextlong run {folder}/r.yaml --set run_dir={folder}/unread | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (
        141,
        "stopped, because the output was closed; finished steps are kept, run the same "
        "command again to resume\n",
    )
    # Nothing is kept of what has no steps.
    command = f"{sys.executable} -m nextlong verify {folder}/run | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 141
    assert done.stderr == "stopped, because the output was closed\n"


def test_conversations_given_as_a_run_are_told_their_option(call, tmp_path):
    chat = tmp_path / "chat.jsonl"
    chat.write_text('{"messages": []}\n', encoding="utf-8")
    code, _, err = call(
        "train",
        "init",
        tmp_path / "sft.yaml",
        "--preset",
        "paper-sft",
        "--data",
        chat,
        "--model",
        "m",
    )
    assert (code, f"use --chat {chat}" in err) == (2, True)


def test_train_init_without_a_model_names_the_option(call, tmp_path):
    code, _, err = call(
        "train",
        "init",
        tmp_path / "t.yaml",
        "--preset",
        "paper-128k",
        "--data",
        tmp_path,
    )
    assert (
        code,
        "--model: it is missing; name the model to train, for example --model meta-llama"
        in err,
    ) == (2, True)
    assert not (tmp_path / "t.yaml").exists()


def test_documents_are_never_overwritten_by_a_recipe(call, tmp_path):
    documents = tmp_path / "a.jsonl"
    documents.write_text('{"text": "word"}\n')
    for name in ("a.jsonl", "b.parquet", "c.txt"):
        code, _, err = call("init", tmp_path / name, "--force")
        assert code == 2
        path = tmp_path / name
        assert err.startswith(f"error: {path}: ")
        assert err.endswith(f": nextlong init my.yaml {path}\n")
    named_like_a_recipe = tmp_path / "a.json"
    named_like_a_recipe.write_text('[{"text": "compose"}]')
    code, _, err = call("init", named_like_a_recipe, "--force")
    assert code == 2
    assert err.startswith(f"error: {named_like_a_recipe}: ")
    assert documents.read_text() == '{"text": "word"}\n'


@pytest.mark.parametrize("options", [["--full"], ["--tokenizer", "300"], ["--force"]])
def test_files_may_stand_behind_options(call, tmp_path, options):
    (tmp_path / "a.jsonl").write_text('{"text": "word"}\n')
    assert call("init", tmp_path / "my.yaml", *options, tmp_path / "a.jsonl")[0] == 0
    assert [
        source.label for source in Recipe.load(tmp_path / "my.yaml").ingest.sources
    ] == ["a"]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            ["run", "my.yaml", "--dry-run"],
            "unrecognized arguments: --dry-run; nextlong plan is the dry run",
        ),
        (
            ["run", "my.yaml", "--set", "seed", "3"],
            "unrecognized arguments: 3; --set takes KEY=VALUE",
        ),
        (["list", "RUN", "--al"], "unrecognized arguments: --al"),
    ],
)
def test_what_a_command_does_not_know_is_told_with_its_own_usage(capsys, asked, said):
    with pytest.raises(SystemExit) as end:
        main.main(asked)
    err = capsys.readouterr().err
    assert end.value.code == 2
    assert err.startswith(f"usage: nextlong {asked[0]} ")
    assert f"nextlong {asked[0]}: error: {said}" in err


def test_without_a_command_all_are_listed(capsys):
    assert main.main([]) == 2
    assert "init" in capsys.readouterr().out


def script(capsys, shell):
    assert main.main(["completion", shell]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_command_is_known(capsys, shell):
    text = script(capsys, shell)
    assert [name for name in commands() if name not in text] == []
    assert "--target" not in text
    assert "accept-changed-inputs" in text


BEGUN = pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["nextlong", "pe"], ["peek"]),
        (["nextlong", "run", "--accept"], ["--accept-changed-inputs"]),
        (["nextlong", "completion", "f"], ["fish"]),
        (["nextlong", "plan", "my-rec"], ["my-recipe.yaml"]),
    ],
    ids=str,
)


@BEGUN
def test_bash_completes_commands_options_choices_and_files(
    capsys, tmp_path, words, offered
):
    (tmp_path / "c.bash").write_text(script(capsys, "bash"))
    (tmp_path / "my-recipe.yaml").touch()
    quoted = " ".join(f"'{word}'" for word in words)
    asked = (
        f"source ./c.bash; COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; "
        'f=$(complete -p nextlong | grep -o -- "-F [^ ]*" | cut -c4-); "$f" nextlong "${COMP_WORDS[COMP_CWORD]}" x; '
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "-c", asked], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert [line.strip() for line in done.stdout.splitlines()] == offered, done.stderr


@contextmanager
def typing_in_zsh(folder):
    """Yield functions that type into a zsh on a terminal and read from it until something is there."""
    terminal, inside = pty.openpty()
    shell = subprocess.Popen(
        ["zsh", "-f", "-i"],
        stdin=inside,
        stdout=inside,
        stderr=inside,
        cwd=folder,
        env={"PATH": os.environ["PATH"], "TERM": "dumb", "HOME": str(folder)},
        start_new_session=True,
    )
    os.close(inside)

    def read_until(mark):
        read = b""
        while mark not in read:
            assert select.select([terminal], [], [], 120)[0], read
            read += os.read(terminal, 65536)

    try:
        yield lambda text: os.write(terminal, text), read_until
    finally:
        shell.kill()
        shell.wait()
        os.close(terminal)


@pytest.mark.shells
@BEGUN
def test_zsh_completes_commands_options_choices_and_files(
    capsys, tmp_path, words, offered
):
    (tmp_path / "functions").mkdir()
    (tmp_path / "functions/_nextlong").write_text(script(capsys, "zsh"))
    (tmp_path / "my-recipe.yaml").touch()
    with typing_in_zsh(tmp_path) as (write, read_until):
        write(
            b"fpath=($PWD/functions $fpath); autoload -Uz compinit; compinit -u -D; echo re''ady\n"
        )
        read_until(b"\nready")
        write(" ".join(words).encode() + b"\t")
        read_until(" ".join([*words[:-1], *offered]).encode())


@pytest.mark.shells
@BEGUN
def test_fish_completes_commands_options_choices_and_files(
    capsys, tmp_path, words, offered
):
    (tmp_path / "c.fish").write_text(script(capsys, "fish"))
    (tmp_path / "my-recipe.yaml").touch()
    command = [
        "fish",
        "--no-config",
        "-c",
        f"source c.fish; complete -C '{' '.join(words)}'",
    ]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert [line.partition("\t")[0] for line in done.stdout.splitlines()] == offered, (
        done.stderr
    )
