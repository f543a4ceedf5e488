"""Long Range Arena: batches, presets, the network of one sequence and of two, generated Pathfinder."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import ndimage
from torch import Tensor

from cab import UserError, build_backbone
from cab.config.compose import compose
from cab.registry.names import is_generated
from cab.registry.registries import TASKS
from cab.registry.tables import read_table
from cab.runner.cell import runnable_cells
from cab.runner.launch import expand
from tasks.lra.contours import dash
from tasks.lra.pathfinder import PATHX, paint
from tasks.lra.task import LongRangeArena
from tests.helpers.in_order import in_order
from tests.helpers.tasks.records import network, ready

DATASETS = TASKS.get("lra").datasets


def composed(dataset: str, preset: str, *overrides: str) -> dict[str, Any]:
    chosen = {"task": "lra", "dataset": dataset, "backbone": "encoder", "pattern": "NS", "attention": "vanilla"}
    named = [f"{key}={value}" for key, value in {**chosen, "preset": preset, "device": "cpu"}.items()]
    return compose([*named, *overrides])


def test_preset_paper_is_the_published_training() -> None:
    """Skyformer's src/config.py: batch, warm-up and rate of each task, 50,000 steps of all; and its network."""
    published = {"listops": (32, 1000, 1e-4), "text": (32, 80, 1e-4), "retrieval": (16, 800, 2e-4)}
    published |= {"image": (256, 175, 1e-4), "pathfinder": (128, 312, 2e-4)}
    for dataset, expected in published.items():
        config = composed(dataset, "paper")
        trainer, backbone, task = config["trainer"], config["backbone"], config["task"]
        assert (trainer["batch_size"], trainer["warmup_steps"], trainer["learning_rate"]) == expected
        assert (trainer["max_steps"], trainer["optimizer"], trainer["weight_decay"]) == (50_000, "adamw", 0.0)
        sizes = {name: backbone[name] for name in ("embed_dim", "num_heads", "ffn_dim", "num_layers")}
        assert sizes == {"embed_dim": 64, "num_heads": 2, "ffn_dim": 128, "num_layers": 2}
        assert (backbone["dropout"], backbone["attention_dropout"], backbone["init_std"]) == (0.1, 0.1, 0.02)
        assert backbone["pooling"] == "mean"
        assert (task["brackets"], task["zero_pixel_is_padding"], task["validation_split"]) == ("kept", False, "train")
    rows = {row["dataset"]: {**row, "dataset": ""} for row in read_table("lra") if row["preset"] == "paper"}
    assert all(rows[name]["batch_size"] == rows[f"{name}_synthetic"]["batch_size"] for name in published)


def test_a_sweep_that_names_no_data_set_takes_the_official_ones() -> None:
    jobs, _ = expand(["task=lra", "attention=vanilla"])
    found = {override for job in jobs for override in job if override.startswith("dataset=")}
    assert found == {f"dataset={name}" for name in DATASETS if not is_generated(name)}
    assert {pattern for task, *_, pattern, _ in runnable_cells() if task == "lra"} == {"NS"}


def test_padding_changes_nothing_and_the_published_mean_is_of_the_padded_length() -> None:
    task = ready("lra")
    net = network("lra", task).eval()
    batch = task.splits["test"].__getitems__([0, 1, 2, 3])
    logits = task.logits(net, batch)
    padded = batch._replace(texts=(torch.nn.functional.pad(batch.texts[0], (0, 2)),))
    assert torch.allclose(logits, task.logits(net, padded), atol=1e-5)
    alone = torch.cat([task.logits(net, task.splits["test"].__getitems__([row])) for row in range(4)])
    assert torch.allclose(logits, alone, atol=1e-5)
    published = network("lra", task, pooling="padded_mean").eval()
    real = (batch.texts[0] > 0).sum(dim=1, keepdim=True)
    seen: list[Tensor] = []
    for each in (net, published):
        each.head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))  # type: ignore[union-attr]
        task.logits(each, batch)
    assert torch.allclose(seen[0] * real / 40, seen[1], atol=1e-6)


def test_a_pair_is_read_by_one_network() -> None:
    """Equal sequences give [a, a, a * a, 0]; and each kind of head has its own call."""
    net: Any = build_backbone("encoder", pattern="NS", vocab_size=9, max_length=8, num_classes=2, pairs=True).eval()
    a, b = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[5, 6, 0]])
    mask = b == 0
    assert net.compare(a, b, None, mask).shape == (1, 2)
    assert torch.allclose(net.compare(a, b, None, mask), net.compare(a, b[:, :2]), atol=1e-6)
    read: list[Tensor] = []
    net.head.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))
    net.compare(a, a)
    first, second, product, difference = read[0].chunk(4, dim=-1)
    assert torch.equal(first, second)
    assert torch.equal(product, first * first)
    assert not difference.any()
    with pytest.raises(UserError, match="reads pairs"):
        net(a)
    with pytest.raises(UserError, match="reads single sequences"):
        build_backbone("encoder", pattern="NS").compare(a, b)


def test_scores_are_percent_of_the_whole_part() -> None:
    task = ready("lra")
    net = network("lra", task).eval()
    rows = task.splits["test"]
    with torch.no_grad():
        right = task.logits(net, rows.__getitems__(list(range(len(rows))))).argmax(-1) == rows.labels
        assert task.evaluate(net, in_order)["accuracy"] == pytest.approx(100 * right.double().mean().item())
        assert 0 <= task.validate(net, in_order) <= 100
        batch = rows.__getitems__([0, 1, 2])
        likelihoods = task.logits(net, batch).log_softmax(dim=-1)[range(3), batch.labels]
        assert task.loss(net, batch).item() == pytest.approx(-likelihoods.mean().item())


def test_a_dash_is_drawn_as_by_the_original() -> None:
    """Of length 2 and thickness 0.5 to the right and downwards, by snakes.draw_line_n_mask of ab9c130."""
    picture, mask = dash(2, 0.5, 1, 0.0), dash(2, 0.5, 1, 0.0, around=1)
    assert picture[4] == pytest.approx([0, 0, 0.01, 0, 0.4, 0.53, 0.45, 0, 0], abs=0.006)
    assert mask[3] == pytest.approx([0, 0, 0.01, 0.08, 0.68, 0.8, 0.73, 0.11, 0], abs=0.006)
    assert mask[4] == pytest.approx([0, 0.01, 0, 0.61, 1, 1, 1, 0.72, 0.01], abs=0.006)
    down = dash(2, 0.5, 1, np.pi / 2)
    assert down[:, 4] == pytest.approx([0, 0, 0.01, 0, 0.4, 0.58, 0.45, 0, 0], abs=0.006)
    assert down[:, 5].max() == 0


def test_labels_say_whether_one_contour_has_both_discs() -> None:
    """Without distractors and far from each other, contours are what a wide enough brush joins."""
    wide = replace(PATHX, segments=4, distractors=0, seed_distance=24)
    images, labels = paint(np.random.default_rng(2), wide, 12)
    assert 2 < labels.sum() < 10
    right = sure = 0
    for image, label in zip(images, labels, strict=True):
        discs, count = ndimage.label(ndimage.binary_opening(image > 200, np.ones((3, 3))))
        joined, contours = ndimage.label(ndimage.binary_dilation(image > 40, np.ones((3, 3)), iterations=3))
        if count == 2 and contours == 2:  # they did not meet
            sure += 1
            first, second = (joined[tuple(np.argwhere(discs == n)[0])] for n in (1, 2))
            right += (first == second) == label
    assert sure > 4
    assert right == sure


def test_black_as_padding_is_not_attended_to() -> None:
    task = LongRangeArena(
        dataset="pathfinder_synthetic", side=16, segments=4, examples=8, test_examples=4, zero_pixel_is_padding=True
    )
    task.check()
    assert task.config_variant == "black padding"
    task.setup(None)
    ids = task.splits["train"].__getitems__([0, 1]).texts[0]
    hidden = task._hidden(ids)
    assert hidden is not None
    assert hidden.equal(ids == 1)
    ids[0] = 1
    assert not task._hidden(ids)[0].any()  # type: ignore[index]
    task.zero_pixel_is_padding = False
    assert task._hidden(ids) is None
