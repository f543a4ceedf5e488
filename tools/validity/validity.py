"""Compare the suite's scores with published results and real data: results/validity and docs/results/validity.md.

``python -m tools.validity.validity`` computes table3.csv and probes.csv from the bundled reference results, and
replaces the text between ``<!-- answers -->`` and ``<!-- /answers -->`` of the page. With folders as arguments it first
adds the records of lstf in these folders to series.csv, and those of lm to text.csv; a run that is there already is
replaced. If the page differs from the results, tests/tools/validity/test_validity.py fails.
"""

from __future__ import annotations

import math
import re
import statistics
import sys
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path

import pandas as pd

from cab.patterns import pattern_rank
from cab.records.files import PAPER_DIR, REFERENCE_DIRS
from cab.records.record import Status, records_in
from cab.results.cells import NO_ATTENTION
from cab.results.load import load_results
from cab.results.normalization import population
from cab.results.retained import by_cell, gains_table
from cab.results.statistics import Estimate, difference, holm, weighted_sum
from cab.results.validity import invalid_cells
from tools.validity.rank_test import rank_test, rank_test_power

ROOT = Path(__file__).parents[2]
RESULTS, PAGE = ROOT / "results" / "validity", ROOT / "docs" / "results" / "validity.md"
PROBES = ROOT / "results" / "probes" / "probes.csv"
BLOCK = re.compile(r"(?<=<!-- answers -->\n).*?(?=\n<!-- /answers -->)", re.DOTALL)
MIXERS = {"Transformer": "vanilla", "Attention": "vanilla", "GLA": "gla", "DeltaNet": "deltanet"}
"""Published mixers that are registered as the same layer."""
RECALL, LM = ("probe", "mixer", "CS"), ("lm", "gpt2", "CS")
LEVEL, CORRELATION, POWER, ENOUGH = 0.05, 0.6, 0.8, 5
TESTS = 6
"""Number of times that question 1 was tested, each time with more results; its p-value is multiplied by it."""
YES, NO, UNDECIDED, MIXED = "Yes", "No", "Undecided", "Mixed"
GROUPS = ("ppl", "ppl_repeated", "ppl_other")
SERIES = "Data set | Softmax attention | None in NS | None in CS | None in NC | `ridge` | Last day"
RANKS = "Cell | Shared attentions | Spearman"
PUBLISHED = "Published | Mixers | Shared (published; K) | Spearman | Shared (published; probe) | Spearman"
TEXT = "Attention | Seeds | Loss, all tokens | Repeated | Other | K, all tokens | Repeated | Other"
Key = tuple[str, str, str]


def gains_by_cell(gains: pd.DataFrame) -> dict[Key, dict[str, float]]:
    """Return K per cell and attention; ``none`` and further implementations of softmax attention are excluded."""
    found = {}
    for cell, rows in by_cell(gains[gains["seeds"] > 0]):
        k = {} if cell.key in invalid_cells() else dict(zip(rows["attention"], rows["K"], strict=True))
        found[cell.key] = {name: k[name] for name in population(k)}
    return found


def published_scores() -> pd.DataFrame:
    """Return Table 3 as the mean of z-scores over metrics and data sets, per pattern, task, backbone and attention."""
    table = pd.read_csv(PAPER_DIR / "results.csv").dropna(subset=["value"])
    table = table[table["attention"].isin(population(table["attention"]))]
    table["score"] = table["value"].where(table["higher_is_better"] == 1, -table["value"])
    terms = table.groupby(["pattern", "task", "backbone", "dataset", "metric"])["score"]
    table["published"] = (table["score"] - terms.transform("mean")) / terms.transform("std")
    return table.groupby(["pattern", "task", "backbone", "attention"])["published"].mean().reset_index()


def table3(gains: Mapping[Key, Mapping[str, float]]) -> pd.DataFrame:
    """Return K and the published score of every attention that the suite and Table 3 share in a cell."""
    rows = [(p, t, b, name, k) for (t, b, p), own in gains.items() for name, k in own.items()]
    suite = pd.DataFrame(rows, columns=["pattern", "task", "backbone", "attention", "suite_k"])
    return suite.merge(published_scores(), on=["pattern", "task", "backbone", "attention"])


def answer_table3(shared: pd.DataFrame) -> tuple[str, list[str]]:
    """Return the answer to question 1, and the rows of its table."""
    scores: dict[Hashable, tuple[pd.DataFrame, pd.DataFrame]] = {}
    sizes: dict[str, int] = {}
    rows = []
    for (pattern, task, backbone), part in shared.groupby(["pattern", "task", "backbone"]):
        rho = part["suite_k"].corr(part["published"], method="spearman") if len(part) > 2 else math.nan
        rows.append((pattern_rank(str(pattern)), f"| {task} {backbone} {pattern} | {len(part)} | {_number(rho)} |"))
    usable = shared[shared.groupby(["pattern", "task", "backbone"])["attention"].transform("size") > 1]
    for pattern, part in usable.groupby("pattern"):
        tables = [
            part.pivot_table(index="attention", columns=["task", "backbone"], values=name)
            for name in ("suite_k", "published")
        ]
        scores[pattern], sizes[str(pattern)] = (tables[0], tables[1]), len(tables[0])
    _, p_value = rank_test(scores)
    power = rank_test_power(list(sizes.values()), CORRELATION)
    corrected = min(1.0, TESTS * p_value)
    answer = YES if corrected <= LEVEL else NO if power >= POWER else UNDECIDED
    numbers = ", ".join(f"{size} in {pattern}" for pattern, size in sizes.items())
    text = (
        f"**{answer}**: p = {p_value:.3f}, and {corrected:.2f} after Bonferroni's correction for {TESTS} tests of "
        f"growing results. Attentions in cells with at least two: {numbers}. The power of one test is {power:.0%}."
    )
    return text, [row for _, row in sorted(rows)]


def probes(gains: Mapping[Key, Mapping[str, float]]) -> pd.DataFrame:
    """Return the published accuracies of registered mixers, with K and the accuracy of the recall probe."""
    mad = pd.read_csv(PAPER_DIR / "mad.csv").groupby(["dataset", "mixer"], as_index=False)["accuracy"].mean()
    mqar = pd.read_csv(PAPER_DIR / "mqar.csv").query("length == 64 and pairs == 4 and width == 64")
    recall = pd.read_csv(PROBES).query("pattern == 'CS' and dataset == 'recall' and pairs == 32 and embed_dim == 64")
    both = pd.concat([mad.assign(source="MAD"), mqar.assign(source="Zoology", dataset="mqar")])
    both["attention"] = both["mixer"].map(MIXERS)
    both = both.rename(columns={"accuracy": "published"})[["source", "dataset", "mixer", "attention", "published"]]
    return both.assign(
        suite_k=both["attention"].map(gains[RECALL]),
        probe_accuracy=both["attention"].map(recall.set_index("attention")["accuracy"]),
    )


def answer_probes(table: pd.DataFrame) -> tuple[str, list[str]]:
    """Return the answer to question 2, and the rows of its table."""
    rows, answers = [], set()
    for (source, dataset), part in table.groupby(["source", "dataset"]):
        cells = [f"{source} `{dataset}`", str(len(part))]
        for column in ("suite_k", "probe_accuracy"):
            shared = part.dropna(subset=["attention", column])
            rho, p_value = _spearman(shared["published"], shared[column])
            answers.add(_ranked(rho, p_value, len(shared)))
            values = zip(shared["attention"], shared["published"], shared[column], strict=True)
            cells += [
                ", ".join(f"`{name}` ({one:.3g}; {other:.3g})" for name, one, other in values) or "–",
                _number(rho),
            ]
        rows.append(f"| {' | '.join(cells)} |")
    answer = answers.pop() if len(answers) == 1 else UNDECIDED
    registered = table["attention"].nunique()
    return (
        f"**{answer}**: {registered} of {table['mixer'].nunique()} published mixers are registered as the same layer. "
        f"With {registered} attentions, p is at least {1 / math.factorial(registered):.2f}.",
        rows,
    )


def _ranked(rho: float, p_value: float, size: int) -> str:
    return YES if p_value <= LEVEL else NO if rho <= 0 and size >= ENOUGH else UNDECIDED


def _spearman(one: pd.Series, other: pd.Series) -> tuple[float, float]:
    """Return Spearman's correlation and the one-sided p-value by permutation; NaN for fewer than three attentions."""
    if len(one) < 3:
        return math.nan, math.nan
    _, p_value = rank_test({"": (one.to_frame("x"), other.to_frame("x"))})
    return float(one.corr(other, method="spearman")), p_value


def collect(folders: Iterable[Path]) -> None:
    """Add the finished records in folders to series.csv and text.csv; a run that is there already is replaced."""
    records = [record for folder in folders for _, record in records_in(folder, skipped=[])]
    for file, task, run in (
        ("series.csv", "lstf", ["dataset", "pattern", "attention", "seed"]),
        ("text.csv", "lm", ["attention", "seed"]),
    ):
        table = pd.read_csv(RESULTS / file, float_precision="round_trip")
        rows = [
            {**record.cell}
            | {metric.name: metric.value for metric in record.metrics}
            | {f"{name}_{metric}": x for name, own in record.baselines.items() for metric, x in own.items()}
            for record in records
            if record.status is Status.FINISHED and record.cell["task"] == task
        ]
        table = pd.concat([table, pd.DataFrame(rows, columns=table.columns)] if rows else [table])
        table = table.drop_duplicates(run, keep="last").sort_values(run)
        table.to_csv(RESULTS / file, index=False, lineterminator="\n")


def answer_series(table: pd.DataFrame) -> tuple[str, list[str]]:
    """Return the answers to question 3, and the rows of its table; the first data set was known before."""
    without: dict[str, list[Estimate]] = {}
    rows, sides = [], set()
    for dataset, part in table.groupby("dataset", sort=False):
        own = {(a, p): values["mse"].tolist() for (a, p), values in part.groupby(["attention", "pattern"])}
        vanilla = own.pop(("vanilla", "NC"))
        low, high = Estimate.of(vanilla).interval()
        ridge, day = part["ridge_mse"].iloc[0], part["repeat_last_day_mse"].iloc[0]
        sides.add(YES if high < ridge else NO if low > ridge else MIXED)
        cells = [_spread(vanilla), *(_spread(own[NO_ATTENTION, pattern]) for pattern in ("NS", "CS", "NC"))]
        rows.append(f"| `{dataset}` | {' | '.join(cells)} | {ridge:.3f} | {day:.3f} |")
        softmax = Estimate.of([math.log(value) for value in vanilla])
        for pattern in ("NS", "CS", "NC"):
            removed = Estimate.of([math.log(value) for value in own[NO_ATTENTION, pattern]])
            without.setdefault(pattern, []).append(difference(removed, softmax))
    [judged] = sides if len(sides) == 1 else [MIXED]
    new = {pattern: each[1:] for pattern, each in without.items()}
    return (
        f"Is the error larger without attention (change in MSE, adjusted p)? {_effects(without)}. "
        f"On the new data sets alone: {_effects(new)}.\n\n"
        f"Is softmax attention better than a linear forecast? **{judged}**.",
        rows,
    )


def _effects(without: Mapping[str, Sequence[Estimate]]) -> str:
    effects = {pattern: weighted_sum((1 / len(each), part) for part in each) for pattern, each in without.items()}
    adjusted = holm([effect.p_value for effect in effects.values()])
    return "; ".join(
        f"{pattern} **{_judged(effect, p).lower()}** ({math.exp(effect.value) - 1:+.0%}, p = {p:.2g})"
        for (pattern, effect), p in zip(effects.items(), adjusted, strict=True)
    )


def _judged(effect: Estimate, p_value: float) -> str:
    return UNDECIDED if not p_value <= LEVEL else YES if effect.value > 0 else NO


def answer_text(table: pd.DataFrame, gains: Mapping[Key, Mapping[str, float]]) -> tuple[str, list[str]]:
    """Return the answers to question 4, and the rows of its table."""
    losses = {
        str(name): {group: [math.log(value) for value in part[group]] for group in GROUPS}
        for name, part in table.groupby("attention")
    }
    k = {name: {group: _share(losses, name, group) for group in GROUPS} for name in losses}
    rows = [
        f"| `{name}` | {len(own['ppl'])} | {' | '.join(_spread(own[group]) for group in GROUPS)} | "
        f"{' | '.join(f'{k[name][group]:.0f}' for group in GROUPS)} |"
        for name, own in sorted(losses.items(), key=lambda item: statistics.fmean(item[1]["ppl"]))
    ]
    gain = {group: _gap(losses, NO_ATTENTION, "vanilla", group) for group in GROUPS}
    extra = {
        name: [a - b for a, b in zip(own["ppl_repeated"], own["ppl_other"], strict=True)]
        for name, own in losses.items()
    }
    more = difference(Estimate.of(extra[NO_ATTENTION]), Estimate.of(extra["vanilla"]))
    window = _gap(losses, "local", "vanilla", "ppl")
    ranks, answers = [], []
    for label, scores in (("LM CS", gains[LM]), ("recall CS", gains[RECALL])):
        shared = [name for name in scores if name in k and name != NO_ATTENTION]
        own, suite = {x: k[x]["ppl_repeated"] for x in shared}, {x: scores[x] for x in shared}
        rho, p_value = _spearman(pd.Series(own), pd.Series(suite))
        answers.append(_ranked(rho, p_value, len(shared)))
        ranks.append(f"{label} {_number(rho)} (p = {_number(p_value)}, {len(shared)} attentions)")
    agree = answers[0] if len(set(answers)) == 1 else UNDECIDED
    return (
        f"Does attention help more on repeated tokens? **{_judged(more, more.p_value)}**: "
        f"vanilla's gain is {gain['ppl_repeated'].value:.3f} nats per repeated token "
        f"and {gain['ppl_other'].value:.3f} per other token (p = {more.p_value:.2g}).\n\n"
        f"Do attentions rank on repeated tokens as in the suite? **{agree}**: {', '.join(ranks)}.\n\n"
        f"Is a local window worse than softmax attention? **{_judged(window, window.p_value)}**: "
        "the loss of `local` minus that of `vanilla` is "
        f"{window.value:+.3f} nats on all tokens (p = {window.p_value:.2g}), "
        f"{_gap(losses, 'local', 'vanilla', 'ppl_repeated').value:+.3f} on repeated and "
        f"{_gap(losses, 'local', 'vanilla', 'ppl_other').value:+.3f} on other tokens.",
        rows,
    )


def _share(losses: Mapping[str, Mapping[str, Sequence[float]]], name: str, group: str) -> float:
    own, softmax, without = (statistics.fmean(losses[each][group]) for each in (name, "vanilla", NO_ATTENTION))
    return 100 * (without - own) / (without - softmax)


def _gap(losses: Mapping[str, Mapping[str, Sequence[float]]], one: str, other: str, group: str) -> Estimate:
    return difference(Estimate.of(losses[one][group]), Estimate.of(losses[other][group]))


def _spread(values: Sequence[float]) -> str:
    mean = f"{statistics.fmean(values):.3f}"
    return f"{mean} ± {statistics.stdev(values):.3f}" if len(values) > 1 else f"{mean}*"


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.2f}"


def table_of(header: str, rows: Sequence[str]) -> str:
    """Return a Markdown table; header cells are separated by vertical bars."""
    return "\n".join([f"| {header} |", "|" + " --- |" * (header.count("|") + 1), *rows])


def answers() -> str:
    """Return the text and tables of the page's answers, and write table3.csv, probes.csv and answers.csv."""
    gains = gains_by_cell(gains_table(load_results(REFERENCE_DIRS)))
    shared, published = table3(gains), probes(gains)
    for name, table in (("table3.csv", shared), ("probes.csv", published)):
        table.to_csv(RESULTS / name, index=False, float_format="%.4f", lineterminator="\n")
    parts = [
        ("1. Do attentions rank as in the paper's Table 3?", RANKS, answer_table3(shared)),
        ("2. Do attentions rank as in MAD and in MQAR?", PUBLISHED, answer_probes(published)),
    ]
    parts.append(("3. Real time series", SERIES, answer_series(pd.read_csv(RESULTS / "series.csv"))))
    parts.append(("4. Real text", TEXT, answer_text(pd.read_csv(RESULTS / "text.csv"), gains)))
    pd.DataFrame([(title, text) for title, _, (text, _) in parts], columns=["question", "answer"]).to_csv(
        RESULTS / "answers.csv", index=False, lineterminator="\n"
    )
    return "\n\n".join(f"### {title}\n\n{text}\n\n{table_of(header, rows)}" for title, header, (text, rows) in parts)


def main(folders: Sequence[str]) -> None:
    """Write the results and the page."""
    if folders:
        collect(map(Path, folders))
    PAGE.write_text(BLOCK.sub(lambda _: answers(), PAGE.read_text()))


if __name__ == "__main__":
    main(sys.argv[1:])
