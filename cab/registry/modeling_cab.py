"""A language model trained with CAB, for ``AutoModelForCausalLM`` and ``AutoTokenizer`` of Hugging Face Transformers.

`cab export RESULT` writes a copy of this file next to the weights; loading them requires an installed `cab-benchmark`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel, PreTrainedTokenizer
from transformers.modeling_outputs import CausalLMOutput

from cab.registry.build import build_backbone


class CABConfig(PretrainedConfig):
    """The arguments of :func:`cab.build_backbone` in ``network``."""

    model_type = "cab"


class CABForCausalLM(PreTrainedModel, GenerationMixin):
    """A backbone that predicts the next token; generation reads the whole sequence for each new token."""

    config_class = CABConfig

    def __init__(self, config: CABConfig) -> None:
        super().__init__(config)
        network = dict(config.network)
        attention = dict(network.pop("attention"))
        if ".py:" in attention["name"]:  # a copy of the file, in the same folder
            attention["name"] = str(Path(config.name_or_path or "") / attention["name"])
        with torch.device("cpu"):  # not `meta`, on which attentions would lose the values that are not weights
            self.network = build_backbone(network.pop("name"), attention=attention, **network)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Keep the weights, all of which are loaded."""

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None, **_unused: Any
    ) -> CausalLMOutput:
        """Return the logits [B, N, V] of each next token, and the mean loss of ``labels`` [B, N] (-100: none)."""
        has_padding = attention_mask is not None and not bool(attention_mask.all())
        logits = self.network(input_ids, attention_mask == 0 if has_padding else None)
        loss = None if labels is None else self.loss_function(logits, labels, self.config.vocab_size)
        return CausalLMOutput(loss=loss, logits=logits)

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False

    def prepare_inputs_for_generation(  # type: ignore[override]
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **_unused: Any
    ) -> dict[str, Any]:
        return {"input_ids": input_ids, "attention_mask": attention_mask}


class CABTokenizer(PreTrainedTokenizer):
    """The tokenizer of a run, with the entries of its dictionary as ids.

    As in training, lines are encoded one by one, and the end token follows each. Tokens that do not occur in the
    training split are the unknown token.
    """

    vocab_files_names = {"tokenizer": "tokenizer.json", "entries": "entries.json"}  # noqa: RUF012
    model_input_names = ["input_ids", "attention_mask"]  # noqa: RUF012

    def __init__(self, tokenizer: str, entries: str, **options: Any) -> None:
        self._tokenizer = Tokenizer.from_file(tokenizer)
        self._files = tokenizer, entries
        self._entries: dict[str, int] = json.loads(Path(entries).read_text(encoding="utf-8"))
        self._tokens = {entry: token for token, entry in self._entries.items()}
        super().__init__(**options)

    @property
    def vocab_size(self) -> int:
        return len(self._entries)

    def get_vocab(self) -> dict[str, int]:
        return dict(self._entries)

    def _tokenize(self, text: str, **_unused: Any) -> list[str]:
        first, *lines = self._tokenizer.encode_batch(text.split("\n"), add_special_tokens=False)
        return [*first.tokens, *(token for line in lines for token in (self.eos_token, *line.tokens))]

    def _convert_token_to_id(self, token: str) -> int:
        return self._entries.get(token, self._entries[self.unk_token])

    def _convert_id_to_token(self, index: int) -> str:
        return self._tokens.get(index, self.unk_token)

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        lines: list[list[int]] = [[]]
        for token in tokens:
            if token == self.eos_token:
                lines.append([])
            elif (number := self._tokenizer.token_to_id(token)) is not None:
                lines[-1].append(number)
        return "\n".join(map(self._tokenizer.decode, lines))

    def save_vocabulary(self, save_directory: str, filename_prefix: str | None = None) -> tuple[str, ...]:
        paths = [Path(save_directory, f"{filename_prefix or ''}{name}") for name in self.vocab_files_names.values()]
        for path, file in zip(paths, self._files, strict=True):
            path.write_bytes(Path(file).read_bytes())
        return tuple(map(str, paths))
