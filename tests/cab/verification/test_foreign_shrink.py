"""Tiny Hugging Face models: every type is small, and has the kinds of layers that its source names."""

import pytest
import torch

from cab.verification.foreign.hugging_face import model_class
from cab.verification.foreign.shrink import kinds_in_source

auto = pytest.importorskip("transformers.models.auto.modeling_auto")
AutoConfig = pytest.importorskip("transformers").AutoConfig
TYPES = sorted(
    {*auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES} & {*auto.MODEL_MAPPING_NAMES}
)

BROKEN_DEFAULTS = {"dbrx", "cohere_compass_text", "funnel"}  # transformers does not build them by their own defaults
OPEN = {"blt", "cpmant", "perceiver", "reformer", "prophetnet", "luke", "neomme", "phi4_multimodal"}
"""Types that are not built, or not small."""

OTHER_KINDS = {"zaya"}  # types whose source names kinds that it does not build

SOUND = [x for x in TYPES if x not in BROKEN_DEFAULTS | OPEN]


def _check(model_type):
    torch.manual_seed(0)
    model = model_class(model_type, {})()
    assert sum(x.numel() for x in model.parameters()) <= 500_000
    with torch.no_grad():
        output = model(torch.randn(1, 64, 32))
    assert output.shape == (1, 64, 32)
    assert output.isfinite().all()
    fields = model.model.config.to_dict()
    assert all(x < 17 for name, x in fields.items() if "topk" in name and type(x) is int)
    kinds = {*(getattr(AutoConfig.for_model(fields["model_type"]), "layer_types", None) or ())}
    if len(kinds) == 1 and "layer_types" in fields and model_type not in OTHER_KINDS:
        kinds |= {*kinds_in_source(fields["model_type"])}
    assert kinds <= {*(getattr(model.model.config, "layer_types", None) or ())}


@pytest.mark.slow
@pytest.mark.nightly
def test_every_type_becomes_small():
    failed = {}
    for model_type in SOUND:
        try:
            _check(model_type)
        except Exception as error:
            failed[model_type] = f"{type(error).__name__}: {error}"
    assert failed == {}
