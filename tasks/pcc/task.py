"""PCC protocol: complete a shape from one view, scored by Chamfer distances and F-score."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from cab import Backbone, register_task
from cab.backbone_protocols import PointCompleter
from cab.metric import Metric, mean_over_batches, mean_scores
from cab.registry.options import Positive
from cab.task import Batches
from tasks.files import VAL_SPLITS, warn_of_repeats
from tasks.pcc.data import TRAINING_VIEWS, Clouds, Shapes, generate_shape, list_clouds, read_clouds, read_pcn
from tasks.pictures import draw_grid
from tasks.source import OwnTask

NUM_SHAPES = {"train": 600, "val": 32, "test": 64}
CLOUD_METRICS = {"cd_l1": ("x 1000", False), "cd_l2": ("x 1000", False), "f_score": ("", True)}


@register_task("pcc", paper="Yu et al. 2021", datasets="pcn synthetic", backbones={"pointr": "NS NC"})
@dataclass(kw_only=True, eq=False)
class PCC(OwnTask):
    """Complete point clouds.

    Args:
        dataset: pcn, synthetic, or with ``source`` any name.
        source: folder with clouds of your own: ``complete`` and ``partial`` have files of the same names, .pcd or
            .npy ([N, 3]).
        list_file: the split list of pcn, in the data folder.
        sample_part: also read validation and test from this split of the list (train), for samples with one split.
        partial_points, complete_points: number of input and target points.
        f_score_of: predicted points that the F-score counts: ``real``, or ``all``, as published, which counts the zero
            padding of a short view as wrong points; ``f_score_real`` is then reported as well.
        validation_split: split whose Chamfer distance selects the checkpoint: ``val``, or ``test``, as published; the
            scores of the validation split are then reported as well.
        batch_norm: momentum of batch norms: ``constant``, or ``decaying`` from 0.9 by half every 21 epochs, as
            published.
        evaluation_batch_size: shapes per batch in validation; the test uses single shapes.
    """

    version = 2
    required_protocols: ClassVar = (PointCompleter,)

    list_file: str = "PCN.json"
    sample_part: Literal["train", "val", "test"] | None = None
    partial_points: Positive = 2048
    complete_points: Positive = 16384
    f_score_of: Literal["real", "all"] = "real"
    validation_split: Literal["val", "test"] = "val"
    batch_norm: Literal["constant", "decaying"] = "constant"
    evaluation_batch_size: Positive = 8

    @property
    def config_variant(self) -> str:
        return f"scored on {self.sample_part}" if self.sample_part else ""

    @property
    def metrics(self) -> tuple[Metric, ...]:
        scored = [Metric(name, unit, higher_is_better=higher) for name, (unit, higher) in CLOUD_METRICS.items()]
        if self.f_score_of == "all":
            scored.append(Metric("f_score_real", "", True, primary=False))
        if self.validation_split == "test":
            scored += [Metric(f"{m.name}_unseen", m.unit, m.higher_is_better, primary=False) for m in scored]
        return tuple(scored)

    def setup(self, data_root: Path | None) -> None:
        self._about: dict[str, Any] = {}
        self._contents: dict[str, list[tuple[str, str]]] = {}
        folder = self.own_folder()
        self._parts = {} if folder is None else self.parts_of(list_clouds(folder), "complete cloud", splits=VAL_SPLITS)
        self.splits = {split: self._read_split(split, data_root) for split in VAL_SPLITS}
        warn_of_repeats("shapes", self._contents)

    def _read_split(self, split: str, data_root: Path | None) -> Shapes:
        random, views = split == "train", 1
        if self.dataset == "synthetic":
            start = {"train": 0, "val": NUM_SHAPES["train"], "test": NUM_SHAPES["train"] + NUM_SHAPES["val"]}[split]
            shapes = [generate_shape(start + i) for i in range(NUM_SHAPES[split])]
            partial, complete = (Clouds.of(clouds) for clouds in zip(*shapes, strict=True))
            self._about[split] = {"generator": 1, "shapes": NUM_SHAPES[split]}
        elif (folder := self.own_folder()) is not None:
            files = ([folder / kind / name for name in self._parts[split]] for kind in ("partial", "complete"))
            partial, complete, self._about[split], self._contents[split] = read_clouds(folder, *files)
        else:
            views = TRAINING_VIEWS if random else 1
            source = split if random else self.sample_part or split
            read = read_pcn(data_root, self.list_file, source, views=views)
            partial, complete, self._about[split], self._contents[source] = read
        sizes = {"partial_points": self.partial_points, "complete_points": self.complete_points}
        return Shapes(partial, complete, views=views, random=random, **sizes)

    def fingerprint(self) -> dict[str, Any]:
        return self._about

    def backbone_options(self, backbone: str) -> dict[str, Any]:  # noqa: ARG002
        return {}

    def begin_epoch(self, backbone: Backbone, epoch: int) -> None:
        if self.batch_norm == "decaying":
            momentum = max(0.9 * 0.5 ** (epoch / 21), 0.01)
            for module in backbone.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.momentum = momentum

    def loss(self, backbone: Backbone, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the Chamfer distance (l1) of the coarse plus the fine points."""
        coarse, fine = backbone(batch["partial"])
        return (chamfer_l1(coarse.float(), batch["complete"]) + chamfer_l1(fine.float(), batch["complete"])).mean()

    def validate(self, backbone: Backbone, batches: Batches) -> float:
        """Return the Chamfer distance (l1) x 1000 of the fine points."""

        def score(batch: Mapping[str, Tensor]) -> tuple[float, int]:
            distance = chamfer_l1(backbone(batch["partial"])[1].float(), batch["complete"])
            return distance.sum().item(), len(distance)

        shapes = self.splits[self.validation_split]
        return 1000.0 * mean_over_batches(batches.map(shapes, self.evaluation_batch_size, score))

    def evaluate(self, backbone: Backbone, batches: Batches) -> dict[str, float]:
        scores = self._scores(backbone, batches, self.test_split)
        if self.validation_split == "val":
            return scores
        return scores | {f"{k}_unseen": v for k, v in self._scores(backbone, batches, "val").items()}

    def _scores(self, backbone: Backbone, batches: Batches, split: str) -> dict[str, float]:
        def score(batch: Mapping[str, Tensor]) -> dict[str, float]:
            return cloud_scores(backbone(batch["partial"])[1], batch["complete"], self.f_score_of)

        return mean_scores(batches.map(self.splits[split], 1, score))

    def baselines(self) -> dict[str, dict[str, float]]:
        """Return the scores of the view itself, and of the view with its mirror images (left-right, front-back)."""
        test = self.splits[self.test_split]
        shapes = [test.__getitems__([i]) for i in range(len(test))[: self.limit]]
        answers = {"input_cloud": lambda points: points, "mirrored": mirrored}
        return {
            name: mean_scores([cloud_scores(of(x["partial"]), x["complete"], self.f_score_of) for x in shapes])
            for name, of in answers.items()
        }

    def save_plots(self, backbone: Backbone, batches: Batches, folder: Path) -> None:
        batch = batches.first(self.splits[self.test_split], 4)
        clouds = {"seen": batch["partial"], "completed": backbone(batch["partial"])[1], "truth": batch["complete"]}
        columns = [(name, x.float().cpu().numpy()) for name, x in clouds.items()]
        draw_grid(columns, _draw_cloud, folder / "clouds.png", size=(3.0, 3.0), projection="3d")


def _draw_cloud(axes: Any, cloud: Any) -> None:
    """Draw the points [N, 3] other than zero padding; the second axis points up."""
    x, y, z = cloud[abs(cloud).sum(axis=1) > 0].T
    axes.scatter(x, z, y, s=1.0, c=y, cmap="viridis")
    axes.set_aspect("equal")
    axes.set_axis_off()


def mirrored(points: Tensor) -> Tensor:
    """Add the mirror images in the first axis, the third, and both: [B, N, 3] to [B, 4 N, 3]."""
    signs = points.new_tensor([[1, 1, 1], [-1, 1, 1], [1, 1, -1], [-1, 1, -1]])
    return (points.unsqueeze(1) * signs[:, None]).flatten(1, 2)


def cloud_scores(points: Tensor, truth: Tensor, f_score_of: str = "real") -> dict[str, float]:
    """Return Chamfer distances x 1000 and F-score at 0.01 of points and truth [1, N, 3], without zero points.

    Without any points, the distances are infinite and the F-score is 0; with NaN points, the distances are NaN.

    With ``f_score_of="all"`` the F-score counts zero points (PoinTr's ``utils/metrics.py`` filters them for the
    distances only), and ``f_score_real`` does not.
    """
    a, b = (cloud[cloud.abs().sum(dim=-1) != 0].unsqueeze(0).double() for cloud in (points, truth))
    scores = {"cd_l1": math.inf, "cd_l2": math.inf, "f_score": 0.0}
    if a.shape[1] and b.shape[1]:
        distances = {"cd_l1": 1000.0 * chamfer_l1(a, b).item(), "cd_l2": 1000.0 * chamfer_l2(a, b).item()}
        scores = {**distances, "f_score": f_score(a, b).item()}
    if f_score_of == "all":
        scores |= {"f_score": f_score(points.double(), truth.double()).item(), "f_score_real": scores["f_score"]}
    return scores


DISTANCES_AT_ONCE = 1 << 24  # distances in memory at once


@torch.no_grad()
def nearest(points: Tensor, others: Tensor) -> Tensor:
    """Return the index [B, N] into ``others`` [B, M, 3] of the point nearest to each of ``points`` [B, N, 3].

    Distances are computed from differences: matrix products lose them away from the origin.
    """
    rows = max(1, DISTANCES_AT_ONCE // (len(points) * others.shape[1]))
    points, others = points.float(), others.float()
    mode = "donot_use_mm_for_euclid_dist"
    parts = points.split(rows, dim=1)
    return torch.cat([torch.cdist(part, others, compute_mode=mode).argmin(dim=2) for part in parts], dim=1)


def distances(points: Tensor, others: Tensor) -> Tensor:
    """Return the squared distance [B, N] from ``points`` to the nearest of ``others``, differentiable in both."""
    index = nearest(points, others).unsqueeze(-1).expand(-1, -1, 3)
    return (points - others.gather(1, index)).square().sum(dim=-1)


def chamfer_l1(points: Tensor, truth: Tensor) -> Tensor:
    """Return the mean distance to the nearest point, averaged over directions, [B] (Yu et al. 2021, section 4.1)."""
    both = [distances(a, b).clamp(min=1e-12).sqrt().mean(dim=1) for a, b in ((points, truth), (truth, points))]
    return (both[0] + both[1]) / 2


def chamfer_l2(points: Tensor, truth: Tensor) -> Tensor:
    """Return the mean squared distance to the nearest point, summed over both directions, [B]."""
    return distances(points, truth).mean(dim=1) + distances(truth, points).mean(dim=1)


def f_score(points: Tensor, truth: Tensor, threshold: float = 0.01) -> Tensor:
    """Return the harmonic mean of the fractions of points within ``threshold`` of the other cloud, [B]."""
    precision, recall = (
        (distances(a, b) < threshold**2).float().mean(dim=1) for a, b in ((points, truth), (truth, points))
    )
    total = precision + recall
    return torch.where(total > 0, 2 * precision * recall / total.clamp(min=1e-12), 0.0)
