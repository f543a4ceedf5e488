"""Long Range Arena's protocol of speed and memory: whole networks, one batch for all lengths."""

from itertools import product

import torch

from cab import Pattern
from cab.efficiency.network import NetworkSubject
from cab.efficiency.setting import Setting
from cab.efficiency.subjects import AttentionSubject

SETTING = Setting(batch_size=2, embed_dim=8, num_heads=2, repeats=2)


def test_a_step_changes_the_weights_and_inference_does_not():
    subject = NetworkSubject.of(AttentionSubject.parse("vanilla"), 16)
    module = subject.build(Pattern.NS, SETTING)
    before = torch.cat([p.detach().flatten() for p in module.parameters()])
    assert subject.phases["forward"](module, Pattern.NS, 16, SETTING).call().shape == (2, 2)
    assert torch.cat([p.detach().flatten() for p in module.parameters()]).equal(before)
    subject.phases["forward+backward"](module, Pattern.NS, 16, SETTING).call()
    after = torch.cat([p.detach().flatten() for p in module.parameters()])
    assert not after.equal(before)
    assert all(p.grad is None for p in module.parameters())


def test_attentions_have_the_options_of_the_arena():
    for name, landmarks in (("nystromformer", 128), ("nystromformer:num_landmarks=4", 4)):
        module = NetworkSubject.of(AttentionSubject.parse(name), 16).build(Pattern.NS, SETTING)
        [first, second] = [module.get_submodule(path) for path, _ in module.attention_layers()]
        assert first.num_landmarks == second.num_landmarks == landmarks


def test_the_command_measures_a_batch_at_every_length(efficiency):
    rows, printed = efficiency("local", "--protocol", "lra", "--lengths", "16", "32")
    assert "steps per second (relative to vanilla)" in printed.out
    assert "MiB (relative to vanilla)" in printed.out
    measured = {(row["attention"], row["length"]) for row in rows}
    assert measured == set(product(("vanilla", "eager", "local"), ("16", "32")))
    assert {(row["protocol"], row["phase"], row["status"]) for row in rows} == {("lra", "forward+backward", "ok")}
    assert {row["batch_size"] for row in rows} == {"2"}
