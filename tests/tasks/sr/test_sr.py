"""SR: the diffusion against its definition, images, bad files; tests/upstream has PSNR and SSIM."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from cab.metric import mean_scores
from cab.runner.evaluation import DeviceBatches
from tasks.sr.data import center_crop, degrade, render
from tasks.sr.diffusion import Diffusion
from tasks.sr.task import similarity, to_uint8
from tests.helpers.in_order import in_order
from tests.helpers.tasks.layouts import write_faces
from tests.helpers.tasks.records import ready


def test_shorter_schedules_end_near_the_noise_of_the_published_one() -> None:
    """The values of the published one are in tests/upstream/test_schedules.py."""
    published, *shorter = (math.log(Diffusion(steps).levels[-1].item()) for steps in (2000, 50, 200, 400))
    assert shorter == pytest.approx([published] * 3, rel=0.35)


def test_noise_is_added_between_the_levels() -> None:
    diffusion = Diffusion(40)
    image = torch.randn(500, 3, 4, 4)
    noisy, noise, level = diffusion.noisy(image)
    broad = level[:, None, None, None]
    torch.testing.assert_close(noisy, broad * image + (1 - broad**2).sqrt() * noise, atol=1e-5, rtol=1e-4)
    assert level.min() >= diffusion.levels[-1] - 1e-6
    assert level.max() <= 1.0
    gaps = torch.searchsorted(diffusion.levels.flip(0), level.double())
    assert len(gaps.unique()) == 40  # every step's gap is hit


def test_sampling_with_the_true_noise_finds_the_image() -> None:
    """A network that knows the image names the noise exactly; the chain then ends at the image."""
    diffusion = Diffusion(30)
    image = torch.rand(2, 3, 4, 4) * 1.6 - 0.8

    def oracle(noisy: Tensor, level: Tensor) -> Tensor:
        broad = level[:, None, None, None].double()
        return ((noisy.double() - broad * image) / (1 - broad**2).sqrt()).float()

    found = diffusion.sample(oracle, image, [0, 1])
    torch.testing.assert_close(found, image, atol=1e-4, rtol=1e-3)


def test_bytes_are_rounded() -> None:
    x = torch.tensor([-1.2, -1.0, 0.0, 0.5, 1.0]).view(1, 1, 1, 5).expand(1, 3, 1, 5)
    assert to_uint8(x)[0, 0, :, 0].tolist() == [0, 0, 128, 191, 255]


def test_both_layouts_give_the_same_pairs(tmp_path: Path) -> None:
    task = ready("sr", write_faces(tmp_path))
    assert (len(task.splits["train"]), task.config_variant) == (3, "held out 2")
    raw = tmp_path / "raw" / "sr" / "ffhq"
    raw.mkdir(parents=True)
    for path in (tmp_path / "sr" / "ffhq_8_16" / "hr_16").iterdir():
        (raw / path.name).write_bytes(path.read_bytes())
    other = ready("sr", tmp_path / "raw")
    assert np.array_equal(task.splits["train"].truth, other.splits["train"].truth)
    assert np.array_equal(task.splits["train"].blurred, other.splits["train"].blurred)


def test_mirrors_are_drawn_for_both_images(tmp_path: Path) -> None:
    items = ready("sr", write_faces(tmp_path)).splits["train"]
    seen = set()
    for seed in range(8):
        torch.manual_seed(seed)
        batch = items.__getitems__([1])
        truth, blurred = (to_uint8(batch[name])[0] for name in ("truth", "blurred"))
        flipped = np.array_equal(truth, items.truth[1][:, ::-1])
        assert flipped or np.array_equal(truth, items.truth[1])
        assert np.array_equal(blurred, items.blurred[1][:, ::-1] if flipped else items.blurred[1])
        seen.add(flipped)
    assert seen == {True, False}


def test_other_shapes_are_cut_in_the_middle() -> None:
    image = np.zeros((30, 60, 3), dtype=np.uint8)
    image[:, 15:45] = 200
    assert center_crop(image, 15).shape == (15, 15, 3)
    assert center_crop(image, 15).mean() > 190


@pytest.mark.parametrize(("scored_images", "numbers"), [("all", range(2, 7)), ("first_100", range(2, 5))])
def test_only_images_that_are_scored_are_sampled(
    scored_images: str, numbers: range, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And an interrupted evaluation does not sample again what it has scored."""
    monkeypatch.setattr("tasks.sr.task.PUBLISHED_IMAGES", 3)
    task = ready("sr", write_faces(tmp_path, 7), num_held_out=5, scored_images=scored_images, evaluation_batch_size=2)
    expected = mean_scores([similarity(degrade(render(i, 8, 16), 8), render(i, 8, 16)) for i in numbers])
    assert task.baselines()["bicubic"] == pytest.approx(expected, rel=1e-6)
    calls: list[int] = []
    is_resumable = False

    def network(x: Tensor, _: Tensor) -> Tensor:
        calls.append(len(x))
        if len(calls) == task.diffusion_steps + 2 and is_resumable:
            raise InterruptedError
        return 0.1 * x[:, 3:]

    whole = task.evaluate(network, in_order)  # type: ignore[arg-type]
    assert sum(calls) == len(numbers) * task.diffusion_steps
    calls.clear()
    is_resumable = True
    batches = DeviceBatches(torch.device("cpu"), finished=tmp_path / "scores.jsonl")
    with pytest.raises(InterruptedError):
        task.evaluate(network, batches)  # type: ignore[arg-type]
    resumed = DeviceBatches(torch.device("cpu"), finished=tmp_path / "scores.jsonl")
    assert task.evaluate(network, resumed) == whole  # type: ignore[arg-type]
    assert sum(calls) == len(numbers) * task.diffusion_steps + 2 * min(2, len(numbers) - 2)  # steps of a batch
