"""The page and its tables are text: names of results neither execute nor change elements and cells."""

import csv
import io
import itertools
import re
from collections import Counter
from html.parser import HTMLParser

import pytest

from cab.cli.main import main
from tasks.lm.task import LM
from tests.helpers.made_records import make_record, number

HOSTILE = [
    """</script>'"><img src=x onerror=alert(1)><!--""",
    "=1+1",
    "<script>alert(2)</script>",
    "' autofocus onfocus='alert(4)",
    "$\\frac{1}{",
    "{{ 7 * 7 }}{% raw %}",
    "javascript:alert(5)",
    "a\x00b\x1b[31m\u202e\ufffe",
    "]]><!--",
    "mark:x:y:z#&?%2F/..",
    "長い" * 150,
    "＝1+1",
    "a\nb\tc",
]
LM_METRICS = LM(dataset="pg19", context_lengths=(256, 512, 1024)).metrics


class Elements(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


@pytest.mark.filterwarnings("error")
def test_names_change_neither_elements_nor_cells(tmp_path):
    """In any field, and in the CSV files, where a spreadsheet would execute some."""
    shapes, widths = {}, {}
    for kind, names in {"hostile": HOSTILE, "plain": [f"name{place}" for place in range(len(HOSTILE))]}.items():
        results, out = tmp_path / kind / "results", tmp_path / kind / "out"
        for field, name in itertools.product(("task", "dataset", "config_variant", "backbone", "preset"), names[:2]):
            make_record({"mse": number(name, field)}, **{field: name}).write(results)
        for place, name in enumerate(names):
            make_record({"mse": number(place)}, attention=name).write(results)
            others = {"baselines": {name: {"mse": 1.0}}, "command": name, "hardware": {name: name}}
            make_record({name: number(place), f"{name}_512": 1.2}, dataset="ettm1", **others).write(results)
        for attention in ("vanilla", "abc", "none"):  # curves by length, and the benefit of attention
            lm = {"task": "lm", "dataset": "pg19", "config_variant": "", "backbone": "gpt2", "pattern": "CS"}
            metrics = [metric.measured(number(metric.name, attention)) for metric in LM_METRICS]
            make_record(metrics, attention=attention, **lm).write(results)
            mlm = lm | {"task": "mlm", "backbone": "roberta", "pattern": "NS"}
            make_record({"ppl": number(attention)}, attention=attention, **mlm).write(results)
        unreadable = make_record({"mse": 1.5}, attention=f"half a character: {chr(0xD800)}").write(results)
        assert main(["leaderboard", str(results), "--out", str(out)]) == 0
        page = (out / "index.html").read_text(encoding="utf-8")
        assert unreadable.name in page.partition("Skipped files")[2]
        assert not re.search("[\x00\x1b\u202e\ufffe]", page)
        elements = Elements(page).found
        assert not any((attributes.get("href") or "").startswith("javascript:") for _, attributes in elements)
        shapes[kind] = Counter((tag, *attributes) for tag, attributes in elements)
        texts = [path.read_text(encoding="utf-8") for path in sorted(out.glob("*.csv"))]
        rows = [row for text in texts for row in csv.reader(io.StringIO(text))]
        widths[kind] = [len(row) for row in rows]
        assert not [cell for row in rows for cell in row if re.match("[=＝@＠]|[-+].*[a-z=]", cell) and cell != "-"]
        assert all(cell.isprintable() for row in rows for cell in row)
    assert shapes["hostile"] == shapes["plain"]
    assert widths["hostile"] == widths["plain"]
