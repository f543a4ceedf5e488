"""The table of relations: what may change around a call without changing what any entry computes."""

from __future__ import annotations

import contextlib
import copy
import pickle
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

from cab.training import auxiliary_loss
from cab.verification.compare import LEAK, ROUNDING, difference
from cab.verification.entries import (
    CHUNKS,
    FORWARD,
    GRADIENT,
    LONGEST,
    PROMPT,
    STEPS,
    TRAINING,
    Call,
    Setup,
)
from cab.verification.inputs import Inputs, copied
from cab.verification.mistakes import places
from cab.verification.relation import Variant, Variants, relation
from cab.verification.side_effects import (
    changes_since,
    clear_tensor_caches,
    generators,
    read_settings,
    restored,
    values_of,
)

LONG = Setup(LONGEST)
SMALL = Setup(9)
PADDED = Setup(33, batch=3, padding="left")
CALLED = (FORWARD, TRAINING, STEPS, PROMPT)
"""One entry per method of the contract, and training mode."""

# --- process state ---------------------------------------------------------------------------------------------------


@relation(
    "determinism", "relative change of an input", entries=CALLED, setups=(Setup(33), PADDED, LONG), compares=False
)
def inputs_untouched(call: Call) -> Variants:
    """No call modifies its inputs or masks."""
    seen: list[tuple[Inputs, dict[str, Tensor]]] = []

    def remembered(inputs: Inputs) -> Inputs:
        seen.append((inputs, copied(inputs.arguments())))
        return inputs

    call.but(view=remembered).run()
    for inputs, originals in seen:
        for name, x in inputs.arguments().items():
            yield (
                difference(x, originals[name]),
                name,
                None,
                f"{call.entry.name}: a call writes into its input `{name}`",
            )


@relation("determinism", "changed settings", entries=CALLED, compares=False)
def settings_untouched(call: Call) -> Variants:
    """No constructor and no call changes the process: settings of torch, warnings, the environment, global hooks."""
    call = call.but(has_graph=True)
    with restored():
        call.run()  # the first call may import modules of torch, which change settings once
    before = read_settings()
    call.new_module()
    changes = {"a constructor": changes_since(before)}
    before = read_settings()
    call.run()
    changes["a call"] = changes_since(before)
    for what, changed in changes.items():
        yield len(changed), what, None, f"{call.entry.name}: {what} changes {' and '.join(changed)}"


@relation(
    "determinism",
    "modified random number generators",
    entries=CALLED,
    setups=(Setup(has_dropout=True), LONG),
    compares=False,
)
def generators_untouched(call: Call) -> Variants:
    """No call and no constructor seeds a generator; only training mode draws, and only from torch's generator."""
    after, built = [], []
    for seed in (1, 2):
        call.new_module(seed)
        built.append(generators()["torch"])
        torch.manual_seed(seed)
        states = generators()
        with _Draws() as draws:
            call.but(seed=seed).run()
        after.append(generators())
        permitted = ("torch",) if call.entry is TRAINING else ()
        touched = [name for name in states if after[-1][name] != states[name] and name not in permitted]
        finding = f"{call.entry.name} draw random numbers of {', '.join(touched)}: {draws.first}"
        yield len(touched), "", None, finding
    yield float(after[0]["torch"] == after[1]["torch"]), "seeded by the call"
    yield float(built[0] == built[1]), "seeded by the constructor"


class _Draws(TorchFunctionMode):
    """Finds the first function that changes the state of torch's generator, and its line."""

    unknown = first = "not by a function of torch"

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = torch.get_rng_state()
        output = func(*args, **(kwargs or {}))
        if (
            func is not torch.manual_seed
            and self.first is self.unknown
            and not torch.equal(before, torch.get_rng_state())
        ):
            self.first = f"{func.__name__} ({places(traceback.extract_stack())})"
        return output


@relation("determinism", setups=(Setup(), PADDED), limit=LEAK, says="depend on uninitialized memory")
def uninitialized_memory(call: Call) -> Variants:
    """No result depends on uninitialized memory, which is filled with NaN in constructors and calls."""
    with filled_memory():
        module = call.new_module()
    yield Variant("in memory filled with NaN", call.but(module=module, around=filled_memory))


@contextmanager
def filled_memory() -> Iterator[None]:
    """Fill new memory with NaN, or with the largest integer."""
    with restored(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.use_deterministic_algorithms(True, warn_only=True)
        yield


@relation(
    "determinism",
    entries=(TRAINING,),
    setups=(Setup(), Setup(65), Setup(33, has_dropout=True), LONG),
)
def same_seed(call: Call) -> Variants:
    """Two modules built and run in training mode with the same seed give bit-identical outputs and gradients."""
    yield Variant("of a second module with the same seed", call.but(module=call.new_module()))


@relation(
    "determinism", entries=(FORWARD, STEPS), setups=tuple(Setup(n, has_dropout=True) for n in (1, 17, 130, LONGEST))
)
def eval_repeatable(call: Call) -> Variants:
    """In evaluation mode, repeated calls are bit-identical, whatever the state of the random number generator."""
    call.run()
    yield Variant("in a second call with another seed", call.but(seed=11))


@relation("determinism", entries=(FORWARD, STEPS), setups=(Setup(seed=1), Setup(65, seed=2), LONG))
def state_dict_complete(call: Call) -> Variants:
    """After loading the state_dict, a module built with another seed gives the same output in evaluation mode."""
    call.run()  # the state_dict includes what the first call creates
    other = call.new_module(100)
    other.load_state_dict(call.module.state_dict())

    def lost() -> str:
        names = sorted(name for name, _ in values_of(call.module).items() - values_of(other).items())
        return names and f"the state_dict lacks {', '.join(names)}: use self.register_buffer(name, tensor)"

    yield Variant("after loading the state_dict into a new module", call.but(module=other), explain=lost)


@relation(
    "determinism", entries=(FORWARD, STEPS), setups=(Setup(33, has_dropout=True), LONG._replace(has_dropout=True))
)
def train_then_eval(call: Call) -> Variants:
    """No call in training mode changes the output in evaluation mode."""
    for _ in range(2):
        call.run(TRAINING)
        call.module.zero_grad()
    yield Variant("after calls in training mode", call)


@relation("state", setups=(Setup(batch=3), LONG), entries=(FORWARD, TRAINING, STEPS, PROMPT))
def calls_leave_nothing(call: Call) -> Variants:
    """No output depends on earlier batches, in training (forward and backward) or in evaluation."""
    length, batch = call.inputs.query.shape[1], len(call.inputs.query)
    for seed, layout in ((5, ""), (6, "left"))[:batch]:
        earlier = call.subject.draw(call.module, length, batch=batch, scale=3.0, seed=seed, padding=layout)
        for entry in {TRAINING, call.entry} if layout else (TRAINING,):
            call.but(inputs=earlier, setup=call.setup._replace(padding=layout)).run(entry)
    yield Variant("after other batches", call)


@relation(
    "state",
    entries=(FORWARD, STEPS, PROMPT, TRAINING),
    setups=(SMALL,),
    says="are those of what the memory contained before",
)
def contents_in_turn(call: Call) -> Variants:
    """No output depends on earlier contents of the same memory, or of a tensor that agrees in part or in its sum."""
    x = call.inputs
    others = {
        "other values": x.map(torch.neg),
        "another last token": x.map(lambda t: torch.cat([t[:, :-1], -t[:, -1:]], 1)),
        "the same tokens in another order": x.map(lambda t: t.flip(1)),
        "the same rows in another order": x.map(lambda t: t.flip(0)),
    }
    memory = x.map(Tensor.clone)
    for how, other in others.items():
        for contents in (other, x):
            for name, t in memory.tensors().items():
                t.copy_(contents.tensors()[name])
            if contents is other:
                call.but(inputs=memory).run()
        yield Variant(f"after {how}", call.but(inputs=memory))


@relation("state", entries=(FORWARD, STEPS, PROMPT, TRAINING), setups=(SMALL,), says="use the old weights")
def new_weights(call: Call) -> Variants:
    """After the weights of a used module change, in whatever way, results are those of the new weights."""
    for how in ("load_state_dict", "load_state_dict(assign=True)", "an assignment to .data", "functional_call"):
        used = call.new_module(100)
        with torch.no_grad():
            for parameter in used.parameters():
                parameter.mul_(1.25)  # constants, too, are then other ones
        call.but(module=used).run()
        weights = call.module.state_dict()
        if how == "functional_call":
            swapped = {f"module.{name}": x for name, x in call.module.state_dict(keep_vars=True).items()}
            values = functional_call(_Around(used), swapped, (call.but(module=used).run,))
            yield Variant(f"in {how}", call, values=values)
            continue
        if how.startswith("load"):
            used.load_state_dict(weights, assign="assign" in how)
        else:
            for name, x in used.state_dict(keep_vars=True).items():
                x.data = weights[name].clone()
        yield Variant(f"after {how}", call.but(module=used))


class _Around(nn.Module):
    """Calls a function while ``functional_call`` replaces the parameters of ``module``."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, function: Callable[[], Any]) -> Any:
        return function()


@relation("state", entries=(FORWARD, STEPS), setups=(Setup(seed=1),))
def modules_apart(call: Call) -> Variants:
    """Modules of one class do not affect each other, and class-level caches can be cleared."""
    call.run()
    for width in (32, 24):
        other = call.subject.build(seed=2, embed_dim=width)
        call.but(module=other, inputs=call.subject.draw(other, 29, seed=3, scale=2.0)).run(TRAINING)
    yield Variant("after another module was built and called", call)
    cleared = clear_tensor_caches(call.subject.cls)
    fresh = call.new_module(1)
    fresh.load_state_dict(call.module.state_dict())
    yield Variant(f"after clearing caches {', '.join(cleared) or '(none)'}", call.but(module=fresh, seed=7))


@relation("state", entries=(FORWARD, STEPS, TRAINING), setups=(SMALL,), says="are not those of the copied module")
def copied_module(call: Call) -> Variants:
    """After copying or pickling a used module, both compute the same, and share no weights."""
    call.run()
    yield Variant("of a deep copy", call.but(module=copy.deepcopy(call.module)))
    with contextlib.suppress(pickle.PicklingError, AttributeError, TypeError):  # a class that pickle does not find
        yield Variant("of a pickled module", call.but(module=pickle.loads(pickle.dumps(call.module))))
    clone = copy.deepcopy(call.new_module(100))
    clone.load_state_dict(call.module.state_dict())
    yield Variant("of a deep copy with other weights", call.but(module=clone))
    clone = copy.deepcopy(call.module)
    with torch.no_grad():
        for parameter in clone.parameters():
            parameter.zero_()
    yield Variant("after the weights of a deep copy changed", call)


@relation(
    "state",
    entries=(GRADIENT, TRAINING, STEPS, PROMPT, CHUNKS),
    setups=(SMALL,),
    limit=lambda s: s.decode_tolerance,
    says="ignore hooks on submodules that the forward pass calls",
)
def hooks_act(call: Call) -> Variants:
    """With a hook that scales the output of a submodule, training and decoding agree with the forward pass."""
    if call.entry is TRAINING and call.subject.is_random_in_training:
        return
    for name, submodule in call.module.named_modules():
        if not any(True for _ in submodule.children()) and submodule is not call.module:
            hook = submodule.register_forward_hook(lambda _module, _inputs, output: _scaled(output))
            expected = call.run(FORWARD)
            yield Variant(f"with a hook on {name}", call, base=expected)
            hook.remove()


def _scaled(output: Any) -> Any:
    return 1.1 * output if isinstance(output, Tensor) and output.is_floating_point() else output


@relation("calls", entries=(TRAINING, GRADIENT, STEPS), setups=(Setup(33),))
def many_calls(call: Call) -> Variants:
    """After 220 calls in training and 100 in evaluation mode (quick: 70, 20), results are those of a new module."""
    tiny = call.but(inputs=call.subject.draw(call.module, 1, batch=1))
    count = 200 if call.subject.long else 60
    for number in range(count + count // 2):
        tiny.inputs.run(call.module.train(number < count))
        auxiliary_loss(call.module)
    yield Variant(f"after {count + count // 2} calls", call)


@relation("calls", entries=(FORWARD, STEPS, TRAINING), setups=(Setup(), Setup(130), PADDED))
def inference_mode(call: Call) -> Variants:
    """In ``torch.inference_mode``, outputs are those of ``torch.no_grad``; a training step afterwards is correct."""
    with torch.inference_mode():
        values = call.run(STEPS if call.entry is STEPS else FORWARD)
        values = {name: x.clone() for name, x in values.items()}
    if call.entry is not TRAINING:
        yield Variant("in inference mode", call, values=values)
    yield Variant("after inference mode", call)


@relation("calls", entries=(TRAINING,), setups=(Setup(300, batch=3),), limit=ROUNDING)
def several_threads(call: Call) -> Variants:
    """With several threads, outputs and gradients are those of one thread."""
    yield Variant("in 4 threads", call.but(around=partial(_changed, torch.set_num_threads, 4)))


@relation("calls", entries=(FORWARD, STEPS), setups=(Setup(9), PADDED), limit=LEAK)
def default_dtype(call: Call) -> Variants:
    """With a default dtype of float64, a float32 module gives the same float32 outputs, also while decoding."""
    variant = call.but(around=partial(_changed, torch.set_default_dtype, torch.float64))
    dtype = variant.run()["outputs"].dtype
    yield float(dtype != call.inputs.query.dtype), f"outputs of type {dtype}", 0.0
    yield Variant("under a default dtype of float64", variant)


@contextmanager
def _changed(change: Callable[[Any], Any], value: Any) -> Iterator[None]:
    """Change a setting of torch within the block."""
    with restored():
        change(value)
        yield
