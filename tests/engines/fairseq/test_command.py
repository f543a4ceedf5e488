"""fairseq's own programs with the plug-in, as a user types them, on lines of words."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from engines.fairseq import environment

NETWORK = "--decoder-layers 2 --decoder-embed-dim 32 --decoder-ffn-embed-dim 64 --decoder-attention-heads 4"
TRAINING = "--optimizer adam --lr 0.01 --batch-size 8 --max-update 20 --cpu --log-format simple --save-dir"


def fairseq(program: str, arguments: str, folder: Path, text: str = "", succeeds: bool = True) -> str:
    """The output of ``PROGRAM ARGUMENTS``, run in ``folder``; CAB stands for the plug-in."""
    words = arguments.replace("CAB", str(environment.PLUGIN)).split()
    command = [str(environment.HOME / "bin" / f"fairseq-{program}"), *words]
    done = subprocess.run(command, cwd=folder, input=text, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == succeeds, done.stderr[-3000:]
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """``data``: sentences that count, preprocessed."""
    folder = tmp_path_factory.mktemp("programs")
    for part, size in (("train", 400), ("valid", 40), ("test", 40)):
        lines = (" ".join(str((start + step) % 10) for step in range(20)) for start in range(size))
        (folder / f"{part}.txt").write_text("\n".join(lines) + "\n")
    fairseq(
        "preprocess",
        "--only-source --trainpref train.txt --validpref valid.txt --testpref test.txt --destdir data",
        folder,
    )
    return folder


@pytest.fixture(scope="module")
def gpt2(folder):
    """A language model with landmarks, trained."""
    fairseq(
        "train",
        "data --user-dir CAB --task language_modeling --arch cab_gpt2 --attention abc "
        f"--attention-options num_landmarks=8 {NETWORK} --tokens-per-sample 64 {TRAINING} gpt2",
        folder,
    )
    return folder / "gpt2" / "checkpoint_last.pt"


def test_training_learns_and_is_evaluated(folder, gpt2):
    printed = fairseq("eval-lm", f"data --user-dir CAB --path {gpt2} --batch-size 8 --cpu", folder)
    perplexity = re.search(r"Perplexity: ([\d.]+)", printed)
    assert float(perplexity[1]) < 6  # of 11 words


def test_generation_and_interactive(folder, gpt2):
    options = f"--user-dir CAB --task language_modeling --path {gpt2} --beam 3 --max-len-b 12 --cpu"
    printed = fairseq("generate", f"data {options} --sample-break-mode eos --batch-size 8 --prefix-size 3", folder)
    assert len(re.findall(r"^H-\d+", printed, re.MULTILINE)) == 40
    printed = fairseq("interactive", f"data {options} --buffer-size 2", folder, text="3 4 5\n6 7\n")
    assert [line.split("\t")[2].split()[: 3 - n] for n, line in enumerate(re.findall("H-.*", printed))] == [
        ["3", "4", "5"],
        ["6", "7"],
    ]


def test_roberta_trains_and_is_validated(folder):
    network = NETWORK.replace("decoder", "encoder")
    fairseq(
        "train",
        "data --user-dir CAB --task masked_lm --criterion masked_lm --arch cab_roberta_base --attention lara "
        f"--attention-options num_landmarks=4 {network} --tokens-per-sample 64 {TRAINING} roberta",
        folder,
    )
    options = "--user-dir CAB --task masked_lm --criterion masked_lm --path roberta/checkpoint_last.pt --cpu"
    printed = fairseq("validate", f"data {options} --valid-subset test --batch-size 8", folder)
    assert "| test | " in printed


def test_transformer_translates_by_beam_search(folder):
    """Sequences are reversed, with another attention in each kind of layer."""
    for part, size in (("train", 400), ("valid", 40), ("test", 40)):
        rows = [[str((start + step) % 10) for step in range(6 + start % 5)] for start in range(size)]
        (folder / f"{part}.forward").write_text("\n".join(map(" ".join, rows)) + "\n")
        (folder / f"{part}.backward").write_text("\n".join(" ".join(row[::-1]) for row in rows) + "\n")
    pair = "--source-lang forward --target-lang backward"
    fairseq("preprocess", f"{pair} --trainpref train --validpref valid --testpref test --destdir pairs", folder)
    network = f"{NETWORK} --decoder-learned-pos --dropout 0 {NETWORK.replace('decoder', 'encoder')}"
    attentions = "--encoder-attention abc --encoder-attention-options num_landmarks=4 --decoder-attention gla,vanilla"
    training = TRAINING.replace("--max-update 20", "--max-update 200")
    fairseq("train", f"pairs --user-dir CAB --arch cab_transformer {attentions} {network} {training} both", folder)
    path = "--path both/checkpoint_last.pt"
    printed = fairseq("generate", f"pairs --user-dir CAB {path} --beam 4 --batch-size 8 --cpu", folder)
    bleu = re.search(r"BLEU4 = ([\d.]+)", printed)
    assert float(bleu[1]) > 30


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("--attention abd", "unknown attention 'abd': did you mean 'abc'?"),
        ("--attention abc --attention-options 8", "--attention-options takes name=value, got '8'"),
    ],
)
def test_what_cannot_be_is_named(folder, wrong, message):
    arguments = f"data --user-dir CAB --task language_modeling --arch cab_gpt2 {wrong} {TRAINING} wrong"
    assert message in fairseq("train", arguments, folder, succeeds=False)
