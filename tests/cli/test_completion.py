"""Completion in real shells: bash in the suite, zsh and fish where CI installs them."""

import os
import pty
import select
import subprocess
from contextlib import contextmanager

import pytest

from nextlong.cli import main

COMMANDS = (
    "demo",
    "init",
    "plan",
    "run",
    "list",
    "gc",
    "peek",
    "stats",
    "compare",
    "report",
    "sweep",
    "export",
    "doctor",
)


def script(capsys, shell):
    assert main.main(["completion", shell]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_command_is_known(capsys, shell):
    text = script(capsys, shell)
    assert [name for name in COMMANDS if name not in text] == []
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
def test_bash_completes_commands_options_choices_and_files(capsys, tmp_path, words, offered):
    (tmp_path / "c.bash").write_text(script(capsys, "bash"))
    (tmp_path / "my-recipe.yaml").touch()
    quoted = " ".join(f"'{word}'" for word in words)
    asked = (
        f"source ./c.bash; COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; "
        'f=$(complete -p nextlong | grep -o -- "-F [^ ]*" | cut -c4-); "$f" nextlong "${COMP_WORDS[COMP_CWORD]}" x; '
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", asked], cwd=tmp_path, capture_output=True, text=True, check=False)
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
def test_zsh_completes_commands_options_choices_and_files(capsys, tmp_path, words, offered):
    (tmp_path / "functions").mkdir()
    (tmp_path / "functions/_nextlong").write_text(script(capsys, "zsh"))
    (tmp_path / "my-recipe.yaml").touch()
    with typing_in_zsh(tmp_path) as (write, read_until):
        write(b"fpath=($PWD/functions $fpath); autoload -Uz compinit; compinit -u -D; echo re''ady\n")
        read_until(b"\nready")
        write(" ".join(words).encode() + b"\t")
        read_until(" ".join([*words[:-1], *offered]).encode())


@pytest.mark.shells
@BEGUN
def test_fish_completes_commands_options_choices_and_files(capsys, tmp_path, words, offered):
    (tmp_path / "c.fish").write_text(script(capsys, "fish"))
    (tmp_path / "my-recipe.yaml").touch()
    command = ["fish", "--no-config", "-c", f"source c.fish; complete -C '{' '.join(words)}'"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert [line.partition("\t")[0] for line in done.stdout.splitlines()] == offered, done.stderr
