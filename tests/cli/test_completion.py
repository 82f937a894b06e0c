"""Completion in a real bash, and scripts for the other shells that name every command."""

import subprocess

import pytest

from nextlong.cli import main

COMMANDS = (
    "demo",
    "init",
    "plan",
    "run",
    "list",
    "prune",
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


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["nextlong", "pe"], ["peek"]),
        (["nextlong", "run", "--accept"], ["--accept-changed-inputs"]),
        (["nextlong", "completion", "f"], ["fish"]),
        (["nextlong", "plan", "my-rec"], ["my-recipe.yaml"]),
    ],
    ids=str,
)
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
