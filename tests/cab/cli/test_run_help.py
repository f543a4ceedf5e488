"""`cab run --help` lists every option with its default and what it is."""

import re

import yaml

from cab.cli.run_help import help_text
from cab.config.run_config import RUN_KEYS, DataConfig, TrainerConfig
from cab.registry.options import annotations_of
from cab.registry.registries import TASKS
from cab.registry.tables import CONFIGS


def options(text: str) -> dict[str, tuple[str, str]]:
    found = re.findall(r"^  ([\w.]+)=((?:\S| (?! ))+)(?:  +(.*))?$", text, flags=re.MULTILINE)
    return {name: (default, about) for name, default, about in found}


def test_every_option_has_a_line_with_its_default_and_what_it_is():
    found = options("\n".join(map(help_text, ([], ["trainer=default", "cluster=local,slurm"]))))
    groups = {"task", "dataset", "backbone", "attention", "trainer", "logger", "cluster", "data"}
    expected = RUN_KEYS.keys() - groups - {"preset", "pattern"}
    for group, settings in (("trainer", TrainerConfig), ("data", DataConfig)):
        expected |= {f"{group}.{name}" for name in annotations_of(settings)}
    for file in ("local.yaml", "slurm.yaml"):
        keys = yaml.safe_load((CONFIGS / "cluster" / file).read_text()).keys() - {"name"}
        expected |= {f"cluster.{key}" for key in keys}
    assert found.keys() == expected
    assert [name for name, (_, about) in found.items() if not about] == []
    assert found["trainer.betas"][0] == "[0.9, 0.999]"
    assert found["data_root"][0] == "$CAB_DATA"


def test_the_help_fits_two_screens_and_lists_data_sets_by_task():
    text = help_text([])
    assert len(text.splitlines()) <= 90
    for task in TASKS:
        assert re.search(rf"^  {task.name} .*{task.datasets[0]}", text, flags=re.MULTILINE)


def test_the_options_of_named_choices_are_listed(cab):
    found = options(cab("run", "task=lstf", "attention=abc,local", "--help").out)
    assert found["attention.num_landmarks"] == ("16", "memory slots r of each head.")
    assert found["attention.extent"][0] == "total"
    names = {f"task.{name}" for name in TASKS.get("lstf").options}
    assert names <= found.keys()
    assert all(found[name][1] for name in names)
