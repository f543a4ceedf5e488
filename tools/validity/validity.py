"""Compare the suite's scores with published results and real data: results/validity and docs/results/validity.md.

``python -m tools.validity.validity`` computes table3.csv and probes.csv from the bundled reference results, and
replaces the text between ``<!-- answers -->`` and ``<!-- /answers -->`` of the page. With folders as arguments it first
adds the records of lstf in these folders to series.csv, and those of lm to text.csv; a run that is there already is
replaced. If the page differs from the results, tests/tools/validity/test_validity.py fails.
"""

from __future__ import annotations

import math
import re
import sys
from collections import defaultdict
from collections.abc import Collection, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from cab.patterns import pattern_rank
from cab.records.files import PAPER_DIR, REFERENCE_DIRS
from cab.records.record import Status, records_in
from cab.results.cells import NO_ATTENTION
from cab.results.load import load_results
from cab.results.normalization import population
from cab.results.retained import by_cell, gains_table
from cab.results.statistics import Estimate, difference, holm, weighted_sum
from cab.results.validity import invalid_cells
from tools.markdown import table

ROOT = Path(__file__).parents[2]
RESULTS, PAGE = ROOT / "results" / "validity", ROOT / "docs" / "results" / "validity.md"
PROBES = ROOT / "results" / "probes" / "probes.csv"
BLOCK = re.compile(r"(?<=<!-- answers -->\n).*?(?=\n<!-- /answers -->)", re.DOTALL)
MIXERS = {"Transformer": "vanilla", "Attention": "vanilla", "GLA": "gla", "DeltaNet": "deltanet"}
"""Published mixers that are registered as the same layer."""
RECALL, LM = ("probe", "mixer", "CS"), ("lm", "gpt2", "CS")
LEVEL, CORRELATION, POWER, ENOUGH = 0.05, 0.6, 0.8, 5
SIMULATED = 20_000
"""Draws from which the power of a test is computed."""
TESTS = 6
"""Number of times that question 1 was tested, each time with more results; its p-value is multiplied by it."""
YES, NO, UNDECIDED, MIXED = "Yes", "No", "Undecided", "Mixed"
REMOVED = ("NS", "CS", "NC")
"""Patterns in which attention is removed."""
GROUPS = ["ppl", "ppl_repeated", "ppl_other"]
SERIES = "Data set | Softmax attention | None in NS | None in CS | None in NC | `ridge` | Last day"
RANKS = "Cell | Shared attentions | Spearman"
PUBLISHED = "Published | Mixers | Shared (published; K) | Spearman | Shared (published; probe) | Spearman"
TEXT = "Attention | Seeds | Loss, all tokens | Repeated | Other | K, all tokens | Repeated | Other"
Key = tuple[str, str, str]
Answer = tuple[str, list[list[str]]]
"""The answers to a question, and the cells of its table."""


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


def answer_table3(shared: pd.DataFrame) -> Answer:
    """Answer question 1."""
    cells: Any = shared.groupby(["pattern", "task", "backbone"])
    rows = []
    for pattern, task, backbone in sorted(cells.groups, key=lambda key: (pattern_rank(key[0]), key)):
        part = cells.get_group((pattern, task, backbone))
        rho = part["suite_k"].corr(part["published"], method="spearman") if len(part) > 2 else math.nan
        rows.append([f"{task} {backbone} {pattern}", str(len(part)), _number(rho)])
    scores = {
        pattern: tuple(part.pivot_table(name, "attention", ["task", "backbone"]) for name in ("suite_k", "published"))
        for pattern, part in cells.filter(lambda part: len(part) > 1).groupby("pattern")
    }
    sizes = {pattern: len(suite) for pattern, (suite, _) in scores.items()}
    _, p_value = rank_test(scores)
    power = rank_test_power([*sizes.values()], CORRELATION)
    corrected = min(1.0, TESTS * p_value)
    answer = YES if corrected <= LEVEL else NO if power >= POWER else UNDECIDED
    numbers = ", ".join(f"{size} in {pattern}" for pattern, size in sizes.items())
    return (
        f"**{answer}**: p = {p_value:.3f}, and {corrected:.2f} after Bonferroni's correction for {TESTS} tests of "
        f"growing results. Attentions in cells with at least two: {numbers}. The power of one test is {power:.0%}."
    ), rows


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


def answer_probes(table: pd.DataFrame) -> Answer:
    """Answer question 2."""
    rows, answers = [], set()
    for (source, dataset), part in table.groupby(["source", "dataset"]):
        cells = [f"{source} `{dataset}`", str(len(part))]
        for column in ("suite_k", "probe_accuracy"):
            shared = part.dropna(subset=["attention", column])
            rho, _, answer = _ranked(shared["published"], shared[column])
            answers.add(answer)
            values = shared[["attention", "published", column]].itertuples(index=False)
            cells += [", ".join(f"`{name}` ({x:.3g}; {y:.3g})" for name, x, y in values) or "–", _number(rho)]
        rows.append(cells)
    registered = table["attention"].nunique()
    return (
        f"**{_common(answers)}**: {registered} of {table['mixer'].nunique()} published mixers are registered as the "
        f"same layer. With {registered} attentions, p is at least {1 / math.factorial(registered):.2f}."
    ), rows


def _ranked(one: pd.Series, other: pd.Series) -> tuple[float, float, str]:
    """Return Spearman's correlation, the one-sided p-value by permutation, and the answer; NaN below three."""
    rho = p_value = math.nan
    if len(one) > 2:
        rho = float(one.corr(other, method="spearman"))
        _, p_value = rank_test({"": (one.to_frame("x"), other.to_frame("x"))})
    return rho, p_value, YES if p_value <= LEVEL else NO if rho <= 0 and len(one) >= ENOUGH else UNDECIDED


def rank_test(scores: Mapping[Hashable, Any], *, draws: int = 4_999) -> tuple[float, float]:
    """Return the summed covariance of ranks and the one-sided p-value of positive agreement.

    The null distribution permutes the attentions of the first table within each stratum, with all their cells together,
    because scores of one attention in several cells are dependent. A cell with fewer than two attentions adds nothing.

    Args:
        scores: two tables of scores per stratum, with one row per attention and one column per cell; NaN where there is
            no score, and higher is better.
        draws: number of random permutations, from a fixed seed.
    """
    random = np.random.default_rng(1)
    tables = [(one.to_numpy(float), other.to_numpy(float)) for one, other in scores.values()]
    observed = sum(_covariance(one, other) for one, other in tables)
    drawn = [sum(_covariance(random.permutation(one), other) for one, other in tables) for _ in range(draws)]
    return observed, (1 + sum(each >= observed - 1e-9 for each in drawn)) / (1 + draws)


def _covariance(one: np.ndarray, other: np.ndarray) -> float:
    known = np.isfinite(one) & np.isfinite(other)
    cells = [(x[both], y[both]) for x, y, both in zip(one.T, other.T, known.T, strict=True) if both.sum() > 1]
    return sum(float(np.cov(stats.rankdata(x), stats.rankdata(y))[0, 1]) for x, y in cells)


def rank_test_power(sizes: Sequence[int], correlation: float) -> float:
    """Return the simulated power of :func:`rank_test` with one cell per stratum.

    Args:
        sizes: number of attentions per stratum.
        correlation: Pearson's correlation of normal scores in every stratum.
    """
    random = np.random.default_rng(1)

    def summed_covariances(true: float) -> np.ndarray:
        total = np.zeros(SIMULATED)
        for size in (size for size in sizes if size > 1):
            x, noise = random.standard_normal((2, SIMULATED, size))
            y = true * x + np.sqrt(1 - true**2) * noise
            ranks = [values.argsort(1).argsort(1) - (size - 1) / 2 for values in (x, y)]
            total += (ranks[0] * ranks[1]).sum(1) / (size - 1)
        return total

    null = np.sort(summed_covariances(0.0))
    p_values = 1 - np.searchsorted(null, summed_covariances(correlation) - 1e-9) / SIMULATED
    return float((p_values <= LEVEL).mean())


def _common(answers: Collection[str], otherwise: str = UNDECIDED) -> str:
    return next(iter(answers)) if len({*answers}) == 1 else otherwise


def collect(folders: Sequence[Path]) -> None:
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


def answer_series(table: pd.DataFrame) -> Answer:
    """Answer question 3; the first data set was known before."""
    without = defaultdict[str, list[Estimate]](list)
    rows, sides = [], set()
    for dataset, part in table.groupby("dataset", sort=False):
        own: Any = part.groupby(["attention", "pattern"])["mse"].apply(np.array)
        vanilla = own["vanilla", "NC"]
        low, high = Estimate.of(vanilla).interval()
        ridge, day = part[["ridge_mse", "repeat_last_day_mse"]].iloc[0]
        sides.add(YES if high < ridge else NO if low > ridge else MIXED)
        removed = [own[NO_ATTENTION, pattern] for pattern in REMOVED]
        rows.append([f"`{dataset}`", *map(_spread, (vanilla, *removed)), f"{ridge:.3f}", f"{day:.3f}"])
        for pattern, errors in zip(REMOVED, removed, strict=True):
            without[pattern].append(_gap(np.log(errors), np.log(vanilla)))
    new = {pattern: each[1:] for pattern, each in without.items()}
    return (
        f"Is the error larger without attention (change in MSE, adjusted p)? {_effects(without)}. "
        f"On the new data sets alone: {_effects(new)}.\n\n"
        f"Is softmax attention better than a linear forecast? **{_common(sides, MIXED)}**."
    ), rows


def _effects(without: Mapping[str, Sequence[Estimate]]) -> str:
    effects = {pattern: weighted_sum((1 / len(each), part) for part in each) for pattern, each in without.items()}
    adjusted = holm([effect.p_value for effect in effects.values()])
    return "; ".join(
        f"{pattern} **{_judged(effect, p).lower()}** ({math.exp(effect.value) - 1:+.0%}, p = {p:.2g})"
        for (pattern, effect), p in zip(effects.items(), adjusted, strict=True)
    )


def _judged(effect: Estimate, p_value: float) -> str:
    return UNDECIDED if not p_value <= LEVEL else YES if effect.value > 0 else NO


def answer_text(table: pd.DataFrame, gains: Mapping[Key, Mapping[str, float]]) -> Answer:
    """Answer question 4."""
    losses: Any = np.log(table.set_index("attention")[GROUPS])
    mean = losses.groupby("attention").mean()
    k = 100 * (mean.loc[NO_ATTENTION] - mean) / (mean.loc[NO_ATTENTION] - mean.loc["vanilla"])
    rows = [
        [f"`{name}`", str(len(losses.loc[[name]])), *(_spread(losses.loc[[name], group]) for group in GROUPS)]
        + [f"{value:.0f}" for value in k.loc[name]]
        for name in mean.sort_values("ppl").index
    ]
    gain = mean.loc[NO_ATTENTION] - mean.loc["vanilla"]
    extra = losses["ppl_repeated"] - losses["ppl_other"]
    more = _gap(extra.loc[[NO_ATTENTION]], extra.loc[["vanilla"]])
    window = _gap(losses.loc[["local"], "ppl"], losses.loc[["vanilla"], "ppl"])
    loss = mean.loc["local"] - mean.loc["vanilla"]
    ranks, answers = [], []
    for label, scores in (("LM CS", gains[LM]), ("recall CS", gains[RECALL])):
        shared = [name for name in scores if name in k.index and name != NO_ATTENTION]
        rho, p_value, answer = _ranked(k.loc[shared, "ppl_repeated"], pd.Series(dict(scores))[shared])
        answers.append(answer)
        ranks.append(f"{label} {_number(rho)} (p = {_number(p_value)}, {len(shared)} attentions)")
    return (
        f"Does attention help more on repeated tokens? **{_judged(more, more.p_value)}**: "
        f"vanilla's gain is {gain['ppl_repeated']:.3f} nats per repeated token "
        f"and {gain['ppl_other']:.3f} per other token (p = {more.p_value:.2g}).\n\n"
        f"Do attentions rank on repeated tokens as in the suite? **{_common(answers)}**: {', '.join(ranks)}.\n\n"
        f"Is a local window worse than softmax attention? **{_judged(window, window.p_value)}**: "
        "the loss of `local` minus that of `vanilla` is "
        f"{loss['ppl']:+.3f} nats on all tokens (p = {window.p_value:.2g}), "
        f"{loss['ppl_repeated']:+.3f} on repeated and {loss['ppl_other']:+.3f} on other tokens."
    ), rows


def _gap(one: Any, other: Any) -> Estimate:
    return difference(Estimate.of(one), Estimate.of(other))


def _spread(values: Any) -> str:
    return f"{np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else f"{np.mean(values):.3f}*"


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.2f}"


def answers() -> str:
    """Return the text and tables of the page's answers, and write table3.csv, probes.csv and answers.csv."""
    gains = gains_by_cell(gains_table(load_results(REFERENCE_DIRS)))
    shared, published = table3(gains), probes(gains)
    for name, numbers in (("table3.csv", shared), ("probes.csv", published)):
        numbers.to_csv(RESULTS / name, index=False, float_format="%.4f", lineterminator="\n")
    series, text = (pd.read_csv(RESULTS / name) for name in ("series.csv", "text.csv"))
    parts = [
        ("1. Do attentions rank as in the paper's Table 3?", RANKS, answer_table3(shared)),
        ("2. Do attentions rank as in MAD and in MQAR?", PUBLISHED, answer_probes(published)),
        ("3. Real time series", SERIES, answer_series(series)),
        ("4. Real text", TEXT, answer_text(text, gains)),
    ]
    pd.DataFrame([(title, text) for title, _, (text, _) in parts], columns=["question", "answer"]).to_csv(
        RESULTS / "answers.csv", index=False, lineterminator="\n"
    )
    return "\n\n".join(f"### {title}\n\n{text}\n\n{table(header, rows)}" for title, header, (text, rows) in parts)


def main(folders: Sequence[str]) -> None:
    """Write the results and the page."""
    if folders:
        collect([*map(Path, folders)])
    PAGE.write_text(BLOCK.sub(lambda _: answers(), PAGE.read_text()))


if __name__ == "__main__":
    main(sys.argv[1:])
