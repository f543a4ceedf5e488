"""Long Range Arena's efficiency protocol: training and inference steps of a byte-level classifier.

Tay et al. 2021, Table 2, reports training steps per second and peak memory on Text relative to the Transformer, at 1K
to 4K tokens with one batch size; Qin et al. 2022, Table 7, training and inference steps at 1K to 5K. The network is
that of task lra, with its attention options. A step consists of forward, backward and AdamW update. Dropout is 0,
because dropout of attention weights disables some fused kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cab.config.groups import paper_value
from cab.efficiency.setting import Setting
from cab.efficiency.subjects import AttentionSubject, merged
from cab.efficiency.workload import TRAINING_PASSES, Workload, held_bytes, in_evaluation, inference
from cab.patterns import Pattern
from cab.registry.build import build_backbone
from cab.registry.tables import tuned_options
from cab.training import after_optimizer_step, auxiliary_loss

TASK, NETWORK = "lra", "encoder"
NETWORK_PATTERN = Pattern.NS
NETWORK_PHASES = ("forward", "forward+backward")
NETWORK_SIZES = {"batch_size": 32, "embed_dim": 64, "num_heads": 2}
NETWORK_LENGTHS = (1024, 2048, 3072, 4096)
BYTES, CLASSES = 257, 2


def classify(module: nn.Module, pattern: Pattern, length: int, setting: Setting) -> Workload:  # noqa: ARG001
    """Return the workload of inference: the logits of a batch."""
    tokens, _ = _batch(length, setting)
    call = inference(partial(module.eval(), tokens), setting)
    return Workload(call, counted=call, least_bytes=held_bytes((tokens, *module.parameters())))


def train(module: nn.Module, pattern: Pattern, length: int, setting: Setting) -> Workload:  # noqa: ARG001
    """Return the workload of a training step on a batch."""
    tokens, labels = _batch(length, setting)
    optimizer = torch.optim.AdamW(module.train().parameters(), lr=1e-4)

    def call() -> None:
        with setting.autocast():
            loss = F.cross_entropy(module(tokens).float(), labels)
            extra = auxiliary_loss(module)
        (loss if extra is None else loss + extra).backward()
        optimizer.step()
        after_optimizer_step(module)
        optimizer.zero_grad(set_to_none=True)

    counted = partial(in_evaluation, module, inference(partial(module, tokens), setting))
    least = 2 * held_bytes((tokens, *module.parameters()))
    return Workload(call, counted=counted, passes=TRAINING_PASSES, least_bytes=least)


def _batch(length: int, setting: Setting) -> tuple[Tensor, Tensor]:
    """Return random bytes [B, N] and classes [B]."""
    tokens = torch.randint(1, BYTES, (setting.batch_size, length), device=setting.device)
    return tokens, torch.randint(CLASSES, (setting.batch_size,), device=setting.device)


@dataclass(frozen=True)
class NetworkSubject(AttentionSubject):
    """The network with an attention in its layers, for up to ``longest`` tokens."""

    longest: int = 0

    @classmethod
    def of(cls, attention: AttentionSubject, longest: int) -> NetworkSubject:
        """Return the subject of an attention."""
        phases = {"forward": classify, "forward+backward": train}
        return cls(**{**vars(attention), "phases": phases}, longest=longest)

    def build(self, pattern: Pattern, setting: Setting, *, dropout: float = 0.0) -> nn.Module:
        tuned = tuned_options(TASK, NETWORK, str(pattern), self.name)
        columns = ("ffn_dim", "feed_forward", "activation")
        sizes = {name: paper_value("lra_networks", name, "preset", "paper", "attention", self.name) for name in columns}
        sizes["ffn_dim"] = sizes["ffn_dim"] * setting.embed_dim // NETWORK_SIZES["embed_dim"]
        return build_backbone(
            NETWORK,
            attention={"name": self.name, **merged(tuned, self.options)},
            pattern=pattern,
            vocab_size=BYTES,
            num_classes=CLASSES,
            max_length=self.longest,
            embed_dim=setting.embed_dim,
            num_heads=setting.num_heads,
            **sizes,
            dropout=dropout,
            attention_dropout=dropout,
        )
