"""What fairseq makes of networks and tokens that a test has saved; run by the environment's Python.

    python -m tests.helpers.fairseq.fairseq_side CASES ANSWERS

CASES is a list of mappings, ANSWERS a list of as many; see the functions for what is in them.
"""

import sys
from typing import Any

import torch
from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.optim.amp_optimizer import AMPOptimizer
from fairseq.trainer import Trainer
from torch import Tensor

from tests.helpers.fairseq.centered_attention import register_centered


def build(case: dict[str, Any]) -> tuple[Any, Any, Any]:
    """The configuration, task and network of a case, with its weights where it has some."""
    parser = options.get_training_parser()
    config = convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, input_args=case["arguments"]))
    task = tasks.setup_task(config.task)
    model = task.build_model(config.model)
    if "weights" in case:
        model.load_state_dict(case["weights"], strict=True)
    return config, task, model


def sample(seen: Tensor, *read: Tensor) -> dict[str, Any]:
    """A batch as fairseq's data sets make it, whose decoders read the end token first."""
    *before, target = read
    inputs = {"src_tokens": seen, "src_lengths": torch.full((len(seen),), seen.shape[1])}
    if before:
        inputs["prev_output_tokens"] = before[0].masked_fill(before[0] == 0, 2)
    sizes = {"nsentences": len(seen), "ntokens": int((target if before else seen).ne(1).sum())}
    return {"id": torch.arange(len(seen)), "net_input": inputs, "target": target.contiguous()} | sizes


def answer(case: dict[str, Any]) -> dict[str, Any]:
    """Logits and loss of the first batch, losses in and after training on all of them, weights before and after."""
    config, task, model = build(case)
    criterion = task.build_criterion(config.criterion)
    first = sample(*case["batches"][0])
    result: dict[str, Any] = {"weights": {name: tensor.clone() for name, tensor in model.state_dict().items()}}
    result["loss"] = evaluate(model, criterion, first)
    with torch.no_grad():
        result["logits"] = model(**first["net_input"])[0]
    batches = [sample(*batch) for batch in case["batches"]]
    trainer = Trainer(config, task, model, criterion)
    if isinstance(trainer.optimizer, AMPOptimizer):  # whose scaler is for GPUs alone
        trainer.optimizer._grad_scaler = torch.amp.GradScaler("cpu")
    result["losses"] = train(trainer, batches)
    result["trained"] = [evaluate(model, criterion, batch) for batch in batches]
    result["trained_weights"] = model.state_dict()
    return result


def train(trainer: Trainer, batches: list[dict[str, Any]]) -> list[float]:
    """The loss of the last batch of each update, after it."""
    pieces = trainer.cfg.optimization.update_freq[0]
    losses = []
    for start in range(0, len(batches), pieces):
        trainer.train_step(batches[start : start + pieces])
        losses.append(evaluate(trainer.get_model(), trainer.get_criterion(), batches[start + pieces - 1]))
    return losses


@torch.no_grad()
def evaluate(model: Any, criterion: Any, batch: dict[str, Any]) -> float:
    model.eval()
    loss, size, _ = criterion(model, batch)
    return float(loss / size)


if __name__ == "__main__":
    register_centered()
    cases, answers = sys.argv[1:]
    torch.save([answer(case) for case in torch.load(cases)], answers)
