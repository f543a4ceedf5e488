"""Every test begins with the same seed; the last lines of a run name what was left out, and how to get it."""

from __future__ import annotations

import datetime
import os
import shutil
import signal
from collections import Counter, defaultdict
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from cab.files.cache import cache_root
from tests.tasks.lstf.official_layout import write_series

if TYPE_CHECKING:
    from selenium import webdriver

SAMPLES = ("lm/train", "lstf/ETTh1.csv", "pcc/sample.json", "sr/ffhq_16_128", "sum/train.tgt", "tts/wavs", "wikitext")
"""Files and folders of the samples. The whole data sets, which ``CAB_DATA`` may name as well, lack some of them."""
WANT_OF_SAMPLES = "samples of the real data sets"
CONFORMANCE = "tests/attentions/test_conformance.py"
os.environ.setdefault("CAB_CONFORMANCE_SEED", datetime.datetime.now(datetime.UTC).date().isoformat())  # for all workers
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of every `cab` that a test starts: sums do not depend on their split
os.environ.setdefault("NUMBA_CACHE_DIR", str(cache_root() / "numba"))  # compiled once, whatever cache a test has
CHROMIUM_FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --force-prefers-reduced-motion"
)
SLOW = pytest.StashKey[Counter[str]]()
LONGEST = (
    "tests/cab/runner/test_slurm.py",
    "tests/test_readme.py",
    "tests/test_site.py",
    "tests/test_howto.py",
    "tests/fairseq",
)
"""Of the thorough tests, where the longest are."""


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def samples() -> Path:
    """The folder of samples of the real data sets, if ``CAB_DATA`` names one."""
    folder = Path(os.environ.get("CAB_DATA") or os.devnull).absolute()
    if not all((folder / name).exists() for name in SAMPLES):
        pytest.skip(f"{WANT_OF_SAMPLES}; CAB_DATA=FOLDER make test, with {', '.join(SAMPLES)} in FOLDER")
    return folder


@pytest.fixture(scope="session")
def official_layout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of generated series in the official layout of LSTF."""
    return write_series(tmp_path_factory.mktemp("official_layout"))


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest begin first: a worker that is done takes others' last tests, and none is left with a long one."""
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: min((places[name] for name in LONGEST if item.nodeid.startswith(name)), default=99))


# --- what was left out -----------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--complete",
        action="store_true",
        help="fail where a test was left out for want of something, except for samples that CAB_DATA does not name",
    )


def pytest_configure(config: pytest.Config) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has its background jobs ignore it
    config.stash[SLOW] = Counter()
    config.pluginmanager.register(_Processes(config))


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    for item in items:
        if "slow" in item.keywords:
            item.config.stash[SLOW][item.nodeid.partition("::")[0]] += 1


class _Processes:
    """Under pytest-xdist the worker processes deselect, and the process that prints is told what."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.config.stash[SLOW] = Counter(getattr(node, "workeroutput", {}).get("slow", {}))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, None, None]:
    config = session.config
    output: dict[str, Any] | None = getattr(config, "workeroutput", None)
    if output is not None:
        output["slow"] = dict(config.stash[SLOW])
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    skipped = terminal.stats.get("skipped", []) if terminal and output is None else []
    lacking = [report for report in skipped if os.environ.get("CAB_DATA") or WANT_OF_SAMPLES not in report.longrepr[2]]
    if lacking and config.option.complete and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    yield  # all that pytest itself prints
    if terminal is None or output is not None:
        return
    left_out: dict[str, Counter[str]] = defaultdict(Counter)
    for report in skipped:
        left_out[report.longrepr[2].removeprefix("Skipped: ")][report.nodeid.partition("::")[0]] += 1
    for reason, files in sorted(left_out.items()):
        names = ", ".join(f"{count} of {file}" for file, count in sorted(files.items()))
        terminal.write_line(f"not run, for want of {reason}: {names}")
    if config.stash[SLOW] and "not slow" in config.option.markexpr:
        names = ", ".join(f"{count} of {file}" for file, count in sorted(config.stash[SLOW].items()))
        terminal.write_line(f"not run: slow tests, which make test-slow runs: {names}")
    if any(report.nodeid.startswith(CONFORMANCE) for report in terminal.stats.get("passed", [])):
        from tests.attentions.trust import summary

        terminal.write_line(summary())
