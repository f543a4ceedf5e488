"""PoinTr: sampling and neighbors against plain loops, learning, mistakes."""

from __future__ import annotations

import torch

from backbones.layers.points import edge_features, farthest_points, nearest_points, take
from backbones.pointr import PoinTr
from tests.helpers.backbones.records import RECORDS


def pointr() -> PoinTr:
    backbone = RECORDS["pointr"].build("pointr")
    assert isinstance(backbone, PoinTr)
    return backbone.train()


def test_nearest_points_and_edges_against_a_plain_loop() -> None:
    points, queries = torch.randn(2, 13, 3), torch.randn(2, 5, 3)
    near = nearest_points(queries, points, 4)
    x, center = torch.randn(2, 13, 6), torch.randn(2, 5, 6)
    edges = edge_features(x, near, center)
    for row in range(2):
        for i in range(5):
            order = sorted(range(13), key=lambda j, row=row, i=i: (points[row, j] - queries[row, i]).norm().item())
            assert near[row, i].tolist() == order[:4]
            expected = torch.stack([torch.cat([x[row, j] - center[row, i], center[row, i]]) for j in order[:4]])
            torch.testing.assert_close(edges[row, i], expected)


def test_more_neighbors_than_points_are_all_of_them() -> None:
    assert nearest_points(torch.randn(1, 2, 3), torch.randn(1, 3, 3), 8).shape == (1, 2, 3)


def test_shapes_and_the_input_in_the_output() -> None:
    partial = torch.randn(2, 30, 3)
    coarse, fine = pointr().eval()(partial)
    assert coarse.shape == (2, 9 + 9, 3)
    assert fine.shape == (2, 9 * 4 + 30, 3)
    assert torch.equal(fine[:, 36:], partial)
    assert torch.equal(coarse[:, 9:], take(partial, farthest_points(partial, 9)))


def test_patches_lie_around_their_centers() -> None:
    backbone = pointr().eval()
    torch.nn.init.zeros_(backbone.fold.second.output.weight)
    torch.nn.init.zeros_(backbone.fold.second.output.bias)
    coarse, fine = backbone(torch.randn(2, 30, 3))
    torch.testing.assert_close(fine[:, :36].unflatten(1, (9, 4)), coarse[:, :9].unsqueeze(2).expand(-1, -1, 4, -1))


def test_only_the_first_block_of_a_stack_uses_its_neighbors() -> None:
    backbone = pointr()
    sum(points.square().sum() for points in backbone(torch.randn(2, 30, 3))).backward()  # type: ignore[union-attr]
    used = [block.neighborhood.edges.weight.grad is not None for block in backbone.encoder]
    used += [block.cross_neighborhood.edges.weight.grad is not None for block in backbone.decoder]
    assert used == [True, False, True, False]
