"""The completion script offers commands, flags, groups and their values in a real bash."""

import shutil
import subprocess

import pytest

from cab.cli.completion import overrides
from cab.cli.main import COMMANDS
from cab.config.run_config import RUN_KEYS, TrainerConfig
from cab.registry.options import annotations_of
from cab.registry.registries import ATTENTIONS


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_a_tab_in_bash(cab):
    expected = {
        "": sorted(COMMANDS),
        "ver": ["verify"],
        "data download ett": ["etth1", "etth2", "ettm1"],
        "data download --so": ["--source"],
        "score --norm": ["--normalization"],
        "list gpt": ["gpt2", "gpt2_act", "gpt2_reversible", "gpt2_universal"],
        "paper par": ["params"],
        "run task=s": ["task=sr", "task=sum"],
        "run task=lstf dataset=ett": ["dataset=etth1", "dataset=etth2", "dataset=ettm1"],
        "run trainer.pat": ["trainer.patience="],
        "run --ex": ["--explain"],
        "run results_dir=re": [],
    }
    script = [cab("completion", "bash").out]
    for line in expected:
        words = "cab " + line + ("" if line and not line.endswith(" ") else "''")
        script.append(f"COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); COMPREPLY=()")
        script.append('_shtab_cab 2>/dev/null; echo "${COMPREPLY[*]}"')
    process = subprocess.run(["bash", "-c", "\n".join(script)], capture_output=True, text=True, check=False)
    replies = [sorted(line.split()) for line in process.stdout.splitlines()]
    assert dict(zip(expected, replies, strict=True)) == expected, process.stderr


def test_every_key_of_a_run_is_offered():
    offered = [override.partition("=")[::2] for override in overrides()]
    keys, written_by_commands = {key for key, _ in offered}, {"retry", "tuning"}
    assert RUN_KEYS.keys() - written_by_commands - {"trainer", "data"} <= keys
    assert {f"trainer.{name}" for name in annotations_of(TrainerConfig)} <= keys
    assert {value for key, value in offered if key == "attention"} == set(ATTENTIONS.names())


def test_zsh_has_a_script(cab):
    assert "#compdef cab" in cab("completion", "zsh").out
