"""Generate parts of the documentation from the code: `python -m tools.site.docs_pages`, and a MkDocs hook for the site.

The program rewrites what a page of ``docs/`` has between ``<!-- generated: NAME -->`` and ``<!-- /generated -->`` with
the output of ``PARTS[NAME]``. Most parts come from the output of `cab` commands, so they show what a user sees. The
hook adds pages that are generated as a whole, which exist on the site only.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import io
import math
import os
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path
from types import FunctionType, GenericAlias
from typing import Any
from unittest import mock

import nbformat
import pandas as pd
from markdown.extensions.toc import slugify
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import cab
from cab.cli.main import COMMANDS, main
from cab.config.hydra_options import REPLACED_OPTIONS
from cab.files.text_table import read_csv
from cab.registry.registries import ATTENTIONS
from tools.markdown import table

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
COPIES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Files of the repository's root that are pages of the site."""
NOTEBOOK = Path("tutorials/first-hour.ipynb")
FINDS = ROOT / "tools" / "verification" / "finds"
"""Programs that show wrong results of other packages."""
PART = re.compile(r"^(<!-- generated: ([\w-]+)((?: \w+)*) -->\n\n).*?(^<!-- /generated -->$)", re.MULTILINE | re.DOTALL)
CONTRACTS = ("Attention", "Backbone", "Task")
"""Classes that a user derives from: the page of the Python interface has their whole docstring."""


def write_parts() -> None:
    """Rewrite the generated parts of all pages."""
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text()
        page.write_text(fill(text))


def fill(markdown: str) -> str:
    """Return the page with current generated parts."""
    return PART.sub(lambda part: f"{part[1]}{PARTS[part[2]](*part[3].split())}\n\n{part[4]}", markdown)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that exist on the site only."""
    pages = {page: (ROOT / name).read_text().replace("](docs/", "](") for name, page in COPIES.items()}
    pages |= {f"reference/attentions/{name}.md": output("list", name, "--markdown") for name in ATTENTIONS.names()}
    pages["reference/cli.md"] = commands()
    pages[str(NOTEBOOK.with_suffix(".md"))] = notebook_page(DOCS / NOTEBOOK)
    for page, text in pages.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_context: object) -> str:
    """Adapt links to the site, and replace the summary of the Python interface with all docstrings."""
    for name, copy in COPIES.items():
        markdown = re.sub(rf"\]\((?:\.\./)?((?:\.\./)*){re.escape(name)}", rf"](\1{copy}", markdown)
    if page.file.src_uri != str(NOTEBOOK.with_suffix(".md")):
        markdown = markdown.replace(f"{NOTEBOOK.name})", f"{NOTEBOOK.stem}.md)")
    if page.file.src_uri == "reference/attentions.md":
        markdown += f"\n## Cards\n\n{', '.join(f'[{name}](attentions/{name}.md)' for name in ATTENTIONS.names())}\n"
    return PART.sub(lambda part: directives(part[3].split()) if part[2] == "api" else part[0], markdown)


@functools.cache
def output(*words: str) -> str:
    """Return what `cab WORDS` prints, unwrapped."""
    wide = mock.patch.dict(os.environ, COLUMNS="2000" if words[0] == "run" else "100")
    with wide, contextlib.redirect_stdout(io.StringIO()) as stream, contextlib.suppress(SystemExit):
        main(list(words))
    return stream.getvalue()


def _block(text: str, language: str = "text") -> str:
    return f"```{language}\n{text.rstrip()}\n```"


def commands() -> str:
    """Return the page with every command and subcommand, and its help text."""
    parts = [
        "# Command line",
        "Tables are printed to standard output, logs to standard error. `--debug` adds the traceback to an error, and "
        "`python -m cab` is the same as `cab`. Exit status: 0 for success, 1 for a failed check or comparison, or a "
        "run without a score; 2 for a user error, 3 for an internal error, 75 if another process is running the only "
        "run of the command.",
    ]
    for name in COMMANDS:
        text = output(name, "--help")
        parts.append(f"## cab {name}\n\n{_block(text)}")
        match = re.search(r"\{([a-z0-9,-]+)\} \.\.\.|([a-z-]+(?:\|[a-z-]+)+) \.\.\.", text.split("\n\n", 1)[0])
        for verb in re.split(r"[,|]", match[1] or match[2]) if match else ():
            parts.append(f"### cab {name} {verb}\n\n{_block(output(name, verb, '--help'))}")
    return "\n\n".join(parts)


def options(*named: str) -> str:
    """Return the options of `cab run --help`; of what is ``named``, such as ``trainer default``, if given."""
    text = output("run", *["=".join(named)] * bool(named), "--help")
    rows = re.findall(r"^  ([a-z_]+(?:\.\w+)*)=(\S.*?)(?:\s{2,}(\S.*))?$", text, re.MULTILINE)
    return "\n".join(f"- `{key}={default}`{': ' * bool(about)}{about}" for key, default, about in rows)


def api(*names: str) -> str:
    """Return signature and summary of names that `cab` exports, and of their methods."""
    return "\n\n".join(_block("\n".join(_stub(name, getattr(cab, name))), "python") for name in names)


def _stub(name: str, value: object) -> Iterator[str]:
    """Yield the lines of a type alias, a function, or a class and its methods."""
    if inspect.isfunction(value):
        yield f'{_signature(name, value)}\n    """{_summary(value)}"""'
    elif isinstance(value, type) and not isinstance(value, GenericAlias):
        text = _plain_text(inspect.getdoc(value)) if name in CONTRACTS else _summary(value)
        yield f"class {name}:\n" + textwrap.indent(f'"""{text}"""', "    ")
        bases = [base for base in value.__mro__ if base.__module__.startswith("cab.")]
        for method in dict.fromkeys(name for base in bases for name in vars(base)):
            member = inspect.getattr_static(value, method)
            function = getattr(member, "fget", None) or getattr(member, "__func__", member)
            if inspect.isfunction(function) and not method.startswith("_") and method != "extra_repr":
                yield f"    {_signature(method, function, is_typed=False)}  # {_summary(function)}"
    else:
        yield f"{name} = {value}"


def _signature(name: str, function: FunctionType, *, is_typed: bool = True) -> str:
    signature = inspect.signature(function)
    if not is_typed:
        parameters = [each.replace(annotation=each.empty) for each in signature.parameters.values()]
        signature = signature.replace(parameters=parameters, return_annotation=signature.empty)
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", f"def {name}{signature}")
    return re.sub(r"PosixPath\((.*?)\)", r"\1", text)


def _summary(value: object) -> str:
    """Return the first paragraph of a docstring on one line."""
    return " ".join(_plain_text(inspect.getdoc(value)).partition("\n\n")[0].split())


def _plain_text(docstring: str | None) -> str:
    """Return a docstring without the roles of its references."""
    return re.sub(r":\w+:`[\w.]*?(\w+)`", r"``\1``", docstring or "")


def directives(names: Iterable[str]) -> str:
    """Return mkdocstrings directives for names that `cab` exports, wherever they are defined."""
    parts = []
    for name in names:
        module = cab._EXPORTS[name]
        importlib.import_module(module)
        parts.append(f"::: {module}.{name}\n    options: {{heading: cab.{name}, toc_label: {name}}}")
    return "\n\n".join(parts)


def example() -> str:
    """Return the class of the README."""
    [code] = re.findall(r"```python\n(.*?@register_attention.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    return _block(code, "python")


def hydra() -> str:
    """Return the table of Hydra's options that `cab run` replaces."""
    rows = ((", ".join(f"`{name}`" for name in names), text) for names, text in REPLACED_OPTIONS.items())
    return table("Hydra | `cab run`", rows)


def backends() -> str:
    """Return the number of attentions and patterns by kernels and precision, from attentions/backends.csv."""
    rows: Any = pd.read_csv(ROOT / "attentions" / "backends.csv", keep_default_na=False)
    names = rows["backends"].str.findall(r"\S+(?=;|$)").map(lambda found: sorted({*found} - {"pytorch"}))
    kernels = names.str.join(", ").str.cat(rows["sdpa"].str.replace("; ", ", "), sep=", ").str.strip(", ")
    counts: Any = pd.crosstab(kernels, rows["precision"])[["float32", "autocast", "bfloat16"]]
    return table(f"Kernels | {' | '.join(counts)}", counts.itertuples())


def finds() -> str:
    """Return the programs that show wrong results of other packages, with their docstrings as text."""
    parts = []
    for path in sorted(FINDS.glob("*.py")):
        title, _, rest = path.read_text().removeprefix('"""').partition(".\n\n")
        text, _, program = rest.partition('\n"""\n\n')
        parts.append(f"### {title}\n\n{text}\n\n{_block(program, 'python')}")
    return "\n\n".join(parts)


def causes(row: Mapping[str, str], check: str) -> list[str]:
    """Return the causes of a failed check of a model type, or with ``check`` empty, of another result than failures."""
    return [
        cause["cause"]
        for cause in read_csv(FINDS / "causes.csv")
        if row["type"] in cause["types"].split()
        and any(fnmatch(check, pattern) for pattern in cause["checks"].split() or [""])
    ]


def scoreboard() -> str:
    """Return the table of model types: results, first wrong submodules, and causes; programs are those of the page."""
    rows = sorted(read_csv(ROOT / "results" / "model_types.csv"), key=lambda row: row["type"])
    titles = {path.stem: path.read_text().removeprefix('"""').partition(".\n\n")[0] for path in FINDS.glob("*.py")}
    links = {name: f"[{_sentence(title.partition(': ')[2])}](#{slugify(title, '-')})" for name, title in titles.items()}
    counts = Counter(row["result"] for row in rows)
    verbs = {"holds": "hold", "fails": "fail", "does not build": "cannot be built", "takes too long": "take too long"}
    transformers, torch, days = (sorted({row[name] for row in rows}) for name in ("transformers", "torch", "date"))
    installed = f"Transformers {' and '.join(transformers)}, PyTorch {' and '.join(torch)}"
    total = ", ".join(f"{count} {verbs[result]}" for result, count in counts.most_common())
    cells = []
    for row in rows:
        failed = row["failed"].split()
        found = [cause for check in failed or [""] for cause in causes(row, check)] if row["result"] != "holds" else []
        result = f"fails {len(failed)} of {row['checks']}" if failed else row["result"]
        submodule = f"`{row['layer'].partition(',')[0]}`" if row["layer"] else ""
        text = ". ".join(links.get(cause, _sentence(cause)) for cause in dict.fromkeys(found))
        cells.append((f"`{row['type']}`", result, submodule, text))
    summary = f"{len(rows)} types of {installed}, {days[0]} to {days[-1]}: {total}."
    return f"{summary}\n\n{table('Model type | Result | First wrong submodule | Causes', cells)}"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def rollout(device: str) -> str:
    """Return the table of ``results/rollout`` of a device: the largest value over seeds, in bfloat16 and in float32."""
    largest: Any = pd.read_csv(ROOT / f"results/rollout/{device}.csv").groupby(["dtype", "attention"]).max()
    shown = largest.loc["bfloat16"][["row_error", "steps_error", "steps", "chunks", "batch", "packed", "growth", "kl"]]
    shown["growth"] = shown["growth"].where(shown["steps"] >= 1.0)
    shown = shown.join(largest.loc["float32"][["row_error", "steps", "batch"]].add_prefix("float32 "))
    header = (
        "Attention | Error of the row | Error of steps | Steps | Chunks | Batch | Packed | Growth | KL per token | "
        "float32: error of the row | float32: steps | float32: batch"
    )
    texts = shown.map(lambda value: "–" if math.isnan(value) else f"{value:.2g}")
    return table(header, ((f"`{name}`", *cells) for name, *cells in texts.itertuples()))


PARTS: dict[str, Callable[..., str]] = {
    "list": lambda kind: _block(output("list", kind)),
    "paper": lambda: _block(output("paper")),
    **{
        function.__name__: function for function in (api, backends, example, finds, hydra, options, rollout, scoreboard)
    },
}


def notebook_page(path: Path) -> str:
    """Return the notebook as Markdown, with the committed outputs."""
    parts = [f"Download the [notebook]({path.name})."]
    for cell in nbformat.read(path, as_version=4).cells:
        parts.append(cell.source if cell.cell_type == "markdown" else _block(cell.source, "python"))
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


if __name__ == "__main__":
    write_parts()
