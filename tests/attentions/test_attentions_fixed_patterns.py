"""Attentions in which positions alone decide which keys a token sees, and those with memories of segments."""

import pytest
import torch

from attentions.adaptive_span import SPAN_LOSS
from cab.training import after_optimizer_step
from tests.helpers.attentions import agreement
from tests.helpers.attentions.agreement import seen


def test_distances_of_logsparse():
    """Powers of two; counted from the first of the local tokens; anew at every restart."""
    assert seen(agreement.make("logsparse", "CS"), 40, 50) == [40 - d for d in (32, 16, 8, 4, 2, 1, 0)]
    assert seen(agreement.make("logsparse", "NS"), 5, 12) == [1, 3, 4, 5, 6, 7, 9]
    assert seen(agreement.make("logsparse", "CS", local=3), 40, 50) == [40 - d for d in (34, 18, 10, 6, 4, 3, 2, 1, 0)]
    again = agreement.make("logsparse", "CS", local=3, restart=8)
    assert seen(again, 20, 50) == [20 - d for d in (20, 19, 18, 17, 16, 14, 12, 11, 10, 9, 8, 6, 4, 3, 2, 1, 0)]


def test_global_tokens_of_etc_scale_with_the_length_up_to_the_published_number():
    module = agreement.make("etc", "NS")
    assert [module.count_globals(n) for n in (1, 17, 18, 512, 4096, 8192)] == [1, 1, 2, 29, 230, 230]


def test_spans_are_learned():
    """The loss is the mean span; after a step it is between none and the largest."""
    module = agreement.make("adaptive_span", "CS", max_span=40).train()
    with torch.no_grad():
        module.reach.copy_(torch.tensor([0.4, 1.05, 2.0]))
    x = torch.randn(1, 50, agreement.WIDTH, dtype=torch.float64)
    module(x)
    loss = module.auxiliary_loss()
    torch.testing.assert_close(loss, torch.tensor(SPAN_LOSS * (-16 + 10 + 48) / 3, dtype=torch.float64))
    after_optimizer_step(module)
    torch.testing.assert_close(module.spans().float(), torch.tensor([0.0, 10.0, 40.0]))
    (gradient,) = torch.autograd.grad(module(x).square().sum(), module.reach)
    assert gradient[1]


def test_random_blocks_of_bigbird():
    """A head's own, outside of the fixed blocks, the same in evaluation."""
    module = agreement.make("bigbird", "NS", block_size=2, num_random=3)
    drawn = module.random_blocks(20)
    assert not module.fixed_blocks(20).expand(3, -1, -1).gather(2, drawn.clamp(min=0))[drawn >= 0].any()
    assert (drawn[:, 3].sort(dim=-1).values.diff(dim=-1) > 0).all()
    assert not torch.equal(drawn[0], drawn[1])
    assert not torch.equal(agreement.make("bigbird", "NS", block_size=2, num_random=3).random_blocks(20), drawn)
    assert torch.equal(module.eval().random_blocks(20), drawn)


def test_compression_learns_from_its_own_loss_alone():
    """The loss reaches the convolution and nothing else, the output everything else; equal tokens lose nothing."""
    module = agreement.make("compressive", "CS", segment=6, memory=5, compressed=4, factor=3).train()
    output = module(torch.randn(2, 40, agreement.WIDTH, dtype=torch.float64))
    loss = module.auxiliary_loss()
    parameters = dict(module.named_parameters())
    own = torch.autograd.grad(loss, list(parameters.values()), materialize_grads=True)
    others = torch.autograd.grad(output.square().sum(), list(parameters.values()), materialize_grads=True)
    for name, from_loss, from_output in zip(parameters, own, others, strict=True):
        is_compression = name.startswith("compress")
        assert bool(from_loss.any()) is is_compression, name
        assert bool(from_output.any()) is not is_compression, name
    with torch.no_grad():
        module.compress.weight.copy_(torch.eye(agreement.WIDTH)[:, :, None].expand(-1, -1, 3) / 3)
        module.compress.bias.zero_()
        module(torch.ones(1, 40, agreement.WIDTH, dtype=torch.float64))
    assert float(module.auxiliary_loss()) < 1e-12


@pytest.mark.parametrize("options", [{}, {"segment": 6, "memory": 5, "compressed": 4, "factor": 3}])
def test_compression_has_a_gradient_beyond_the_stated_length(options):
    module = agreement.make("compressive", "CS", **options).train()
    longest = module.segment * -(-(module.memory + module.factor) // module.segment)
    module(torch.randn(1, longest, agreement.WIDTH, dtype=torch.float64))
    assert module.auxiliary_loss() is None
    module(torch.randn(1, longest + 1, agreement.WIDTH, dtype=torch.float64))
    module.auxiliary_loss().backward()
    assert module.compress.weight.grad.any()
