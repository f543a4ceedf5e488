from collections.abc import Iterator
from itertools import product

import pytest

from cab import verification
from cab.efficiency.cost import COST_COLUMNS, Cost
from cab.efficiency.subjects import AttentionSubject, select_attentions
from cab.patterns import Pattern
from cab.records import verified
from cab.verification import CheckResult


def test_costs_in_the_columns_that_are_read_elsewhere(efficiency):
    arguments = ["abc", "--pattern", "NS", "CS", "--phase", "forward", "decode", "--lengths", "9", "4", "--csv"]
    rows, printed = efficiency(*arguments)
    assert printed.rows == rows
    assert list(rows[0]) == list(COST_COLUMNS)
    assert list(rows[0])[:6] == ["attention", "pattern", "phase", "length", "seconds", "bytes"]
    measured = {(row["pattern"], row["phase"], row["length"], row["attention"]) for row in rows}
    forward = product(("NS", "CS"), ("forward",), "49", ("vanilla", "eager", "abc", "projections"))
    assert measured == {*forward, *product(("CS",), ("decode",), "49", ("vanilla", "eager", "abc"))}
    assert all(float(row["p10"]) <= float(row["seconds"]) <= float(row["p90"]) for row in rows)
    assert all(int(row["bytes"]) > 0 for row in rows)
    assert {row["relative_to_softmax"] for row in rows if row["attention"] == "vanilla"} == {"1"}
    complexities = {"vanilla": "n^2", "eager": "n^2", "abc": "n", "projections": ""}
    assert {(row["attention"], row["complexity"]) for row in rows} == {*complexities.items()}
    assert "NS skipped in phase decode" in printed.err
    facts = {"protocol": "default", "repeats": "2", "batch_size": "2", "dtype": "float32", "device": "cpu"}
    assert all(row | facts == row for row in rows)


def test_costs_of_generation_by_batch_size(efficiency):
    """Reading a prompt counts the operations of a forward pass; the size of the state grows with the batch."""
    plan = ["--pattern", "CS", "CC", "--phase", "forward", "prefill", "decode", "--batch-size", 1, 3, "--lengths", 20]
    costs, printed = efficiency("linear", *plan)
    assert all(float(row["roof_share"]) > 0 and row["roof"] in ("compute", "memory") for row in costs)
    assert "roof" in printed.out
    rows = {(row["attention"], row["pattern"], row["phase"], row["batch_size"]): row for row in costs}
    for pattern, batch in product(("CS", "CC"), "13"):
        prompt, forward = (rows["eager", pattern, phase, batch] for phase in ("prefill", "forward"))
        assert float(prompt["seconds"]) > 0
        assert prompt["product_flops"] == forward["product_flops"]
        assert int(prompt["least_bytes"]) > int(forward["least_bytes"])  # it keeps a state
        one, three = (int(rows["linear", pattern, "decode", size]["bytes"]) for size in "13")
        assert three == 3 * one
        assert ("projections", pattern, "prefill", batch) not in rows
    titles = [line for line in printed.out.splitlines() if line.startswith("batch ")]
    assert {title.split(",")[0] for title in titles} == {"batch 1", "batch 3"}


@pytest.mark.parametrize("error", [None, KeyboardInterrupt])
def test_an_existing_file_is_replaced_at_the_end(error, tmp_path, monkeypatch, cab):
    """An interrupted command leaves it as it was, and no other file."""

    def costs(*_: object, **__: object) -> Iterator[Cost]:
        yield Cost("abc", "NS", "forward", 4, 0.1)
        if error:
            raise error

    monkeypatch.setattr("cab.efficiency.benchmark.measure", costs)
    out = tmp_path / "costs.csv"
    out.write_text("old")
    cab("efficiency", "abc", "--lengths", 4, "--no-verify", "--out", out, status=130 if error else 0)
    assert (out.read_text() == "old") == bool(error)
    assert list(tmp_path.iterdir()) == [out]


def test_the_papers_protocol_has_its_own_defaults_and_no_roofline(tmp_path, efficiency):
    rows, printed = efficiency("abc", "--lengths", "4", "8", "--protocol", "paper", "--plot", tmp_path / "plots")
    assert {path.name for path in (tmp_path / "plots").iterdir()} == {"ns-forward-time.png", "ns-forward-memory.png"}
    assert "roof" not in printed.out
    assert {row["attention"] for row in rows} == {"vanilla", "eager", "abc"}
    assert {row["protocol"] for row in rows} == {"paper"}
    assert {row["relative_to_softmax"] for row in rows} == {""}


def test_what_fails_verification_is_not_timed(monkeypatch, efficiency):
    asked = []

    def verify(name: str, pattern: Pattern, **more: object) -> list[CheckResult]:
        asked.append((name, str(pattern), dict(more["options"])))
        results = [CheckResult(name, str(pattern), check, True, "") for check in ("padding", "lengths")]
        if name == "abc" and pattern is Pattern.CS:
            results.append(CheckResult(name, str(pattern), "look_ahead", False, "gradient 3"))
        return results

    monkeypatch.setattr(verification, "verify_attention", verify)
    monkeypatch.setattr(verified, "is_verified", lambda _code, pattern: pattern == "CS")
    rows, _ = efficiency("abc:num_landmarks=3", "--pattern", "NS", "CS", "--lengths", 5, 7, verifies=True)
    refused = [(row["pattern"], row["length"], row["seconds"], row["detail"]) for row in rows if row["status"] != "ok"]
    assert refused == [("CS", "5", "", "fails look_ahead"), ("CS", "7", "", "fails look_ahead")]
    changed = ("abc", {"num_landmarks": 3})  # by its options: no row speaks of it
    each = [("NS", ("vanilla", {})), ("NS", ("eager", {})), ("NS", changed), ("CS", changed)]
    assert asked == [(name, pattern, options) for pattern, (name, options) in each]


def test_selection_begins_with_the_baselines_and_leaves_out_what_has_no_such_pattern():
    labels = [subject.label for subject in select_attentions([], [Pattern.CC])]
    assert labels[:2] == ["vanilla", "eager"]
    assert "s4d" not in labels
    assert "none" not in labels
    chosen = select_attentions(["abc", "abc:num_landmarks=64", "eager"], [Pattern.NS])
    assert [subject.label for subject in chosen] == ["vanilla", "eager", "abc", "abc:num_landmarks=64"]


def test_sizes_of_appendix_g_hold_in_the_pattern_that_it_measures():
    longshort = AttentionSubject.parse("longshort")
    assert longshort.all_options(Pattern.NS)["window_size"] == 16
    assert longshort.all_options(Pattern.NS)["conv_kernel_size"] == 5
    assert longshort.all_options(Pattern.CS)["conv_kernel_size"] is None
    assert AttentionSubject.parse("s4d:state_size=64").all_options(Pattern.NS)["state_size"] == 64
    assert AttentionSubject.parse("mca").for_length(256).options == {}
