"""fairseq's language model and RoBERTa with one of CAB's attentions in every layer.

``--arch cab_gpt2`` and ``--arch cab_roberta_base`` are the networks of CAB's LM and MLM; all other arguments of
``transformer_lm_gpt`` and ``roberta_base`` are supported.
"""

# No `from __future__ import annotations`: fairseq reads the types of the configuration's fields.

import argparse
import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from fairseq.models import register_model, register_model_architecture
from fairseq.models.roberta import RobertaModel
from fairseq.models.roberta.model import roberta_base_architecture
from fairseq.models.transformer_lm import (
    TransformerLanguageModel,
    TransformerLanguageModelConfig,
    transformer_lm_gpt,
)
from fairseq.modules.checkpoint_activations import unwrap_checkpoint
from fairseq.utils import safe_getattr
from omegaconf import OmegaConf

from cab import LayerPosition, Pattern, UserError, build_attention
from cab.training import recompute
from cab_fairseq.slots import FairseqAttention
from cab_fairseq.training import keep_training_contract

ATTENTION_HELP = "one of CAB's attentions, or your own; `cab list attentions` lists them"
OPTIONS_HELP = "options of the attention, separated by spaces: 'window_size=16 extent=per_side'"


@dataclass
class LanguageModelConfig(TransformerLanguageModelConfig):
    """Configuration of :class:`LanguageModel`: fairseq's fields and the attention."""

    attention: str = field(default="vanilla", metadata={"help": ATTENTION_HELP})
    attention_options: str = field(default="", metadata={"help": OPTIONS_HELP})


@register_model("cab_lm", dataclass=LanguageModelConfig)
class LanguageModel(TransformerLanguageModel):
    """Causal language model of fairseq. Attention layers: CS."""

    @classmethod
    def build_model(cls, args: Any, task: Any) -> "LanguageModel":
        model = super().build_model(args, task)
        fill_slots(model.decoder.layers.children(), Pattern.CS, args)
        keep_training_contract(task)
        return model


@register_model("cab_mlm")
class MaskedLanguageModel(RobertaModel):
    """RoBERTa of fairseq. Attention layers: NS."""

    @staticmethod
    def add_args(parser: argparse.ArgumentParser) -> None:
        RobertaModel.add_args(parser)
        parser.add_argument("--attention", default="vanilla", metavar="NAME", help=ATTENTION_HELP)
        parser.add_argument("--attention-options", default="", metavar="OPTIONS", help=OPTIONS_HELP)
        parser.add_argument(
            "--checkpoint-activations",
            action="store_true",
            help="recompute activations in the backward pass to save memory",
        )

    @classmethod
    def build_model(cls, args: Any, task: Any) -> "MaskedLanguageModel":
        model = super().build_model(args, task)
        fill_slots(model.encoder.sentence_encoder.layers.children(), Pattern.NS, args)
        keep_training_contract(task)
        return model


def fill_slots(layers: Iterable[Any], pattern: Pattern, args: Any) -> None:
    """Replace fairseq's attention in each layer with the one that ``args`` names; ValueError for an unknown one."""
    layers, options = list(layers), parse_options(args.attention_options)
    if safe_getattr(args, "offload_activations", False):
        raise UserError("CAB's attentions do not support --offload-activations; use --checkpoint-activations")
    for index, layer in enumerate(layers):
        attention = build_attention(
            args.attention,
            pattern=pattern,
            embed_dim=layer.embed_dim,
            num_heads=layer.self_attn.num_heads,
            dropout=args.attention_dropout,
            layer_position=LayerPosition(index, len(layers)),
            **options,
        )
        layer.self_attn = FairseqAttention(attention)
        if safe_getattr(
            args, "checkpoint_activations", False
        ):  # fairseq's wrapper would collect losses and statistics twice
            layer.forward = functools.partial(_recomputed, unwrap_checkpoint(layer).forward)


def _recomputed(forward: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
    return recompute(functools.partial(forward, **more), *arguments)


def parse_options(text: str) -> dict[str, Any]:
    """Parse ``"num_landmarks=64 causal=true"`` as a mapping with YAML values."""
    words = text.split()
    for word in words:
        if "=" not in word:
            raise UserError(f"--attention-options takes name=value, got '{word}'")
    options = OmegaConf.to_container(OmegaConf.from_dotlist(words))
    assert isinstance(options, dict)
    return {str(name): value for name, value in options.items()}


@register_model_architecture("cab_lm", "cab_gpt2")
def cab_gpt2(args: Any) -> None:
    """Set the defaults of GPT-2: 12 layers of width 768, tied embeddings (CAB, Table 14)."""
    args.share_decoder_input_output_embed = True
    args.dropout = safe_getattr(args, "dropout", 0.0)
    transformer_lm_gpt(args)


@register_model_architecture("cab_mlm", "cab_roberta_base")
def cab_roberta_base(args: Any) -> None:
    """Set the defaults of RoBERTa-base (CAB, Table 14)."""
    roberta_base_architecture(args)
