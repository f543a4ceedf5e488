"""Long Range Arena protocol: classification accuracy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from torch import Tensor
from torch.nn import functional as F

from cab import Backbone, Task, UserError, register_task
from cab.backbone_protocols import PairClassifier
from cab.metric import Metric, mean_over_batches
from cab.registry.names import is_generated
from cab.registry.options import Positive
from cab.task import Batches
from tasks.files import SPLITS, find_data
from tasks.lra import baselines, images, listops, pathfinder, text
from tasks.lra.pathfinder import PATHFINDER, PATHX
from tasks.lra.rows import EMPTY_ID, Batch, Rows, Source, prepare
from tasks.pictures import draw_grid, draw_image

PATHS = {"pathfinder": PATHFINDER, "pathx": PATHX}
NUM_CLASSES = {"listops": 10, "image": 10}
"""Number of classes; the other four data sets have 2."""
TRIVIAL_BASELINES: dict[str, dict[str, Callable[[Rows, Rows], float]]] = {
    "listops": {"root_operator": baselines.root_operator, "root_and_digits": baselines.root_and_digits},
    "text": {"bag_of_words": baselines.bag_of_words},
    "retrieval": {"byte_pairs": baselines.byte_pairs},
    **{name: {"nearest_mean": baselines.nearest_mean} for name in ("image", *PATHS)},
}
BLACK = 1
"""The id of the darkest pixel."""


@register_task(
    "lra",
    paper="Tay et al. 2021; Chen et al. 2021",
    datasets="listops text retrieval image pathfinder pathx listops_synthetic text_synthetic retrieval_synthetic "
    "image_synthetic pathfinder_synthetic pathx_synthetic",
    backbones={"encoder": "NS"},
    in_index=False,
    report="tasks.lra.report:SECTION",
)
@dataclass(kw_only=True, eq=False)
class LongRangeArena(Task):
    """Classify long sequences.

    ``NAME`` reads the official files, ``NAME_synthetic`` is generated: ListOps from the exact distribution, Pathfinder
    and Path-X with the geometry of the original, Text, Retrieval and Image as easier stand-ins.

    Args:
        dataset: listops, text, retrieval, image, pathfinder or pathx; or one of these with the suffix ``_synthetic``.
        length: maximum number of symbols for listops, text and retrieval, beyond which sequences are truncated; upper
            bound for generated trees; length of other generated texts.
        min_length: lower bound (exclusive) for generated trees.
        max_depth, max_arguments: limits for generated trees.
        side: image side in pixels; 32 in the official data, 128 for Path-X.
        segments, distractors: dashes per contour and number of distractor contours in generated Pathfinder and Path-X.
        examples, test_examples: number of generated training examples, and of each other split.
        brackets: ``kept``, or ``dropped`` as in Skyformer's copy of listops: without closing brackets, and thus without
            most of what determines the value.
        zero_pixel_is_padding: treat the darkest pixels of an image as padding, as LRA and Skyformer do, in which id 0
            marks the end of a text.
        validation_split: for text, validate on a tenth of ``train``, or on ``test`` itself, as published.
        evaluation_batch_size: examples per batch in validation and test.
    """

    required_protocols: ClassVar = (PairClassifier,)
    packages: ClassVar[Mapping[str, str]] = {"PIL": "vision"}

    dataset: str
    length: Positive = 2000
    min_length: int = 500
    max_depth: Positive = 10
    max_arguments: int = 10
    side: int = 32
    segments: int = 14
    distractors: int = 5
    examples: Positive = 96000
    test_examples: Positive = 2000
    brackets: Literal["kept", "dropped"] = "kept"
    zero_pixel_is_padding: bool = False
    validation_split: Literal["train", "test"] = "train"
    evaluation_batch_size: Positive = 32

    @property
    def question(self) -> str:
        """The data set without the suffix of generated data."""
        return self.dataset.removesuffix("_synthetic")

    @property
    def has_pixels(self) -> bool:
        return self.question in ("image", *PATHS)

    @property
    def config_variant(self) -> str:
        """Return the deviations from the sound protocol that a published run made."""
        published = {
            "brackets dropped": self.brackets == "dropped",
            "black padding": self.zero_pixel_is_padding,
            "validated on test": self.validation_split == "test",
        }
        return ", ".join(name for name, holds in published.items() if holds)

    @property
    def metrics(self) -> tuple[Metric, ...]:
        return (Metric("accuracy", "%", higher_is_better=True),)

    def check(self) -> None:
        for name, smallest in {"max_arguments": 2, "side": 8, "segments": 2}.items():
            if getattr(self, name) < smallest:
                raise UserError(f"task.{name} must be at least {smallest}, got {getattr(self, name)}")
        for name, usual, questions in (
            ("brackets", "kept", ("listops",)),
            ("zero_pixel_is_padding", False, ("image", *PATHS)),
            ("validation_split", "train", ("text",)),
        ):
            if getattr(self, name) != usual and self.question not in questions:
                raise UserError(f"task.{name} applies to {', '.join(questions)}, not to {self.question}")
        if is_generated(self.dataset):
            self._check_generated()
        elif self.has_pixels and self.side != self._official_side:
            raise UserError(
                f"the images of {self.dataset} are {self._official_side} pixels wide, not {self.side}: "
                f"set task.side={self._official_side}"
            )

    def _check_generated(self) -> None:
        if self.question == "listops" and not self.min_length + 1 < self.length:
            raise UserError(
                f"no tree is longer than {self.min_length} and shorter than {self.length} symbols: raise task.length"
            )
        if self.question == "text" and self.length < 2 * text.MARKED:
            raise UserError(f"task.length of a generated text must be at least {2 * text.MARKED}, got {self.length}")
        if self.question in PATHS and self.side < PATHS[self.question].side // 2:
            raise UserError(f"contours need task.side of at least {PATHS[self.question].side // 2}, got {self.side}")

    @property
    def _official_side(self) -> int:
        return PATHS[self.question].side if self.question in PATHS else images.SIDE

    def setup(self, data_root: Path | None) -> None:
        folder, self._about = prepare(self._source(data_root))
        self._max_length = self.side**2 if self.has_pixels else self.length
        dropped = listops.CLOSE if self.brackets == "dropped" else None
        self.splits = {split: Rows(folder / split, length=self._max_length, dropped=dropped) for split in SPLITS}

    def _source(self, data_root: Path | None) -> Source:
        if is_generated(self.dataset):
            return self._generated_source()

        def folder(inside: str) -> Path:
            path = find_data(self.dataset, data_root, inside, instead=f"dataset={self.dataset}_synthetic")
            return path.parents[inside.count("/")]

        if self.question in PATHS:
            return pathfinder.path_files(folder(pathfinder.LISTS_FOLDER), self.side)
        if self.question == "listops":
            return listops.tree_files(folder(listops.FILES["train"]))
        if self.question == "text":
            return text.reviews(folder(text.REVIEWS_FOLDER), validation_split=self.validation_split == "train")
        if self.question == "retrieval":
            return text.papers(folder(text.PAIR_FILES["train"]))
        return images.photographs(folder(images.TRAIN_FILES[0]))

    def _generated_source(self) -> Source:
        counts = (self.examples, self.test_examples, self.test_examples)
        if self.question in PATHS:
            published = PATHS[self.question]
            distance = published.seed_distance * self.side // published.side
            geometry = replace(published, side=self.side, seed_distance=distance)
            geometry = replace(geometry, segments=self.segments, distractors=self.distractors)
            return pathfinder.generated_paths(geometry, counts)
        if self.question == "listops":
            shape = listops.Shape(self.max_depth, self.max_arguments, self.min_length, self.length)
            return listops.generated_trees(shape, counts)
        if self.question == "image":
            return images.generated_shapes(self.side, counts)
        generated = text.generated_reviews if self.question == "text" else text.generated_pairs
        return generated(self.length, counts)

    def fingerprint(self) -> dict[str, Any]:
        return self._about

    def backbone_options(self, backbone: str) -> dict[str, Any]:  # noqa: ARG002
        return {
            "vocab_size": (listops.NUM_SYMBOLS if self.question == "listops" else 256) + 1,
            "max_length": self._max_length,
            "num_classes": NUM_CLASSES.get(self.question, 2),
            "pairs": self.splits["train"].width == 2,
        }

    def logits(self, backbone: Backbone, batch: Batch) -> Tensor:
        """Return the class logits [B, C]."""
        masks = [self._hidden(ids) for ids in batch.texts]
        call: Any = backbone.compare if len(masks) == 2 else backbone
        return call(*batch.texts, *masks).float()

    def _hidden(self, ids: Tensor) -> Tensor | None:
        """Return the padding mask [B, N], or None without padding; an all-black image is not masked."""
        hidden = ids == (BLACK if self.zero_pixel_is_padding else EMPTY_ID)
        hidden &= ~hidden.all(dim=1, keepdim=True)
        return hidden if bool(hidden.any()) else None

    def loss(self, backbone: Backbone, batch: Batch) -> Tensor:
        """Return the mean negative log-likelihood of the classes, in nats."""
        return F.cross_entropy(self.logits(backbone, batch), batch.labels)

    def validate(self, backbone: Backbone, batches: Batches) -> float:
        """Return the error rate in percent, which selects the checkpoint in the published runs."""
        return 100.0 - self._accuracy(backbone, batches, "validation")

    def evaluate(self, backbone: Backbone, batches: Batches) -> dict[str, float]:
        return {"accuracy": self._accuracy(backbone, batches, self.test_split)}

    def _accuracy(self, backbone: Backbone, batches: Batches, split: str) -> float:
        def score(batch: Batch) -> tuple[int, int]:
            return int((self.logits(backbone, batch).argmax(-1) == batch.labels).sum()), len(batch.labels)

        return 100.0 * mean_over_batches(batches.map(self.splits[split], self.evaluation_batch_size, score))

    def baselines(self) -> dict[str, dict[str, float]]:
        """Return the accuracies of the most frequent class and of simple statistics of a sequence."""
        answers = {"majority": baselines.majority, **TRIVIAL_BASELINES[self.question]}
        train, test = self.splits["train"], self.splits[self.test_split]
        return {name: {"accuracy": answer(train, test)} for name, answer in answers.items()}

    def save_plots(self, backbone: Backbone, batches: Batches, folder: Path) -> None:
        """Draw test images with labels and predictions; sequences of other symbols have no plots."""
        if self.has_pixels:
            batch = batches.first(self.splits[self.test_split], 8)
            pairs = zip(batch.labels.tolist(), self.logits(backbone, batch).argmax(-1).tolist(), strict=True)
            images = (batch.texts[0] - 1).clamp(min=0).view(-1, 1, self.side, self.side).cpu().numpy()
            columns = [*zip((f"{label} | {guess}" for label, guess in pairs), images, strict=True)]
            draw_grid(columns, draw_image, folder / "answers.png", size=(1.5, 1.6))
