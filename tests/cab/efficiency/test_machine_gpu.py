"""Time on a GPU, with fakes in its place: what is waited for, what is timed, what is asked of nvidia-smi."""

import contextlib
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent
from torch.overrides import TorchFunctionMode

from cab import kernels
from cab.efficiency import benchmark, gpu, machine, protocols
from cab.efficiency.benchmark import Plan, measure
from cab.efficiency.cost import LAUNCH_BOUND, Cost
from cab.efficiency.gpu import clock_facts, refuse_when_shared
from cab.efficiency.machine import Machine
from cab.efficiency.protocols import Case, measure_length
from cab.efficiency.report import LAUNCHES, tables
from cab.efficiency.setting import Setting
from cab.efficiency.workload import Workload
from cab.patterns import Pattern

SMI = """#!/bin/sh
echo "$@" >> {folder}/asked
case "$*" in
    *compute-apps*) cat {folder}/processes ;;
    *clocks_event_reasons*) {newer} ;;
esac
"""


@pytest.fixture
def smi(tmp_path, monkeypatch):
    """A folder with a fake nvidia-smi that comes first; ``processes`` has what it says of processes."""
    write_smi(tmp_path, 'echo "1410, 1980, 88, 0x0000000000000044"')
    (tmp_path / "processes").write_text("")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path


def write_smi(folder: Path, newer: str) -> None:
    path = folder / "nvidia-smi"
    path.write_text(SMI.format(folder=folder, newer=newer))
    path.chmod(0o755)


def test_clocks_and_reasons_are_read(smi, monkeypatch):
    facts = {"clock": 1410, "clock_most": 1980, "temperature": 88, "throttled": "power limit, hardware thermal limit"}
    assert clock_facts() == facts
    assert "-i 0" in (smi / "asked").read_text()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    clock_facts()
    assert "-i 3" in (smi / "asked").read_text()
    write_smi(smi, 'echo "Field is not a valid field to query" >&2; exit 2')
    assert clock_facts() == {}
    write_smi(smi, 'echo "[N/A], [N/A], 41, [N/A]"')
    assert clock_facts() == {"clock": 0, "clock_most": 0, "temperature": 41, "throttled": ""}
    monkeypatch.setenv("PATH", "/nowhere")
    assert clock_facts() == {}
    refuse_when_shared()


class Gpu:
    """A host that queues kernels, and a device that runs them one after another; times in seconds."""

    LAUNCH, FLUSH = 5e-6, 50e-6

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        self.host = self.device = 0.0
        self.kernels: list[FunctionEvent] = []
        cache = SimpleNamespace(zero_=lambda: self.launch("flush", self.FLUSH), numel=lambda: 2 * 1000)
        patch.setattr(machine, "second_level_cache", lambda: cache)
        patch.setattr(torch.profiler, "profile", self.profile)
        patch.setattr(machine, "Event", lambda **_: Event(self))
        patch.setattr(torch.cuda, "synchronize", self.wait)
        for module in (machine, gpu):
            patch.setattr(module, "perf_counter", lambda: self.host)

    def launch(self, name: str, seconds: float) -> None:
        self.log.append(name)
        self.host += self.LAUNCH
        begin = max(self.host, self.device)
        self.device = begin + seconds
        times = {"start_us": begin * 1e6, "end_us": self.device * 1e6}
        self.kernels.append(FunctionEvent(0, name, 0, **times, device_type=DeviceType.CUDA))

    def wait(self, *_: object) -> None:
        self.log.append("wait")
        self.host = max(self.host, self.device)

    @contextlib.contextmanager
    def profile(self, **_: object) -> Iterator[Any]:
        self.kernels.clear()
        call = {"start_us": 0.0, "end_us": 1e6}
        region = FunctionEvent(0, "kernels of fla", 0, **call, device_type=DeviceType.CUDA, is_user_annotation=True)
        yield SimpleNamespace(events=lambda: [*self.kernels, region, FunctionEvent(1, "aten::mm", 0, **call)])


class Event:
    def __init__(self, device: Gpu) -> None:
        self.device = device

    def record(self) -> None:
        self.device.log.append("event")
        self.at = max(self.device.host, self.device.device)

    def elapsed_time(self, other: "Event") -> float:
        return 1e3 * (other.at - self.at)


def test_only_the_call_is_timed_each_with_a_cold_cache(monkeypatch):
    device = Gpu(monkeypatch)
    seconds = machine.seconds(lambda: device.launch("call", 2e-3), 3, "cuda")
    assert seconds == pytest.approx(6e-3)
    assert device.log == ["wait", *["flush", "event", "call", "event"] * 3, "wait"]


def test_time_of_the_host_ends_when_all_is_queued(monkeypatch):
    device = Gpu(monkeypatch)
    device.launch("earlier", 1.0)  # is not counted
    queued, ended = machine.launch_seconds(lambda: [device.launch("call", 1e-3) for _ in range(3)])
    assert queued == pytest.approx(3 * Gpu.LAUNCH)
    assert ended == pytest.approx(Gpu.LAUNCH + 3e-3)


def test_kernels_of_a_call_are_not_its_regions_and_have_short_names(monkeypatch):
    device = Gpu(monkeypatch)
    cat, product = "void at::native::(anonymous namespace)::cat<float, 4>(int)", "nvjet_hsh_128x256_NT"
    launched = {cat: 5e-6, product: 9e-6, "cat": 6e-6, "Memset (Device)": 1e-6}
    case = Case(Steps(device, "a", []), Workload(lambda: [device.launch(*pair) for pair in launched.items()]))
    monkeypatch.setattr(protocols, "power_and_energy", lambda *_: None)
    protocols.observe(case, 1)
    assert case.facts == {"device_kernels": f"cat 2; {product} 1; Memset 1"}  # the slowest first
    assert case.kernel_seconds == pytest.approx(21e-6)
    assert kernels.device_kernels(case.workload.call) == sorted([cat, product, "cat"])


class Steps:
    """A module of which each call launches kernels of some seconds each."""

    kind, patterns, complexity = "attention", tuple(Pattern), ""

    def __init__(self, device: Gpu, label: str, kernels: list[float], tokens: int = 1) -> None:
        self.label = label
        call = partial(self.call, device, kernels)
        self.phases = dict.fromkeys(("forward", "decode"), lambda *_: Workload(call, tokens, 100))

    def call(self, device: Gpu, kernels: list[float]) -> None:
        for seconds in kernels:
            device.launch(self.label, seconds)

    def build(self, *_: object) -> nn.Module:
        return nn.Identity()


@pytest.fixture
def cuda(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(protocols, "power_and_energy", lambda *_: (500.0, 3.0))
    return Gpu(monkeypatch)


CUDA = {"batch_size": 2, "embed_dim": 8, "num_heads": 2, "device": "cuda"}
SLOWER = "1e+03 ms is less than the 1.01e+03 ms of the roofline (memory)"


def test_a_call_that_waits_for_launches_is_marked(cuda):
    """A hundred kernels of 1 us wait for 5 us each, those of 50 us do not."""
    subjects = [Steps(cuda, "short", [1e-6] * 100), Steps(cuda, "long", [50e-6] * 100), Steps(cuda, "sum", [50e-6], 4)]
    short, long, tokens = measure_length(subjects, Pattern.NS, "forward", 5, Setting(**CUDA, repeats=3))
    assert [short.host_seconds, long.host_seconds] == pytest.approx([100 * Gpu.LAUNCH] * 2)
    assert short.busy == pytest.approx(100e-6 / (100 * Gpu.LAUNCH + 1e-6))
    assert long.busy == pytest.approx(5e-3 / (5e-3 + Gpu.LAUNCH))
    assert (short.detail, long.detail) == (LAUNCH_BOUND, "")
    assert short.status == "ok"
    assert short.device_kernels == "short 100"
    assert tokens.host_seconds == pytest.approx(Gpu.LAUNCH / 4)
    assert (tokens.power, tokens.joules_per_token) == (500.0, pytest.approx(3.0 / (2 * 5)))
    assert LAUNCHES in tables([short])
    assert LAUNCHES not in tables([long])


def test_others_are_relative_to_the_fastest_softmax_kernel(cuda):
    times = {"vanilla": 4e-3, "vanilla@flash": 2e-3, "vanilla@cudnn": 1e-3, "abc": 0.5e-3, "abc@pytorch": 3e-3}
    subjects = [Steps(cuda, label, [seconds]) for label, seconds in times.items()]
    costs = measure_length(subjects, Pattern.NS, "forward", 5, Setting(**CUDA, repeats=3))
    assert {cost.fastest_softmax for cost in costs} == {"vanilla@cudnn"}
    assert [cost.relative_to_softmax for cost in costs] == pytest.approx([4, 2, 1, 0.5, 3])
    assert "ms per call (relative to the fastest softmax kernel)" in tables(costs)


def test_every_shape_is_called_before_the_first_round(cuda, monkeypatch):
    def measured(subjects: list[Steps], *_: object, **__: object) -> list[Cost]:
        cuda.log.append(f"measure {len(subjects)}")
        return []

    monkeypatch.setattr(benchmark, "constants", lambda _: {})
    monkeypatch.setattr(benchmark, "measure_length", measured)
    monkeypatch.setattr(benchmark, "ProjectionsSubject", lambda: Steps(cuda, "maps", [1e-3]))
    plan = Plan([], [Steps(cuda, "a", [1e-3])], [Pattern.NS], ["forward"], [5, 7], Setting(**CUDA))
    list(measure(plan))
    assert cuda.log == ["maps", "a", "maps", "a", "measure 2", "measure 2"]


@pytest.mark.parametrize(
    ("least", "status", "detail"), [(1000 + 8999, "ok", ""), (1000 + 11_200, "impossible", SLOWER)]
)
def test_a_time_below_the_roofline_is_a_status(cuda, least, status, detail):
    """Of a call of 1 s at 10,000 bytes/s, when 1,000 bytes fit into the cache; rates may be 10% too low."""
    module = Machine(Setting(**CUDA, repeats=1))
    module.products, module.copies = [1.0], [2 * machine.COPIED_BYTES["cuda"] / 10_000]
    module.sample = lambda: None  # type: ignore[method-assign]
    subject = Steps(cuda, "vanilla", [1.0])
    subject.phases["forward"] = lambda *_: Workload(lambda: subject.call(cuda, [1.0]), 1, 1, least_bytes=least)
    subjects = [subject, Steps(cuda, "abc", [2.0])]
    setting = Setting(**CUDA, repeats=2)
    vanilla, abc = measure_length(subjects, Pattern.NS, "forward", 5, setting, machine=module)
    assert (vanilla.status, vanilla.detail) == (status, detail)
    assert (vanilla.seconds is None) == (abc.relative_to_softmax is None) == (status == "impossible")


class Nvml(ModuleType):
    """nvidia-ml-py of a GPU that draws ``watts``; its counter changes every 100 ms."""

    NVMLError = RuntimeError

    def __init__(self, device: Gpu, watts: float) -> None:
        super().__init__("pynvml")
        self.nvmlInit = lambda: None
        self.nvmlDeviceGetHandleByUUID = lambda name: name
        self.nvmlDeviceGetTotalEnergyConsumption = lambda _: int(1e3 * watts * (device.host // 0.1) * 0.1)


def test_energy_is_read_where_the_counter_changes(monkeypatch):
    device = Gpu(monkeypatch)
    monkeypatch.setattr(gpu, "find_spec", lambda _: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda: SimpleNamespace(uuid="0f"))
    monkeypatch.setitem(sys.modules, "pynvml", Nvml(device, 400.0))
    measured = gpu.power_and_energy(lambda: device.launch("call", 0.7e-3), 10)
    assert measured == pytest.approx((400.0, 400.0 * 0.7e-3), rel=0.02)
    assert device.host < 0.7
    monkeypatch.setitem(sys.modules, "pynvml", Nvml(device, 0.0))  # it never changes
    assert gpu.power_and_energy(lambda: device.launch("call", 0.7e-3), 10) is None


class OnCpu(TorchFunctionMode):
    """Computes on the CPU what is requested on CUDA, and launches a kernel for each function."""

    def __init__(self, device: Gpu) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(self, function: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        def placed(x: Any) -> Any:
            return "cpu" if isinstance(x, str | torch.device) and str(x) == "cuda" else x

        self.device.launch(function.__name__, 1e-6)
        named = {name: placed(x) if name == "device" else x for name, x in (kwargs or {}).items()}
        return function(*map(placed, args), **named)


@pytest.mark.usefixtures("smi")
def test_the_command_runs_as_on_a_gpu(cuda, monkeypatch, efficiency):
    """Every phase, with the columns of a GPU in each row that was measured."""
    monkeypatch.setattr("cab.efficiency.workload.capture_graph", lambda call: call)
    monkeypatch.setattr("cab.runner.provenance.hardware", lambda _: {"gpu": "fake", "threads": 1})
    for module in ("protocols", "workload"):
        monkeypatch.setattr(f"cab.efficiency.{module}.peak_bytes", lambda *_: 100)
    monkeypatch.setattr(Machine, "_time", lambda machine: (machine.products.append(1e-9), machine.copies.append(1e-9)))
    phases = ["--phase", "forward", "forward-graph", "forward+backward", "prefill", "decode", "decode-graph"]
    names = ["linear", "--kernels", "pytorch", "--pattern", "CS", "--device", "cuda", "--lengths", "5"]
    with OnCpu(cuda):
        rows, _ = efficiency(*names, *phases)
    assert {row["phase"] for row in rows} == {*phases[1:]}
    statuses = {row["attention"]: row["status"] for row in rows if row["phase"] == "forward"}
    unsupported = dict.fromkeys(("vanilla@flash", "vanilla@cudnn", "vanilla@efficient"), "unsupported")
    measured = dict.fromkeys(("projections", "vanilla", "eager", "linear", "linear@pytorch"), "ok")
    assert statuses == measured | unsupported
    [graph] = [row for row in rows if (row["phase"], row["attention"]) == ("decode-graph", "vanilla")]
    assert graph["detail"] == "the decoding state grows, which CUDA graphs do not support"
    for row in (row for row in rows if row["status"] == "ok"):
        numbers = [row[name] for name in ("seconds", "host_seconds", "busy", "power", "joules_per_token", "clock")]
        assert all(float(text) > 0 for text in numbers), row
        assert row["device_kernels"]
        assert row["detail"] == LAUNCH_BOUND  # kernels of 1 us, launched in 5
