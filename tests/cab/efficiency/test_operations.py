"""What is counted, against closed formulas and torch's counter; and the share of the roof that follows from it."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from cab.efficiency.cost import Cost
from cab.efficiency.machine import COPIED_BYTES, PRODUCT_SIZE, Machine, under_roof
from cab.efficiency.operations import Operations, count_operations
from cab.efficiency.protocols import measure_length, work
from cab.efficiency.setting import Setting
from cab.efficiency.subjects import AttentionSubject, select_attentions
from cab.efficiency.workload import DECODED, PHASES, make_inputs
from cab.patterns import Pattern
from tests.helpers.fake_subjects import Fake, Scores

WIDTH, HEADS, ROWS = 32, 4, 2
SMALL = Setting(batch_size=ROWS, embed_dim=WIDTH, num_heads=HEADS, repeats=2)


def operations(text: str, pattern: Pattern, length: int) -> Operations:
    module = AttentionSubject.parse(text).build(pattern, SMALL).eval()
    inputs = make_inputs(pattern, length, SMALL)
    return count_operations(lambda: module(**inputs))


def projections(length: int) -> int:
    return ROWS * 4 * 2 * length * WIDTH**2


@pytest.mark.parametrize("name", ["vanilla", "eager"])
@pytest.mark.parametrize("length", [1, 9, 64])
def test_softmax_attention_is_4_n_n_d_and_the_projections(name, length):
    counted = operations(name, Pattern.NS, length)
    assert counted.products == projections(length) + ROWS * 4 * length**2 * WIDTH
    # five for a softmax; additions of biases are counted with the products
    assert counted.others >= 5 * ROWS * HEADS * length**2
    assert not counted.unknown


def test_fused_causal_attention_is_counted_without_the_future():
    pairs = 64 * 65 // 2
    counted = operations("vanilla", Pattern.CS, 64)
    assert counted.products == projections(64) + ROWS * 4 * pairs * WIDTH
    assert counted.others >= 5 * ROWS * HEADS * pairs


def test_forward_and_backward_are_three_times_forward():
    """As torch counts the written-out form, where nothing is computed again."""
    module = AttentionSubject.parse("eager").build(Pattern.NS, SMALL)
    workload = PHASES["forward+backward"](module, Pattern.NS, 24, SMALL)
    with FlopCounterMode(display=False) as counter:
        workload.call()
    counted = work(workload, count_operations(workload.counted))
    assert module.training
    assert counted["product_flops"] == counter.get_total_flops()


def test_decoding_counts_a_token():
    module = AttentionSubject.parse("eager").build(Pattern.CS, SMALL)
    workload = PHASES["decode"](module, Pattern.CS, 100, SMALL)
    counted = work(workload, count_operations(workload.counted))
    mean_keys = 100 + (DECODED + 1) / 2
    assert counted["product_flops"] == pytest.approx(projections(1) + ROWS * 4 * mean_keys * WIDTH, rel=0.01)
    weights = 4 * (4 * WIDTH**2 + 4 * WIDTH)
    assert counted["least_bytes"] == workload.state_bytes + weights + 2 * 4 * ROWS * WIDTH


def test_least_bytes_are_inputs_weights_and_output_once():
    module = nn.Linear(WIDTH, WIDTH, bias=False)
    sequence, weights = 4 * ROWS * 10 * WIDTH, 4 * WIDTH**2
    assert PHASES["forward"](module, Pattern.NS, 10, SMALL).least_bytes == 2 * sequence + weights
    assert PHASES["forward"](module, Pattern.NC, 10, SMALL).least_bytes == 3 * sequence + weights
    assert PHASES["forward+backward"](module, Pattern.NS, 10, SMALL).least_bytes == 2 * (2 * sequence + weights)


def test_what_operators_move():
    x = torch.ones(100)
    assert count_operations(lambda: x + 1).moved == 800
    assert count_operations(lambda: x.view(10, 10).T.unsqueeze(0)).moved == 0
    assert count_operations(lambda: x[:1].expand(50) + x[:50]).moved == 4 + 200 + 200
    assert count_operations(lambda: torch.zeros(7)).moved == 28


@pytest.mark.parametrize(
    ("call", "others"),
    [
        (lambda: torch.fft.fft(torch.ones(3, 8, dtype=torch.complex64)), 3 * 5 * 8 * 3),
        (lambda: torch.fft.rfft(torch.ones(3, 8)), 3 * 2.5 * 8 * 3),
        (lambda: torch.ones(5, 8).softmax(1), 5 * 40),
        (lambda: torch.ones(5, 8).sum(0), 40),
        (lambda: torch.ones(5, 8).sort(1), 5 * 8 * 3),
        (lambda: torch.ones(5, 8).topk(2), 5 * 8 * 3),
        (lambda: torch.linalg.solve_triangular(torch.eye(4), torch.ones(4, 3), upper=False), 4 * 12),
        (lambda: torch.ones(6).exp_(), 6),
        (lambda: F.embedding_bag(torch.tensor([[0, 2, 2], [1, 0, 1]]), torch.ones(3, 8), mode="sum"), 6 * 8),
    ],
)
def test_other_operators(call, others):
    assert count_operations(call).others == others


def test_an_operator_that_is_not_counted_is_named_and_gives_no_roof():
    counted = count_operations(lambda: torch.linalg.eigh(torch.eye(3)))
    assert counted.unknown == {"aten._linalg_eigh.default"}

    class Strange(nn.Module):
        def forward(self, query: Tensor) -> Tensor:
            return query * torch.linalg.eigh(torch.eye(3))[0].sum()

    (cost,) = measure_length([Fake("strange", Strange())], Pattern.NS, "forward", 5, SMALL)
    assert (cost.status, cost.flops) == ("ok", None)
    assert under_roof(cost, {"matmul_rate": 1.0, "bandwidth": 1.0}) == {"matmul_rate": 1.0, "bandwidth": 1.0}


@pytest.mark.parametrize("pattern", [Pattern.NS, Pattern.CS])
def test_every_attention_is_counted(pattern):
    inputs = make_inputs(pattern, 70, SMALL)
    for subject in select_attentions([], [pattern]):
        module = subject.build(pattern, SMALL).eval()
        assert not count_operations(lambda module=module: module(**inputs)).unknown, subject.label


@pytest.mark.parametrize(("flops", "roof", "share"), [(200, "compute", 0.5), (10, "memory", 0.25)])
def test_the_nearer_roof_and_the_share_of_it(flops, roof, share):
    rates, cost = {"matmul_rate": 100.0, "bandwidth": 10.0}, Cost("a", "NS", "forward", 8, seconds=4.0, least_bytes=10)
    assert under_roof(replace(cost, flops=flops), rates) == rates | {"roof": roof, "roof_share": share}


def test_the_machine_is_timed_in_every_round():
    machine = Machine(SMALL)
    measure_length([Fake("scores", Scores())], Pattern.NS, "forward", 5, SMALL, machine=machine)
    assert len(machine.products) == len(machine.copies) == SMALL.repeats
    machine.products, machine.copies = [2.0, 1.0, 9.0], [2.0] * 3
    size, copied = PRODUCT_SIZE["cpu"], COPIED_BYTES["cpu"]
    assert machine.rates() == {"matmul_rate": size**3, "bandwidth": copied}
