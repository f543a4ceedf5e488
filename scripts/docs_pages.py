"""MkDocs hook: pages and tables of the documentation that are generated from the code when the site is built.

A page of ``docs/`` contains ``<!-- generated: NAME -->`` where the output of ``TABLES[NAME]`` belongs. The tables come
from the output of `cab` commands, so they show what a user sees and depend on no internal module.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import importlib
import io
import os
import re
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import cab
from cab.cli.main import main

ROOT = Path(__file__).resolve().parents[1]
PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
NOTEBOOK = Path("tutorials/first-hour.ipynb")
MARKER = re.compile(r"^<!-- generated: ([\w-]+)(?: (.*?))? -->$", re.MULTILINE)
TAXONOMY = ("paper", "taxonomy", "--csv")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Link the header to the repository, where pyproject.toml names its address."""
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    config.repo_url = urls.get("Repository", config.repo_url)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made from the repository's root and from the notebook."""
    for name, page in PAGES.items():
        text = (ROOT / name).read_text().replace("](docs/", "](")
        for other, its_page in PAGES.items():
            text = text.replace(f"]({other})", f"]({its_page})")
        files.append(File.generated(config, page, content=text))
    for row in rows_of("list", "attentions", "--csv"):
        name = row["attention"]
        text = output("show", name, "--markdown")
        files.append(File.generated(config, f"reference/attentions/{name}.md", content=text))
    notebook = Path(config.docs_dir) / NOTEBOOK
    if notebook.exists():
        files.append(File.generated(config, str(NOTEBOOK.with_suffix(".md")), content=notebook_page(notebook)))
    return files


def on_page_markdown(markdown: str, **_context: object) -> str:
    """Replace the markers of a page."""
    return fill(markdown)


def fill(markdown: str) -> str:
    """Return the page with each marker replaced by its table."""
    return MARKER.sub(lambda found: TABLES[found[1]](*(found[2] or "").split()), markdown)


@functools.cache
def output(*words: str) -> str:
    """Return what `cab WORDS` prints, unwrapped."""
    stream = io.StringIO()
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "2000" if "--help" in words and "run" in words else "100"
    try:
        with contextlib.redirect_stdout(stream), contextlib.suppress(SystemExit):
            main(list(words))
    finally:
        os.environ.pop("COLUMNS")
        if before is not None:
            os.environ["COLUMNS"] = before
    return stream.getvalue()


def rows_of(*words: str) -> list[dict[str, str]]:
    """Return the rows of a command that prints CSV."""
    return list(csv.DictReader(io.StringIO(output(*words))))


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Format a Markdown table."""
    lines = [list(header), *([*map(_escaped, row)] for row in rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def commands() -> str:
    """Return every command and subcommand with its help text."""
    parts = []
    for name in re.findall(r"^  ([a-z-]+)  ", output("--help"), re.MULTILINE):
        own = output(name, "--help")
        parts.append(f"## cab {name}\n\n{_block(own)}")
        first_lines = own.split("\n\n", 1)[0]
        found = re.search(r"\{([a-z0-9,-]+)\} \.\.\.|([a-z-]+(?:\|[a-z-]+)+) \.\.\.", first_lines)
        for sub in re.split(r"[,|]", found[1] or found[2]) if found else ():
            parts.append(f"### cab {name} {sub}\n\n{_block(output(name, sub, '--help'))}")
    return "\n\n".join(parts)


def _block(text: str) -> str:
    return f"```text\n{text.rstrip()}\n```"


def options(*words: str) -> dict[str, list[tuple[str, str, str]]]:
    """Return name, default and description of each option in `cab run WORDS --help`, by section ("" for the first)."""
    found: dict[str, list[tuple[str, str, str]]] = defaultdict(list)
    section = ""
    for line in output("run", *words, "--help").splitlines():
        if heading := re.match(r"with (\S+):$", line):
            section = heading[1]
        elif option := re.match(r"  ([a-z_]+(?:\.\w+)*)=(\S.*?)(?:\s{2,}(\S.*))?$", line):
            found[section].append((option[1], option[2], option[3] or ""))
    return found


def _option_table(found: Iterable[tuple[str, str, str]]) -> str:
    return table(("Key", "Default", "Meaning"), ((f"`{name}`", f"`{value}`", text) for name, value, text in found))


def run_options() -> str:
    """Return the keys of a run outside groups."""
    return _option_table(option for option in options()[""] if not option[0].startswith("trainer."))


def trainer_options() -> str:
    """Return the keys of the training loop."""
    return _option_table(option for option in options()[""] if option[0].startswith("trainer."))


def cluster_options() -> str:
    """Return the keys of each launcher."""
    parts = [f"### {section}\n\n{_option_table(found)}" for section, found in options().items() if section]
    return "\n\n".join(parts)


def group_options(group: str) -> str:
    """Return the options of every task or backbone."""
    names = list(dict.fromkeys(row[group] for row in rows_of("list", f"{group}s", "--csv")))
    found = options(f"{group}={','.join(names)}")
    parts = []
    for name in names:
        shown = found.get(f"{group}={name}", [])
        parts.append(f"### `{group}={name}`\n\n" + (_option_table(shown) if shown else "No options."))
    return "\n\n".join(parts)


def attentions() -> str:
    """Return one row per registered attention."""
    rows = rows_of("list", "attentions", "--csv")
    found = options(f"attention={','.join(row['attention'] for row in rows)}")
    lines = []
    for row in rows:
        own = found.get(f"attention={row['attention']}", [])
        shown = "<br>".join(f"`{name.partition('.')[2]}={value}`" for name, value, _ in own)
        state = row["state"].replace(",", " ")
        name = f"[`{row['attention']}`](attentions/{row['attention']}.md)"
        lines.append((name, row["patterns"], row["complexity"], state, row["paper"], shown))
    return table(("Name", "Patterns", "Time", "Decoding state", "Source", "Options and defaults"), lines)


def backbones() -> str:
    """Return one row per registered backbone."""
    rows = rows_of("list", "backbones", "--csv")
    return table(("Backbone", "Patterns", "Source"), ((f"`{r['backbone']}`", r["patterns"], r["paper"]) for r in rows))


def tasks() -> str:
    """Return one row per task and backbone."""
    rows = rows_of("list", "tasks", "--csv")
    lines = ((f"`{r['task']}`", f"`{r['backbone']}`", r["patterns"], r["datasets"], r["paper"]) for r in rows)
    return table(("Task", "Backbone", "Patterns", "Data sets", "Source"), lines)


def checks() -> str:
    """Return the checks of `cab verify`, one table per group."""
    groups: dict[str, list[tuple[str, str]]] = {}
    name = ""
    for line in output("verify", "--list-checks").splitlines():
        if not line.startswith(" "):
            name = line.strip()
            groups[name] = []
        else:
            check, text = line.strip().split(maxsplit=1)
            groups[name].append((f"`{check}`", text))
    return "\n\n".join(f"### {name}\n\n{table(('Check', 'Property'), rows)}" for name, rows in groups.items())


SIGNS = {"verified": "yes", "built": "(yes)", "unsound as published": "repaired", "": "-"}
"""How a verdict on a claim is shown in the table; other verdicts are shown unchanged."""


def taxonomy() -> str:
    """Return the paper's Table 13 compared with the verification results, with remarks."""
    models: dict[str, list[dict[str, str]]] = {}
    for row in rows_of(*TAXONOMY):
        models.setdefault(row["model"], []).append(row)
    lines = []
    for model, rows in models.items():
        first = rows[0]
        name = f"`{first['attention']}`" if first["attention"] else ""
        verdicts = (_sign(row["verdict"]) for row in rows)
        lines.append((model, name, first["complexity_claimed"], first["complexity"], *verdicts))
    header = ("Model", "Name in CAB", "Time, claimed", "Time, implemented", "NS", "CS", "NC", "CC")
    remarks = [
        f"- {r['model']}, {r['pattern']}: {r['reason']}." for rows in models.values() for r in rows if r["reason"]
    ]
    return "\n".join([table(header, lines), "", "## Reasons and remarks", "", *remarks])


def _sign(verdict: str) -> str:
    text, not_claimed, _ = verdict.partition(", not claimed")
    if not_claimed:
        return "+" if text != "built" else "(+)"
    return SIGNS.get(text, text)


def api(*names: str) -> str:
    """Return mkdocstrings directives for names that `cab` exports, wherever they are defined."""
    parts = []
    for name in names:
        module = cab._EXPORTS[name]
        importlib.import_module(module)
        parts.append(f"::: {module}.{name}\n    options: {{heading: cab.{name}, toc_label: {name}}}")
    return "\n\n".join(parts)


TABLES: dict[str, Callable[..., str]] = {
    "api": api,
    "attentions": attentions,
    "backbones": backbones,
    "checks": checks,
    "cluster-options": cluster_options,
    "commands": commands,
    "group-options": group_options,
    "run-options": run_options,
    "tasks": tasks,
    "taxonomy": taxonomy,
    "trainer-options": trainer_options,
}


def notebook_page(path: Path) -> str:
    """Return the notebook as Markdown, with the committed outputs."""
    parts = [f"Download the [notebook]({path.name})."]
    for cell in nbformat.read(path, as_version=4).cells:
        parts.append(cell.source if cell.cell_type == "markdown" else f"```python\n{cell.source}\n```")
        text = "".join(result.get("text") or _plain(result) for result in cell.get("outputs", ()))
        if text:
            parts.append(_block(text))
        for picture in (result.get("data", {}).get("image/png") for result in cell.get("outputs", ())):
            if picture:
                parts.append(f"![output](data:image/png;base64,{''.join(picture.split())})")
    title, *rest = parts[1:]
    return "\n\n".join([title, parts[0], *rest])


def _plain(result: nbformat.NotebookNode) -> str:
    """Return the text form of an output that is not an image."""
    data = result.get("data", {})
    return "" if "image/png" in data else data.get("text/plain", "") + "\n"
