"""Rows of named backends, compiled modules and graphs: each has a time of what it names, or the reason for none."""

from __future__ import annotations

import argparse
import csv
import dataclasses
from collections.abc import Callable
from functools import partial, partialmethod
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from cab import Pattern, kernels
from cab.cli.efficiency import KERNELS, _kernel_checks, _plans, add_arguments
from cab.cli.main import main
from cab.efficiency import protocols, workload
from cab.efficiency.cost import Cost
from cab.efficiency.operations import Operations
from cab.efficiency.protocols import measure_length
from cab.efficiency.report import UNCHECKED, tables
from cab.efficiency.setting import Setting
from cab.efficiency.subjects import AttentionSubject
from cab.kernels import Backend, Operation
from cab.verification.kernels import Agreement
from cab.verification.subject import Subject
from tests.helpers.fake_subjects import Fake, Scores

SMALL = Setting(batch_size=2, embed_dim=8, num_heads=2, repeats=2)


def costs_of(path: Path, *arguments: str) -> dict[str, dict[str, str]]:
    sizes = ["--batch-size", "1", "--embed-dim", "32", "--num-heads", "2", "--repeats", "2", "--device", "cpu"]
    assert main(["efficiency", *arguments, *sizes, "--no-verify", "--out", str(path)]) == 0
    return {row["attention"]: row for row in csv.DictReader(path.open(newline=""))}


# --- named backends ---


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


class OnBackend(Fake):
    backend = ""

    @classmethod
    def of(cls, module: nn.Module, backend: str) -> OnBackend:
        subject = cls(f"square@{backend}", module)
        object.__setattr__(subject, "backend", backend)
        return subject


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
@pytest.mark.parametrize("phase", ["forward", "forward+backward", "forward-graph"])
def test_a_named_backend_computes_or_is_unsupported(
    phase: str, backend: str, ran: str, detail: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "_OPERATIONS", {})
    monkeypatch.setattr(workload, "capture_graph", lambda _: lambda: None)  # a replay calls no operation
    log: list[str] = []
    (cost,) = measure_length([OnBackend.of(Squaring(log), backend)], Pattern.NS, phase, 5, SMALL)
    assert {*log} <= ({ran} if ran else {"pytorch"})  # its reference ran before it was found that triton has none
    if ran:
        assert (cost.status, cost.backends) == ("ok", detail)
    else:
        assert (cost.status, cost.detail, cost.seconds, cost.backends) == ("unsupported", detail, None, "")


def test_a_triton_kernel_has_the_operations_of_its_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """It refuses where products are counted, since those in a kernel are not."""
    monkeypatch.setattr(kernels, "_OPERATIONS", {})
    module, counting, count_operations = Squaring([]), list[bool](), protocols.count_operations

    def count(call: Callable[[], object]) -> Operations:
        counting.append(True)
        return count_operations(call)

    monkeypatch.setattr(protocols, "count_operations", count)
    kernel = Backend("triton", torch.square, device="cpu", refuses=lambda _: "a counter" if counting else None)
    module.square.backends = (kernel,)
    case = protocols.Case(OnBackend.of(module, "triton"))
    protocols.attempt(case, partial(protocols.prepare, case, Pattern.NS, "forward", 5, SMALL), SMALL)
    assert (case.status, case.facts["backends"]) == ("ok", "square=triton")
    assert case.operations is not None
    assert case.operations.flops == 2 * 5 * 8


def test_rows_of_the_command(tmp_path: Path) -> None:
    names = ["gla", "--pattern", "CS", "--lengths", "70", "--kernels", "pytorch", "fla"]
    rows = costs_of(tmp_path / "costs.csv", *names)
    assert list(rows) == ["projections", "vanilla", "eager", "gla", "gla@pytorch", "gla@fla"]
    assert "recurrence=pytorch (fla: not on cuda)" in rows["gla"]["backends"]
    assert "recurrence=pytorch;" in rows["gla@pytorch"]["backends"]
    assert rows["gla@pytorch"]["flops"] == rows["gla"]["flops"]
    refused = {name: rows["gla@fla"][name] for name in ("status", "detail", "seconds", "relative_to_softmax")}
    reason = "fla does not compute recurrence: not on cuda"
    assert refused == {"status": "unsupported", "detail": reason, "seconds": "", "relative_to_softmax": ""}


def test_backends_of_the_command_are_those_of_the_registry() -> None:
    assert KERNELS == kernels.NAMES


def plan_of(*words: str) -> list[str]:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    (plan,) = _plans(parser.parse_args([*words, "--lengths", "5"]))
    return [subject.label for subject in plan.attentions]


def test_softmax_has_rows_of_its_kernels_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    fused = ["vanilla", "vanilla@flash", "vanilla@cudnn", "vanilla@efficient", "eager"]
    assert plan_of("abc", "--device", "cuda") == [*fused, "abc"]
    assert plan_of("abc", "--device", "cuda", "--kernels", "flash") == [*fused, "abc", "abc@flash"]
    assert plan_of("vanilla", "--device", "cuda", "--kernels", "flash") == fused
    assert plan_of("abc", "--device", "cuda", "--protocol", "paper") == ["vanilla", "eager", "abc"]
    assert plan_of("vanilla", "--device", "cpu", "--kernels", "flash") == ["vanilla", "vanilla@flash", "eager"]


def test_a_row_of_a_backend_is_verified_with_its_attention(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []
    monkeypatch.setattr("cab.verification.verify_attention", lambda name, *_, **__: asked.append(name) or [])
    monkeypatch.setattr("cab.records.verified.is_verified", lambda *_: False)
    command = ["efficiency", "abc", "--kernels", "pytorch", "fla", "--lengths", "5", "--embed-dim", "8"]
    assert main([*command, "--num-heads", "2", "--repeats", "1", "--device", "cpu", "--csv"]) == 0
    assert asked == ["vanilla", "eager", "abc"]
    assert "abc@fla" in capsys.readouterr().out


# --- compiled modules and graphs ---


def test_a_compiled_module_is_called_and_its_operations_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of ten modules and shapes, though Dynamo's limit is eight per code, by a compiler that does nothing."""
    compiled: list[torch.Size] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> torch.fx.GraphModule:
        compiled.extend(x.shape for x in inputs if x.dim() == 3)
        return graph

    monkeypatch.setattr(nn.Module, "compile", partialmethod(nn.Module.compile, backend=backend))
    config = torch._dynamo.config
    limits = {name: getattr(config, name) for name in ("recompile_limit", "accumulated_recompile_limit")}
    setting = Setting(**{**vars(SMALL), "compile": True})
    subjects = [Fake(f"scores{i}", type(f"Scores{i}", (Scores,), {})()) for i in range(5)]
    lengths = (5, 6)
    with config.patch(**limits):
        for length in lengths:
            for cost in measure_length(subjects, Pattern.NS, "forward", length, setting):
                assert cost.status == "ok"
                assert cost.product_flops == 2 * 2 * length**2 * 8
    assert sorted(shape[1] for shape in compiled) == [5] * 5 + [6] * 5


def test_rows_of_compiled_modules_are_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compiled: list[str] = []
    monkeypatch.setattr(nn.Module, "compile", lambda module, **_: compiled.append(type(module).__name__))
    rows = costs_of(tmp_path / "costs.csv", "vanilla", "--lengths", "5", "--compile")
    assert compiled == ["Projections", "VanillaAttention", "EagerAttention"]
    assert {row["compiled"] for row in rows.values()} == {"yes"}
    assert "torch.compile" in capsys.readouterr().out
    rows = costs_of(tmp_path / "eager.csv", "vanilla", "--lengths", "5")
    assert {row["compiled"] for row in rows.values()} == {""}


def test_a_graph_has_the_memory_and_operations_of_the_forward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay calls no operator and allocates nothing."""
    captured: list[object] = []
    monkeypatch.setattr(workload, "capture_graph", lambda call: captured.append(call) or (lambda: None))
    subject = AttentionSubject.parse("vanilla")
    (graph,), (plain,) = (
        measure_length([subject], Pattern.NS, phase, 9, SMALL) for phase in ("forward-graph", "forward")
    )
    assert len(captured) == 1
    assert (graph.bytes, graph.flops, graph.least_bytes) == (plain.bytes, plain.flops, plain.least_bytes)
    assert graph.seconds > 0


# --- an earlier table ---


def test_changes_from_an_earlier_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the time, only those beyond the percentiles of both tables are printed."""
    before = costs_of(tmp_path / "before.csv", "abc", "linear", "--lengths", "5")
    lines = (tmp_path / "before.csv").read_text().splitlines()
    assert "earlier table" not in capsys.readouterr().out

    def stored(name: str, p10: float, seconds: float, p90: float, size: float) -> str:
        row = {**before[name], "p10": p10, "seconds": seconds, "p90": p90, "bytes": int(size)}
        return ",".join(map(str, row.values()))

    size = {name: int(row["bytes"]) for name, row in before.items()}
    rows = [
        stored("vanilla", 1e-9, 2e-9, 3e-9, size["vanilla"]),
        stored("eager", 1.0, 2.0, 3.0, size["eager"] * 2),
        stored("abc", 1e-9, 1e-9, 1e-9, size["abc"]),  # without a spread
        stored("projections", 1e-9, 2.0, 3.0, size["projections"]),  # wide enough
    ]
    (tmp_path / "stored.csv").write_text("\n".join([lines[0], *rows]))
    plan = ("abc", "linear", "--lengths", "5", "--against", str(tmp_path / "stored.csv"))
    after = costs_of(tmp_path / "after.csv", *plan)
    changes = {name: row["change"] for name, row in after.items()}
    assert changes == {"projections": "", "vanilla": "slower", "eager": "faster", "abc": "", "linear": ""}
    for name in ("vanilla", "eager", "abc"):
        former = {"vanilla": 2e-9, "eager": 2.0, "abc": 1e-9}[name]
        assert float(after[name]["seconds_vs_former"]) == pytest.approx(
            float(after[name]["seconds"]) / former, rel=1e-4
        )
    assert (after["eager"]["bytes_vs_former"], after["abc"]["bytes_vs_former"]) == ("0.5", "1")
    assert after["linear"]["seconds_vs_former"] == after["linear"]["bytes_vs_former"] == ""
    output = capsys.readouterr()
    table = next(block for block in output.out.split("\n\n") if "earlier table" in block)
    assert [line.split()[0] for line in table.splitlines()[3:]] == ["vanilla", "eager"]
    assert "the earlier table with" not in output.err
    other = rows[0].replace(before["vanilla"]["hardware"], "another chip")
    (tmp_path / "stored.csv").write_text("\n".join([lines[0], other]))
    costs_of(tmp_path / "after.csv", *plan)
    assert "the earlier table with another chip" in capsys.readouterr().err


def test_the_setting_of_a_former_row_is_that_of_the_row(tmp_path: Path) -> None:
    costs_of(tmp_path / "before.csv", "vanilla", "--lengths", "5")
    plan = ("vanilla", "--lengths", "5", "--against", str(tmp_path / "before.csv"))
    assert costs_of(tmp_path / "same.csv", *plan)["vanilla"]["bytes_vs_former"] == "1"
    text = (tmp_path / "before.csv").read_text()
    (tmp_path / "before.csv").write_text(text.replace(",float32,", ",bfloat16,"))
    assert costs_of(tmp_path / "other.csv", *plan)["vanilla"]["bytes_vs_former"] == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no costs at"),
        ("attention,pattern\n", "has no columns"),
        (
            "attention,pattern,phase,length,status,seconds,bytes,p10,p90\na,NS,forward,5,oom,,,,\n",
            "no row of status ok",
        ),
    ],
)
def test_a_file_without_costs_is_an_error_before_the_measurement(
    text: str | None, message: str, tmp_path: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cab.efficiency.benchmark.measure", lambda *_, **__: pytest.fail("measured"))
    if text is not None:
        (tmp_path / "costs.csv").write_text(text)
    refused("efficiency", "vanilla", "--against", str(tmp_path / "costs.csv"), words=[message])


# --- backends that have not passed ---


def test_a_time_of_a_backend_that_has_not_passed_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each attention is checked once per pattern, and not at all if no backend ran."""
    asked: list[tuple[str, str]] = []

    def agreements(subject: Subject) -> list[Agreement]:
        asked.append((subject.name, str(subject.pattern)))
        found = [Agreement("recurrence", "fla", 0.5, 1.0, ""), Agreement("unit", "fla", 0.5, 1.0, "")]
        return [*found, Agreement("unit", "fla", 2.0, 1.0, "output")]

    monkeypatch.setattr("cab.verification.kernels.agreements", agreements)
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    plans = _plans(parser.parse_args(["gla", "--kernels", "fla", "--pattern", "CS", "--device", "cpu"]))
    cost = Cost("gla@fla", "CS", "forward", 64, seconds=1.0, backends="recurrence=fla (triton: no)")
    inexact = dataclasses.replace(cost, attention="gla", backends="recurrence=fla; unit=fla+pytorch")
    other = dataclasses.replace(cost, backends="recurrence=fla; rms_norm=fla")
    plain = dataclasses.replace(cost, attention="vanilla", backends="softmax=pytorch (flash: chosen by torch)")
    mark, unmarked = _kernel_checks(plans, runs=True), _kernel_checks(plans, runs=False)
    assert [mark(x).unchecked for x in (cost, inexact, other, plain)] == [
        "", "unit=fla (error 2.0e+00 > 1.0e+00, output)", "rms_norm=fla (not checked)", "",
    ]  # fmt: skip
    assert asked == [("gla", "CS")]
    assert unmarked(cost).unchecked == "recurrence=fla (not checked)"
    assert UNCHECKED in tables([mark(inexact)])
    assert "1e+03†" in tables([mark(inexact)])
    assert UNCHECKED not in tables([mark(cost)])
