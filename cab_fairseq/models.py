"""fairseq's language model, RoBERTa and Transformer with CAB's attentions in their layers.

``--arch cab_gpt2`` and ``--arch cab_roberta_base`` are the networks of CAB's LM and MLM, and ``--arch cab_transformer``
is fairseq's ``transformer``. All other arguments of ``transformer_lm_gpt``, ``roberta_base`` and ``transformer`` are
supported.
"""

# No `from __future__ import annotations`: fairseq reads the types of the configuration's fields.

import argparse
import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Optional

from fairseq.models import register_model, register_model_architecture
from fairseq.models.roberta import RobertaModel
from fairseq.models.roberta.model import roberta_base_architecture
from fairseq.models.transformer import TransformerModel
from fairseq.models.transformer.transformer_legacy import base_architecture
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

ATTENTION_HELP = "attention of CAB or your own (`cab list attentions` lists them), or a stack such as gla*3,vanilla"
OPTIONS_HELP = "options of the attention, separated by spaces: 'window_size=16 extent=per_side'"
AUTOCAST_HELP = "type of the matrix products in training, such as bfloat16; the weights stay in float32"


@dataclass
class LanguageModelConfig(TransformerLanguageModelConfig):
    """Configuration of :class:`LanguageModel`: fairseq's fields and the attention."""

    attention: str = field(default="vanilla", metadata={"help": ATTENTION_HELP})
    attention_options: str = field(default="", metadata={"help": OPTIONS_HELP})
    autocast: Optional[str] = field(default=None, metadata={"help": AUTOCAST_HELP})  # noqa: UP045


@register_model("cab_lm", dataclass=LanguageModelConfig)
class LanguageModel(TransformerLanguageModel):
    """Causal language model of fairseq. Attention layers: CS."""

    @classmethod
    def build_model(cls, args: Any, task: Any) -> "LanguageModel":
        model = super().build_model(args, task)
        fill_slots(model.decoder.layers.children(), Pattern.CS, args)
        complete_layers(model.decoder.layers.children(), task, args)
        return model


@register_model("cab_mlm")
class MaskedLanguageModel(RobertaModel):
    """RoBERTa of fairseq. Attention layers: NS."""

    @staticmethod
    def add_args(parser: argparse.ArgumentParser) -> None:
        RobertaModel.add_args(parser)
        add_arguments(parser, "")
        parser.add_argument(
            "--checkpoint-activations",
            action="store_true",
            help="recompute activations in the backward pass to save memory",
        )

    @classmethod
    def build_model(cls, args: Any, task: Any) -> "MaskedLanguageModel":
        model = super().build_model(args, task)
        layers = model.encoder.sentence_encoder.layers
        fill_slots(layers.children(), Pattern.NS, args)
        complete_layers(layers.children(), task, args)
        return model


@register_model("cab_transformer")
class EncoderDecoder(TransformerModel):
    """Transformer of fairseq. Attention layers: NS in the encoder, CS and CC in the decoder."""

    @classmethod
    def add_args(cls, parser: argparse.ArgumentParser) -> None:
        TransformerModel.add_args(parser)
        add_arguments(parser, "encoder-", "decoder-", "cross-")

    @classmethod
    def build_model(cls, args: Any, task: Any) -> "EncoderDecoder":
        model = super().build_model(args, task)
        encoder, decoder = [*model.encoder.layers.children()], [*model.decoder.layers.children()]
        fill_slots(encoder, Pattern.NS, args, prefix="encoder_")
        fill_slots(decoder, Pattern.CS, args, prefix="decoder_")
        if not args.no_cross_attention:
            if args.encoder_embed_dim != args.decoder_embed_dim:
                raise UserError(
                    "CAB's cross attentions need an encoder as wide as the decoder: change --encoder-embed-dim "
                    f"{args.encoder_embed_dim} or --decoder-embed-dim {args.decoder_embed_dim}"
                )
            fill_slots(decoder, Pattern.CC, args, prefix="cross_", slot="encoder_attn")
            for layer in decoder:
                layer.register_forward_pre_hook(_pass_target_padding, with_kwargs=True)
        complete_layers([*encoder, *decoder], task, args)
        return model


def _pass_target_padding(layer: Any, _arguments: Any, named: dict[str, Any]) -> None:
    """Give the cross attention the padding of its queries, which fairseq gives to the self attention alone."""
    layer.encoder_attn.query_padding_mask = named.get("self_attn_padding_mask")


def add_arguments(parser: argparse.ArgumentParser, *slots: str) -> None:
    """Add the attention of each kind of layer, and the type for autocast."""
    for slot in slots:
        parser.add_argument(f"--{slot}attention", default="vanilla", metavar="NAME", help=ATTENTION_HELP)
        parser.add_argument(f"--{slot}attention-options", default="", metavar="OPTIONS", help=OPTIONS_HELP)
    parser.add_argument("--autocast", metavar="DTYPE", help=AUTOCAST_HELP)


def fill_slots(
    layers: Iterable[Any], pattern: Pattern, args: Any, *, prefix: str = "", slot: str = "self_attn"
) -> None:
    """Replace fairseq's attention in each layer with the one that ``args`` names; UserError for an unknown one."""
    layers, options = list(layers), parse_options(getattr(args, f"{prefix}attention_options"))
    for index, layer in enumerate(layers):
        attention = build_attention(
            getattr(args, f"{prefix}attention"),
            pattern=pattern,
            embed_dim=layer.embed_dim,
            num_heads=getattr(layer, slot).num_heads,
            dropout=args.attention_dropout,
            layer_position=LayerPosition(index, len(layers)),
            **options,
        )
        setattr(layer, slot, FairseqAttention(attention))


def complete_layers(layers: Iterable[Any], task: Any, args: Any) -> None:
    """Make training steps complete, and recompute activations if requested.

    fairseq's own wrapper for recomputation would collect losses and statistics twice.
    """
    if safe_getattr(args, "offload_activations", False):
        raise UserError("CAB's attentions do not support --offload-activations; use --checkpoint-activations")
    if safe_getattr(args, "checkpoint_activations", False):
        for layer in layers:
            layer.forward = functools.partial(_recomputed, unwrap_checkpoint(layer).forward)
    keep_training_contract(task, safe_getattr(args, "autocast", None))


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


@register_model_architecture("cab_transformer", "cab_transformer")
def cab_transformer(args: Any) -> None:
    """Set the defaults of fairseq's ``transformer``."""
    base_architecture(args)
