"""What every attention has to agree with: its readable form, the row alone, the past alone, decoding."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from cab import Attention, Pattern, build_attention
from cab.attention import reorder_state

WIDTH, HEADS = 24, 3


def make(name: str, pattern: str, **options: Any) -> Attention:
    """In float64, with every parameter at random: no bias, norm or convolution stays at an easy value."""
    module = build_attention(name, pattern=pattern, embed_dim=WIDTH, num_heads=HEADS, **options).double()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return module


def with_output(module: Attention) -> Attention:
    """Draw an output projection that starts at zero (RWKV), with which every other gradient would be zero."""
    output = getattr(module, "out_proj", None)
    if isinstance(output, torch.nn.Linear) and not output.weight.any():
        torch.nn.init.xavier_uniform_(output.weight)
    return module


def with_gradients(function: Callable[..., Any], inputs: Iterable[Tensor | None]) -> list[Tensor]:
    """Outputs, and the gradients of a function of them all."""
    leaves = [None if x is None else x.detach().clone().requires_grad_() for x in inputs]
    outputs = function(*leaves)
    outputs = [outputs] if isinstance(outputs, Tensor) else [*outputs]
    loss = torch.stack([(x.double() * (1 + number)).sin().sum() for number, x in enumerate(outputs)]).sum()
    return [*outputs, *torch.autograd.grad(loss, [x for x in leaves if x is not None])]


def seen(module: Attention, i: int, length: int) -> list[int]:
    """By gradient: the tokens on which output ``i`` depends."""
    x = torch.randn(1, length, WIDTH, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(module(x)[0, i].sum(), x)
    return gradient[0].any(dim=-1).nonzero().flatten().tolist()


def padding(length: int) -> Tensor:
    """Five rows: padding on the right, on the left, inside, everywhere, nowhere."""
    mask = torch.zeros(5, length, dtype=torch.bool)
    mask[0, length - length // 3 :] = True
    mask[1, : length // 4] = True
    mask[2] = torch.rand(length) < 0.4
    mask[3] = True
    return mask


def draw(module: Attention, targets: int, keys: int) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Inputs that require gradients (query; in cross patterns key and value), and padding masks for them."""
    lengths = [targets, keys, keys] if module.pattern.is_cross else [targets]
    inputs = [torch.randn(5, length, WIDTH, dtype=torch.float64, requires_grad=True) for length in lengths]
    masks = {"query_padding_mask": padding(targets)}
    if module.pattern.is_cross:
        masks["key_padding_mask"] = padding(keys).roll(1, 0)
    return inputs, masks


def assert_forms_agree(module: Attention, targets: int, keys: int, masked: bool = True) -> None:
    """Fast form against the readable one, output and every gradient."""
    inputs, masks = draw(module, targets, keys)
    results = []
    for is_reference in (False, True):
        module.use_reference = is_reference
        output = module(*inputs, **(masks if masked else {}))
        direction = torch.linspace(-1.0, 1.0, output.numel(), dtype=output.dtype).view_as(output).cos()
        wanted = [*inputs, *module.parameters()]
        results.append([output, *torch.autograd.grad(output, wanted, direction, materialize_grads=True)])
    module.use_reference = False
    for fast, readable in zip(*results, strict=True):
        assert fast.isfinite().all()
        torch.testing.assert_close(fast, readable, rtol=1e-9, atol=1e-10)


def assert_padding_is_nothing(module: Attention, targets: int, keys: int) -> None:
    """NaN in the padding reaches nothing, and a row with padding gives what it gives alone."""
    inputs, masks = draw(module, targets, keys)
    clean = module(*inputs, **masks)
    where = [*masks.values(), *[*masks.values()][1:]]  # of the query; in cross patterns also of key and value
    poisoned = [
        x.detach().masked_fill(mask.unsqueeze(-1), float("nan")).requires_grad_()
        for x, mask in zip(inputs, where, strict=True)
    ]
    output = module(*poisoned, **masks)
    torch.testing.assert_close(output, clean)
    gradients = torch.autograd.grad(output.square().sum(), [*poisoned, *module.parameters()], materialize_grads=True)
    assert all(gradient.isfinite().all() for gradient in gradients)
    for gradient, mask in zip(gradients, where, strict=False):  # without those of parameters
        assert not gradient[mask].any()
    for row in range(len(clean)):
        real = [x[row : row + 1, ~mask[row]] for x, mask in zip(inputs, where, strict=True)]
        assert not output[row, where[0][row]].any()
        if all(x.shape[1] for x in real):
            torch.testing.assert_close(output[row : row + 1, ~where[0][row]], module(*real))


def assert_causal(module: Attention, length: int) -> None:
    """No output depends on a later input; every earlier one counts for something, unless a window hides it."""
    x = torch.randn(1, length, WIDTH, dtype=torch.float64, requires_grad=True)
    output = module(x)
    for i in range(length):
        (gradient,) = torch.autograd.grad(output[0, i].sum(), x, retain_graph=True)
        assert gradient[0, i + 1 :].abs().sum() < 1e-12  # convolutions of whole sequences round
        assert gradient[0, i].any()


def assert_decodes(module: Attention, length: int, keys: int, pieces: tuple[int, ...]) -> None:
    """Read in pieces (the last one again and again), with padding, rows reordered and back: as in training."""
    module.eval()
    inputs, masks = draw(module, length, keys)
    expected = module(*inputs, **masks)
    source = {}
    if module.pattern is Pattern.CC:
        source = {"key": inputs[1], "value": inputs[2], "key_padding_mask": masks["key_padding_mask"]}
    state, outputs, begin = module.init_state(5, dtype=torch.float64, **source), [], 0
    order = torch.tensor([2, 0, 4, 1, 3])
    while begin < length:
        size = pieces[min(len(outputs), len(pieces) - 1)]
        piece = slice(begin, begin + size)
        tokens, hidden = inputs[0][:, piece], masks["query_padding_mask"][:, piece]
        state = reorder_state(reorder_state(state, order), order.argsort())
        if size == 1:
            output, state = module.step(tokens[:, 0], state, query_padding_mask=hidden[:, 0])
            output = output.unsqueeze(1)
        else:
            output, state = module.prefill(tokens, state, query_padding_mask=hidden)
        outputs.append(output)
        begin += size
    torch.testing.assert_close(torch.cat(outputs, dim=1), expected)


def assert_dropout(module: Attention, length: int) -> None:
    """The gradient is that of the very weights that the forward pass dropped; evaluation drops none."""
    inputs = [torch.randn(2, length, WIDTH, dtype=torch.float64) for _ in range(3 if module.pattern.is_cross else 1)]
    x = inputs[0].requires_grad_()
    towards = torch.randn_like(x)

    def loss(at: Tensor) -> Tensor:
        torch.manual_seed(3)
        return module(at, *inputs[1:]).sin().sum()

    (gradient,) = torch.autograd.grad(loss(x), x)
    with torch.no_grad():
        slope = (loss(x + 1e-6 * towards) - loss(x - 1e-6 * towards)) / 2e-6
    torch.testing.assert_close((gradient * towards).sum(), slope, rtol=1e-6, atol=1e-6)
    assert not torch.equal(module(*inputs), module(*inputs))
    module.eval()
    assert torch.equal(module(*inputs), module(*inputs))
