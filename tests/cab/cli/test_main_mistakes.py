"""Every mistake in a command is one line with status 2, before anything is written or deleted."""

import shlex
from pathlib import Path

import pytest

CELL = {"task": "lstf", "dataset": "synthetic", "backbone": "informer", "attention": "abc", "pattern": "NC"}
CELL |= {"preset": "smoke", "device": "cpu"}
MISTAKES = r"""
run CELL force=maybe -> unable to interpret input, got 'maybe'; for example force=false
run CELL attention.num_landmarks=2.5 -> Input should be a valid integer, got 2.5; for example attention.num_landmarks=16
run CELL backbone.dropout=1.5 -> backbone.dropout: Input should be less than 1, got 1.5
run CELL backbone.embed_dim=7 -> embed_dim
run CELL backbone.num_heads=0 -> num_heads
run CELL retry=[lost] -> retry must be a list of finished, oom, diverged, failed
run CELL other_attention=3 -> a valid string or Input should be a valid dictionary, got 3
run CELL 'other_attention={CS: 3}' -> an attention must be a name or a mapping with 'name'
run CELL trainer.learning_rat=1 -> unknown option 'trainer.learning_rat': did you mean 'trainer.learning_rate'
run CELL ~trainer.learning_rate -> '~trainer.learning_rate' removes an option: leave the key out
run CELL logger=false -> unknown logger 'False' (known: csv, tensorboard, wandb)
run CELL logger.project=a -> logger.project requires logger=wandb
run CELL 'trainer={learning_rate: 0.01}' -> write one argument per option: `trainer.learning_rate=0.01`
run CELL trainer.lr=0.1 -> did you mean 'trainer.learning_rate'?
run CELL data=3 -> data is a group of options: set data.download
run CELL results_dir="''" -> results_dir: String should have at least 1 character, got ''
run CELL results_dir=file/below -> results_dir: file is not a folder
run CELL results_dir=LONG -> results_dir
run CELL results_dir=/proc/results -> /proc
run CELL cluster=local cluster.workers_per_gpu=0 -> workers_per_gpu: Input should be greater than or equal to 1, got 0
run CELL seed=2147483648 -> Input should be less than or equal to 2147483647, got 2147483648; for example seed=1
run CELL cluster=local cluster.wokers=2 -> did you mean 'cluster.workers'
run CELL cluster=slurm cluster.time=-1 -> cluster.time: Input should be greater than or equal to 0
run CELL cluster=local +cluster.speed=1 -> unknown option 'cluster.speed'
run CELL-task -> name a task: task=NAME
run CELL-attention -> name an attention: attention=NAME
run CELL attention=vanila -> unknown attention 'vanila' … did you mean 'vanilla'
run CELL dataset=eth1 -> unknown dataset … 'etth1'
run CELL preset=papr -> unknown preset … 'paper'
run CELL attention=s4d -> 's4d' does not support pattern NC … NS CS … cab list attentions
run CELL pattern=CC -> 'informer' has no attention layer with pattern CC … NS CS NC
run CELL attention=vanilla attention.num_landmarks=3 -> attention 'vanilla' has no option 'num_landmarks'
run CELL backbone.depth=3 -> backbone 'informer' has no option 'depth' … encoder_layers
run CELL task.horizon=3 -> task 'lstf' has no option 'horizon' … pred_len
run CELL task.seq_len=900000 -> shorter than one window … seq_len
run CELL dataset=etth1 data_root=nowhere -> the folder data_root=nowhere does not exist … cab data download etth1
leaderboard --out file -> --out: file is not a folder
leaderboard --out '' -> an argument of cab leaderboard is empty
run -m task=lstf seed=, -> an argument of cab run is empty, 'seed=,'; remove it
score file/below -> file/below does not exist: name a folder of records
status file -> file is not a folder
score --check file -> file is not a valid result record
reproduce results/local/0123.json -> is not a valid result record
reproduce results/local/0123.json --results-dir file -> --results-dir: file is not a folder
reproduce results -> results is not a file
crossover results -> results
efficiency vanilla --out file/costs.csv -> file
demo --out file -> --out: file is not a folder
paper tabel3 -> unknown subcommand 'tabel3': did you mean 'table3'?
paper table3 --formt csv -> unknown flag '--formt': did you mean '--format'?
paper table3 --format latx -> unknown --format 'latx': did you mean 'latex'?
score task=lstf -> 'task=lstf' is written as in cab run; write `--task lstf`
list abc --pattern NC -> --pattern applies to attentions, backbones, tasks, cells
run --task lstf -> cab run has no flag '--task'; write `task=lstf`
run --lr 0.1 task=lstf -> cab run has no flag '--lr'; write `trainer.learning_rate=0.1`
run --batch-size=4 task=lstf -> write `trainer.batch_size=4`
run preset smoke task=lstf -> 'preset' has no value; write `preset=smoke`
run preset task=lstf -> 'preset' has no value; write `preset=VALUE`
run suite paper -> 'suite' has no value; write `suite=NAME` (core, mini, paper)
run task=lstf synthetic -> cannot read the override 'synthetic'; write `dataset=synthetic`
run -m task=lstf, pcc -> cannot read the override 'task=lstf,'; remove the comma, or the space after it
efficiency abc --lengths 256,512 -> separate the values by spaces: `--lengths 256 512`
list attention --pattern NC -> unknown table 'attention': did you mean 'attentions'?
run lr=0.1 -> unknown option 'lr': did you mean 'trainer.learning_rate'?
run model=informer -> did you mean 'backbone'?
run cluster=slrm --help -> unknown cluster 'slrm': did you mean 'slurm'?
scor -> did you mean 'score'
verify -> name an attention: `cab verify abc`
run attention=abd --help -> did you mean 'abc'
run task=lstf attention=abc tune=true -> add suite=core
run suite=core attention=abc tune=maybe -> tune
data verify ljspeach --data-root . -> unknown data set 'ljspeach': did you mean 'ljspeech'?
data verify etth1 -> the folder of the data sets is not set: use --data-root DATA or set CAB_DATA
run suite=core atention=abc -> attention=NAME, which `cab run suite=core atention=abc` lacks
verify vanilla position=rope --pattern CS -> attention 'vanilla' has no option 'position'
verify vanilla positions=rope --pattern CC -> positions=rope requires pattern NS or CS, got pattern CC
verify vanilla positions=rope --record rows.csv -> --record requires all checks with seed 0 and default options
verify positions=rope -> name an attention
verify vanilla --checks causal -> unknown check 'causal': did you mean 'causality'
verify local --pattern CC -> 'local' does not support pattern CC (supported: NS, CS)
verify vanilla --pattern NS --checks causality -> none of these checks applies
verify vanilla --device nowhere -> device 'nowhere' is not available
verify missing.py:A -> file 'missing.py' does not exist
verify mine.py --pattern CS -> name a class
verify mine.py:Nothing --pattern CS -> no torch.nn.Module class 'Nothing' in
verify mine.py:NotAModule --pattern CS -> it has: Mean, Leaky
verify mine.py:Mean -> name its pattern with --pattern
verify broken.py:A --pattern CS -> ModuleNotFoundError: No module named 'nothing_of_this_name'
run CELL device=tpu --explain -> device: Input should be 'auto', 'cpu' or 'cuda', got 'tpu'
run CELL engine=quick --dry-run -> unknown engine 'quick' (known: fairseq, torch)
run CELL trainer.kernels={recurrence:fls} -> unknown kernels
run -m CELL seed=1,two -> seed: Input should be a valid integer, got 'two'; for example seed=1
run -m CELL task.pred_len=1,x cluster=local -> task.pred_len: Input should be a valid integer, got 'x'; for example task
run -m CELL attention=glob(zz*) -> no attention matches 'attention=glob
run -m CELL --explain -> --explain prints one configuration
run CELL seed=range(1,3) -> has several values; add -m
run CELL attention=abc(num_landmarks=32) -> landmarks=32)'; write … attention.OPTION=VALUE
run CELL attention=gla*3,vanilla pattern=CS -> add -m to run them all: … write one stack in brackets: attention=[gla
run CELL attention=local+linear attention.local.window=8 -> has no option 'window'
run CELL attention=local+linear attention.window_size=8 -> such as attention.local.window_size
run CELL attention=[[gla,vanilla],abc] -> a stack in a stack is not supported; list all layers
run task=tts dataset=synthetic attention=abc pattern=NS -> name a backbone: … one of fastspeech2, transformer_tts
run task=tts task.source=voice backbone=transformer_tts attention=abc pattern=CC -> , or a name of your own
run suite=paper task=glue -> task of suite=paper
run suite=paper preset=huge -> preset
run suite=paper attention=of_nobody -> attention
run suite=paper backbone=sr3 pattern=CC -> Table 3 has no cell
run suite=core attention=abc attention.num_landmarks=4,8 tune=true -> single value of attention.num_landmarks
run suite=core attention=abc dataset=mqar -> suite=core sets the dataset; remove dataset=
crossover --taks lm -> unknown flag '--taks'; known: --baseline, --csv, --help, --protocol
run CELL --debg -> unknown flag '--debg': did you mean '--debug'?
run suite=core attention=abc seed=1,1000 tune=true -> choose another seed
run --retry failed results_dir=nothing -> nothing is not a folder
verify none --record rows.csv --device cuda -> remove --checks, --seed, --device and options
verify none --record file -> file is not a table with columns attention,pattern
run CELL attention=folder.py:Mine -> file 'folder.py' is a folder
run CELL attention=results/local/0123.json:Mine -> its name does not end in .py
run CELL attention=./mine:Mean -> file './mine' does not exist; write ./mine.py:Mean
run CELL attention=./mine -> write ./mine.py:Class
run CELL attention=mine:Mean -> unknown attention 'mine:Mean' … write mine.py:Mean
run CELL backbone=./mine.py:Mean -> unknown backbone … a backbone of your own must be in a package with an entry point
run CELL task=mine:Mean -> unknown task … a task of your own must be in a package with an entry point of cab.tasks
list mine:Mean -> unknown name … write mine.py:Mean
score --attention ./mine:Mean -> unknown attention with results … write ./mine.py:Mean
efficiency mine:Mean -> write mine.py:Class
run CELL attention=leaving.py:Mine -> cannot import leaving.py: ExitError: the code called
run CELL --config-dir missing --cfg job -> the folder of configurations missing does not exist
score --pattern NS,SN -> unknown pattern 'SN': did you mean … Known: CC, CS, NC, NS, causal_cross
run CELL 'seed=${nowhere}' -> Interpolation key 'nowhere' not found
run CELL seed=glob(*) -> glob() selects names of a group
run -m CELL trainer.learning_rate=interval(0,1) -> cab run does not have Hydra's 'interval()': list values with `-m`
run CELL hydra.launcher.n_jobs=2 -> cab run does not have Hydra's 'hydra.launcher.n_jobs': set `cluster=local`
run CELL hydra.verbose=true -> Hydra's 'hydra.verbose': the configuration reference lists what cab run has
run CELL cluster.extra.nodes=2 -> cluster.extra requires cluster=slurm
run CELL experiment=x -> unknown experiment 'x' (known: none); put experiment/NAME.yaml into a folder
run CELL --config nowhere.yaml -> nowhere.yaml cannot be read as YAML
run CELL --config list.yaml -> list.yaml has no settings
run CELL --cfg jobs -> write --cfg job
run -m CELL --cfg job -> --cfg prints one configuration: remove -m
run CELL --retry=lost -> --retry requires a comma-separated list of
run CELL --retry -> argument --retry: expected one argument
score folder.py -> no valid result in folder.py; run a cell first, for example: `cab run task=lstf dataset=synthetic
score results/paper --score K -> no score to show: the results have index; use --score
score results/paper --preset mini -> no result has preset 'mini' (available: published)
score results/paper --score metrics --show ablation -> --show ablation requires an index
score results/paper --csv --normalization papers -> unknown normalization 'papers': did you mean 'paper'
crossover costs.csv -> no cost file at costs.csv
crossover results/paper/efficiency_cost.csv --baseline eager -> unknown baseline 'eager'
crossover results/paper/efficiency_cost.csv --protocol other -> unknown protocol 'other'
paper audit --normalization none -> unknown normalization 'none'
reproduce results/local/0123.json --tolerance nan -> --tolerance must be at least 0, got nan
efficiency abc:window=3 --no-verify -> attention 'abc' has no option 'window'
efficiency --phase decode --no-verify -> phase decode is not defined for NS; it requires pattern CS or CC
efficiency --phase forward-graph --device cpu --no-verify -> phase forward-graph requires --device cuda, got cpu
efficiency --compile --phase decode --pattern CS --no-verify -> --compile supports only the phases … and decode
efficiency --compile --protocol paper --no-verify -> --compile supports only the phases … got protocol paper
efficiency --kernels fla --protocol paper --no-verify -> protocol paper does not support --kernels
efficiency --phase forward+backward --protocol paper --no-verify -> protocol paper supports only phase forward, got
efficiency --protocol lra --phase decode --pattern NS CS --no-verify -> protocol lra supports only pattern NS and
efficiency --packed uniform --protocol paper --no-verify -> packed sequences support only … got protocol paper
efficiency --packed uniform --phase decode --pattern CS --no-verify -> packed sequences support only … and decode
efficiency --lengths 0 --no-verify -> lengths must be at least 1, got [0]
efficiency --embed-dim 10 --num-heads 4 --no-verify -> embed_dim 10 is not divisible by num_heads 4
"""
"""Commands with words of the line that they print. CELL is what the command does not set; CELL-task lacks the task."""
FILES = {
    "file": "kept",
    "results/local/0123.json": "kept",
    "broken.py": "import nothing_of_this_name",
    "folder.py/kept": "kept",
    "leaving.py": "exit()",
    "list.yaml": "- 1",
    "mine.py": "from torch import nn\nclass Mean(nn.Module): pass\nclass Leaky(Mean): pass\nclass NotAModule: pass",
}


@pytest.mark.parametrize("mistake", MISTAKES.strip().splitlines(), ids=lambda mistake: mistake.partition(" -> ")[0])
def test_a_mistake_is_one_line(mistake, refused):
    for name, text in FILES.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)
    command, _, words = mistake.replace("LONG", "x" * 300).partition(" -> ")
    arguments: list[str] = []
    for word in (given := shlex.split(command)):
        cell, _, missing = word.partition("-")
        named = {missing, *(other.partition("=")[0] for other in given)}
        arguments += [f"{key}={value}" for key, value in CELL.items() if key not in named] if cell == "CELL" else [word]
    assert refused(*arguments, words=words.split(" … ")).startswith("cab: error: ")
