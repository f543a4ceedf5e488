"""Rows of named backends, compiled modules and graphs: each has a time of what it names, or the reason for none."""

import argparse
import dataclasses
from functools import partial, partialmethod
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cab import Pattern, kernels
from cab.cli.efficiency import BACKENDS, _kernel_checks, _plans, add_arguments
from cab.efficiency import protocols, workload
from cab.efficiency.benchmark import Plan
from cab.efficiency.cost import Cost, Former, write_costs
from cab.efficiency.protocols import measure_length
from cab.efficiency.report import UNCHECKED, tables
from cab.efficiency.setting import Setting
from cab.efficiency.subjects import AttentionSubject
from cab.kernels import Backend, Operation
from cab.verification.on_demand.kernels import Agreement
from cab.verification.subject import Subject
from tests.helpers.fake_subjects import Fake, Scores

SMALL = Setting(batch_size=2, embed_dim=8, num_heads=2, repeats=2)


class Squaring(nn.Module):
    """Squares by an operation; of its backends, "fla" refuses, and "flash" computes only if it is named."""

    def __init__(self, log: list[str]) -> None:
        super().__init__()

        def run(name: str, x: Tensor) -> Tensor:
            log.append(name)
            return x * x

        refuses = Backend("fla", partial(run, "fla"), device="cpu", refuses=lambda _: "squares")
        flash = Backend("flash", partial(run, "flash"), device="cpu", declines=lambda _: "slow")
        self.square = Operation("square", partial(run, "pytorch"), refuses, flash)

    def forward(self, query: Tensor) -> Tensor:
        return self.square(query)


@pytest.mark.parametrize(
    ("backend", "ran", "detail"),
    [
        ("", "pytorch", "square=pytorch (fla: squares) (flash: slow)"),
        ("pytorch", "pytorch", "square=pytorch"),
        ("flash", "flash", "square=flash"),
        ("fla", "", "fla does not compute square: squares"),
        ("triton", "", "triton computes none of its operations (square)"),
    ],
)
@pytest.mark.parametrize("phase", ["forward+backward", "forward-graph"])
def test_a_named_backend_computes_or_is_unsupported(phase, backend, ran, detail, monkeypatch):
    monkeypatch.setattr(kernels, "_OPERATIONS", {})
    monkeypatch.setattr(workload, "capture_graph", lambda _: lambda: None)  # a replay calls no operation
    log: list[str] = []
    (cost,) = measure_length([Fake("square", Squaring(log), backend=backend)], Pattern.NS, phase, 5, SMALL)
    assert {*log} <= ({ran} if ran else {"pytorch"})  # its reference ran before it was found that triton has none
    if ran:
        assert (cost.status, cost.backends) == ("ok", detail)
    else:
        assert (cost.status, cost.detail, cost.seconds, cost.backends) == ("unsupported", detail, None, "")


def test_a_triton_kernel_has_the_operations_of_its_reference(monkeypatch):
    """It refuses where products are counted, since those in a kernel are not."""
    monkeypatch.setattr(kernels, "_OPERATIONS", {})
    module, counting, count = Squaring([]), list[bool](), protocols.count_operations
    monkeypatch.setattr(protocols, "count_operations", lambda call: counting.append(True) or count(call))
    kernel = Backend("triton", torch.square, device="cpu", refuses=lambda _: "a counter" if counting else None)
    module.square.backends = (kernel,)
    case = protocols.Case(Fake("square", module, backend="triton"))
    protocols.attempt(case, partial(protocols.prepare, case, Pattern.NS, "forward", 5, SMALL), SMALL)
    assert (case.status, case.facts["backends"]) == ("ok", "square=triton")
    assert case.operations.flops == 2 * 5 * 8


def plans_of(words: str) -> list[Plan]:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return _plans(parser.parse_args(words.split()))


def test_backends_of_the_command_are_those_of_the_registry():
    assert BACKENDS == kernels.NAMES


def test_softmax_has_rows_of_its_kernels_on_cuda(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    fused = "vanilla vanilla@flash vanilla@cudnn vanilla@efficient eager"
    labels = {
        "abc --device cuda": f"{fused} abc",
        "abc --device cuda --kernels flash": f"{fused} abc abc@flash",
        "vanilla --device cuda --kernels flash": fused,
        "abc --device cuda --protocol paper": "vanilla eager abc",
        "vanilla --device cpu --kernels flash": "vanilla vanilla@flash eager",
    }
    for words, expected in labels.items():
        [plan] = plans_of(f"{words} --lengths 5")
        assert " ".join(subject.label for subject in plan.attentions) == expected, words


def test_a_compiled_module_is_called_and_its_operations_are_counted(monkeypatch):
    """Each of four modules and shapes, though Dynamo's limit is one per code, by a compiler that does nothing."""
    compiled: list[torch.Size] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> torch.fx.GraphModule:
        compiled.extend(x.shape for x in inputs if x.dim() == 3)
        return graph

    monkeypatch.setattr(nn.Module, "compile", partialmethod(nn.Module.compile, backend=backend))
    setting = Setting(**{**vars(SMALL), "compile": True})
    subjects = [Fake(f"scores{i}", type(f"Scores{i}", (Scores,), {})()) for i in range(2)]
    with torch._dynamo.config.patch(recompile_limit=1, accumulated_recompile_limit=1):
        for length in (5, 6):
            for cost in measure_length(subjects, Pattern.NS, "forward", length, setting):
                assert cost.status == "ok"
                assert cost.product_flops == 2 * 2 * length**2 * 8
    assert sorted(shape[1] for shape in compiled) == [5, 5, 6, 6]


def test_a_graph_has_the_memory_and_operations_of_the_forward_pass(monkeypatch):
    """A replay calls no operator and allocates nothing."""
    captured: list[object] = []
    monkeypatch.setattr(workload, "capture_graph", lambda call: captured.append(call) or (lambda: None))
    subject = AttentionSubject.parse("vanilla")
    graph, plain = (measure_length([subject], Pattern.NS, p, 9, SMALL)[0] for p in ("forward-graph", "forward"))
    assert len(captured) == 1
    assert (graph.bytes, graph.flops, graph.least_bytes) == (plain.bytes, plain.flops, plain.least_bytes)
    assert graph.seconds > 0


def test_changes_from_an_earlier_table(tmp_path):
    """Of costs with the same setting; the time changes if the percentiles of both tables do not overlap."""
    before = Cost("abc", "CS", "forward", 5, seconds=2.0, bytes=100, p10=1.0, p90=3.0, dtype="float32")
    flat = dataclasses.replace(before, attention="flat", p10=2.0, p90=2.0)  # without a spread
    with (tmp_path / "costs.csv").open("w") as file:
        list(write_costs([before, flat], file))
    former = Former.read(tmp_path / "costs.csv")

    def changed(cost: Cost, seconds: float, **more: Any) -> tuple[float | None, float | None, str]:
        now = dataclasses.replace(cost, seconds=seconds, bytes=50, p10=seconds - 0.5, p90=seconds + 0.5, **more)
        compared = former.compare(now)
        return compared.seconds_vs_former, compared.bytes_vs_former, compared.change

    assert changed(before, 4.0) == (2.0, 0.5, "slower")
    assert changed(before, 0.4) == (0.2, 0.5, "faster")
    assert changed(before, 3.0) == (1.5, 0.5, "")
    assert changed(flat, 4.0) == (2.0, 0.5, "")
    for other in ({"dtype": "bfloat16"}, {"length": 6}, {"batch_size": 2}, {"status": "oom"}):
        assert changed(before, 4.0, **other) == (None, None, "")


def test_a_time_of_a_backend_that_has_not_passed_is_marked(monkeypatch):
    """Each attention is checked once per pattern, and not at all if no backend ran."""
    asked: list[tuple[str, str]] = []

    def agreements(subject: Subject) -> list[Agreement]:
        asked.append((subject.name, str(subject.pattern)))
        errors = (("recurrence", 0.5, ""), ("unit", 0.5, ""), ("unit", 2.0, "output"))
        return [Agreement(operation, "fla", error, 1.0, part) for operation, error, part in errors]

    monkeypatch.setattr("cab.verification.on_demand.kernels.agreements", agreements)
    plans = plans_of("gla --kernels fla --pattern CS --device cpu")
    cost = Cost("gla@fla", "CS", "forward", 64, seconds=1.0, backends="recurrence=fla (triton: no)")
    inexact = dataclasses.replace(cost, attention="gla", backends="recurrence=fla; unit=fla+pytorch")
    other = dataclasses.replace(cost, backends="recurrence=fla; rms_norm=fla")
    plain = dataclasses.replace(cost, attention="vanilla", backends="softmax=pytorch (flash: chosen by torch)")
    mark, unmarked = _kernel_checks(plans, runs=True), _kernel_checks(plans, runs=False)
    found = ["", "unit=fla (error 2.0e+00 > 1.0e+00, output)", "rms_norm=fla (not checked)", ""]
    assert [mark(x).unchecked for x in (cost, inexact, other, plain)] == found
    assert asked == [("gla", "CS")]
    assert unmarked(cost).unchecked == "recurrence=fla (not checked)"
    assert UNCHECKED in tables([mark(inexact)])
    assert "1e+03†" in tables([mark(inexact)])
    assert UNCHECKED not in tables([mark(cost)])
