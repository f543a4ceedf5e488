"""What must not load torch does not; ranges need Python's assertions."""

import sys

from tests.helpers.command import ROOT, run

LIGHT = (
    *("--help", "--version", "list attentions", "list backbones", "list tasks", "data list", "completion bash"),
    "score results/paper --normalization official --csv",
    "leaderboard results/paper --format markdown",
    "correlation results/paper",
    "crossover results/paper/efficiency_cost.csv --csv",
    "paper audit --csv",
)
CELL = "run task=lstf dataset=etth1 backbone=informer pattern=CS attention=gla"
COMPOSED = (
    "run task=lstf backbone=informer attention=[gla*3,vanilla] --help",
    f"{CELL} attention.gate_rank=8 --cfg job",
    f"{CELL.replace('gla', 'gal')} -> 2",
    f"{CELL} attention.gate_rnak=8 -> 2",
    f"{CELL} trainer.batch_size=-1 --cfg job -> 2",
    "run -m attention.gate_rnak=8 -> 2",
)
"""Commands that compose a configuration, with the exit status unless it is 0."""
HEAVY = ("torch", "scipy.stats", "matplotlib", "hydra")


def test_commands_that_need_no_model_load_neither_torch_nor_plotting():
    """All run in one process; the first that loads a module is named. Help and lists do not load pandas either."""
    script = (
        "import sys; from cab.cli.main import main\n"
        f"for line in {LIGHT + COMPOSED!r}:\n"
        "    command, _, expected = line.partition(' -> ')\n"
        "    try:\n        code = main(command.split())\n    except SystemExit as stop:\n        code = stop.code\n"
        f"    heavy = {HEAVY!r} + ('pandas', 'pydantic') * command.startswith(('--', 'list'))\n"
        "    loaded = [name for name in heavy[:3 if command.startswith('run') else None] if name in sys.modules]\n"
        "    if loaded or code != int(expected or 0):\n        sys.exit(f'{command}: {loaded} {code}')\n"
    )
    done = run([sys.executable, "-c", script], ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_ranges_need_the_assertions_of_python():
    done = run([sys.executable, "-O", "-m", "cab", "run", "-m", "seed=range(1,3)"], ROOT)
    assert done.returncode == 2
    assert done.stderr == "cab: error: 'seed=range(1,3)' cannot be read without assertions: unset PYTHONOPTIMIZE\n"
