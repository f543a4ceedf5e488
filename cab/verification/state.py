"""State checks: a call leaves no state behind, on the module, its class or in random number generators."""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cab.training import auxiliary_loss
from cab.verification.check import Worst, check
from cab.verification.compare import difference
from cab.verification.subject import Subject


@check("state")
def generators_untouched(subject: Subject) -> Worst:
    """No call seeds a random number generator; only training mode draws, and only from torch's generator."""
    worst = Worst("modified random number generators", limit=0.0)
    for length in (17, *subject.long):
        for training in (False, True):
            module = subject.build_for(length, dropout=subject.dropout).train(training)
            inputs = subject.draw(module, length, batch=1 if length in subject.long else 2)
            where = f"n={length}, {'training' if training else 'evaluation'}"
            after = []
            for seed in (1, 2):
                torch.manual_seed(seed)
                before = _generators()
                with torch.no_grad():
                    inputs.run(module)
                now = _generators()
                allowed = {"torch"} if training else set()
                touched = [name for name in now if now[name] != before[name] and name not in allowed]
                worst.add(len(touched), f"{where} ({', '.join(touched) or 'none'})")
                after.append(now["torch"])
            worst.add(float(after[0] == after[1]), f"{where}, seeded by the call")
    return worst


@check("state")
def calls_leave_nothing(subject: Subject) -> Worst:
    """No output depends on earlier batches, in training (forward and backward) or in evaluation."""
    worst = Worst("relative change after an earlier batch", limit=0.0)
    cases = [(False, 0.0, 17), (True, subject.dropout, 17), *((True, 0.0, length) for length in subject.long)]
    for training, dropout, length in cases:
        used, fresh = (subject.build_for(length, dropout=dropout).train(training) for _ in range(2))
        batch = 1 if length in subject.long else 3
        for seed, layout in ((5, ""), (6, "left"))[:batch]:
            earlier = subject.draw(used, length, batch=batch, scale=3.0, seed=seed)
            earlier = subject.pad(earlier, layout) if layout else earlier
            earlier.requiring_grad().run(used).sum().backward()
        inputs = subject.draw(used, length, batch=batch)
        with torch.no_grad():
            error = difference(inputs.run(used, seed=1), inputs.run(fresh, seed=1))
        worst.add(error, f"n={length}, {'training' if training else 'evaluation'}")
    return worst


@check("state")
def modules_apart(subject: Subject) -> Worst:
    """Modules of one class do not affect each other, and class-level caches can be cleared."""
    worst = Worst("relative change caused by another module or a cache", limit=0.0)
    module = subject.build(seed=1)
    inputs = subject.draw(module, 17)
    with torch.no_grad():
        expected = inputs.run(module)
        for width in (32, 24):
            other = subject.build(seed=2, embed_dim=width)
            subject.draw(other, 29, seed=3, scale=2.0).run(other.train())
        worst.add(difference(inputs.run(module), expected), "n=17, after another module was built and called")
        cleared = clear_tensor_caches(subject.cls)
        fresh = subject.build(seed=2)
        fresh.load_state_dict(module.state_dict())
        torch.manual_seed(7)
        error = difference(inputs.run(fresh), expected)
    worst.add(error, f"n=17, with the same state_dict, after clearing caches {', '.join(cleared) or '(none)'}")
    return worst


@check("state")
def parameters_learn(subject: Subject) -> Worst:
    """Every parameter receives a gradient in training, from the output or an auxiliary loss."""
    worst = Worst("parameters without a gradient", limit=0.0)
    missing = {n for n, p in subject.build().named_parameters() if p.requires_grad}
    lengths_tested: list[int] = []
    for length, layout in ((1, ""), (17, ""), (70, "right"), (700, "")):
        if not missing:
            break
        module = subject.build().train()
        inputs = subject.draw(module, length, batch=3)
        inputs = subject.pad(inputs, layout) if layout else inputs
        output, own = inputs.run(module), auxiliary_loss(module)
        ((output * torch.randn_like(output))[inputs.real].sum() + (0.0 if own is None else own)).backward()
        missing -= {n for n, p in module.named_parameters() if p.grad is not None and bool(p.grad.any())}
        lengths_tested.append(length)
    worst.add(len(missing), f"n={', '.join(map(str, lengths_tested))} ({', '.join(sorted(missing)) or 'none'})")
    return worst


def clear_tensor_caches(cls: type[nn.Module]) -> list[str]:
    """Clear the tensor caches of a class and its module, which can be rebuilt, and return their names."""
    cleared = []
    for owner in (*own_classes(cls), *{sys.modules[c.__module__] for c in own_classes(cls)}):
        for name, kept in list(vars(owner).items()):
            if isinstance(kept, functools._lru_cache_wrapper):
                kept.cache_clear()
            elif isinstance(kept, dict | list | set) and any(isinstance(x, Tensor) for x in _items(kept)):
                kept.clear()
                cleared.append(name)
            elif isinstance(kept, Tensor) and isinstance(owner, type):
                setattr(owner, name, None)
                cleared.append(name)
    return cleared


def own_classes(cls: type[nn.Module]) -> list[type]:
    """Return the class and its bases outside torch and this package."""
    return [c for c in cls.__mro__ if c.__module__.partition(".")[0] not in ("torch", "builtins", "cab", "typing")]


def _items(kept: Any) -> Iterator[Any]:
    yield from kept.values() if isinstance(kept, dict) else kept


def _generators() -> dict[str, object]:
    """Return the states of the random number generators of the process."""
    numbers = np.random.get_state(legacy=True)
    return {
        "torch": bytes(torch.get_rng_state().numpy()),
        "numpy": (numbers[1].tobytes(), numbers[2]),  # type: ignore[index]
        "random": random.getstate(),
    }
