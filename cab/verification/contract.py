"""Contract checks: invalid calls raise ValueError, and output shape, type and device follow the query."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from cab.verification.check import Worst, check, cross, keeps_contract
from cab.verification.compare import LEAK, difference
from cab.verification.decoding import initial_state
from cab.verification.subject import Subject


@check("contract", applies=keeps_contract)
def wrong_inputs(subject: Subject) -> Worst:
    """Invalid calls raise ValueError: key in a self pattern, no key in a cross pattern, wrong masks or widths."""
    module = subject.build()
    x, source = torch.randn(2, 5, module.embed_dim), torch.randn(2, 7, module.embed_dim)
    x, source = x.to(subject.device), source.to(subject.device)
    mask = torch.zeros(2, 5, dtype=torch.bool, device=subject.device)
    both = {"key": source, "value": source} if subject.pattern.is_cross else {}
    calls: dict[str, Callable[[], object]] = {
        "a wrong width": lambda: module(x[..., :-1], **both),
        "a query without a batch dimension": lambda: module(x[0], **both),
        "an empty query": lambda: module(x[:, :0], **both),
        "a query mask of the wrong length": lambda: module(x, **both, query_padding_mask=mask[:, :-1]),
        "a query mask of type float": lambda: module(x, **both, query_padding_mask=mask.float()),
        "a key mask of the wrong length": lambda: module(x, **both, key_padding_mask=mask[:, :-1]),
        "a key mask of the wrong batch size": lambda: module(x, **both, key_padding_mask=mask[:1]),
        "a key mask of type float": lambda: module(x, **both, key_padding_mask=torch.zeros(2, 7 if both else 5)),
    }
    if subject.pattern.is_cross:
        calls |= {
            "no key": lambda: module(x),
            "a key without a value": lambda: module(x, source),
            "a value of another length than the key": lambda: module(x, source, source[:, :-1]),
            "a source of another batch size": lambda: module(x, source[:1], source[:1]),
        }
    else:
        calls["a key in a self pattern"] = lambda: module(x, x, x)
    return refusals(calls)


@check("contract", applies=keeps_contract)
def wrong_options(subject: Subject) -> Worst:
    """Invalid options raise ValueError: embed_dim not divisible by the heads, 0 heads, dropout 1, unknown pattern."""
    cls, options = subject.cls, dict(subject.options)
    given = {"pattern": subject.pattern, "embed_dim": 32, "num_heads": 4}
    calls: dict[str, Callable[[], object]] = {
        "embed_dim 32 with 5 heads": lambda: cls(**{**given, "num_heads": 5}, **options),
        "0 heads": lambda: cls(**{**given, "num_heads": 0}, **options),
        "dropout 1": lambda: cls(**given, dropout=1.0, **options),
        "pattern XS": lambda: cls(**{**given, "pattern": "XS"}, **options),
    }
    return refusals(calls)


@check("contract", applies=keeps_contract)
def decoding_refused(subject: Subject) -> Worst:
    """init_state raises ValueError in noncausal patterns, without a source in CC, and with a source in CS."""
    module = subject.build()
    source = torch.randn(2, 7, module.embed_dim, device=subject.device)
    if not subject.pattern.is_causal:
        return refusals({"init_state in a noncausal pattern": lambda: module.init_state(2)})
    if subject.pattern.is_cross:
        return refusals({"init_state without a source in CC": lambda: module.init_state(2)})
    return refusals({"init_state with a source in CS": lambda: module.init_state(2, key=source, value=source)})


@check("contract", applies=cross)
def same_source(subject: Subject) -> Worst:
    """One tensor passed as both key and value gives the same output as two equal tensors."""
    worst = Worst("relative error between a shared and a copied source", limit=LEAK)
    module = subject.build()
    inputs = subject.draw(module, 17)
    assert inputs.key is not None
    with torch.no_grad():
        once = module(inputs.query, inputs.key, inputs.key)
        worst.add(
            difference(module(inputs.query, inputs.key, inputs.key.clone()), once), f"n=17, m={inputs.key.shape[1]}"
        )
    return worst


@check("contract")
def output_type(subject: Subject) -> Worst:
    """Every output has the shape, dtype and device of the query, in training, evaluation and decoding."""
    worst = Worst("outputs with the wrong shape, dtype or device", limit=0.0)
    for length, batch in ((1, 1), (17, 3), (130, 7)):
        for training in (False, True):
            module = subject.build().train(training)
            inputs = subject.draw(module, length, batch=batch)
            with torch.no_grad():
                output = inputs.run(module)
            where = f"n={length}, {batch} rows, {'training' if training else 'evaluation'}"
            worst.add(float(_kind(output) != _kind(inputs.query)), f"{where} ({', '.join(map(str, _kind(output)))})")
        if subject.decodes:
            with torch.no_grad():
                output, _ = module.step(inputs.query[:, :1], initial_state(module.eval(), inputs))
            worst.add(float(_kind(output) != _kind(inputs.query[:, :1])), f"{batch} rows, step ({output.dtype})")
    return worst


def _kind(x: Tensor) -> tuple[object, ...]:
    return x.dtype, x.device, tuple(x.shape)


@check("contract")
def strided_inputs(subject: Subject) -> Worst:
    """Non-contiguous inputs, such as transposed tensors, give the same output as contiguous ones."""
    worst = Worst("relative error between contiguous and non-contiguous inputs", limit=LEAK)
    for length in (1, 17):
        module = subject.build()
        inputs = subject.draw(module, length, batch=3)
        strided = {name: x.transpose(0, 1).contiguous().transpose(0, 1) for name, x in inputs.tensors().items()}
        with torch.no_grad():
            worst.add(difference(replace(inputs, **strided).run(module), inputs.run(module)), f"n={length}")
    return worst


def refusals(calls: dict[str, Callable[[], object]]) -> Worst:
    """Count the calls that do not raise ValueError."""
    worst = Worst("invalid calls without a ValueError", limit=0.0)
    for what, call in calls.items():
        try:
            call()
            worst.add(1.0, f"{what} (accepted)")
        except ValueError:
            worst.add(0.0, what)
        except Exception as error:
            worst.add(1.0, f"{what} ({type(error).__name__})")
    return worst
