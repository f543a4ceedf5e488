"""PCC: gradients of distances, equal and far clouds; files; what is drawn at random and what is not."""

import numpy as np
import pytest
import torch
from torch import nn

from backbones.layers.points import nearest_points
from tasks.pcc.data import generate_shape, read_pcd
from tasks.pcc.task import chamfer_l1, distances, f_score, mirrored, nearest
from tests.helpers.tasks.layouts import write_pcd, write_pcn
from tests.helpers.tasks.records import in_order, ready


def test_gradients_are_those_of_the_full_matrix():
    scale, weights = torch.tensor([0.4, 0.02, 0.3]), torch.rand(3, 70, dtype=torch.float64)
    a, b = ((torch.randn(3, n, 3) * scale).double().requires_grad_() for n in (70, 110))
    full = (a.unsqueeze(2) - b.unsqueeze(1)).square().sum(dim=-1).amin(dim=2)
    found = [torch.autograd.grad((squares.sqrt() * weights).sum(), (a, b)) for squares in (distances(a, b), full)]
    torch.testing.assert_close(*found)
    assert torch.autograd.grad(chamfer_l1(a, a.detach()).sum(), a)[0].isfinite().all()  # of a point on a point


def test_identical_clouds_are_identical_away_from_the_origin():
    """Matrix products in float32 lose distances there."""
    cloud = torch.rand(1, 300, 3) + 100.0
    assert torch.equal(nearest(cloud, cloud)[0], torch.arange(300))
    assert torch.equal(nearest_points(cloud, cloud, 1)[0, :, 0], torch.arange(300))
    assert (f_score(cloud, cloud.clone()).item(), f_score(cloud, cloud + 9.0).item()) == (1.0, 0.0)


def test_files_come_back(tmp_path):
    points = np.random.default_rng(1).normal(size=(17, 3)).astype(np.float32)
    for binary in (True, False):
        np.testing.assert_array_equal(read_pcd(write_pcd(tmp_path / "a.pcd", points, binary=binary)), points)


def test_views_points_and_mirrors_are_drawn_in_training_only(tmp_path):
    task = ready("pcc", write_pcn(tmp_path))
    filled, signs = set(), set()
    for seed in range(40):
        torch.manual_seed(seed)
        batch = task.splits["train"].__getitems__([0, 1])
        assert (batch["partial"].shape, batch["complete"].shape) == ((2, 24, 3), (2, 50, 3))
        for partial, complete in zip(batch["partial"], batch["complete"], strict=True):
            real = partial[partial.abs().sum(dim=1) > 0]
            filled.add(len(real))
            signs.add(tuple(real.sign()[0].tolist()))
            assert torch.equal(real.sign(), real.sign()[:1].expand_as(real))
            assert torch.equal(complete.sign()[0], real.sign()[0])
    assert filled == {20, 21, 22, 23, 24}  # views of 20 to 27 points, the larger ones cut
    assert signs == {(x, 1.0, z) for x in (-1.0, 1.0) for z in (-1.0, 1.0)}
    assert (task.splits["test"].__getitems__([0])["partial"].abs().sum(dim=-1) == 0).sum() == 4


def test_the_part_that_chooses_and_the_ones_that_are_scored(tmp_path):
    published = ready("pcc", write_pcn(tmp_path), validation_split="test")
    sound = ready("pcc", tmp_path)

    def network(partial):
        return partial, partial + 0.01

    scores, fair = published.evaluate(network, in_order), sound.evaluate(network, in_order)
    assert {k: scores[k] for k in fair} == fair
    assert scores["cd_l1_unseen"] != scores["cd_l1"]
    for task, split in ((published, "test"), (sound, "val")):
        batch = task.splits[split].__getitems__([0])
        expected = 1000 * chamfer_l1(batch["partial"] + 0.01, batch["complete"]).item()
        assert task.validate(network, in_order) == pytest.approx(expected, rel=1e-5)


def test_batch_norms_decay_by_epochs(tmp_path):
    task = ready("pcc", write_pcn(tmp_path), batch_norm="decaying")
    network = nn.Sequential(nn.BatchNorm1d(3))
    for epoch, momentum in ((0, 0.9), (21, 0.45), (10_000, 0.01)):
        task.begin_epoch(network, epoch)
        assert network[0].momentum == pytest.approx(momentum)


def test_mirror_images_of_a_view():
    assert mirrored(torch.tensor([[[1.0, 2.0, 3.0]]]))[0].tolist() == [[1, 2, 3], [-1, 2, 3], [1, 2, -3], [-1, 2, -3]]
    seen, complete = (torch.from_numpy(cloud)[None] for cloud in generate_shape(0))  # a table
    assert chamfer_l1(mirrored(seen), complete) < 0.5 * chamfer_l1(seen, complete)
