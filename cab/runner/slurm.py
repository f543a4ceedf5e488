"""Run cells as arrays of Slurm jobs, submitted through submitit.

A cell is complete if its record exists, whatever the state of its job. submitit requeues a job at its time limit or a
warning signal; Slurm itself requeues it after preemption or a node failure. Either way the cell resumes from its last
checkpoint.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cab.config.run_config import SlurmConfig
from cab.errors import Preempted, UserError
from cab.files.disk import remove_leftovers, replacing
from cab.files.text_table import counted
from cab.runner.cell import Cell
from cab.runner.processes import without_launcher
from cab.runner.report import Job, Report, cells_to_run, record_lost_run
from cab.runner.slurm_request import by_request, memory_options

log = logging.getLogger("cab")

ARRAY = 1000
"""Largest number of jobs per array; fewer if the cluster allows fewer."""
POLL_SECONDS = 5.0  # between two calls of squeue
PYTHON = f"{shlex.quote(sys.executable)} -P"
"""Interpreter of the jobs; a tasks.py in the working folder must not replace ours."""
STAY_WHILE_PREEMPTED = """\
stay_while_preempted() {
    local job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
    while scontrol --oneliner show job "${job:-$SLURM_JOB_ID}" | grep JobState=RUNNING | grep -qv PreemptTime=None; do
        sleep 2
    done
}
trap stay_while_preempted EXIT"""
"""Part of the batch script: Slurm requeues a preempted job only if the job does not end within its grace time."""


def _submitit() -> Any:
    try:
        import submitit
    except ImportError:
        raise UserError("cluster=slurm requires an extra: `pip install 'cab-benchmark[cluster]'`") from None
    return submitit


def slurm_parameters(options: SlurmConfig) -> dict[str, Any]:
    """Return the parameters of a submitit executor for Slurm, from a complete request."""
    memory, gpus, minutes = options.memory, options.gpus, options.time
    assert memory is not None
    assert gpus is not None
    assert minutes is not None
    texts = {name: str(getattr(options, name)) for name in ("partition", "constraint", "account", "qos")}
    texts |= {f"extra.{name}": f"{name}={value}" for name, value in options.extra.items()}
    for name, text in texts.items():
        if not text.isprintable():  # it would leave its line of the batch script
            raise UserError(f"cluster.{name} must be one line of printable text, got {text!r}")
    if memory and (others := memory_options(options)):
        raise UserError(
            f"cluster.memory={memory:g} and cluster.extra.{others[0]} exclude each other: set cluster.memory=0"
        )
    parameters = {
        "job_name": "cab",
        "nodes": max(1, options.nodes),
        "ntasks_per_node": options.processes or max(1, gpus),
        "cpus_per_task": options.cpus or None,
        "gpus_per_node": gpus or None,
        "mem": _megabytes(memory) if memory else None,
        "array_parallelism": options.max_concurrent_jobs,
        "setup": [STAY_WHILE_PREEMPTED, *options.setup],
        "additional_parameters": options.extra,
        "time": minutes,  # of 0, each requeue counts as one after the time limit
        **{name: getattr(options, name) for name in ("partition", "constraint", "account", "qos")},
    }
    given = {name: value for name, value in parameters.items() if value is not None}
    return {**given, "wckey": None}  # instead of submitit's own key, which some clusters refuse


def _megabytes(memory: float) -> str:
    return f"{memory:.0f}GB" if memory == round(memory) else f"{memory * 1024:.0f}MB"


class CellJob:
    """Function of a job; submitit pickles it, and calls ``checkpoint`` to requeue the job."""

    def __call__(self, config: dict[str, Any], command: str) -> str:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # submitit ignores it: a canceled job would run on for 30 seconds
        from cab.runner.run import run_cell

        logging.basicConfig(level=logging.INFO, format="%(message)s")
        try:
            return run_cell(config, command=command).kind
        except Preempted as stop:
            if stop.signal != signal.SIGTERM:
                requeue = signal.getsignal(stop.signal)  # submitit's handler, after the checkpoint of the cell
                assert callable(requeue)
                requeue(stop.signal, None)
            raise

    def checkpoint(self, *arguments: Any) -> Any:
        """Return the submission of a requeued job, which calls this object again."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, *arguments)


def job_script(options: SlurmConfig, results_dir: Path, count: int) -> str:
    """Return the batch script of ``count`` jobs with one request; Slurm need not be installed."""
    folder = jobs_folder(results_dir, cluster_settings())
    command = f"{PYTHON} -u -m submitit.core._submit {shlex.quote(str(folder / '%j'))}"
    array: dict[str, Any] = {"map_count": min(count, ARRAY)} if count > 1 else {}
    with _lines_left_out(options) as make_script:
        return make_script(command=command, folder=folder / "%j", **slurm_parameters(options), **array)


@contextlib.contextmanager
def _lines_left_out(options: SlurmConfig) -> Iterator[Callable[..., str]]:
    """Let submitit write batch scripts without nodes or time if they are 0; it requires both. Yield its function."""
    names = [name for name in ("nodes", "time") if not getattr(options, name) and name not in options.extra]
    module = _submitit().slurm.slurm
    whole = module._make_sbatch_string  # submitit has no public function for it

    def make_script(**parameters: Any) -> str:
        lines = whole(**parameters).split("\n")
        return "\n".join(line for line in lines if not line.startswith(tuple(f"#SBATCH --{name}=" for name in names)))

    module._make_sbatch_string = make_script
    try:
        yield make_script
    finally:
        module._make_sbatch_string = whole


def run_on_slurm(jobs: Iterable[Job], report: Report, options: SlurmConfig) -> None:
    """Submit every cell that has no record, and wait for the jobs to end if ``options.wait``."""
    cells = list(cells_to_run(jobs, report))
    if not cells:
        return
    settings = cluster_settings()
    if shutil.which("scontrol") and "ClusterName" not in settings:  # the jobs in the queue would be submitted again
        raise UserError("Slurm does not give its settings; repeat the command when `scontrol show config` works")
    folder = jobs_folder(cells[0][0].config.results_dir, settings)
    array_size = max(1, min(ARRAY, int(settings.get("MaxArraySize", ARRAY))))
    remove_leftovers(folder, is_locked=False)
    numbers = jobs_in_queue(cells, folder)
    if numbers:
        names = ", ".join(arrays_of(numbers))
        log.info(
            "already in the queue: %s, as %s; `scancel` removes a job that is held",
            counted(len(numbers), "cell"),
            names,
        )
    waiting = [item for item in cells if item[0].hash not in numbers]
    for request, group in by_request(waiting, lambda item: item[0], options):
        numbers |= _submit(group, request, folder, array_size)
    if not options.wait:
        return
    arrays = arrays_of(numbers)
    while job_states(arrays):
        time.sleep(POLL_SECONDS)
    states = job_states(arrays, "--states=all")
    for cell, job in cells:
        number = numbers[cell.hash]
        state = states.get(number, "ended")
        if state == "OUT_OF_MEMORY" or (state == "FAILED" and _had_no_memory(folder / number)):
            reason = f"Slurm killed job {number} because it ran out of memory; increase cluster.memory"
            record_lost_run(cell, job.command, MemoryError(reason))
        why = f"no record; its job {number} is {state}; repeat the command to resume from the last checkpoint"
        report.add_recorded(cell, otherwise=why)


def jobs_in_queue(cells: list[tuple[Cell, Job]], folder: Path) -> dict[str, str]:
    """Return the jobs of an earlier command that are still in the queue, such as 12_0, by the hash of their cell."""
    files = {cell.hash: folder / f"{cell.hash}.job" for cell, _ in cells}  # with the last job of each
    numbers = {digest: file.read_text() for digest, file in files.items() if file.exists()}
    in_queue = job_states(arrays_of(numbers)) if numbers else {}
    return {digest: number for digest, number in numbers.items() if number in in_queue}


def arrays_of(numbers: Mapping[str, str]) -> list[str]:
    """Return the arrays of jobs, such as 12 for 12_0."""
    return sorted({number.split("_")[0] for number in numbers.values()})


def _submit(cells: list[tuple[Cell, Job]], options: SlurmConfig, folder: Path, array_size: int) -> dict[str, str]:
    """Submit the cells and return their jobs, by the hash of the cell.

    If Slurm rejects an array, the UserError names the arrays before it, whose jobs run.
    """
    submitit = _submitit()
    submitted: dict[str, str] = {}
    try:
        executor = submitit.SlurmExecutor(folder / "%j", max_num_timeout=options.max_requeues, python=PYTHON)
        executor.update_parameters(**slurm_parameters(options))
        for start in range(0, len(cells), array_size):
            batch = cells[start : start + array_size]
            configs, commands = [job.config for _, job in batch], [job.command for _, job in batch]
            with _environment_of_slurm_removed(), _lines_left_out(options):
                jobs = executor.map_array(CellJob(), configs, commands)
            for (cell, _), job in zip(batch, jobs, strict=True):
                with replacing(folder / f"{cell.hash}.job") as temporary:
                    temporary.write_text(job.job_id)
                submitted[cell.hash] = job.job_id
    except (RuntimeError, submitit.core.utils.FailedJobError) as error:
        text = str(getattr(error, "stderr", None) or error).strip().splitlines()[-1]
        accepted = f"submitted {len(submitted)} of {len(cells)} cells as {', '.join(arrays_of(submitted))}; "
        raise UserError(
            f"{accepted if submitted else ''}Slurm rejected the {'others' if submitted else 'jobs'}: {text}; check the "
            "options cluster.*, and repeat the command: cells in the queue are not submitted again"
        ) from error
    if submitted:
        arrays = ", ".join(arrays_of(submitted))
        log.info("submitted %s to Slurm as %s; cab status shows each status", counted(len(submitted), "cell"), arrays)
    return submitted


@contextlib.contextmanager
def _environment_of_slurm_removed() -> Iterator[None]:
    """Remove the variables of a surrounding job, which sbatch prefers to its script and passes on to the jobs."""
    before, kept = dict(os.environ), without_launcher(of_slurm=True)
    if removed := sorted(name for name in before.keys() - kept.keys() if name.startswith("SBATCH_")):
        log.warning("%s of the environment is not used; set the options cluster.*", ", ".join(removed))
    try:
        for name in before.keys() - kept.keys():
            del os.environ[name]
        yield
    finally:
        os.environ.update(before)


def cluster_settings() -> dict[str, str]:
    """Return the settings of the cluster, such as ClusterName and MaxArraySize; empty where Slurm does not answer."""
    if shutil.which("scontrol") is None:
        return {}
    lines = _slurm("scontrol", "show", "config").stdout.splitlines()
    return {name.strip(): value.strip() for name, _, value in (line.partition("=") for line in lines)}


def jobs_folder(results_dir: Path, settings: Mapping[str, str]) -> Path:
    """Return the folder of the jobs; clusters that share a disk give different jobs the same number."""
    folder = results_dir.resolve()
    if "%" in str(folder) or not str(folder).isprintable():  # Slurm and submitit replace %j and others in paths
        raise UserError(f"results_dir: {str(folder)!r} has a character that Slurm replaces; name another folder")
    return folder / "slurm" / settings.get("ClusterName", "")


def job_states(arrays: list[str], *options: str) -> dict[str, str]:
    """Return the states of the jobs of arrays that are in the queue, such as {"12_0": "RUNNING"}.

    With ``--states=all``, also of those that have ended. Unlike sacct, squeue works without accounting.
    """
    while True:
        queue = _slurm("squeue", "--noheader", "--array", "--format=%i %T", f"--jobs={','.join(arrays)}", *options)
        if queue.returncode == 0 or "Invalid job id" in queue.stderr:
            return dict(line.split() for line in queue.stdout.splitlines())
        log.warning("squeue: %s; retrying", queue.stderr.strip())
        time.sleep(POLL_SECONDS)


def _slurm(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _had_no_memory(logs: Path) -> bool:
    """Return whether the log shows that the process ran out of memory; Slurm reports only FAILED."""
    return any("oom-kill event" in path.read_text(errors="replace") for path in logs.glob("*_log.err"))
