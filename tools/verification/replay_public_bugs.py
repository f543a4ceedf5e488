"""Replay public bugs: run `cab verify` on releases of public packages before and after the repair of each bug.

    python -m tools.verification.replay_public_bugs --releases DIR --out TABLE.csv

`results/public_bugs.csv` lists all bugs that were tried; a bug without a good release is open in the newest release.
Its column `name` may end with options of `cab verify`. A release is a version of transformers, whose packages are in
`tools/verification/public_bug_releases.csv`, or that of another package, such as `minGRU-pytorch==0.2.1`, followed by
the packages that it imports. Releases are installed with pip into DIR, one folder per release, without dependencies;
torch and numpy of this environment are used.

Results: `caught` if one of the checks fails in the bad release, otherwise `missed`; `not reproduced` and `not run` have
their reason as `evidence`, and are tried again only by `--only`. Otherwise `evidence` is the detail of the first failed
check. `after_repair` is `passed`, `open`, or `false alarm` with the detail of the first failed check.
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
from tools.gpu.supervisor import write_table

ROOT = Path(__file__).parents[2]
BUGS, RELEASES = ROOT / "results" / "public_bugs.csv", Path(__file__).parent / "public_bug_releases.csv"


def install(release: str, folder: Path) -> Path | None:
    """Install a release into its folder unless it exists; return None for the release of this environment."""
    if release == version("transformers"):
        return None
    packages = release.split()
    target = folder.resolve() / packages[0]
    if not target.is_dir():
        if "==" not in release:
            [pins] = [row for row in read_csv(RELEASES) if row["transformers"] == release]
            packages = [f"{name}=={pin}" for name, pin in pins.items()]
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--no-deps"]
        subprocess.run([*command, "--target", target, *packages], check=True)
    return target


def failures(bug: dict[str, str], release: str, folder: Path) -> list[str]:
    """Return the details of failed checks of `cab verify` with a release; raises RuntimeError if it does not run."""
    target = install(release, folder)
    paths = [str(target)] if target else []
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*paths, str(ROOT)]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "cab.cli.main", "verify", *bug["name"].split(), "--quick", "--csv"]
    command += ["--checks", bug["checks"]]
    process = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)
    if process.returncode not in (0, 1):
        raise RuntimeError(process.stderr.strip().splitlines()[-1])
    rows = csv.DictReader(io.StringIO(process.stdout.replace(f"{target}{os.sep}", "")))
    return [row["detail"] for row in rows if row["passed"] == "false"]


def replay(bug: dict[str, str], folder: Path) -> dict[str, str]:
    """Return the row of a bug with the results of its releases."""
    try:
        before = failures(bug, bug["bad"], folder)
        after = failures(bug, bug["good"], folder) if bug["good"] else []
    except RuntimeError as error:
        return bug | {"result": "not run", "evidence": str(error), "after_repair": ""}
    repaired = f"false alarm: {after[0]}" if after else "passed" if bug["good"] else "open"
    found = {"result": "caught" if before else "missed", "evidence": before[0] if before else ""}
    return bug | found | {"after_repair": repaired}


def main() -> None:
    """Replay the bugs, or those that are named, and write their table."""
    parser = argparse.ArgumentParser(description="Replay public bugs with `cab verify`.")
    parser.add_argument("--releases", type=Path, required=True, metavar="DIR", help="folder for the installed releases")
    parser.add_argument("--out", type=Path, required=True, metavar="CSV", help="table to write")
    parser.add_argument("--only", default="", metavar="TEXT", help="replay bugs whose thread or name has this text")
    args = parser.parse_args()
    args.releases.mkdir(parents=True, exist_ok=True)
    bugs = [bug for bug in read_csv(BUGS) if args.only in f"{bug['bug']} {bug['name']}"]
    rows: list[dict[str, str]] = []
    for bug in bugs:
        is_replayed = args.only or not bug["result"].startswith("not ")
        rows.append(replay(bug, args.releases) if is_replayed else bug)
        write_table(args.out, rows)
        print(*(rows[-1][name] for name in ("bug", "name", "result", "after_repair")), flush=True)


if __name__ == "__main__":
    main()
