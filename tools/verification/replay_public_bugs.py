"""Replay public bugs: run `cab verify` on releases of public packages before and after the repair of each bug.

    python -m tools.verification.replay_public_bugs --releases DIR --out results/public_bugs.csv

`tools/verification/public_bugs.csv` lists all bugs that were tried; a bug without a good release is open in the newest
release. Its column `name` may end with options of `cab verify`. A bug that cannot be replayed has its result there.
A release is a version of transformers, whose packages are in `tools/verification/public_bug_releases.csv`, or that of
another package, such as `minGRU-pytorch==0.2.1`, followed by the packages that it imports. Releases are installed with
pip into DIR, one folder per release, without dependencies; torch and numpy of this environment are used.

Columns of the output: the columns of the list; `result` is `caught` if one of the checks fails in the bad release,
`missed` otherwise, or the result in the list (`not reproduced`, `not run`); `evidence` is the detail of the first
failed check, or the reason; `after_repair` is `passed`, `open`, or `false alarm` with the detail of the first failed
check.
"""

from __future__ import annotations

import argparse
import csv
import io
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from cab.files.text_table import read_csv

ROOT, LISTS = Path(__file__).parents[2], Path(__file__).parent
COLUMNS = ("bug", "name", "checks", "bad", "good", "summary", "result", "evidence", "after_repair")


def install(release: str, folder: Path) -> Path | None:
    """Install a release into its folder unless it exists; return None for the release of this environment."""
    if release == version("transformers"):
        return None
    packages = release.split()
    target = folder.resolve() / packages[0]
    if not target.is_dir():
        if "==" not in release:
            [pins] = [row for row in read_csv(LISTS / "public_bug_releases.csv") if row["transformers"] == release]
            packages = [f"{name}=={pin}" for name, pin in pins.items()]
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--no-deps"]
        subprocess.run([*command, "--target", target, *packages], check=True)
    return target


def failures(name: str, checks: str, target: Path | None) -> list[dict[str, str]]:
    """Return the failed checks of `cab verify --csv` with a release; raises RuntimeError if it does not run."""
    paths = [str(target)] if target else []
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*paths, str(ROOT)]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "cab.cli.main", "verify", *name.split(), "--quick", "--csv", "--checks", checks]
    process = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)
    if process.returncode not in (0, 1):
        raise RuntimeError(process.stderr.strip().splitlines()[-1])
    output = process.stdout.replace(f"{target}{os.sep}", "")
    return [row for row in csv.DictReader(io.StringIO(output)) if row["passed"] == "false"]


def replay(bug: dict[str, str], folder: Path) -> dict[str, str]:
    if bug["result"]:
        return bug | {"after_repair": ""}
    before = failures(bug["name"], bug["checks"], install(bug["bad"], folder))
    found = {"result": "caught" if before else "missed", "evidence": before[0]["detail"] if before else ""}
    if not bug["good"]:
        return bug | found | {"after_repair": "open"}
    after = failures(bug["name"], bug["checks"], install(bug["good"], folder))
    return bug | found | {"after_repair": f"false alarm: {after[0]['detail']}" if after else "passed"}


def main() -> None:
    parser = argparse.ArgumentParser(description="Replay public bugs with `cab verify`.")
    parser.add_argument("--releases", type=Path, required=True, metavar="DIR", help="folder for the installed releases")
    parser.add_argument("--out", type=Path, required=True, metavar="CSV", help="table to write")
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="replay bugs whose thread or name contains this text"
    )
    args = parser.parse_args()
    args.releases.mkdir(parents=True, exist_ok=True)
    chosen = [bug for bug in read_csv(LISTS / "public_bugs.csv") if args.only in f"{bug['bug']} {bug['name']}"]
    with args.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for bug in chosen:
            try:
                row = replay(bug, args.releases)
            except RuntimeError as error:
                row = bug | {"result": "not run", "evidence": str(error), "after_repair": ""}
            writer.writerow(row)
            file.flush()
            print(row["bug"], row["name"], row["result"], row["after_repair"], flush=True)


if __name__ == "__main__":
    main()
