"""The table of relations of the process and the module: what may change around a call without changing its results."""

from __future__ import annotations

import contextlib
import copy
import pickle
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

from cab.training import auxiliary_loss
from cab.verification.compare import LEAK, ROUNDING, difference
from cab.verification.entries import (
    FORWARD,
    GRADIENT,
    LONGEST,
    LOW,
    METHODS,
    ONE_SOURCE,
    STEPS,
    TRAINING,
    Call,
    Setup,
    Values,
)
from cab.verification.inputs import Inputs, Module, copied, learned, seed_torch
from cab.verification.mistakes import places
from cab.verification.relation import Variant, Variants, plain_values, relation
from cab.verification.side_effects import (
    PROCESS,
    UNUSUAL,
    changes_since,
    clear_tensor_caches,
    filled_memory,
    generators,
    read_settings,
    restored,
    values_of,
    with_setting,
)

PADDED = Setup(13, batch=3, padding="left")
FULL_PADDED = PADDED._replace(is_full=True)
BASIC = METHODS[:3]
untouched = partial(relation, entries=METHODS, compares=False)

# --- what a call leaves untouched ------------------------------------------------------------------------------------


@untouched("determinism", "modified inputs", setups=(33, PADDED, PADDED._replace(padding="row"), LONGEST))
def inputs_untouched(call: Call) -> Variants:
    """No call modifies its inputs, its masks or the decoding state that it receives."""
    received: list[tuple[dict[str, Tensor], dict[str, Tensor]]] = []

    def remember(value: Any) -> Any:
        tensors = value.arguments() if isinstance(value, Inputs) else value
        received.append((tensors, copied(tensors)))
        return value

    call.but(view=remember, carry=remember).run()
    for now, before in received:
        for name in now | before:
            is_known = name in now and name in before
            is_same = is_known and torch.equal(now[name].nan_to_num(), before[name].nan_to_num())
            of_call = f"{call.entry.name}: a call writes into its input `{name}`"
            of_state = f"a call writes into `{name}`, which it received: return new tensors"
            is_state = call.entry.applies(call.subject) and call.entry.name not in (FORWARD.name, TRAINING.name)
            yield float(not is_same), name, None, of_state if is_state else of_call


@untouched("determinism", "changed settings")
def settings_untouched(call: Call) -> Variants:
    """No constructor and no call changes the process: settings of torch, warnings, the environment, global hooks."""
    call = call.but(has_graph=True)
    with restored():
        call.run()  # the first call may import modules of torch, which change settings once
    acts: dict[str, Callable[[], Any]] = {"a constructor": call.new_module, "a call": call.run}
    is_lowered = torch.bfloat16 in call.subject.autocast_dtypes
    unusual = {name: x for name, x in UNUSUAL.items() if is_lowered or "autocast_enabled" not in name}
    for settings, (what, act) in product(({}, unusual), acts.items()):
        threads = [2]  # as if there were two; with two, small calls wait for each other
        with (
            restored(),
            mock.patch.multiple(torch, get_num_threads=lambda x=threads: x[-1], set_num_threads=threads.append),
        ):
            for name, value in settings.items():
                PROCESS[name][1](value)
            before = read_settings()
            act()
            changed = changes_since(before)
        changed += ["torch.get_num_threads()"] if threads[-1] != threads[0] else []
        yield len(changed), what, None, f"{call.entry.name}: {what} changes {' and '.join(changed)}"


@untouched("determinism", "modified random number generators", setups=(Setup(has_dropout=True), LONGEST))
def generators_untouched(call: Call) -> Variants:
    """No call and no constructor seeds a generator; only training mode draws, and only from torch's generator."""
    after, built = [], []
    for seed in (1, 2):
        call.new_module(seed)
        built.append(generators()["torch"])
        seed_torch(seed, call.subject.device)
        states = generators()
        with _Draws() as draws:
            call.but(seed=seed).run()
        after.append(generators())
        permitted = ("torch",) if call.entry is TRAINING else ()
        touched = [name for name in states if after[-1][name] != states[name] and name not in permitted]
        yield len(touched), "", None, f"{call.entry.name} draw random numbers of {', '.join(touched)}: {draws.first}"
    yield float(after[0]["torch"] == after[1]["torch"]), "seeded by the call"
    yield float(built[0] == built[1]), "seeded by the constructor"


class _Draws(TorchFunctionMode):
    """Finds the first function that changes the state of torch's generator or seeds it, and its line."""

    unknown = first = "not by a function of torch"

    def __enter__(self) -> Any:
        seed = torch.manual_seed

        def manual_seed(seed_: int) -> Any:
            line = places(traceback.extract_stack())
            self.first = f"torch.manual_seed ({line})" if line and self.first is self.unknown else self.first
            return seed(seed_)

        self.patch = mock.patch.object(torch, "manual_seed", manual_seed)
        self.patch.start()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        self.patch.stop()
        super().__exit__(*error)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = torch.get_rng_state()
        output = func(*args, **(kwargs or {}))
        if self.first is self.unknown and not torch.equal(before, torch.get_rng_state()):
            self.first = f"{func.__name__} ({places(traceback.extract_stack())})"
        return output


@untouched("calls", "values that change with the number of calls", setups=(9,))
def no_counters(call: Call) -> Variants:
    """No value outside the state_dict changes when a call is repeated: no counter, no growing list or buffer."""
    snapshots = []
    for _ in range(3):
        call.run()
        snapshots.append(values_of(call.module))
    second, third = snapshots[1:]
    changed = [name for name in second | third if second.get(name) != third.get(name)]
    yield len(changed), f"{', '.join(changed[:4]) or 'none'}", None, f"{call.entry.name} change {', '.join(changed)}"


@untouched("learning", "changed entries of the state_dict", setups=(Setup(batch=3, padding="right", has_dropout=True),))
def forward_keeps_state(call: Call) -> Variants:
    """Forward and backward passes do not change the state_dict."""
    original = copied(call.module.state_dict())
    call.run()
    for name, x in call.module.state_dict().items():
        is_same = name in original and torch.equal(x.nan_to_num(), original[name].nan_to_num())
        yield float(not is_same), name, None, f"{call.entry.name} change `{name}` of the state_dict"


# --- the same module -------------------------------------------------------------------------------------------------


@relation("determinism", entries=(TRAINING,), setups=(17, Setup(33, has_dropout=True), LONGEST))
def same_seed(call: Call) -> Variants:
    """Two modules built and run in training mode with the same seed give bit-identical outputs and gradients."""
    if call.setup.length not in call.subject.long:
        call.run()  # which generators of other packages remember
    yield Variant("of a second module with the same seed", call.but(module=call.new_module()))


@relation("determinism", entries=(FORWARD, STEPS), setups=[Setup(n, has_dropout=True) for n in (1, 17, 130, LONGEST)])
def eval_repeatable(call: Call) -> Variants:
    """In evaluation mode, repeated calls are bit-identical, whatever the state of the random number generator."""
    call.run()
    yield Variant("in a second call with another seed", call.but(seed=11))


@relation("determinism", entries=(FORWARD, STEPS), setups=(Setup(seed=1), Setup(65, seed=2), LONGEST))
def state_dict_complete(call: Call) -> Variants:
    """After loading the state_dict, a module built with another seed gives the same output in evaluation mode."""
    call.run()  # the state_dict includes what the first call creates
    other = call.new_module(100)
    other.load_state_dict(call.module.state_dict())

    def lost() -> str:
        names = sorted(name for name, _ in values_of(call.module).items() - values_of(other).items())
        return "" if not names else f"the state_dict lacks {', '.join(names)}: use self.register_buffer(name, tensor)"

    yield Variant("after loading the state_dict into a new module", call.but(module=other), explain=lost)


@relation("state", setups=(9,), entries=(*METHODS, ONE_SOURCE, *LOW), says="use the old weights")
def new_weights(call: Call) -> Variants:
    """After the weights of a used module change, in whatever way, results are those of the new weights."""
    weights = call.module.state_dict(keep_vars=True)
    ways = ("load_state_dict", "load_state_dict(assign=True)", "an assignment to .data", "a copy into .data")
    for how in (*ways, "functional_call") if call.entry.dtype is None else ways[-1:]:  # the least visible
        used = call.but(module=call.new_module(100))
        for parameter in used.module.parameters():
            parameter.data.mul_(1.25)  # constants, too, are then other ones; versions remain those of the new weights
        used.run()
        if how == "functional_call":
            around, swapped = nn.Module(), {f"module.{name}": x for name, x in weights.items()}
            around.module, around.forward = used.module, lambda function: function()
            yield Variant(f"in {how}", used, values=functional_call(around, swapped, (used.run,)))
        elif how.startswith("load"):
            used.module.load_state_dict(weights, assign="assign" in how)
            yield Variant(f"after {how}", used)
        else:
            for name, x in used.module.state_dict(keep_vars=True).items():
                x.data = x.data.copy_(weights[name]) if "copy" in how else weights[name].data.clone()
            yield Variant(f"after {how}", used)


@relation("state", entries=BASIC, setups=(Setup(9, has_dropout=True),), says="are not those of the copied module")
def copied_module(call: Call) -> Variants:
    """After copying or pickling a used module, both compute the same in their own modes, and share no weights."""
    call.run()
    copies = {"a deep copy": copy.deepcopy(call.module)}
    with contextlib.suppress(pickle.PicklingError, AttributeError, TypeError):  # a class that pickle does not find
        copies["a pickled module"] = pickle.loads(pickle.dumps(call.module))
    for how, clone in copies.items():
        values, base = (_in_own_mode(call, module) for module in (clone, call.module))
        yield Variant(f"of {how} without a call of train()", call, values=values, base=base, names=lambda _: True)
        yield Variant(f"of {how}", call.but(module=clone))
    clone = copy.deepcopy(call.new_module(100))
    clone.load_state_dict(call.module.state_dict())
    yield Variant("of a deep copy with other weights", call.but(module=clone))
    clone = copy.deepcopy(call.module)
    for parameter in clone.parameters():
        parameter.data.zero_()
    yield Variant("after the weights of a deep copy changed", call)


@torch.no_grad()
def _in_own_mode(call: Call, module: Module) -> Values:
    """Return the outputs of a module, and what it learns, in the modes that its submodules have."""
    output = call.inputs.run(module, seed=call.seed)
    return {"outputs": call.masked(output)} | learned(module, output)


@relation("state", entries=(GRADIENT, *METHODS[1:]), setups=(9,), limit=ROUNDING, says="ignore what it does")
def hooks_act(call: Call) -> Variants:
    """With a hook that scales the output of a submodule, training and decoding agree with the forward pass."""
    actual, expected = (plain_values(call, entry)["outputs"] for entry in (call.entry, FORWARD))
    if call.is_random or difference(actual, expected) > ROUNDING:  # without a hook, too: other checks say so
        return
    for name, submodule in call.module.named_modules():
        has_forward_alone = submodule is not call.module and not hasattr(submodule, "step")
        if has_forward_alone and name not in call.subject.claims.absorbed:
            hook = submodule.register_forward_hook(
                lambda _module, _inputs, y: 1.1 * y if isinstance(y, Tensor) and y.is_floating_point() else y
            )
            try:
                yield Variant(f"with a hook on {name}", call, base=call.run(FORWARD))
            finally:
                hook.remove()


# --- earlier calls ---------------------------------------------------------------------------------------------------


@relation("state", entries=(*BASIC, *LOW), setups=(Setup(batch=3, has_dropout=True), LONGEST))
def calls_leave_nothing(call: Call) -> Variants:
    """No output depends on earlier batches, in training (forward and backward), evaluation or decoding."""
    if call.entry is FORWARD:
        call.module.train()
        call.module.eval()
        yield Variant("after a change to training mode and back", call)
    length, batch = call.inputs.query.shape[1], len(call.inputs.query)
    for seed, layout in ((5, ""), (6, "left"))[:batch]:
        earlier = call.subject.draw(call.module, length, batch=batch, scale=3.0, seed=seed, padding=layout)
        for entry in (TRAINING, *LOW, call.entry):
            if entry is TRAINING or (not layout and entry.supports(call.subject, layout)):
                call.but(inputs=earlier, setup=call.setup._replace(padding=layout)).run(entry)
    yield Variant("after other batches", call)


@relation(
    "state",
    entries=(FORWARD, STEPS, ONE_SOURCE, *LOW),
    setups=(9, Setup(9, batch=3, padding="inside"), Setup(5, source_length=130)),
    says="are those of earlier contents",
)
def contents_in_turn(call: Call) -> Variants:
    """No output depends on earlier contents of the same memory, or of a tensor that agrees in part or in its sum."""
    x = call.inputs
    is_plain = call.setup.length == 9 and not call.setup.padding
    if (not is_plain and call.entry is not FORWARD) or (call.setup.source_length and x.key is None):
        return
    others = {
        "other values": x.map(torch.neg),
        "another last token": x.map(lambda t: torch.cat([t[:, :-1], -t[:, -1:]], 1)),
        "the same tokens in another order": x.map(lambda t: t.flip(1)),
        "the same rows in another order": x.rows(range(len(x.query))[::-1]),
    }
    if call.entry.dtype:
        others = {"other values": others["other values"]}
    elif call.setup.source_length:
        del others["the same rows in another order"]
    elif call.setup.padding:
        order = list(range(len(x.query)))[::-1]
        masks = {name: mask[order] for name, mask in x.arguments().items() if name.endswith("padding")}
        others = {"other masks": replace(x, **masks)}
    for how, other in others.items():
        memory, module = other.map(Tensor.clone), call.new_module()
        call.but(inputs=memory, module=module).run()
        for name, t in memory.arguments().items():
            t.data.copy_(x.arguments()[name])  # which keeps the version of a tensor
        yield Variant(f"after {how}", call.but(inputs=memory, module=module))


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


@relation("calls", entries=(TRAINING, GRADIENT, STEPS), setups=(33,))
def many_calls(call: Call) -> Variants:
    """After 200 calls in training and 100 in evaluation mode (quick: 55, 5), results are those of a new module."""
    tiny = call.subject.draw(call.module, 1, batch=1)
    if call.entry is GRADIENT and not call.subject.long:
        return
    count, more = (200, 100) if call.subject.long else (55, 5)
    for number in range(count + more):
        tiny.run(call.module.train(number < count))
        auxiliary_loss(call.module)
    yield Variant(f"after {count + more} calls", call)


# --- surroundings ----------------------------------------------------------------------------------------------------


@relation(
    "determinism",
    entries=METHODS,
    setups=(9, FULL_PADDED),
    limit=LEAK,
    says="depend on uninitialized memory",
)
def uninitialized_memory(call: Call) -> Variants:
    """No result depends on uninitialized memory, which is filled with NaN in constructors and calls."""
    with filled_memory():
        module = call.new_module()
    yield Variant("in memory filled with NaN", call.but(module=module, around=filled_memory))


@relation("calls", entries=BASIC, setups=(17, PADDED))
def inference_mode(call: Call) -> Variants:
    """In ``torch.inference_mode``, outputs are those of ``torch.no_grad``; a training step afterwards is correct."""
    with torch.inference_mode():
        values = {name: x.clone() for name, x in call.run(FORWARD if call.entry is TRAINING else call.entry).items()}
    if call.entry is not TRAINING:
        yield Variant("in inference mode", call, values=values)
    yield Variant("after inference mode", call)


@relation("calls", entries=(TRAINING, STEPS), setups=(17, PADDED), limit=ROUNDING)
def compiled_branch(call: Call) -> Variants:
    """Code that runs only under torch.compile computes the same."""
    compiles = partial(mock.patch.object, torch.compiler, "is_compiling", lambda: True)
    yield Variant("where torch.compiler.is_compiling() is True", call.but(around=compiles))


@relation("calls", entries=(TRAINING,), setups=(Setup(300, batch=3),), limit=ROUNDING)
def several_threads(call: Call) -> Variants:
    """With several threads, outputs and gradients are those of one thread."""
    yield Variant("in 4 threads", call.but(around=partial(with_setting, torch.set_num_threads, 4)))


@relation("calls", entries=(FORWARD, STEPS), setups=(9, PADDED), limit=LEAK)
def default_dtype(call: Call) -> Variants:
    """With a default dtype of float64, a float32 module gives the same float32 outputs, also while decoding."""
    values = call.but(around=partial(with_setting, torch.set_default_dtype, torch.float64)).run()
    yield float(values["outputs"].dtype != call.inputs.query.dtype), f"outputs of type {values['outputs'].dtype}", 0.0
    yield Variant("under a default dtype of float64", call, values=values)
