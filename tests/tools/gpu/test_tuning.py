"""Quick tuning on a real autotuned kernel, up to the first timing: everything but the launch works without a GPU."""

from typing import Any

import pytest
import torch

from tests.helpers.attentions.interpreter import needs_triton
from tools.gpu import tuning

pytestmark = needs_triton


class TimedError(Exception):
    """The tuner would now time the first candidate."""


@pytest.fixture
def _gpu_without_launches(monkeypatch):
    """Triton compiles for compute capability 9.0, and stops where it would launch."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.driver import driver

    class Driver:
        get_current_device = get_current_stream = staticmethod(lambda *_: 0)
        get_current_target = staticmethod(lambda: GPUTarget("cuda", 90, 32))

    def stop(*_: object, **__: object) -> None:
        raise TimedError

    monkeypatch.setattr(driver, "_active", Driver())
    for name in ("prune_configs", "do_bench"):  # restores what tune_quickly replaces
        monkeypatch.setattr(Autotuner, name, getattr(Autotuner, name))
    tuning.tune_quickly()
    Autotuner.do_bench = stop


def autotuned(*, has_heuristics: bool) -> tuple[Any, Any]:
    """A new kernel with four candidates, the last of which does not compile, and its compiled form."""
    import triton
    import triton.language as tl

    @triton.jit
    def add_one(x, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: N803
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        if EVEN:
            tl.store(x + i, tl.load(x + i) + 1)
        else:
            tl.store(x + i, tl.load(x + i, mask=i < n) + 1, mask=i < n)

    kernel = triton.heuristics({"EVEN": lambda given: given["n"] % 2 == 0})(add_one) if has_heuristics else add_one
    candidates = [triton.Config({"BLOCK": block}) for block in (32, 64, 128, 96)]
    return triton.autotune(configs=candidates, key=["n"])(kernel), add_one


@pytest.mark.usefixtures("_gpu_without_launches")
@pytest.mark.parametrize("has_heuristics", [False, True], ids=["plain", "heuristics"])
@pytest.mark.parametrize("most", [2, 16])
def test_candidates_of_a_kernel_are_compiled_before_the_first_is_timed(has_heuristics, most, monkeypatch):
    """Some candidates in even steps, or all; one that does not compile is left to the tuner."""
    from triton.compiler import CompiledKernel

    monkeypatch.setattr(tuning, "MOST", most)
    kernel, compiled = autotuned(has_heuristics=has_heuristics)
    constants = {} if has_heuristics else {"EVEN": True}
    with pytest.raises(TimedError):
        kernel[(1,)](torch.zeros(64), n=64, **constants)
    made = [kernel for kernel in compiled.device_caches[0][0].values() if isinstance(kernel, CompiledKernel)]
    assert len(made) == (2 if most == 2 else 3)
    assert all(kernel.asm["cubin"] for kernel in made)
