"""Time on a GPU, with fakes in its place: what is waited for, what is timed, what is asked of nvidia-smi."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cab.cli.main import main
from cab.efficiency import benchmark, machine
from cab.efficiency.benchmark import Plan, measure
from cab.efficiency.cost import Cost
from cab.efficiency.machine import Machine, clock_facts, refuse_when_shared
from cab.efficiency.setting import Setting
from cab.patterns import Pattern

SMI = """#!/bin/sh
echo "$@" >> {folder}/asked
case "$*" in
    *compute-apps*) cat {folder}/processes ;;
    *clocks_event_reasons*) {newer} ;;
esac
"""


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
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


def test_clocks_and_reasons_are_read(smi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"clock": 1410, "clock_most": 1980, "temperature": 88, "throttled": "power limit, hardware thermal limit"}
    assert clock_facts() == facts
    assert "-i 0" in (smi / "asked").read_text()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    clock_facts()
    assert "-i 3" in (smi / "asked").read_text()
    write_smi(smi, 'echo "Field is not a valid field to query" >&2; exit 2')
    assert clock_facts() == {}
    write_smi(smi, 'echo "[N/A], [N/A], 41, [N/A]"')
    assert clock_facts() == {"clock": 0, "clock_most": 0, "temperature": 41, "throttled": ""}
    monkeypatch.setenv("PATH", "/nowhere")
    assert clock_facts() == {}
    refuse_when_shared()


def test_the_command_asks_before_it_measures(
    smi: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (smi / "processes").write_text("1234, train, 40960\n77, [Not Found], [N/A]\n")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    measured: list[Any] = []
    monkeypatch.setattr(benchmark, "measure", lambda plan, **_: measured.append(plan) or iter(()))
    command = ["efficiency", "eager", "--lengths", "4", "--no-verify", "--device", "cuda", "--csv"]
    assert main(command) == 2
    assert not measured
    assert ": train (1234, 40960 MiB), [Not Found] (77," in capsys.readouterr().err
    assert main([*command, "--shared-gpu"]) == 0
    assert len(measured) == 1


class Events:
    """What happens on a device on which every call takes two milliseconds, and writing over its cache fifty."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        self.now = 0.0
        patch.setattr(machine, "second_level_cache", lambda: SimpleNamespace(zero_=lambda: self.happen("flush", 50.0)))
        patch.setattr(torch.cuda, "synchronize", lambda *_: self.log.append("wait"))
        patch.setattr(machine, "Event", lambda **_: Event(self))

    def happen(self, what: str, milliseconds: float) -> None:
        self.log.append(what)
        self.now += milliseconds


class Event:
    def __init__(self, device: Events) -> None:
        self.device = device

    def record(self) -> None:
        self.device.happen("event", 0.0)
        self.at = self.device.now

    def elapsed_time(self, other: Event) -> float:
        return other.at - self.at


def test_only_the_call_is_timed_each_with_a_cold_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Events(monkeypatch)
    seconds = machine.seconds(lambda: device.happen("call", 2.0), 3, "cuda")
    assert seconds == pytest.approx(0.006)
    assert device.log == ["wait", *["flush", "event", "call", "event"] * 3, "wait"]


@pytest.mark.usefixtures("smi")
def test_costs_say_how_fast_the_gpu_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(benchmark, "constants", lambda _: {"device": "cuda"})
    monkeypatch.setattr(benchmark, "measure_length", lambda *_, **__: [Cost("abc", "NS", "forward", 5, 0.1)])
    monkeypatch.setattr(Machine, "rates", lambda _: {"matmul_rate": 1.0, "bandwidth": 1.0})
    setting = Setting(batch_size=1, embed_dim=8, num_heads=2, device="cuda", repeats=2)
    said: list[str] = []
    [cost] = measure(Plan([], [], [Pattern.NS], ["forward"], [5], setting), report=said.append)
    assert (cost.clock, cost.clock_most, cost.temperature) == (1410, 1980, 88)
    assert "GPU throttled (power limit, hardware thermal limit): 1410 of 1980 MHz" in said[-1]
