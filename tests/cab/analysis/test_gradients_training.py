"""Training steps of `cab paper gradients` produce the weights that `cab run` produces, bit for bit."""

from pathlib import Path

import pytest
import torch

from cab.analysis.gradients import norms_over_training
from cab.analysis.subject import subject_of
from cab.config.compose import compose
from cab.runner.run import run_cell
from tests.helpers.tasks.records import few_examples

STEPS = 3
SMOKE = ["preset=smoke", "device=cpu"]
LM = ["task=lm", "dataset=synthetic", "backbone=gpt2", "pattern=CS", "attention=abc", *SMOKE]
XL = [word.replace("=abc", "=transformer_xl") for word in LM]
LSTF = ["task=lstf", "dataset=synthetic", "pattern=NC", "attention=performer", "backbone.dropout=0.2", *SMOKE]
DECAY = ["trainer.optimizer=adamw", "trainer.weight_decay=0.1", "trainer.decay_vectors=false"]
LAST = ["trainer.checkpoint_selection=last", f"trainer.max_steps={STEPS}"]
INSIDE = [f"trainer.max_steps={2 * STEPS - 1}", f"trainer.average_every={STEPS}"]
INSIDE += ["trainer.checkpoint_selection=average"]
"""The weights of a longer run after STEPS steps."""


@pytest.fixture(autouse=True, scope="module")
def _few_examples():
    with few_examples():
        yield


def trained_weights(overrides: list[str], folder: Path) -> dict[str, torch.Tensor]:
    record = run_cell(compose([*overrides, f"results_dir={folder}"])).record
    assert record.status.value == "finished"
    return torch.load(folder / record.hash / "weights.pt", weights_only=True)


def assert_same_weights(overrides: list[str], folder: Path) -> None:
    """The observed training changes every trained parameter and ends with the weights of the run."""
    subject = subject_of([*overrides, f"results_dir={folder / 'unused'}"])
    before = {name: weight.clone() for name, weight in subject.network.state_dict().items()}
    table = norms_over_training(subject, STEPS)
    assert [row["step"] for row in table] == list(range(1, STEPS + 1))
    assert not (folder / "unused").exists()
    expected, found = trained_weights(overrides, folder), subject.network.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert sum(not torch.equal(found[name], before[name]) for name in before) > len(before) / 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        [*LM, *LAST, *DECAY, "trainer.micro_batch_size=2", "trainer.precision=bf16-mixed", "trainer.max_grad_norm=0.1"],
        [*LSTF, *INSIDE, *DECAY, "trainer.schedule=linear", "trainer.warmup_steps=2"],
        [*XL, *LAST, "task=lm_recurrent", "task.memory_length=8"],
    ],
    ids=["decay-precision-micro", "inside-a-longer-schedule", "recurrence"],
)
def test_weights_are_those_of_the_run(overrides, tmp_path):
    assert_same_weights(overrides, tmp_path)


@pytest.mark.slow
def test_a_fresh_network_has_the_initial_weights_of_its_task(tmp_path):
    """GLUE starts from the encoder of a finished run of MLM."""
    encoder = ["dataset=synthetic", "attention=vanilla", "pattern=NS", *SMOKE]
    pretrained = trained_weights(["task=mlm", *encoder, *LAST], tmp_path / "mlm")
    glue = ["task=glue", *encoder, f"task.pretrained={tmp_path / 'mlm'}", *LAST]
    fresh = subject_of(glue).network.state_dict()
    shared = fresh.keys() & pretrained.keys()
    assert len(shared) > len(fresh) / 2
    assert all(torch.equal(fresh[name], pretrained[name]) for name in shared)
    assert_same_weights(glue, tmp_path)
