"""The Dockerfile and the examples for clusters, as far as they run without Docker, Slurm and SkyPilot."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import nextlong
from nextlong.cli import main
from nextlong.cli.main import parser

ROOT = Path(__file__).parents[1]
DOCKERFILE = (ROOT / "Dockerfile").read_text("utf-8").replace("\\\n", "")
INSTRUCTIONS = re.findall(r"^([A-Z]+) (.*)$", DOCKERFILE, re.MULTILINE)
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
    "optional-dependencies"
]
CLUSTER = ROOT / "examples" / "cluster"


def instructions(name):
    return [value for found, value in INSTRUCTIONS if found == name]


def test_the_image_copies_what_the_package_is_built_of():
    copied = [word for line in instructions("COPY") for word in line.split()[:-1]]
    assert all((ROOT / path).exists() for path in copied)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    needed = {"pyproject.toml", "hatch_build.py", "README.md", "constraints.txt", "src"}
    needed |= set(project["project"]["license-files"])
    needed |= set(
        project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    )
    assert needed == set(copied)
    sent = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    assert sent[0] == "*"
    assert {line[1:] for line in sent if line.startswith("!")} == needed


def test_the_image_is_pinned_and_keeps_no_cache():
    bases = [line.split()[0] for line in instructions("FROM") if ":" in line]
    assert len(bases) == 1
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+", bases[0])
    installs = [
        install
        for line in instructions("RUN")
        for install in line.split("&&")
        if "pip install" in install
    ]
    assert len(installs) == 3
    for install in installs:
        assert "--no-cache-dir" in install
        assert "--constraint constraints.txt" in install
    (torch,) = re.findall(r"torch==[\d.]+", DOCKERFILE)
    assert torch in (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    (extras,) = re.findall(r'"\.\[([\w,-]+)\]"', DOCKERFILE)
    assert set(extras.split(",")) <= set(EXTRAS)


def test_no_target_of_the_image_runs_as_root():
    targets = re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)[2:]
    names = [target.split()[2] for target in targets]
    assert names == ["torch", "core"]  # the last is the default
    for target in targets:
        assert re.search(r"^USER nobody\nENTRYPOINT \[", target, re.MULTILINE)


def test_skypilot_runs_commands_that_there_are():
    task = yaml.safe_load((CLUSTER / "skypilot.yaml").read_text("utf-8"))
    assert set(task) <= {"name", "resources", "num_nodes", "workdir", "envs", "file_mounts", "setup", "run"}  # fmt: skip
    (extras,) = re.findall(r"nextlong\[([\w,-]+)\]", task["setup"])
    assert set(extras.split(",")) <= set(EXTRAS)
    commands = re.findall(r"^nextlong (.*)$", task["run"], re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        for name, value in task["envs"].items():
            command = command.replace(f"${name}", value)
        assert "$" not in command
        parser().parse_args(shlex.split(command))


SBATCH = """#!{python}
import os, pathlib, subprocess, sys

log = pathlib.Path({log!r})
with log.open("a") as file:
    file.write(" ".join(sys.argv[1:]) + "\\n")
number = len(log.read_text().splitlines())
array = [word.partition("=")[2] for word in sys.argv if word.startswith("--array=")]
first, last = (array or ["1-1"])[0].split("-")
for job in range(int(first), int(last) + 1):
    environment = os.environ | {{"SLURM_ARRAY_TASK_ID": str(job)}}
    subprocess.run(sys.argv[-1], shell=True, check=True, env=environment, stdout=2)
print(100 + number)
"""


@pytest.fixture
def on_slurm(tmp_path, monkeypatch):
    """A folder with an `sbatch` that runs each job at once, and the log of its calls."""
    programs = tmp_path / "bin"
    programs.mkdir()
    log = tmp_path / "jobs"
    sbatch = SBATCH.format(python=sys.executable, log=str(log))
    command = f'#!/bin/sh\nexec {sys.executable} -m nextlong "$@"\n'
    for name, text in (("sbatch", sbatch), ("nextlong", command)):
        (programs / name).write_text(text, encoding="utf-8")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return log


def test_slurm_jobs_make_the_bytes_of_one_run(
    on_slurm, recipe_for, shared_run, hashes_of, tmp_path
):
    recipe = tmp_path / "my recipe.yaml"
    recipe.write_text(recipe_for(tmp_path / "run").dump(), encoding="utf-8")
    script = ["bash", CLUSTER / "slurm.sh", recipe, "2", "--account=me"]
    done = subprocess.run(script, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("submitted: 101, then 102 (2 jobs), then 103; ")
    before, embed, rest = on_slurm.read_text().splitlines()
    assert all("--account=me" in call for call in (before, embed, rest))
    assert "--dependency=afterok:101" in embed
    assert "--dependency=afterok:102" in rest
    assert len(nextlong.open(tmp_path / "run")) == len(nextlong.open(shared_run))
    made = hashes_of(tmp_path / "run")
    assert set(hashes_of(shared_run).items()) <= set(made.items())
    assert main.main(["list", str(tmp_path / "run")]) == 0
