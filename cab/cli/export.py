"""`cab export`: write a trained language model for Hugging Face, or golden vectors of an attention for a port.

Examples:
  cab export results/local/0123456789abcdef.json --out my_model  # for AutoModelForCausalLM, AutoTokenizer and lm-eval
  cab export kda --out vectors                                   # vectors/kda.safetensors and vectors/kda.json
  cab export vanilla positions=rope --out vectors
  cab verify port.safetensors --vectors vectors/kda.json         # the first stage of a port that differs
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

from cab.errors import UserError
from cab.files.disk import check_writable, user_path
from cab.records.files import kept_weights
from cab.records.record import Record
from cab.registry.names import is_file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "exported",
        metavar="RESULT|ATTENTION",
        help="record of a run of task lm whose weights were kept: its network and tokenizer are written. "
        "Or a registered attention, or FILE.py:Class: inputs, weights, every stage, states and gradients are written "
        "in float64, with a manifest that explains them",
    )
    parser.add_argument(
        "options",
        nargs="*",
        metavar="OPTION=VALUE",
        help="options of the attention; by default, sizes in tokens are small, so that a selection leaves tokens out",
    )
    parser.add_argument("--pattern", default="CS", help="pattern of the attention: NS, CS (default), NC or CC")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="output folder")


def run(args: argparse.Namespace) -> int:
    check_writable(args.out, "--out")
    if args.exported.endswith(".json") and not args.options:
        export_model(Path(args.exported), args.out)
        print(
            f"{args.out}: load it with AutoModelForCausalLM.from_pretrained({str(args.out)!r}, trust_remote_code=True)"
        )
        return 0
    from cab.attention import Attention
    from cab.patterns import Pattern
    from cab.verification.foreign import parse_options, subject_class
    from cab.verification.vectors import golden_vectors, safetensors, write_vectors

    if wrong := [word for word in args.options if "=" not in word]:
        raise UserError(f"'{wrong[0]}' is not an option; write OPTION=VALUE")
    safetensors()  # an error if it is not installed, before the work
    attention: Any = subject_class(args.exported) if ":" in args.exported else args.exported
    if not isinstance(attention, str) and not issubclass(attention, Attention):
        raise UserError(f"{args.exported} is not a subclass of cab.Attention, whose stages have names")
    vectors, manifest = golden_vectors(attention, Pattern.parse(args.pattern), parse_options(args.options))
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / manifest["attention"]
    write_vectors(path, vectors, manifest)
    print(f"{path}.safetensors: {len(vectors)} vectors, explained by {path}.json")
    return 0


def export_model(result: Path, folder: Path) -> None:
    """Write the network of a run of task lm with its evaluated weights, and its tokenizer.

    ``AutoModelForCausalLM`` and ``AutoTokenizer`` load the folder, by the copy of ``modeling_cab`` in it.

    Raises:
        UserError: the run is of another task, its weights were not kept, or a package is missing.
    """
    from cab.runner.cell import Cell
    from cab.runner.engine import load_data, make_backbone, repeated_config
    from cab.weights import load_network

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
