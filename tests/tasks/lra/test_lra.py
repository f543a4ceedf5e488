"""Long Range Arena: the official layouts with made-up content, the published training, scores, what is generated."""

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import ndimage
from torch import Tensor

from cab import build_backbone
from cab.config.compose import compose
from tasks.lra import images, listops
from tasks.lra.contours import dash
from tasks.lra.pathfinder import PATHX, paint
from tasks.lra.rows import Example
from tests.helpers.tasks.layouts import TREES, write_batches, write_papers, write_paths, write_reviews, write_trees
from tests.helpers.tasks.records import in_order, network, ready


def read(dataset: str, root: Path, **options: Any) -> dict[str, list[Example]]:
    return {
        split: [
            Example(tuple(rows.text(i, each).tobytes() for each in range(rows.width)), int(rows.labels[i]))
            for i in range(len(rows))
        ]
        for split, rows in ready("lra", root, dataset=dataset, **options).splits.items()
    }


def test_trees(tmp_path):
    expected = {split: [*trees] for split, trees in listops.generated_trees(TREES, (20, 5, 5)).read()}
    assert read("listops", write_trees(tmp_path)) == expected


def test_reviews(tmp_path):
    """A tenth of the training split is held out, or the test split chooses too, as published."""
    found = read("text", write_reviews(tmp_path))
    assert {split: len(rows) for split, rows in found.items()} == {"train": 18, "validation": 2, "test": 20}
    everything = [example for rows in found.values() for example in rows]
    assert len({example.texts for example in everything}) == 40
    assert all((b" pos " in texts[0]) == label for texts, label in everything)
    assert all(texts[0].startswith(b"test") for texts, _ in found["test"])
    published = read("text", tmp_path, validation_split="test")
    assert published["validation"] == published["test"] == found["test"]
    assert len(published["train"]) == 20


def test_pairs_of_papers(tmp_path):
    found = read("retrieval", write_papers(tmp_path))
    assert found["train"][3] == ((b'the "train 3', b"and 'another 3"), 1)
    assert [len(found[split]) for split in ("train", "validation", "test")] == [4, 2, 2]


def test_photographs(tmp_path):
    folder = write_batches(tmp_path) / "cifar-10-batches-py"
    found = read("image", tmp_path)
    assert [len(found[split]) for split in ("train", "validation", "test")] == [18, 2, 3]
    data = pickle.loads((folder / "test_batch").read_bytes())[b"data"].astype(float)
    red, green, blue = data[1].reshape(3, 1024)
    expected = (0.2989 * red + 0.587 * green + 0.114 * blue) * 255.5 / 255
    assert np.abs(np.frombuffer(found["test"][1].texts[0], np.uint8) - np.floor(expected)).max() <= 1
    white = images.gray(np.full((1, 3, 1024), 255, np.uint8))
    assert white.min() == white.max() == 255


def test_paths(tmp_path):
    folder = write_paths(tmp_path, "pathfinder128", 128) / "lra_release/lra_release/pathfinder128"
    (folder / "curv_contour_length_14/imgs/0/sample_3.png").write_bytes(b"")  # the release has such a file
    found = read("pathx", tmp_path, side=128)
    assert [len(found[split]) for split in ("train", "validation", "test")] == [15, 2, 2]
    everything = [example for rows in found.values() for example in rows]
    assert len({texts[0][0] for texts, _ in everything}) == 19
    assert all(len(texts[0]) == 128**2 and texts[0][0] % 2 == label for texts, label in everything)


def test_preset_paper_is_the_published_training():
    """Skyformer's src/config.py: batch, warm-up and rate of each task, 50,000 steps of all; and its network."""
    published = {"listops": (32, 1000, 1e-4), "text": (32, 80, 1e-4), "retrieval": (16, 800, 2e-4)}
    published |= {"image": (256, 175, 1e-4), "pathfinder": (128, 312, 2e-4)}
    sizes: dict[str, Any] = {"embed_dim": 64, "num_heads": 2, "ffn_dim": 128, "num_layers": 2, "pooling": "mean"}
    sizes |= {"dropout": 0.1, "attention_dropout": 0.1, "init_std": 0.02}
    for dataset, expected in published.items():
        config = compose(["task=lra", f"dataset={dataset}", "pattern=NS", "attention=vanilla", "preset=paper"])
        trainer, task = config["trainer"], config["task"]
        assert (trainer["batch_size"], trainer["warmup_steps"], trainer["learning_rate"]) == expected
        assert (trainer["max_steps"], trainer["optimizer"], trainer["weight_decay"]) == (50_000, "adamw", 0.0)
        assert sizes.items() <= config["backbone"].items()
        assert (task["brackets"], task["zero_pixel_is_padding"], task["validation_split"]) == ("kept", False, "train")


def test_a_pair_is_read_by_one_network():
    """Equal sequences give [a, a, a * a, 0]."""
    net: Any = build_backbone("encoder", pattern="NS", vocab_size=9, max_length=8, num_classes=2, pairs=True).eval()
    a, b = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[5, 6, 0]])
    assert torch.allclose(net.compare(a, b, None, b == 0), net.compare(a, b[:, :2]), atol=1e-6)
    read: list[Tensor] = []
    net.head.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))
    net.compare(a, a)
    first = read[0].chunk(4, dim=-1)[0]
    assert torch.equal(read[0], torch.cat([first, first, first * first, 0 * first], dim=-1))


@torch.no_grad()
def test_scores_are_percent_of_the_whole_part():
    task = ready("lra")
    net, rows = network("lra", task).eval(), task.splits["test"]
    right = task.logits(net, rows.__getitems__(list(range(len(rows))))).argmax(-1) == rows.labels
    assert task.evaluate(net, in_order)["accuracy"] == pytest.approx(100 * right.double().mean().item())
    batch = rows.__getitems__([0, 1, 2])
    likelihoods = task.logits(net, batch).log_softmax(dim=-1)[range(3), batch.labels]
    assert task.loss(net, batch).item() == pytest.approx(-likelihoods.mean().item())


def test_dropped_brackets_are_not_seen_and_what_is_cut_comes_after():
    kept, dropped = ready("lra"), ready("lra", brackets="dropped")
    symbols, rows = kept.splits["test"].text(0), dropped.splits["test"]
    assert rows.seen(0).tolist() == [symbol for symbol in symbols if symbol != listops.CLOSE]
    assert dropped.baselines() == kept.baselines()
    rows.length = 4
    [ids] = rows.__getitems__([0]).texts[0]
    assert (ids - 1).tolist() == [symbol for symbol in symbols if symbol != listops.CLOSE][:4]


def test_black_as_padding_is_not_attended_to():
    sizes: dict[str, Any] = {"side": 16, "segments": 4, "examples": 8, "test_examples": 4}
    task = ready("lra", dataset="pathfinder_synthetic", zero_pixel_is_padding=True, **sizes)
    ids = task.splits["train"].__getitems__([0, 1]).texts[0]
    assert torch.equal(task._hidden(ids), ids == 1)
    ids[0] = 1
    assert not task._hidden(ids)[0].any()
    task.zero_pixel_is_padding = False
    assert task._hidden(ids) is None


def test_trees_are_in_one_split_and_baselines_read_the_root_and_the_digits_below_it():
    task = ready("lra")
    texts = [rows.text(row).tobytes() for rows in task.splits.values() for row in range(len(rows))]
    assert len({*texts}) == len(texts) == 800
    assert ready("lra", examples=100).fingerprint()["test"] == task.fingerprint()["test"], "whatever trains"
    assert listops.apply(12, [9, 2, 3, 2]) == 2  # the mean of 2 and 3, cut
    assert listops.direct_digits(np.array([11, 4, 10, 2, 9, listops.CLOSE, 7, listops.CLOSE])) == [4, 7]
    found = {name: scores["accuracy"] for name, scores in task.baselines().items()}
    assert found["majority"] < found["root_operator"] < found["root_and_digits"] < 90


def test_a_dash_is_drawn_as_by_the_original():
    """Of length 2 and thickness 0.5 to the right and downwards, by snakes.draw_line_n_mask of ab9c130."""
    picture, mask = dash(2, 0.5, 1, 0.0), dash(2, 0.5, 1, 0.0, around=1)
    assert picture[4] == pytest.approx([0, 0, 0.01, 0, 0.4, 0.53, 0.45, 0, 0], abs=0.006)
    assert mask[3] == pytest.approx([0, 0, 0.01, 0.08, 0.68, 0.8, 0.73, 0.11, 0], abs=0.006)
    assert dash(2, 0.5, 1, np.pi / 2)[:, 4] == pytest.approx([0, 0, 0.01, 0, 0.4, 0.58, 0.45, 0, 0], abs=0.006)


def test_labels_say_whether_one_contour_has_both_discs():
    """Without distractors and far from each other, contours are what a wide enough brush joins."""
    pictures, labels = paint(np.random.default_rng(2), replace(PATHX, segments=4, distractors=0, seed_distance=24), 12)
    right = []
    for image, label in zip(pictures, labels, strict=True):
        discs, count = ndimage.label(ndimage.binary_opening(image > 200, np.ones((3, 3))))
        joined, contours = ndimage.label(ndimage.binary_dilation(image > 40, np.ones((3, 3)), iterations=3))
        if count == 2 and contours == 2:  # they did not meet
            first, second = (joined[tuple(np.argwhere(discs == n)[0])] for n in (1, 2))
            right.append((first == second) == label)
    assert len(right) > 4
    assert all(right)
