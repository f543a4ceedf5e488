"""One record per task: tiny data with their files, from which it gets the properties of tests/tasks/test_tasks.py."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor, nn

from cab import Backbone, build_backbone
from cab.files.cache import cache_root
from cab.registry.registries import BACKBONES, TASKS
from cab.runner.evaluation import DeviceBatches
from tasks.corpus.tokens import PAD
from tests.helpers.command import ROOT
from tests.helpers.tasks import layouts

in_order = DeviceBatches(torch.device("cpu"))
"""Batches as the runner gives them."""


@dataclass(frozen=True)
class Data:
    """A data set of a task: what writes its files, none if it is generated, and the options that it needs."""

    write: Callable[[Path], object] | None = None
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Record:
    """Tiny data sets of a task by name, options of the task and of its networks, and options that it refuses."""

    data: dict[str, Data]
    options: dict[str, Any] = field(default_factory=dict)
    network: dict[str, Any] = field(default_factory=dict)
    refused: tuple[str, ...] = ()  # the first of each contradicts the data or the others; of ``synthetic``


ANSWERS = {"vocab_size": 800, "block_len": 64, "loss_on": "answers"}
BOOKS = {
    "pg19": Data(layouts.write_books),
    "wikitext103": Data(layouts.write_wikitext, {"tokenizer": "words"}),
    "synthetic": Data(options=ANSWERS),
}
LISTOPS = {"length": 40, "min_length": 5, "max_depth": 4, "max_arguments": 5, "examples": 400, "test_examples": 200}
RECORDS = {
    "lm": Record(
        BOOKS,
        {"vocab_size": 300, "block_len": 16, "context_lengths": (8, 32)},
        refused=("loss_on=some", "block_len=16 overlap=16"),
    ),
    "lm_recurrent": Record(
        {**BOOKS, "synthetic": Data(options={**ANSWERS, "block_len": 256, "context_lengths": (56,)})},
        {"vocab_size": 300, "block_len": 16, "context_lengths": (8, 16, 56), "memory_length": 24},
        refused=("overlap=8",),
    ),
    "mlm": Record(
        {**BOOKS, "synthetic": Data(options={**ANSWERS, "block_len": 52, "mask_share": 0.8})},
        {"vocab_size": 300, "block_len": 40, "evaluation_batch_size": 3},
        refused=("mask_share=0.0",),
    ),
    "glue": Record(
        {"rte": Data(layouts.write_rte, {"vocab_size": 300}), "synthetic": Data(options={"vocab_size": 800})},
        {"max_length": 40, "evaluation_batch_size": 7},
        refused=("validation_fraction=1.0", "max_length=4", "tokenizer=b pretrained=a"),
    ),
    "lra": Record(
        {
            "listops": Data(layouts.write_trees, {"length": 39}),
            "text": Data(layouts.write_reviews, {"length": 24}),
            "retrieval": Data(layouts.write_papers, {"length": 24}),
            "image": Data(layouts.write_batches),
            "pathfinder": Data(layouts.write_paths),
            "listops_synthetic": Data(options=LISTOPS),
        },
        refused=(
            *("max_arguments=1 dataset=listops_synthetic", "length=40 min_length=39 dataset=listops_synthetic"),
            *("length=40 dataset=text_synthetic", "side=32 dataset=pathx_synthetic", "side=16 dataset=pathfinder"),
            *("brackets=dropped dataset=image", "zero_pixel_is_padding=true dataset=listops"),
        ),
    ),
    "lstf": Record(
        {
            "etth1": Data(lambda root: layouts.put_series(root / "ETTh1.csv", layouts.ETT, 14_400), {"features": "S"}),
            "synthetic": Data(options={"seq_len": 54, "pred_len": 24}),
        },
        {"seq_len": 24, "label_len": 6, "pred_len": 12, "evaluation_batch_size": 2000},
        refused=("pred_len=0", "label_len=42 seq_len=41"),
    ),
    "pcc": Record(
        {"pcn": Data(layouts.write_pcn), "synthetic": Data()},
        {"partial_points": 24, "complete_points": 50},
        {"first_samples": 20},
    ),
    "probe": Record(
        {name: Data() for name in ("recall", "compression", "mad_noisy", "addition", "parity")},
        {"vocab_size": 32, "length": 32, "pairs": 8, "longer_length": 40, "examples": 40, "test_examples": 20},
        refused=(
            *("vocab_size=15 pairs=16 dataset=recall", "noise=0.2 dataset=copying", "noise=1.0 dataset=noisy"),
            *("length=32 vocab_size=64 dataset=mqar", "vocab_size=33 dataset=mqar", "length=33 dataset=mad_recall"),
        ),
    ),
    "sr": Record(
        {"ffhq": Data(layouts.write_faces, {"num_held_out": 2}), "synthetic": Data()},
        {"low_resolution": 8, "high_resolution": 16, "diffusion_steps": 3},
        refused=("high_resolution=20 low_resolution=8", "num_held_out=2"),
    ),
    "sum": Record(
        {"multi_news": Data(layouts.write_pairs, {"search": "beam"}), "synthetic": Data(options={"vocab_size": 600})},
        {"vocab_size": 300, "source_len": 20, "target_len": 9, "min_length": 3, "max_length": 7},
        refused=("target_len=1", "min_length=9 max_length=7"),
    ),
    "tts": Record(
        {
            "ljspeech": Data(layouts.write_clips, {"num_held_out": 2}),
            "synthetic": Data(options={"generated": 12, "generated_held_out": 3}),
        },
        {"iterations": 2, "validation_iterations": 2, "max_steps": 3},
        {"prenet_dropout": 0.0},
        refused=("num_prompt_steps=3 max_steps=3", "generated=50", "num_held_out=2"),
    ),
}
DATA = [(task, name) for task, record in RECORDS.items() for name in record.data]
FILES = [(task, name) for task, name in DATA if RECORDS[task].data[name].write is not None]


def ready(task: str, folder: Path | None = None, **options: Any) -> Any:
    """A task that has read its files below ``folder``, or else generated its data, of its first such data set."""
    record = RECORDS[task]
    first = next((name for name, data in record.data.items() if (data.write is None) == (folder is None)), "")
    dataset = options.pop("dataset", first)
    own = record.data[dataset].options if dataset in record.data else {}
    made = TASKS.get(task).cls(**{"dataset": dataset, **record.options, **own, **options})
    made.check()
    made.setup(folder)
    return made


def network(task: str, made: Any, backbone: str = "", **options: Any) -> Backbone:
    """A network for the task in the size of preset smoke, with the same weights at each call."""
    entry = TASKS.get(task)
    backbone = backbone or next(iter(entry.backbones))
    sizes = yaml.safe_load((ROOT / "configs/size" / backbone / "smoke.yaml").read_text())["backbone"]
    sizes |= {name: x for name, x in RECORDS[task].network.items() if name in BACKBONES.get(backbone).options}
    sizes |= made.backbone_options(backbone) | options
    torch.manual_seed(0)
    return build_backbone(backbone, attention="vanilla", pattern=str(entry.backbones[backbone][0]), **sizes)


class Bigram(Backbone):
    """Logits that depend on the last token alone: their likelihood can be added up by hand; MLM gives a mask."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(size, size))

    def forward(self, tokens: Tensor, mask: Tensor | None = None, *, selected: Tensor | None = None) -> Tensor:
        assert mask is None or (selected is not None and torch.equal(mask, tokens == PAD))
        return self.table[tokens if selected is None else tokens.flatten()[selected]]


FEW = {
    "corpus.books.NUM_BOOKS": {"train": 12, "validation": 1, "test": 2},
    "sum.data.NUM_PAIRS": {"train": 64, "val": 4, "test": 4},
    "pcc.task.NUM_SHAPES": {"train": 64, "val": 6, "test": 4},
    "sr.task.NUM_IMAGES": {"train": 64, "validation": 4, "test": 4},
    "glue.tables.SYNTHETIC_COUNTS": {"train": 64, "dev": 16},
    "lstf.synthetic.NUM_EPISODES": (64, 8, 8),
}
FEW_CLIPS = ("task.generated=12", "task.generated_held_out=3")


@contextlib.contextmanager
def few_examples() -> Iterator[None]:
    """Generators have tests of their own; a property or a training of few steps needs few examples.

    Other processes know nothing of it, so these have a cache of their own.
    """
    root = cache_root()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CAB_CACHE", str(root if root.name == "few" else root / "few"))
        for place, count in FEW.items():
            patch.setattr(f"tasks.{place}", count)
        yield
