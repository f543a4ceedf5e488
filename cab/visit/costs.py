"""Parts (d) and (e): time and memory against length, and the training of GPT-2 at the paper's size."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cab.efficiency.benchmark import Plan, measure
from cab.efficiency.cost import Cost
from cab.efficiency.failures import status_of
from cab.efficiency.gpu_state import refuse_when_shared
from cab.efficiency.operations import count_operations
from cab.efficiency.peers import find_peers
from cab.efficiency.roof import Machine
from cab.efficiency.setting import Setting
from cab.efficiency.subjects import BASELINES, AttentionSubject
from cab.efficiency.timing import seconds
from cab.efficiency.workload import BACKWARD
from cab.patterns import Pattern
from cab.registry.build import build_backbone
from cab.visit.visit import Visit

log = logging.getLogger(__name__)

LENGTHS = (512, 2048, 8192, 16384, 32768, 65536)
MEASURED = (
    *("flash", "local:window_size=128", "linear", "performer", "abc", "cosformer", "longshort", "s4d", "retention"),
    *("gla", "deltanet", "gated_deltanet", "ssd", "rwkv6", "based", "nystromformer"),
)
BLOCKS = (
    (Pattern.CS, "forward+backward"),
    (Pattern.NS, "forward+backward"),
    (Pattern.CS, "decode"),
    (Pattern.CS, "decode-graph"),
    (Pattern.CS, "forward"),
    (Pattern.NS, "forward"),
)


def efficiency(visit: Visit) -> None:
    """All patterns and phases at one length before the next, so that what is cut off are the longest sequences."""
    for cost in costs(visit):
        visit.write("efficiency", **vars(cost))


def costs(visit: Visit) -> Iterator[Cost]:
    short = visit.short
    if visit.device == "cuda":
        refuse_when_shared()
    setting = Setting(
        batch_size=1, embed_dim=32 if short else 512, num_heads=4 if short else 8, device=visit.device,
        dtype=visit.low, repeats=1 if short else 5,
    )  # fmt: skip
    subjects = [AttentionSubject.parse(text) for text in (*BASELINES, *(("linear",) if short else MEASURED))]
    peers, notes = find_peers(subjects)
    for note in notes:
        log.info(note)
    blocks = [block for block in BLOCKS if visit.device == "cuda" or block[1] != "decode-graph"]
    for length, (pattern, phase) in itertools.product((64,) if short else LENGTHS, blocks):
        chosen = [subject for subject in subjects if pattern in subject.patterns]
        plan = Plan(chosen, [] if short else peers, [pattern], [phase], [length], setting)
        yield from measure(plan, report=log.info)


@dataclass(frozen=True)
class Size:
    """The network, tokens of a row and rows of a batch that are trained; the paper's where nothing is said."""

    length: int = 8192
    batch_size: int = 4
    options: tuple[tuple[str, int], ...] = ()
    vocab_size: int = 48520
    steps: int = 8


SHORT = Size(64, 2, (("embed_dim", 32), ("num_heads", 4), ("ffn_dim", 64), ("num_layers", 2)), 300, 2)


def throughput(visit: Visit) -> None:
    """Steps of AdamW on random tokens; eager and compiled."""
    if visit.device == "cuda":
        refuse_when_shared()
    fastest = "flash" if visit.device == "cuda" else "vanilla"
    attentions = (fastest,) if visit.short else (fastest, "vanilla", "local", "linear")
    size = SHORT if visit.short else Size()
    machine = Machine(Setting(device=visit.device, dtype=visit.low))
    for _ in range(3):
        machine.sample()
    rate = machine.rates()["matmul_rate"]
    for form, attention in itertools.product(("eager", "compiled"), attentions):
        row = {"attention": attention, "form": form, "dtype": visit.low, "length": size.length}
        row |= {"batch_size": size.batch_size, "matmul_rate": rate}
        try:
            facts = train(attention, form, size, visit)
            facts["utilisation"] = facts["flops"] / facts["step_seconds"] / rate
            visit.write("throughput", **row, status="ok", **facts)
        except Exception as error:
            status, detail = status_of(error)
            visit.write("throughput", **row, status=status, detail=detail)


def train(attention: str, form: str, size: Size, visit: Visit) -> dict[str, Any]:
    """Seconds of a step and of its parts, and the operations of the algorithm in it (forward and backward)."""
    from cab.verification.memory import peak_bytes

    device = visit.device
    torch.manual_seed(0)
    spec = {"name": attention, **({"window_size": 128} if attention == "local" else {})}
    options: dict[str, Any] = {
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "vocab_size": size.vocab_size,
        **dict(size.options),
    }
    network = build_backbone("gpt2", attention=spec, pattern="CS", **options).to(device).train()
    called = network if form == "eager" else torch.compile(network, backend=visit.compiler)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, fused=device == "cuda")
    tokens = torch.randint(5, size.vocab_size, (size.batch_size, size.length + 1), device=device)
    state: dict[str, Tensor] = {}

    def loss(network: Any) -> Tensor:
        with torch.autocast(device, torch.bfloat16, enabled=visit.low == "bfloat16"):
            losses: Tensor = network(tokens[:, :-1], targets=tokens[:, 1:])
            return losses.mean()

    def forward() -> None:
        state["loss"] = loss(called)

    def backward() -> None:
        state.pop("loss").backward()

    def update() -> None:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def step() -> None:
        forward()
        backward()
        update()

    flops = BACKWARD * count_operations(lambda: loss(network)).flops
    step()
    memory = peak_bytes(step, device)
    parts = {"forward": forward, "backward": backward, "optimizer": update}
    times = [{name: seconds(part, 1, device) for name, part in parts.items()} for _ in range(size.steps)]
    medians = {name: sorted(time[name] for time in times)[len(times) // 2] for name in parts}
    whole = seconds(step, size.steps, device) / size.steps
    tokens_per_second = size.batch_size * size.length / whole
    return {
        **medians,
        "step_seconds": whole,
        "tokens_per_second": tokens_per_second,
        "flops": flops,
        "bytes": memory,
    }
