"""The steps of :mod:`tools.gpu.supervisor`: each function returns the rows of one item.

Sizes on a CPU are small: there they only show that every step runs.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import gc
import math
import re
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from cab import kernels as backends
from cab.backbone import Backbone
from cab.config.compose import compose
from cab.efficiency import gpu
from cab.efficiency.benchmark import Plan, measure
from cab.efficiency.cost import Cost, write_costs
from cab.efficiency.machine import Machine, launch_seconds, seconds
from cab.efficiency.setting import Setting
from cab.efficiency.subjects import FUSED, AttentionSubject
from cab.efficiency.third_party import find_implementations
from cab.efficiency.workload import capture_graph
from cab.errors import Preempted, first_line
from cab.files.text_table import read_csv
from cab.patterns import Pattern
from cab.recipe import matmul_precision
from cab.registry.build import make_attention
from cab.runner.calibration import train_first_steps
from cab.runner.cell import Cell
from cab.runner.engine import make_initial_backbone
from cab.runner.evaluation import DeviceBatches
from cab.runner.provenance import hardware, revision, versions
from cab.runner.run import run_cell
from cab.spec import Spec
from cab.verification.compare import Operations, distance
from cab.verification.on_demand.kernels import LENGTHS, MARGIN, Agreement, agreements
from cab.verification.suite import subject_of
from tools.gpu.supervisor import Row
from tools.gpu.tuning import tune_quickly
from tools.validity.rollout import DTYPES, ledger

PAPER_VOCABULARY = 48520
"""Entries of the dictionary of PG-19."""


def start(device: str) -> None:
    """Prepare the process."""
    if device == "cuda":
        if find_spec("triton") is not None:
            tune_quickly()
        gpu.POWER_SECONDS = 0.1  # every attention is measured in several tables
        torch.cuda.synchronize()


def is_usable(device: str) -> bool:
    """Free the memory of a failed item, and return whether the GPU still computes."""
    gc.collect()
    try:
        if device == "cuda":
            torch.cuda.empty_cache()
            torch.zeros(1, device=device).item()
    except RuntimeError:
        return False
    return True


# --- the machine ------------------------------------------------------------------------------------------------------

GPU_FACTS = "name,driver_version,clocks.sm,clocks.max.sm,clocks.mem,power.draw,power.limit,temperature.gpu,memory.used"


def machine(item: str, device: str, folder: Path) -> list[Row]:  # noqa: ARG001
    """Return the versions of packages, and clocks, power and temperature of the GPU."""
    facts = {**versions(), **hardware(torch.device(device)), **revision()}
    facts |= {"CUDA": torch.version.cuda, "cuDNN": torch.backends.cudnn.version()}
    found = gpu.query(f"--query-gpu={GPU_FACTS}")
    facts |= dict(zip(GPU_FACTS.split(","), found[0], strict=False)) if found else {}
    return [{"fact": name, "value": str(value)} for name, value in facts.items()]


def roofs(item: str, device: str, folder: Path) -> list[Row]:  # noqa: ARG001
    """Return measured rates: of copies and products, of launches, or of softmax attention by backend."""
    measured = {"rates": _product_rates, "launches": _launches, "softmax": _softmax_rates}
    rates: Iterable[tuple[str, float | None, str]] = measured[item](device)
    return [{"rate": name, "value": value, "unit": unit} for name, value, unit in rates]


def _product_rates(device: str) -> Iterator[tuple[str, float, str]]:
    rates = {precision: _rates(precision, device) for precision in ("bf16", "tf32", "float32")}
    for precision, measured in rates.items():
        yield f"products, {precision}", measured["matmul_rate"] / 1e12, "TFLOP/s"
    yield "copies", rates["float32"]["bandwidth"] / 1e9, "GB/s"


def _rates(precision: str, device: str) -> dict[str, float]:
    """Return the rates of :class:`Machine` in bf16, tf32 or float32."""
    sampled = Machine(Setting(device=device, dtype="bfloat16" if precision == "bf16" else "float32"))
    with matmul_precision("high" if precision == "tf32" else "highest"):
        for _ in range(3):
            sampled.sample()
    return sampled.rates()


def _launches(device: str, count: int = 1000) -> Iterator[tuple[str, float, str]]:
    """Yield the time per kernel of one element, launched one by one and as a graph."""
    x = torch.zeros(1, device=device)

    def call() -> None:
        for _ in range(count):
            x.add_(1)

    for name, timed in (("launch", call), ("launch in a graph", capture_graph(call))):
        timed()
        _, until_the_end = launch_seconds(timed)
        yield name, 1e6 * until_the_end / count, "us"


def _softmax_rates(device: str) -> Iterator[tuple[str, float | None, str]]:
    batch, heads, length, width = (4, 8, 8192, 64) if device == "cuda" else (1, 1, 256, 64)
    q, k, v = (torch.randn(batch, heads, length, width, device=device, dtype=torch.bfloat16) for _ in range(3))
    operations = 2 * batch * heads * length**2 * width  # causal: half of the pairs
    for name in FUSED if device == "cuda" else ("flash",):
        with sdpa_kernel(getattr(SDPBackend, f"{name.upper()}_ATTENTION")):
            call = partial(F.scaled_dot_product_attention, q, k, v, is_causal=True)
            try:
                call()
                yield f"softmax, {name}", operations * 10 / seconds(call, 10, device) / 1e12, "TFLOP/s"
            except RuntimeError as error:  # not available
                yield f"softmax, {name}", None, first_line(error)


# --- correctness ------------------------------------------------------------------------------------------------------


def correctness(item: str, device: str, folder: Path) -> list[Row]:  # noqa: ARG001
    """Return the errors of a layer (``layer NAME``), or of the backends of its operations (``kernels NAME``).

    Without a row for a backend, the row of the attention says why.
    """
    kind, _, text = item.partition(" ")
    if kind == "layer":
        return [_layer_errors(text, device)]
    attention = AttentionSubject.parse(text)
    subject = subject_of(attention.cls, Pattern.CS, options=attention.options, device=device)
    worst: dict[tuple[str, str], Agreement] = {}
    for width, lengths in ((64, LENGTHS if device == "cuda" else LENGTHS[:1]), (128, LENGTHS[:1])):
        for found in agreements(subject, (width,), lengths):
            key = found.operation, found.backend
            worst[key] = max(worst.get(key, found), found, key=attrgetter("excess"))
    rows: list[Row] = [
        {"of": f"{text} {x.operation}", "backends": x.backend, **_error_columns(x.error, x.limit, x.where)}
        for x in worst.values()
    ]
    skipped = "; ".join(dict.fromkeys(subject.skipped))
    return [*rows, {"of": item, "backends": f"not checked: {skipped}"}] if skipped else rows


def _error_columns(error: float, limit: float, where: str) -> Row:
    return {"error": error, "limit": limit, "passed": error <= limit < math.inf, "at": where}


def _layer_errors(name: str, device: str) -> Row:
    """Return the worst error of a layer in bfloat16, relative to that of its readable form."""
    torch.manual_seed(0)
    dim, heads, length = (512, 8, 1030) if device == "cuda" else (128, 2, 131)
    layer = make_attention(Spec(name, {}), Pattern.CS, embed_dim=dim, num_heads=heads).to(device).eval()
    x = torch.randn(2, length, dim, device=device)
    with backends.use("pytorch"):
        wanted = _outputs(copy.deepcopy(layer).double(), x.double(), device)
        readable = [*map(distance, _outputs(layer, x, device), wanted)]
    with backends.used() as uses:
        errors = [*map(distance, _outputs(layer, x, device), wanted)]
    limits = [MARGIN * max(error, torch.finfo(torch.float32).eps) for error in readable]
    worst = max(range(len(errors)), key=lambda i: errors[i] / limits[i] if errors[i] < math.inf else math.inf)
    at = ["output", "input", *(name for name, _ in layer.named_parameters())][worst]
    return {"of": f"layer {name}", "backends": _text(uses), **_error_columns(errors[worst], limits[worst], at)}


def _outputs(layer: nn.Module, x: Tensor, device: str) -> list[Tensor]:
    """Return the output and the gradients of the input and of every parameter."""
    x = x.clone().requires_grad_()
    with torch.autocast(device, torch.bfloat16, enabled=x.dtype is torch.float32):
        output = layer(x)
    leaves = [x, *layer.parameters()]
    gradients = torch.autograd.grad(output.double().cos().sum(), leaves, allow_unused=True, materialize_grads=True)
    return [output.detach(), *gradients]


def _text(uses: backends.Uses) -> str:
    return "; ".join(sorted(f"{operation} {backend}" for operation, by in uses.counts.items() for backend in by))


STORED = Path(__file__).parents[2] / "attentions" / "backends.csv"
PRECISIONS = {
    "float32": (None, torch.float32),
    "autocast": (torch.bfloat16, torch.float32),
    "bfloat16": (None, torch.bfloat16),
}
"""As in the table: the dtype of autocast, if any, and of weights and inputs."""


def kernels(item: str, device: str, folder: Path) -> Iterator[Row]:  # noqa: ARG001
    """Yield the rows of attentions/backends.csv that differ here, of a pattern or of FlexAttention, then a count."""
    rows = [row for row in read_csv(STORED) if item == ("flex" if "flex" in row["backends"] else row["pattern"])]
    rows = [row for row in rows if device == "cuda" or row["attention"] == "gla"]
    different = 0
    for row in rows:
        try:
            here = _backends(row["attention"], row["pattern"], row["precision"], device, sees_sdpa=item != "flex")
        except Exception as error:
            here = {"backends": first_line(error)[:80]}
        wanted = {name: row[name] for name in here}
        if here != wanted:
            different += 1
            place = {name: row[name] for name in ("attention", "pattern", "precision")}
            yield {**place, **{f"{name} stored": wanted[name] for name in here}, **here}
    yield {"attention": f"{len(rows) - different} of {len(rows)} rows", "pattern": item, "backends": "equal"}


def _backends(name: str, pattern: str, precision: str, device: str, *, sees_sdpa: bool) -> dict[str, str]:
    autocast, dtype = PRECISIONS[precision]
    module = make_attention(Spec(name, {}), Pattern.parse(pattern), embed_dim=512, num_heads=8).to(device, dtype).eval()
    x, source = (torch.randn(2, 600, 512, device=device, dtype=dtype) for _ in range(2))
    inputs = (x, source, source) if pattern in ("NC", "CC") else (x,)
    names: set[str] = set()
    with (
        torch.no_grad(),
        torch.autocast(device, autocast, enabled=autocast is not None),
        backends.used() as uses,
        _Unseen(lambda func, *_: names.add(func._overloadpacket.__name__)) if sees_sdpa else contextlib.nullcontext(),
    ):
        module(*inputs)
    found = (re.fullmatch(r"_scaled_dot_product_(\w+?)_attention(_for_cpu)?", name) for name in names)
    sdpa = "; ".join(sorted({match[1] for match in found if match}))
    return {"backends": _text(uses), **({"sdpa": sdpa} if sees_sdpa else {})}


class _Unseen(Operations):
    @classmethod
    def is_infra_mode(cls) -> bool:
        """Stay invisible to code that declines its kernels while operators are counted."""
        return True


# --- costs ------------------------------------------------------------------------------------------------------------

COLUMNS = {"forward": "forward", "forward-graph": "graph", "forward+backward": "both"}
COLUMNS |= {"decode": "step", "decode-graph": "graph"}
"""Columns of the phases in the printed table."""


def costs(item: str, device: str, folder: Path) -> list[Row]:
    """Return the times of an attention, of its readable form, of its third-party layer, and of softmax attention."""
    if device == "cpu":
        return _costs(item, _setting(device, 1), ("forward", "forward+backward"), 64, folder)
    short = _costs(item, _setting(device, 8), ("forward", "forward-graph", "forward+backward"), 4096, folder)
    return short + _costs(item, _setting(device, 2), ("forward", "forward+backward"), 16_384, folder)


def decoding(item: str, device: str, folder: Path) -> list[Row]:
    """Return the times of an attention per decoded token, with and without a CUDA graph, after a prefix."""
    phases = ("decode", "decode-graph") if device == "cuda" else ("decode",)
    return _costs(item, _setting(device, 4), phases, 8192 if device == "cuda" else 64, folder)


def rollout(item: str, device: str, folder: Path) -> list[Row]:  # noqa: ARG001
    """Return the rows of the rollout ledger of an attention, for 512 tokens."""
    return [ledger(item, dtype, seed=0, length=512 if device == "cuda" else 64, device=device) for dtype in DTYPES]


def _setting(device: str, batch_size: int) -> Setting:
    if device == "cuda":
        return Setting(batch_size, device=device, dtype="bfloat16", repeats=5, time_limit=60.0)
    return Setting(1, embed_dim=64, num_heads=2, repeats=1)


def _costs(name: str, setting: Setting, phases: Sequence[str], length: int, folder: Path) -> list[Row]:
    """Return one row per form of an attention; all columns of its costs are in a file of their own."""
    subject, softmax = AttentionSubject.parse(name), AttentionSubject.parse("vanilla")
    named = [] if subject == softmax or "decode" in phases or length > 4096 else ["pytorch"]
    if subject == softmax and "decode" not in phases and setting.device == "cuda":
        named = [*FUSED]
    subjects = [subject] if subject == softmax else [softmax, subject]
    found = find_implementations([subject])[0] if "forward" in phases and setting.device == "cuda" else []
    others = [other for other in found if other.name == "fla-layer"]
    plan = Plan([*subjects, *map(subject.on, named)], others, [Pattern.CS], phases, [length], setting)
    table = folder / "costs" / f"{name}-{phases[0]}-{length}.csv"
    table.parent.mkdir(exist_ok=True)
    rows: dict[str, dict[str, object]] = {}
    with table.open("w", newline="") as file:
        for cost in write_costs(measure(plan, report=print), file):
            if cost.attention.partition("@")[0] == name:
                row = rows.setdefault(cost.attention, {"attention": cost.attention, "tokens": length})
                row |= _cells(cost)
    return [*rows.values()]


def _cells(cost: Cost) -> dict[str, object]:
    """Return the cells of a phase: milliseconds; of the longest phase without a graph also what they mean."""
    column = COLUMNS[cost.phase]
    if cost.seconds is None:
        return {column: cost.status, "why": cost.detail[:60]}
    cells: dict[str, object] = {column: 1e3 * cost.seconds}
    if cost.phase in ("forward+backward", "decode"):
        cells |= {"of softmax": cost.relative_to_softmax, "busy": cost.busy, "roof": cost.roof_share}
        cells["backends"] = " ".join(re.findall(r"=([^ ;]+)", cost.backends)) or None
    return cells


# --- training ---------------------------------------------------------------------------------------------------------

TRAINED: dict[str, tuple[str, ...]] = {
    "float32": ("trainer.precision=32-true", "trainer.float32_matmul_precision=highest"),
    "tf32": ("trainer.precision=32-true", "trainer.float32_matmul_precision=high"),
    "bf16": ("trainer.precision=bf16-mixed", "trainer.float32_matmul_precision=highest"),
}
TRAINED["compiled"] = (*TRAINED["bf16"], "trainer.compile=true")


def lm(item: str, device: str, folder: Path) -> list[Row]:  # noqa: ARG001
    """Return the time of a training step of LM at the paper's size, with four of its sixteen blocks per step.

    ``TFLOP/s`` counts the matrix products of the PyTorch form, three times those of a forward pass; ``of products`` is
    its share of the measured rate of one product in this precision.
    """
    attention, precision = item.split()
    cell, steps = lm_cell(attention, TRAINED[precision], device), 20
    if device == "cpu":
        cell, steps = _cell(["task=lm", "pattern=CS", f"attention={attention}", "preset=smoke"], device), 4
    row = {"attention": attention, "precision": precision, **_train(cell, steps, device)}
    rate = row.pop("FLOP") / row["ms per step"] / 1e9  # type: ignore[operator]
    peak = _rates({"compiled": "bf16"}.get(precision, precision), device)["matmul_rate"] / 1e12
    return [{**row, "TFLOP/s": rate, "of products": rate / peak}]


def lm_cell(attention: str, overrides: Sequence[str], device: str) -> Cell:
    """Return the cell of LM with generated books: for the time, the number of words matters, not the words."""
    words = ["task=lm", "pattern=CS", f"attention={attention}", "preset=paper", *overrides, "task.tokenizer=null"]
    cell = _cell([*words, "task.vocab_size=1000", "trainer.batch_size=4", "trainer.micro_batch_size=1"], device)
    task: Any = cell.task
    counts = np.pad(task.corpus.counts, (0, PAPER_VOCABULARY - len(task.corpus.counts)))
    task.corpus = dataclasses.replace(task.corpus, counts=counts)
    return cell


def tasks(item: str, device: str, folder: Path) -> list[Row]:  # noqa: ARG001
    """Return the synchronizations of three training steps of a task, and the lines that cause most of them."""
    task, _, backbone = item.partition(" ")
    words = [f"task={task}", f"pattern={'CS' if task == 'lm' else 'NS'}", "attention=vanilla", "preset=smoke"]
    words += [f"backbone={backbone}"] if backbone else []
    return [{"task": item, **_train(_cell(words, device), 3, device)}]


def _cell(overrides: Sequence[str], device: str) -> Cell:
    """Return the cell of a run on generated data, which are loaded; a checkpoint would read every weight."""
    overrides = [*overrides, "dataset=synthetic", f"device={device}", "trainer.checkpoint_every=1000"]
    cell = Cell.from_config(compose(overrides))
    cell.task.setup(None)
    return cell


PROFILED = 2
"""Last steps, whose kernels are recorded and which are not timed."""


def _train(cell: Cell, steps: int, device: str) -> dict[str, object]:
    """Train, and return the calls that wait for the GPU per step, and with at least four steps, times.

    Of these, the first quarter is neither timed nor recorded; of the last two, the kernels are recorded.
    """
    is_cuda, warm, timed = device == "cuda", steps // 4, steps - PROFILED
    marks: dict[int, float] = {}
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])

    def note(step: int, loss: Tensor) -> None:  # noqa: ARG001
        if is_cuda and warm and step in (warm, timed, steps):
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode("default")  # its warnings take time
        marks[step] = time.perf_counter()
        if is_cuda and warm and step in (timed, steps):
            profiler.stop() if step == steps else profiler.start()

    backbone = make_initial_backbone(cell).to(device)  # before the calls that wait are counted
    operations = _operations(cell, backbone, torch.device(device)) if warm else 0
    with _synchronizations(device) as found:
        train_first_steps(cell, backbone, steps, note, device=device)
    row: dict[str, object] = {"steps": steps}
    if warm:
        time_per_step = 1e3 * (marks[timed] - marks[warm]) / (timed - warm)
        row |= {"ms per step": time_per_step, "FLOP": operations}
    if is_cuda and warm:
        events = [event for event in profiler.events() or () if event.device_type.name == "CUDA"]
        busy = sum(event.time_range.elapsed_us() for event in events if not event.is_user_annotation) / 1e3 / PROFILED
        row |= {"busy": busy / time_per_step, "GiB": torch.cuda.max_memory_allocated() / 2**30}
    if is_cuda:
        row |= {"waits per step": sum(found.values()) / (warm or steps)}
        row |= {"at": " ".join(f"{place} {count}" for place, count in found.most_common(4))}
    return row


def _operations(cell: Cell, backbone: Backbone, device: torch.device) -> int:
    """Return the operations of matrix products in a training step."""
    trainer = cell.config.trainer
    rows = trainer.micro_batch_size or trainer.batch_size
    batch = DeviceBatches(device).first(cell.task.training_set, rows)
    backbone.to(device).train()
    with torch.no_grad(), backends.use("pytorch"), FlopCounterMode(display=False) as counted:
        cell.task.loss(backbone, batch)
    return 3 * counted.get_total_flops() * trainer.batch_size // rows


@contextlib.contextmanager
def _synchronizations(device: str) -> Iterator[Counter[str]]:
    """Count, per line of the program, the calls that wait for the GPU."""
    places: Counter[str] = Counter()

    def note(message: Any, category: Any, filename: str, lineno: int, *_: Any) -> None:  # noqa: ARG001
        if "synchronizing CUDA operation" in str(message):
            places[f"{'/'.join(Path(filename).parts[-2:])}:{lineno}"] += 1

    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = note  # type: ignore[assignment]
            yield places
    finally:
        if device == "cuda":
            torch.cuda.set_sync_debug_mode("default")


# --- Table 3 ----------------------------------------------------------------------------------------------------------


def table3(item: str, device: str, folder: Path) -> list[Row]:
    """Train and evaluate a run of Table 3, LSTF NC on ETT; one that has its record in ``records`` is not repeated."""
    seed, attention, dataset, features = item.split()
    words = ["task=lstf", f"dataset={dataset}", "backbone=informer", "pattern=NC", f"task.features={features}"]
    words += ["preset=paper", f"attention={attention}", f"seed={seed}", f"device={device}"]
    if device == "cpu":
        words += ["trainer.max_epochs=null", "trainer.max_steps=2", "trainer.validate_every=null"]
        words += ["trainer.patience=null", "trainer.checkpoint_selection=last"]
        words += ["trainer.batch_size=2", "task.limit=4", "task.evaluation_batch_size=4"]
    try:
        outcome = run_cell(compose([*words, f"results_dir={folder / 'records'}"]), command=f"cab run {' '.join(words)}")
    except Preempted as stop:  # after a checkpoint
        raise KeyboardInterrupt from stop
    assert outcome.record is not None
    metrics = {metric.name: metric.value for metric in outcome.record.metrics if metric.primary}
    row = {"seed": seed, "attention": attention, "dataset": dataset, "features": features}
    return [{**row, "status": outcome.record.status, **metrics, "seconds": outcome.record.cost.wall_seconds}]
