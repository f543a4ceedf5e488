"""Preset `paper` composes to the tables; overrides win; options follow Table 5."""

from importlib.metadata import EntryPoint
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from backbones.gpt2 import GPT2
from cab import UserError, register_backbone, register_task
from cab.config.compose import FILE_GROUPS, Composer, check_overrides, compose, hydra_composed
from cab.registry.registries import ATTENTIONS, BACKBONES, TASKS
from cab.registry.tables import ADDED, read_rows, read_table, tuned_options
from cab.runner.cell import runnable_cells
from cab.runner.launch import expand
from cab.runner.suite import suite_sweeps
from tasks.lm.task import LM


def composed(*overrides: str) -> dict[str, Any]:
    return compose(["task=lstf", "attention=abc", "pattern=NC", *overrides])


@pytest.mark.parametrize("row", read_table("lstf"), ids=lambda row: f"{row['dataset']}-{row['features']}")
def test_every_data_set_has_its_windows_and_the_whole_recipe(row):
    config = composed("preset=paper", f"dataset={row['dataset']}", f"task.features={row['features']}")
    windows = {name: int(row[name]) for name in ("seq_len", "label_len", "pred_len")}
    layers = {name: int(row[name]) for name in ("encoder_layers", "decoder_layers")}
    schedule = {"schedule": "late_exponential", "lr_decay": 0.5, "lr_decay_epochs": 1, "lr_min": 0}
    probsparse = {"name": "probsparse", "mean_over": "length", "sampled": "per_query"}
    expected = {
        "dataset": {"name": row["dataset"]},
        "task": {**windows, "evaluation_batch_size": 32, "test_windows": "whole_batches"},
        "backbone": {**layers, "normalization": "none", "dropout": 0.05},
        "trainer": {**schedule, "batch_size": 32, "patience": 3, "max_steps": None},
        "other_attention": {"NS": probsparse, "CS": {**probsparse, "mix": True}, "NC": "vanilla", "CC": "vanilla"},
    }
    assert {group: {name: config[group][name] for name in options} for group, options in expected.items()} == expected
    assert config["preset"] == "paper"


def test_every_data_set_has_a_row_and_table_1_agrees_with_its_windows():
    """By hand from Table 1: ETT (ETTh1), Weather and ECL, multivariate."""
    rows = {(row["dataset"], row["features"]): row for row in read_table("lstf")}
    assert {(dataset, features) for dataset in TASKS.get("lstf").datasets for features in "MS"} <= rows.keys()
    for dataset, lengths in {"etth1": (336, 720), "weather": (720, 720), "ecl": (336, 960)}.items():
        assert tuple(int(rows[dataset, "M"][name]) for name in ("seq_len", "pred_len")) == lengths


def test_a_row_of_table_5_applies_to_one_cell_only():
    for row in read_table("table5"):
        found = tuned_options(row["task"], row["backbone"], row["pattern"], row["attention"])
        assert found[row["option"]] == yaml.safe_load(row["value"])
    assert tuned_options("pcc", "pointr", "NC", "abc")["num_landmarks"] == 64
    assert tuned_options("lstf", "informer", "NC", "abc")["num_landmarks"] == 16
    assert tuned_options("sum", "transformer", "CS", "abc")["num_landmarks"] == 64


def test_preset_mini_has_options_for_its_lengths():
    for row in read_rows("suite/options.csv"):
        entry = ATTENTIONS.get(row["attention"])
        assert row["option"] in entry.options, row
        assert row["pattern"] in ("", *entry.patterns), row
        assert row["task"] in ("", *TASKS.names()), row
        assert row["note"] or row["published"], row
    for overrides, option, value in (
        ("preset=mini", "num_landmarks", 8),
        ("preset=mini task=lm backbone=gpt2 pattern=CS", "num_landmarks", 4),
        ("preset=mini attention=performer", "num_features", 4),
        ("preset=smoke", "num_landmarks", 16),
    ):
        assert composed("dataset=synthetic", *overrides.split())["attention"][option] == value, overrides


def test_the_command_line_wins():
    chosen = {
        "task": {"seq_len": 99, "test_windows": "all"},
        "backbone": {"encoder_layers": 1, "dropout": 0.5},
        "attention": {"num_landmarks": 7},
        "trainer": {"learning_rate": 0.02, "max_epochs": 1},
    }
    overrides = [f"{group}.{name}={value}" for group, options in chosen.items() for name, value in options.items()]
    config = composed("preset=paper", "dataset=weather", "other_attention=vanilla", *overrides)
    assert all(options.items() <= config[group].items() for group, options in chosen.items())
    assert (config["backbone"]["decoder_layers"], config["trainer"]["batch_size"]) == (2, 32)
    assert config["other_attention"] == "vanilla"


@pytest.fixture
def plugin(tmp_path, monkeypatch, read_again):  # noqa: ARG001
    """The folder of configurations of a package that has a backbone and a task, and names both in entry points."""

    @register_backbone("own_net", paper="-", tasks={"lm": "CS"})
    class OwnNet(GPT2):
        pass

    @register_task("own_task", paper="-", datasets="synthetic", backbones={"gpt2": "CS"})
    class OwnTask(LM):
        pass

    folder = tmp_path / "plugin_with_configs" / "configs"
    folder.mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path)
    point = EntryPoint("own", "plugin_with_configs.configs", "cab.configs")
    monkeypatch.setattr("cab.registry.tables.entry_points", lambda group: [point] if group == point.group else [])
    yield folder
    del BACKBONES._entries["own_net"], TASKS._entries["own_task"]


def own(*overrides: str) -> dict[str, Any]:
    return composed("dataset=synthetic", "pattern=CS", *overrides)


def test_another_package_brings_sizes_recipes_values_and_costs(plugin):
    files = {
        "size/own_net/smoke.yaml": "# @package _global_\nbackbone: {embed_dim: 8, num_heads: 2}\n",
        "recipe/own_task/smoke.yaml": "# @package _global_\ntrainer: {max_steps: 3}\n",
        "recipe/lm/smoke.yaml": "# @package _global_\ntrainer: {max_steps: 1}\n",
        "paper/table5.csv": "task,pattern,backbone,attention,option,value,note\nown_task,CS,,abc,num_landmarks,5,\n"
        "lm,CS,,abc,num_landmarks,5,ours says 64\n",
        "costs.csv": "preset,task,dataset,backbone,hours,hardware,source\nsmoke,own_task,,gpt2,0.5,GPU,guessed\n",
    }
    for name, text in files.items():
        (plugin / name).parent.mkdir(parents=True, exist_ok=True)
        (plugin / name).write_text(text)
    assert own("task=lm", "backbone=own_net", "preset=paper")["backbone"]["embed_dim"] == 768, "it needs no size"
    network = own("task=lm", "backbone=own_net", "preset=smoke")
    assert {"embed_dim": 8, "num_heads": 2}.items() <= network["backbone"].items()
    assert network["trainer"]["max_steps"] == 8, "the recipe of this repository's task is this repository's"
    assert network["attention"]["num_landmarks"] == 64
    task = own("task=own_task", "backbone=gpt2", "preset=smoke")
    assert task["trainer"]["max_steps"] == 3
    assert task["attention"]["num_landmarks"] == 5
    assert any(row["task"] == "own_task" for row in read_rows("costs.csv"))
    assert ("lm", "synthetic", "own_net", "CS", "abc") in runnable_cells()


@pytest.mark.usefixtures("plugin")
def test_a_missing_file_of_a_preset_is_named():
    of_network, of_task = ["task=lm", "backbone=own_net"], ["task=own_task", "backbone=gpt2"]
    files = {"size/own_net/smoke": of_network, "recipe/own_task/mini": of_task, "recipe/own_task/paper": of_task}
    for file, overrides in files.items():
        with pytest.raises(UserError, match=f"{file}.yaml"):
            own(*overrides, f"preset={file.rpartition('/')[2]}")


@pytest.mark.parametrize("task", TASKS.names())
def test_every_backbone_of_a_task_takes_its_calls(task):
    entry = TASKS.get(task)
    assert entry.cls.required_protocols, "name a protocol of cab.backbone_protocols in required_protocols"
    for backbone in entry.backbones:
        assert entry.cls.protocol_of(BACKBONES.get(backbone).cls) in entry.cls.required_protocols


def test_a_backbone_without_the_calls_of_a_task_is_refused():
    lm = TASKS.get("lm").cls
    with pytest.raises(UserError, match=r"does not implement init_state\(batch_size\) of TokenLM"):
        lm.protocol_of(BACKBONES.get("roberta").cls)

    class Renamed(GPT2):
        def forward(self, tokens, *, mask):
            return tokens, mask

    with pytest.raises(UserError, match=r"forward\(tokens, padding_mask, selected\)"):
        lm.protocol_of(Renamed)


def test_cells_are_composed_as_each_alone():
    composer, base = Composer(), ["task=lstf", "dataset=synthetic", "backbone=informer", "pattern=CS"]
    cells = [["attention=abc", "seed=1"], ["attention=gla", "seed=2"], ["attention=[gla,local]", "seed=3"]]
    for option in ("attention.num_landmarks=3", "trainer.log_every=${seed}", "results_dir=r/${seed}"):
        cells += [["attention=abc", option, f"seed={seed}"] for seed in (2, 3)]
    for name, seed in (("abc", 2), ("gla", 2), ("gla", 3)):
        cells.append([f"attention={name}", "results_dir=${attention.name}", f"seed={seed}"])
    cells += [["attention=abc"], *([f"attention={name}", "seed=${trainer.log_every}"] for name in ("abc", "gla"))]
    for cell in cells:
        assert composer([*base, *cell]) == compose([*base, *cell]), cell
    assert len(composer._resolved) == 5
    assert len(composer._composed) == 1


def test_the_cells_of_table_3_are_composed_as_by_hydra_alone():
    """The last run of each set of files, whose values come from the runs before it; of SR, the first as well."""
    places: dict[tuple[str, ...], list[list[str]]] = {}
    for sweep in suite_sweeps(["suite=paper"]) or []:
        for cell in expand(check_overrides(sweep, sweep=True))[0]:
            place = tuple(each for each in cell if not each.startswith(("attention=", "seed=")))
            places.setdefault(place, []).append(cell)
    composer = Composer()
    made = [[composer(cell) for cell in cells] for cells in places.values()]
    assert (len(made), sum(map(len, made)), len(composer._composed)) == (21, 251, 12)
    last = {
        tuple(each for each in place if each.partition("=")[0] in FILE_GROUPS): (place, cells, configs)
        for (place, cells), configs in zip(places.items(), made, strict=True)
    }
    assert len(last) == 12
    for place, cells, configs in last.values():
        for number in (0, -1) if "task=sr" in place else (-1,):
            alone = OmegaConf.to_container(hydra_composed(check_overrides(cells[number])), resolve=True)
            assert configs[number] == alone, cells[number]


def test_options_of_an_attention_in_a_file_of_settings_are_kept(own_configs, monkeypatch):
    (own_configs / "recipe/lstf/tiny.yaml").write_text("# @package _global_\nattention: {num_landmarks: 5}\n")
    monkeypatch.setenv(ADDED, str(own_configs))
    composer, cell = Composer(), ["task=lstf", "dataset=synthetic", "backbone=informer", "pattern=NC", "preset=tiny"]
    for attention in ("abc", "abc", "nystromformer"):
        config = composer([*cell, f"attention={attention}"])
        assert config["attention"]["num_landmarks"] == 5, attention
