"""A trained language model as a folder of Hugging Face Transformers: its network, tokenizer and code."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

from cab.errors import UserError
from cab.files.disk import user_path
from cab.records.files import kept_weights
from cab.records.record import Record
from cab.registry.names import is_file
from cab.runner.cell import Cell
from cab.runner.engine import load_data, make_backbone, repeated_config
from cab.weights import load_network


def export_model(result: Path, folder: Path) -> None:
    """Write the network of a run of task lm with its evaluated weights, and its tokenizer.

    ``AutoModelForCausalLM`` and ``AutoTokenizer`` load the folder, by the copy of ``modeling_cab`` in it.

    Raises:
        UserError: the run is of another task, its weights were not kept, or a package is missing.
    """
    try:
        from safetensors.torch import save_file
    except ImportError as error:
        raise UserError("a folder of weights requires an extra: `pip install 'cab-benchmark[testing]'`") from error
    record = Record.read(result)
    if record.cell["task"] != "lm":
        raise UserError(f"{result} is of task {record.cell['task']}: only models of task lm are exported")
    weights = kept_weights(result)
    cell = Cell.from_config(repeated_config(record, device="cpu"))
    load_data(cell)
    network = make_backbone(cell)
    load_network(network, weights)
    config, code = cell.config, importlib.util.find_spec("cab.registry.modeling_cab")
    assert code is not None
    assert code.origin is not None
    attention, options = dict(config.resolved["attention"]), cell.task.backbone_options(config.backbone.name)
    folder.mkdir(parents=True, exist_ok=True)
    if is_file(attention["name"]):
        path, _, name = attention["name"].rpartition(":")
        attention["name"] = f"{Path(shutil.copy(user_path(path), folder)).name}:{name}"
    shutil.copy(code.origin, folder)
    save_file({f"network.{name}": x.clone() for name, x in network.state_dict().items()}, folder / "model.safetensors")
    about = {
        "architectures": ["CABForCausalLM"],
        "model_type": "cab",
        "auto_map": {"AutoConfig": "modeling_cab.CABConfig", "AutoModelForCausalLM": "modeling_cab.CABForCausalLM"},
        "vocab_size": options["vocab_size"],
        "max_position_embeddings": record.config["task"]["block_len"],
        "network": {
            **config.resolved["backbone"],
            **options,
            "attention": attention,
            "pattern": str(config.pattern),
            "other_attention": config.resolved["other_attention"],
        },
    }
    (folder / "config.json").write_text(json.dumps(about, indent=1))
    cell.task.save_tokenizer(folder)  # type: ignore[attr-defined]
