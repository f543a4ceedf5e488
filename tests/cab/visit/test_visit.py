"""A visit to a machine with a GPU, as it is run on a CPU; its limits, tables, summary and merging."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement

from cab.cli.main import main
from cab.cli.visit import PARTS
from cab.efficiency.peers import find_peers
from cab.efficiency.subjects import AttentionSubject
from cab.patterns import Pattern
from cab.visit.conduct import LOG, MACHINE, WHOLE, Part, conduct, divide_processors, parts
from cab.visit.correctness import agreements, difference, pairs
from cab.visit.merge import KEYS, merge, slug
from cab.visit.summary import HEIGHT, SUMMARIES, WIDTH, read_table, summary
from cab.visit.visit import TABLES, Visit

ROOT = Path(__file__).resolve().parents[3]
MACHINE_FACTS = {
    "visited": "2026-01-02 03:04:05",
    "short": False,
    "gpu": "NVIDIA H200",
    "torch": "2.11",
    "driver": "580",
}


def silent(line: str) -> None:
    """Says nothing."""


def slow(visit: Visit) -> None:
    """Two rows, a process of its own, and no end."""
    visit.write("suite", task="a")
    visit.write("suite", task="b")
    child = subprocess.Popen(["sleep", "600"])
    (visit.folder / "child").write_text(str(child.pid))
    time.sleep(600)


def broken(visit: Visit) -> None:
    raise ValueError(f"nothing works in process {visit.share}")


def quick(visit: Visit) -> None:
    visit.write("verify", attention="abc", pattern="NS", check="padding", passed=True, detail=0.25)


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
    except OSError:
        return True


def test_parts_have_their_time_and_leave_what_they_found(tmp_path: Path) -> None:
    visit = Visit(tmp_path / "made", "cpu")
    chosen = [Part("suite", "", slow, 2.0), Part("training", "", broken, 60), Part("verify", "", quick, 60)]
    conduct(visit, chosen, say=silent)
    ended = {row["part"]: row for row in read_table(visit.folder, "parts")}
    assert {name: row["status"] for name, row in ended.items()} == {
        "suite": "time is up",
        "training": "failed",
        "verify": "done",
    }
    assert ended["training"]["detail"] == "ValueError: nothing works in process 0 (see log.txt)"
    assert [row["task"] for row in read_table(visit.folder, "suite")] == ["a", "b"]
    assert "ValueError: nothing works in process 0" in (visit.folder / LOG).read_text()
    [row] = read_table(visit.folder, "verify")
    assert row == {"attention": "abc", "pattern": "NS", "check": "padding", "passed": "true", "detail": "0.25"}
    pid = int((visit.folder / "child").read_text())
    deadline = time.monotonic() + 10
    while not has_ended(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert has_ended(pid)


def test_what_there_is_no_time_for_is_left_out(tmp_path: Path) -> None:
    visit = Visit(tmp_path, "cpu")
    conduct(visit, [Part("verify", "", quick, 60)], limit=0.5, say=silent)
    [part] = read_table(tmp_path, "parts")
    assert (part["status"], part["detail"]) == ("left out", "the visit's time is up")
    assert read_table(tmp_path, "verify") == []


def test_the_parts_fit_the_visit_and_are_described() -> None:
    page = (ROOT / "docs" / "gpu.md").read_text()
    assert sum(part.seconds for part in parts()) == WHOLE
    assert [part.name for part in parts()] == list(PARTS)
    for part in parts():
        assert f"| `{part.name}` | {part.seconds:.0f} s |" in page
        assert part.name in SUMMARIES


def test_processes_share_the_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "")
    taken: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", taken.append)
    divide_processors(6)
    assert taken == [2]
    assert os.environ["TORCHINDUCTOR_COMPILE_THREADS"] == "2"


def test_processes_share_the_work() -> None:
    visits = [Visit(Path(), "cpu", share=share, shares=3) for share in range(3)]
    assert sorted(piece for visit in visits for piece in visit.own(list(range(10)))) == list(range(10))


def test_every_attention_and_pattern_is_visited_by_pattern_first() -> None:
    found = pairs(Visit(Path(), "cuda"))
    assert len(found) == len(set(found)) > 130
    assert found[0][1] is found[20][1] is Pattern.CS
    assert ("flash", Pattern.CC) in found
    assert not [name for name, _ in found if name == "none"]


@pytest.mark.parametrize("pattern", [Pattern.CS, Pattern.NC])
def test_forms_agree_at_odd_lengths_and_with_padding(pattern: Pattern) -> None:
    rows = list(agreements("linear", pattern, "eager", Visit(Path(), "cpu")))
    assert [(row["length"], row["padded"]) for row in rows] == [(n, p) for n in (1, 37, 131) for p in (False, True)]
    assert all(row["passed"] and row["gradient_error"] < 1e-4 for row in rows)


def test_forms_that_differ_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from attentions.linear import LinearAttention

    attend = LinearAttention.attend
    monkeypatch.setattr(LinearAttention, "attend", lambda self, *args, **more: attend(self, *args, **more) * 1.01)
    rows = list(agreements("linear", Pattern.NS, "eager", Visit(Path(), "cpu")))
    assert not any(row["passed"] for row in rows)
    monkeypatch.setattr(LinearAttention, "attend", lambda *_, **__: 1 / 0)
    [row] = agreements("linear", Pattern.NS, "eager", Visit(Path(), "cpu"))
    assert row["detail"] == "ZeroDivisionError: division by zero"


def test_a_difference_is_relative_to_the_largest_number() -> None:
    assert difference(torch.tensor([10.0, 1.0]), torch.tensor([8.0, 1.0])) == 0.25
    assert difference(torch.tensor([1e-3]), torch.tensor([2e-3])) == pytest.approx(1e-3)
    assert difference(torch.tensor([float("nan")]), torch.tensor([1.0])) == float("inf")


def test_kernels_of_a_gpu_are_no_peers_on_a_cpu() -> None:
    labels = [peer.label for peer in find_peers([AttentionSubject.parse("vanilla")])[0]]
    kernels = ["vanilla@sdpa-flash", "vanilla@sdpa-cudnn"] if torch.cuda.is_available() else []
    assert labels == ["vanilla@torch", *kernels]


def made_visit(folder: Path, **facts: object) -> Visit:
    visit = Visit(folder, "cuda")
    visit.make_tables()
    (folder / MACHINE).write_text(json.dumps(MACHINE_FACTS | facts))
    return visit


def test_the_summary_fits_a_screen(tmp_path: Path) -> None:
    visit = made_visit(tmp_path)
    for part in ("verify", "agreement", "training", "efficiency", "throughput", "suite"):
        visit.write("parts", part=part, status="done", seconds=77.7, limit=80)
    for number in range(200):
        name = f"attention_{number}"
        visit.write("verify", attention=name, pattern="CS", check="decode_steps", passed=number % 2 == 0)
        visit.write("agreement", attention=name, pattern="CS", form="eager", passed=False)
        row = {"task": "lm", "backbone": "gpt2", "pattern": "CS", "status": "failed", "detail": name * 9}
        visit.write("training", what="smoke", **row)
        visit.write("suite", attention=name, harness=number / 1000, **row)
        for length in (512, 65536):
            row = {"attention": name, "pattern": "CS", "phase": "forward+backward", "length": length, "status": "ok"}
            visit.write("efficiency", **row, seconds=0.00123)
    for form in ("eager", "compiled"):
        row = {"attention": "flash", "form": form, "length": 8192, "dtype": "bfloat16"}
        visit.write("throughput", **row, status="ok", utilisation=0.451, tokens_per_second=99999.0, bytes=2**34)
        visit.write("throughput", **row, status="oom")
    text = summary(tmp_path)
    lines = text.splitlines()
    assert len(lines) <= HEIGHT
    assert max(map(len, lines)) <= WIDTH
    assert lines[0] == "NVIDIA H200; torch 2.11, driver 580; 2026-01-02 03:04:05 UTC"
    assert "  200 rows of 200 attentions and patterns, 100 failed" in lines
    assert "  of a step outside forward, backward and optimiser: 20% at most" in lines
    assert "flash compiled, n 8192, bfloat16: 99999 tokens/s, 45% of the matmul rate, 16.0 GiB" in text
    assert any(line.split() == ["attention_0", "1.23", "1.23"] for line in lines)


def test_merging_replaces_what_is_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    row = {"attention": "abc", "pattern": "NS", "phase": "forward"}
    first = made_visit(tmp_path / "first")
    first.write("efficiency", **row, length=512, seconds=1.0)
    first.write("efficiency", **row, length=1024, seconds=2.0)
    again = made_visit(tmp_path / "again", visited="2026-02-02 00:00:00", commit="abcdef")
    again.write("efficiency", **row, length=512, seconds=0.5)
    assert merge(first.folder, None) == merge(again.folder, None) == Path("results/efficiency/h200")
    rows = read_table(Path("results/efficiency/h200"), "efficiency")
    assert [(r["length"], r["seconds"], r["visit"][:7]) for r in rows] == [
        ("512", "0.5", "2026-02"),
        ("1024", "2", "2026-01"),
    ]
    machines = read_table(Path("results/efficiency/h200"), "machines")
    assert [(m["visit"], m["gpu"], m["driver"], m["commit"]) for m in machines] == [
        ("2026-01-02 03:04:05", "NVIDIA H200", "580", ""),
        ("2026-02-02 00:00:00", "NVIDIA H200", "580", "abcdef"),
    ]
    assert "NVIDIA H200" in Path("results/efficiency/h200/summary.txt").read_text()


def test_keys_are_columns() -> None:
    assert KEYS.keys() == TABLES.keys()
    assert all(set(keys) <= set(TABLES[name]) for name, keys in KEYS.items())
    assert slug("NVIDIA H100 80GB HBM3") == "h100-80gb-hbm3"


def test_mistakes_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made_visit(tmp_path / "cpu", gpu="")
    mistakes = {
        ("merge", str(tmp_path)): f"{tmp_path} has no machine.json",
        ("merge", str(tmp_path / "cpu")): "a visit to a CPU: say where it belongs with --into",
        ("summary", str(tmp_path)): f"{tmp_path} has no machine.json",
    }
    if not torch.cuda.is_available():
        mistakes["run", str(tmp_path / "x")] = "torch sees no GPU here; --device cpu --short"
    for arguments, words in mistakes.items():
        assert main(["visit", *arguments]) == 2
        [line] = capsys.readouterr().err.splitlines()
        assert words in line
    assert not (tmp_path / "x").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_make_gpu_without_a_gpu_is_one_line() -> None:
    command = ["make", "--no-print-directory", "gpu", f"PYTHON={sys.executable}"]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    process = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0
    assert process.stderr == ""
    assert process.stdout == (
        "torch sees no CUDA GPU here, so there is nothing to run; scripts/gpu.sh --cpu tries the same code, shortened\n"
    )


@pytest.mark.thorough
def test_the_whole_visit_on_a_cpu(tmp_path: Path) -> None:
    """The same code as on a GPU, shortened: every table has rows, every row is good, and they can be merged."""
    folder = tmp_path / "visit"
    environment = {**os.environ, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    command = ["scripts/gpu.sh", "--cpu", str(folder)]
    process = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr + (folder / LOG).read_text()
    assert len(process.stdout.splitlines()) <= HEIGHT
    tables = {name: read_table(folder, name) for name in TABLES}
    assert all(tables.values())
    assert {row["status"] for row in tables["parts"]} == {"done"}
    assert {row["passed"] for row in tables["verify"] + tables["agreement"]} == {"true"}
    assert {row["form"] for row in tables["agreement"]} == {"eager", "compiled"}
    assert {row["status"] for row in tables["training"] + tables["suite"]} == {"finished"}
    [resumed] = [row for row in tables["training"] if row["what"] == "resume"]
    assert resumed["detail"] == "largest difference of a score 0"
    assert [row["pattern"] for row in tables["training"] if row["what"] == "shared"] == ["NC"]
    assert {row["status"] for row in tables["efficiency"] + tables["throughput"]} == {"ok"}
    assert all(0 < float(row["harness"]) < 1 for row in tables["suite"])
    assert {row["phase"] for row in tables["efficiency"]} == {"forward", "forward+backward", "decode"}
    assert main(["visit", "merge", str(folder), "--into", str(tmp_path / "kept")]) == 0
    assert len(read_table(tmp_path / "kept", "verify")) == len(tables["verify"])


WHEELS = ROOT / "scripts" / "gpu_wheels.txt"


def pins(path: Path) -> dict[str, str]:
    lines = path.read_text().splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def test_the_wheels_are_pinned_as_they_are_tested_and_complete() -> None:
    """All that the project and they require is in the list, or comes with torch, or is named as left out."""
    there = {"python_version": "3.12", "python_full_version": "3.12.1", "sys_platform": "linux", "extra": ""}
    there |= {"platform_system": "Linux", "implementation_name": "cpython", "os_name": "posix"}

    def names(lines: list[str]) -> set[str]:
        found = [Requirement(line) for line in lines]
        return {each.name.lower() for each in found if each.marker is None or each.marker.evaluate(there)}

    listed = pins(WHEELS)
    tested = pins(ROOT / "constraints.txt")
    assert {name: listed[name] for name in listed if name in tested} == {
        name: tested[name] for name in listed if name in tested
    }
    comes_with_torch = {"torch", "filelock", "jinja2", "markupsafe", "typing-extensions"}
    left_out = {"scipy", "huggingface-hub"}  # of scores and of tokenizers' downloads
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = names([*project["project"]["dependencies"], *project["build-system"]["requires"]])
    for name in listed:
        try:
            wanted |= names(requires(name) or [])
        except PackageNotFoundError:
            continue
    assert wanted - comes_with_torch - left_out <= set(listed)


def test_nothing_of_a_visit_names_a_host() -> None:
    for path in (WHEELS, ROOT / "scripts" / "gpu.sh", ROOT / "docs" / "gpu.md"):
        text = path.read_text()
        assert "://" not in text
        assert "index-url" not in text


@pytest.mark.thorough
def test_the_wheels_are_found_and_small(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    process = subprocess.run(
        [tmp_path / "scripts" / "gpu.sh", "--wheels"],
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode and "No matching distribution" not in process.stderr:
        pytest.skip("no package index can be reached")
    assert process.returncode == 0, process.stderr
    wheels = list((tmp_path / "wheels" / "gpu").glob("*.whl"))
    assert len(wheels) == len(pins(WHEELS))
    assert sum(wheel.stat().st_size for wheel in wheels) < 60e6
