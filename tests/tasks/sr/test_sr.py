"""SR: the diffusion against its definition, images, bad files; tests/upstream has PSNR and SSIM."""

import numpy as np
import pytest
import torch
from torch import Tensor

from cab.metric import mean_scores
from tasks.sr.data import center_crop, degrade, render
from tasks.sr.task import Diffusion, similarity, to_uint8
from tests.helpers.tasks.layouts import write_faces
from tests.helpers.tasks.records import in_order, ready


def test_noise_is_added_between_the_levels():
    diffusion = Diffusion(40)
    image = torch.randn(500, 3, 4, 4)
    noisy, noise, level = diffusion.noisy(image)
    broad = level[:, None, None, None]
    torch.testing.assert_close(noisy, broad * image + (1 - broad**2).sqrt() * noise, atol=1e-5, rtol=1e-4)
    assert diffusion.levels[-1] - 1e-6 <= level.min() <= level.max() <= 1.0
    assert len(torch.searchsorted(diffusion.levels.flip(0), level.double()).unique()) == 40  # every step's gap is hit


def test_sampling_with_the_true_noise_finds_the_image():
    """A network that knows the image names the noise exactly; the chain then ends at the image."""
    image = torch.rand(2, 3, 4, 4) * 1.6 - 0.8

    def oracle(noisy: Tensor, level: Tensor) -> Tensor:
        broad = level[:, None, None, None].double()
        return ((noisy.double() - broad * image) / (1 - broad**2).sqrt()).float()

    torch.testing.assert_close(Diffusion(30).sample(oracle, image, [0, 1]), image, atol=1e-4, rtol=1e-3)


def test_bytes_are_rounded():
    x = torch.tensor([-1.2, -1.0, 0.0, 0.5, 1.0]).view(1, 1, 1, 5).expand(1, 3, 1, 5)
    assert to_uint8(x)[0, 0, :, 0].tolist() == [0, 0, 128, 191, 255]


def test_both_layouts_give_the_same_pairs(tmp_path):
    task = ready("sr", write_faces(tmp_path))
    assert len(task.splits["train"]) == 3
    (tmp_path / "sr/ffhq_8_16/hr_16").rename(tmp_path / "sr/ffhq")
    (tmp_path / "sr/ffhq_8_16").rename(tmp_path / "away")
    other = ready("sr", tmp_path)
    assert np.array_equal(task.splits["train"].truth, other.splits["train"].truth)
    assert np.array_equal(task.splits["train"].blurred, other.splits["train"].blurred)


def test_mirrors_are_drawn_for_both_images(tmp_path):
    items = ready("sr", write_faces(tmp_path)).splits["train"]
    batch = items.__getitems__([1] * 20)
    flipped = [np.array_equal(image, items.truth[1][:, ::-1]) for image in to_uint8(batch["truth"])]
    assert set(flipped) == {True, False}
    for name, images in (("truth", items.truth), ("blurred", items.blurred)):
        for image, is_flipped in zip(to_uint8(batch[name]), flipped, strict=True):
            assert np.array_equal(image, images[1][:, ::-1] if is_flipped else images[1])


def test_other_shapes_are_cut_in_the_middle():
    image = np.zeros((30, 60, 3), dtype=np.uint8)
    image[:, 15:45] = 200
    assert center_crop(image, 15)[:, [4, 7, 10]].min() == 200


def test_the_published_scores_are_of_the_first_images(tmp_path, monkeypatch):
    """And no others are sampled."""
    monkeypatch.setattr("tasks.sr.task.PUBLISHED_IMAGES", 3)
    task = ready("sr", write_faces(tmp_path, 7), num_held_out=5, scored_images="first_100", evaluation_batch_size=2)
    expected = mean_scores([similarity(degrade(render(i, 8, 16), 8), render(i, 8, 16)) for i in range(2, 5)])
    assert task.baselines()["bicubic"] == pytest.approx(expected, rel=1e-6)
    calls: list[int] = []

    def network(x: Tensor, _: Tensor) -> Tensor:
        calls.append(len(x))
        return 0.1 * x[:, 3:]

    task.evaluate(network, in_order)  # type: ignore[arg-type]
    assert sum(calls) == 3 * task.diffusion_steps
