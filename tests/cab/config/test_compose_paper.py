"""Preset `paper` of every task against Table 4 and Table 14, read as data or typed in by hand from the paper."""

import functools
from typing import Any

import pytest
import yaml

from cab.config.compose import compose
from cab.config.groups import paper_value
from cab.registry.registries import TASKS
from cab.registry.tables import read_table, tuned_options

NETWORKS: dict[str, dict[str, Any]] = {
    "fastspeech2": {"embed_dim": 256, "num_heads": 2, "ffn_dim": 1024, "encoder_layers": 4, "decoder_layers": 4},
    "transformer_tts": {"embed_dim": 512, "num_heads": 4, "ffn_dim": 2048, "encoder_layers": 6, "decoder_layers": 6},
    "transformer": {"embed_dim": 512, "num_heads": 8, "ffn_dim": 2048, "encoder_layers": 6, "decoder_layers": 6},
    "informer": {"embed_dim": 512, "num_heads": 8, "ffn_dim": 2048},
    "pointr": {"embed_dim": 384, "num_heads": 6, "encoder_layers": 6, "decoder_layers": 8, "num_queries": 3584},
    "gpt2": {"embed_dim": 768, "num_heads": 12, "ffn_dim": 3072, "num_layers": 12},
    "roberta": {"embed_dim": 768, "num_heads": 12, "ffn_dim": 3072, "num_layers": 12},
    "sr3": {"base_channels": 64, "channel_multipliers": [1, 2, 4, 8, 8], "num_blocks": 2},
}
"""As run: what the parameter counts imply where Table 14 prints something else (docs/paper/discrepancies.md)."""

SCHEDULES = {"lambda": "exponential", "polynomial": "linear"}
OTHERWISE = {("sr", "schedule"): "constant", ("sr", "optimizer"): "adam", ("lstf", "optimizer"): "adam"}
"""Where the run differs from Table 4's column: SR's "linear" is its noise schedule; both are plain Adam."""
OTHERWISE[("lstf", "schedule")] = "late_exponential"
FAIRSEQ = {"fastspeech2": (30.0, 6e-8), "transformer_tts": (0.0, 8.5e-6)}
"""Clipping at 5.0 and Adam's eps of 1e-8, of gradients that fairseq divides by 6, and by about 850."""
DROPOUT = {"tts": "attention_dropout", "lm": "attention_dropout", "mlm": "attention_dropout", "lstf": "dropout"}
DROPOUT["sr"] = "dropout"

CELLS = [(task.name, task.datasets[0], backbone) for task in TASKS if task.in_index for backbone in task.names]


@functools.cache
def composed(task: str, dataset: str, backbone: str, preset: str) -> dict[str, Any]:
    pattern = str(TASKS.get(task).backbones[backbone][0])
    chosen = {"task": task, "dataset": dataset, "backbone": backbone, "pattern": pattern, "attention": "vanilla"}
    return compose([f"{key}={value}" for key, value in {**chosen, "preset": preset}.items()])


@pytest.mark.parametrize(("task", "dataset", "backbone"), CELLS)
def test_training_is_table_4_and_networks_are_those_that_were_run(task, dataset, backbone):
    rows = [row for row in read_table("table4") if row["task"] == task]
    assert rows, f"Table 4 has no {task}: register it with in_index=False"
    [row] = rows
    config = composed(task, dataset, backbone, "paper")
    trainer = config["trainer"]
    assert trainer["batch_size"] == int(row["batch_size"])
    assert trainer["max_steps"] == (int(row["steps"]) if row["steps"] else None)
    assert trainer["max_epochs"] == (int(row["epochs"]) if row["epochs"] else None)
    assert trainer["warmup_steps"] == int(row["warmup_steps"] or 0)
    assert trainer["learning_rate"] == float(row["learning_rate"])
    assert trainer["weight_decay"] == float(row["weight_decay"])
    assert trainer["max_grad_norm"] == (FAIRSEQ[backbone][0] if task == "tts" else float(row["clip_norm"]))
    assert trainer["betas"] == [float(row["beta1"]), float(row["beta2"])]
    assert trainer["schedule"] == OTHERWISE.get((task, "schedule"), SCHEDULES.get(row["schedule"], row["schedule"]))
    # cab, tasks/MLM/mlm.yaml: fp16: true; tasks/Sum/README.md: --env.fp16 True; tasks/LM and TTS: no --fp16
    assert trainer["precision"] == ("16-mixed" if task in ("mlm", "sum") else "auto")
    assert trainer["optimizer"] == OTHERWISE.get((task, "optimizer"), row["optimizer"])
    if task in DROPOUT:
        assert config["backbone"][DROPOUT[task]] == float(row["attention_dropout"])
    found = {name: config["backbone"][name] for name in NETWORKS[backbone]}
    assert {k: list(v) if isinstance(v, tuple) else v for k, v in found.items()} == NETWORKS[backbone]


@pytest.mark.parametrize(("task", "backbone"), [("tts", "fastspeech2"), ("sr", "sr3"), ("mlm", "roberta")])
def test_attentions_with_a_released_form_are_that_form(task, backbone):
    assert tuned_options(task, backbone, "NS", "nystromformer")["logit_scale"] == "linear"
    probsparse = tuned_options(task, backbone, "NS", "probsparse")
    assert (probsparse["mean_over"], probsparse["sampled"]) == ("length", "per_query")
    sound = tuned_options(task, backbone, "NS", "probsparse", preset="mini")
    assert (sound["mean_over"], sound["sampled"]) == ("sample", "shared")
    assert tuned_options(task, backbone, "NS", "nystromformer", preset="mini")["logit_scale"] == "sqrt"


def test_protocols_are_the_published_ones():
    summary: dict[str, Any] = {"tokenizer": "bart", "search": "greedy", "min_length": 200, "max_length": 400}
    summary |= {"empty": "skip", "ends": "short", "source_len": 4096, "target_len": 400, "label_smoothing": 0.1}
    lengths = [256, 512, 1024, 2048, 4096, 8192, 12288, 16384]
    masked = {"tokenizer": "gpt2", "block_len": 2048, "mask_share": 0.15, "scored_part": "validation"}
    published: dict[tuple[str, str, str], dict[str, Any]] = {
        ("tts", "ljspeech", "fastspeech2"): {"chosen_by": "mcd", "as_fairseq": True},
        ("sum", "multi_news", "transformer"): summary,
        ("pcc", "pcn", "pointr"): {"validation_split": "test", "f_score_of": "all"},
        ("lm", "pg19", "gpt2"): {"tokenizer": "gpt2", "block_len": 8192, "context_lengths": lengths},
        ("mlm", "pg19", "roberta"): masked,
        ("sr", "ffhq", "sr3"): {"diffusion_steps": 2000, "scored_images": "first_100", "step_of": "batch"},
    }
    configs = {cell: composed(*cell, "paper") for cell in published}
    for cell, options in published.items():
        assert options.items() <= configs[cell]["task"].items(), cell
    sr, averaged = configs["sr", "ffhq", "sr3"], {"average_every": 50_000, "average_count": 5}
    assert sr["backbone"]["attention_resolutions"] == [16, 32, 64]  # cab, tasks/SR/sr_sr3_16_128.json, `attn_res`
    assert paper_value("sr", "attention_resolutions", "attention", "abc") == [16, 32, 64, 128]
    assert ({"checkpoint_selection": "average"} | averaged).items() <= sr["trainer"].items()
    assert configs["sum", "multi_news", "transformer"]["trainer"]["checkpoint_selection"] == "last"


@pytest.mark.parametrize(
    ("task", "backbone", "attention", "count"),
    [
        ("lm", "gpt2", "vanilla", "gpt2_wt103"),
        ("lm", "gpt2", "transnormer_t1", "gpt2_wt103_glu"),
        ("mlm", "roberta", "transnormer_t2", "roberta_wt103_glu"),
        ("mlm", "roberta", "[diag_attention*3,norm_attention*9]", "roberta_wt103_glu"),
        ("lm", "gpt2", "flash_quad", "gpt2_wt103_flash"),
        ("mlm", "roberta", "flash_gau", "roberta_wt103_flash"),
    ],
)
def test_wikitext103_is_the_network_that_transnormer_counted(task, backbone, attention, count):
    """And its rate is 5e-4, as in its Table 13 and script, not section 5.1's 0.005."""
    chosen = {"task": task, "dataset": "wikitext103", "backbone": backbone, "attention": attention, "preset": "paper"}
    pattern = str(TASKS.get(task).backbones[backbone][0])
    config = compose([f"{key}={value}" for key, value in {**chosen, "pattern": pattern}.items()])
    of_data = ("vocab_size", "max_length")
    rows = [row for row in read_table("networks") if row["key"] == count and row["option"] not in of_data]
    counted = {row["option"]: yaml.safe_load(row["value"]) for row in rows}
    assert {name: config["backbone"][name] for name in counted} == counted
    assert config["trainer"]["learning_rate"] == 5e-4
    assert config["trainer"]["batch_size"] * config["task"]["block_len"] == (65_536 if task == "lm" else 262_144)
    assert config["attention"].get("positions", "lrpe") == ("none" if attention == "vanilla" else "lrpe")
    if attention == "vanilla":
        smaller = compose([f"{k}={v}" for k, v in {**chosen, "dataset": "wikitext2", "pattern": pattern}.items()])
        assert {**smaller, "dataset": config["dataset"]} == config
