"""Every test begins with the same seed; the last lines of a run name what was left out, and how to get it."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from cab import executed
from cab.files.cache import cache_root
from tests.helpers.command import Printed

SAMPLES = ("lm/train", "lstf/ETTh1.csv", "pcc/sample.json", "sr/ffhq_16_128", "sum/train.tgt", "tts/wavs", "wikitext")
"""Files and folders of the samples. The whole data sets, which ``CAB_DATA`` may name as well, lack some of them."""
WANT_OF_SAMPLES = "samples of the real data sets"
CONFORMANCE = "tests/attentions/test_attentions_conformance.py"
executed._is_kept["tests"] = False  # a program has the foreign modules of its process, but not those of its tests
os.environ.setdefault("CAB_CONFORMANCE_SEED", "0")  # of a commit, on every day; `make test-nightly` sets others
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of every `cab` that a test starts: sums do not depend on their split
if "CAB_DATA" in os.environ:  # of the user, for the tests that ask for samples; no other depends on it
    os.environ["CAB_TEST_DATA"] = os.environ.pop("CAB_DATA")
os.environ["COLUMNS"] = "80"  # help and tables are as wide, whatever the terminal
os.environ.setdefault("NUMBA_CACHE_DIR", str(cache_root() / "numba"))  # compiled once, whatever cache a test has
if "PYTEST_XDIST_WORKER" not in os.environ:  # workers share that of the process that starts them
    CACHE = tempfile.TemporaryDirectory(prefix="cab-tests-")  # the user's has rows of `cab verify`; left alone, too
    os.environ["CAB_CACHE"] = CACHE.name
CHROMIUM_FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --force-prefers-reduced-motion"
)


@pytest.fixture(autouse=True)
def _seeded():
    import torch

    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _own_children():
    """Commands of a test neither use the W&B service of another nor, as a pytest, choose the tests of this process."""
    os.environ.pop("WANDB_SERVICE", None)
    os.environ.pop("PYTEST_ADDOPTS", None)


@pytest.fixture(autouse=True)
def _own_messages():
    """The handlers with which a command replaced those of the process are gone with the test."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture(autouse=True, scope="module")
def _files_of_module():
    yield from _without_other_files()


@pytest.fixture(autouse=True)
def _own_files():
    yield from _without_other_files()


def _without_other_files() -> Iterator[None]:
    """Code that other tests loaded from files is not part of the programs of this one, nor are their folders found."""
    from cab.registry.program import STANDALONE

    found: tuple[Any, ...] = (STANDALONE, executed.FOREIGN, executed.LIBRARIES)
    kept = [(names, names.copy()) for names in found]
    path = list(sys.path)
    for names, _ in kept:
        names.clear()
    yield
    for names, others in kept:
        names.clear()
        names.update(others)
    sys.path[:] = path


@pytest.fixture
def registers(monkeypatch):
    """The attentions that the test registers are gone with it."""
    from cab.registry.registries import ATTENTIONS

    ATTENTIONS.names()  # the registry is read once
    for name in ("_entries", "_of_files"):
        monkeypatch.setattr(ATTENTIONS, name, dict(getattr(ATTENTIONS, name)))


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys):
    """Run a command in ``tmp_path``: it prints one line, which contains all words, and writes nothing."""
    from cab.cli.main import main

    def content() -> dict[Path, bytes]:
        return {path: path.read_bytes() if path.is_file() else b"" for path in tmp_path.rglob("*")}

    def line(*arguments: str, words: Sequence[str]) -> str:
        capsys.readouterr()
        before = content()
        assert main(list(arguments)) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1), err
        assert [word for word in words if word not in err] == [], err
        assert content() == before
        return err

    monkeypatch.chdir(tmp_path)
    return line


@pytest.fixture
def cab(capsys):
    """Run a command, which ends with ``status``."""
    from cab.cli.main import main

    def run(*arguments: object, status: int = 0) -> Printed:
        capsys.readouterr()
        assert main([*map(str, arguments)]) == status
        return Printed(*capsys.readouterr())

    return run


@pytest.fixture(scope="session")
def samples():
    """The folder of samples of the real data sets, if ``CAB_DATA`` names one."""
    folder = Path(os.environ.get("CAB_TEST_DATA") or os.devnull).absolute()
    if not all((folder / name).exists() for name in SAMPLES):
        pytest.skip(f"{WANT_OF_SAMPLES}; CAB_DATA=FOLDER make test, with {', '.join(SAMPLES)} in FOLDER")
    return folder


@pytest.fixture(scope="session")
def official_layout(tmp_path_factory):
    """A folder of generated series in the official layout of LSTF."""
    from tests.helpers.tasks.layouts import write_series

    return write_series(tmp_path_factory.mktemp("official_layout"))


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """A headless Chromium that logs errors and requests."""
    from selenium import webdriver

    programs = {name: shutil.which(name) for name in ("chromium", "chromedriver")}
    if None in programs.values():
        pytest.skip("Chromium: apt-get update && apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = programs["chromium"]
    for flag in CHROMIUM_FLAGS.split():
        options.add_argument(flag)
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('profile')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(programs["chromedriver"]))
    yield driver
    driver.quit()


# --- what was left out -----------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--complete", action="store_true", help="fail where a test was left out; samples need CAB_DATA")


def pytest_configure() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has its background jobs ignore it


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    reasons = [report.longrepr[2] for report in terminal.stats.get("skipped", [])] if terminal else []
    expected = ["got empty parameter set", *([] if os.environ.get("CAB_TEST_DATA") else [WANT_OF_SAMPLES])]
    reasons = [reason for reason in reasons if not any(words in reason for words in expected)]
    if reasons and session.config.option.complete and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    left_out: dict[str, Counter[str]] = defaultdict(Counter)
    for report in terminalreporter.stats.get("skipped", []):
        left_out[report.longrepr[2].removeprefix("Skipped: ")][report.nodeid.partition("::")[0]] += 1
    for reason, files in sorted(left_out.items()):
        names = ", ".join(f"{count} of {file}" for file, count in sorted(files.items()))
        terminalreporter.write_line(f"not run, for want of {reason}: {names}")
    if any(report.nodeid.startswith(CONFORMANCE) for report in terminalreporter.stats.get("passed", [])):
        from tests.helpers.attentions.trust import summary

        terminalreporter.write_line(summary())
