"""Golden vectors: what is exported, and the first stage of a port that differs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from cab.cli.main import main
from cab.patterns import Pattern
from cab.verification.suite import subject_of
from cab.verification.vectors import definitions

GIVEN = ("inputs/", "weights/")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("vectors")
    for words in (["kda"], ["linear", "--pattern", "CC"], ["fnet", "--pattern", "NS"]):
        assert main(["export", *words, "--out", str(out)]) == 0
    return out


def verify(folder: Path, port: dict[str, np.ndarray], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    save_file({name: np.ascontiguousarray(x) for name, x in port.items()}, folder / "port.safetensors")
    capsys.readouterr()
    status = main(["verify", str(folder / "port.safetensors"), "--vectors", str(folder / "kda.json")])
    return status, capsys.readouterr().out + capsys.readouterr().err


def test_a_manifest_explains_every_vector_and_defines_every_function(folder):
    manifest, vectors = json.loads((folder / "kda.json").read_text()), load_file(folder / "kda.safetensors")
    rows = {row["name"]: row for row in manifest["vectors"]}
    assert list(rows) != sorted(rows)
    assert {name: tuple(row["shape"]) for name, row in rows.items()} == {name: x.shape for name, x in vectors.items()}
    assert all(x.dtype in (np.float64, np.int64, np.bool_) for x in vectors.values())
    assert rows["weights/convolutions.key.weight"]["layout"] == "4 H 1 E"
    assert rows["weights/convolutions.key.weight"]["meaning"] == "[tap, head, 1, feature], the oldest token first"
    assert {"terms", "write", "unit", "rms_norm"} <= manifest["definitions"].keys()
    assert manifest["definitions"]["norm_eps"] == "1e-05"
    parts = ("q_proj", "terms.log_decay", "update.0", "finish", "output", "state.memory")
    stages = [f"whole/{part}" for part in parts]
    assert [name for name in rows if name in stages] == stages
    np.testing.assert_allclose(vectors["steps/output"], vectors["whole/output"], atol=1e-12)


def test_constants_of_nested_functions_are_defined():
    found = definitions(subject_of("mlstm", Pattern.CS, options={}).build())
    assert found["CAP"] == "15.0"  # only a generator expression names it


@pytest.mark.parametrize(("name", "absent"), [("linear", ()), ("fnet", ("steps/output", "whole/state"))])
def test_other_patterns_have_their_own_cases(folder, name, absent):
    vectors = load_file(folder / f"{name}.safetensors")
    assert {"whole/output", "packed/output", "padded_left/output", "gradient/query"} <= vectors.keys()
    assert ("inputs/key" in vectors) == (name == "linear")
    assert not [key for key in vectors if key.startswith(absent)] if absent else "steps/output" in vectors


def test_the_first_stage_that_differs_is_named(folder, capsys):
    port = {name: x for name, x in load_file(folder / "kda.safetensors").items() if not name.startswith(GIVEN)}
    assert verify(folder, port, capsys) == (0, f"{len(port)} vectors, different: 0\n")
    later = {"whole/output": port["whole/output"] + 1.0, "whole/terms.key": port["whole/terms.key"] * (1 + 1e-7)}
    status, text = verify(folder, port | later, capsys)
    assert status == 1
    assert text.startswith("first difference: whole/terms.key (Compute the inputs of the recurrence")
    assert text.endswith("vectors, different: 2\n")


def test_a_fault_of_the_update_is_told_apart_from_one_of_the_normalization(folder, capsys):
    port = {name: x for name, x in load_file(folder / "kda.safetensors").items() if name.startswith("whole/")}
    later = {name: x + 1.0 for name, x in port.items() if name.startswith(("whole/finish", "whole/output"))}
    _, text = verify(folder, port | later, capsys)
    assert text.startswith("first difference: whole/finish")
    _, text = verify(folder, port | later | {"whole/update.0": port["whole/update.0"] + 1.0}, capsys)
    assert text.startswith("first difference: whole/update.0")


def test_an_order_of_dimensions_and_a_shape_are_named(folder, capsys):
    memory = load_file(folder / "kda.safetensors")["whole/state.memory"]
    _, text = verify(folder, {"whole/state.memory": memory.swapaxes(2, 3)}, capsys)
    assert "equal if its dimensions are reordered as (0, 1, 3, 2)" in text
    _, text = verify(folder, {"whole/state.memory": memory[:1]}, capsys)
    assert "shape (1, 5, 6, 6), not (2, 5, 6, 6)" in text


@pytest.mark.parametrize(
    ("port", "message"),
    [
        ({"whole/outputs": np.zeros(1)}, "has no vector 'whole/outputs'"),
        ({"weights/log_rate": np.zeros(1)}, "such as whole/output"),
    ],
)
def test_a_port_without_a_known_vector_is_refused(folder, capsys, port, message):
    save_file(port, folder / "wrong.safetensors")
    assert main(["verify", str(folder / "wrong.safetensors"), "--vectors", str(folder / "kda.json")]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("damaged", ["", "{", "[]", '{"vectors": [{}]}', '{"vectors": [{"name": "whole/output"}]}'])
def test_a_damaged_manifest_is_a_mistake_of_the_user(folder, tmp_path, capsys, damaged):
    port = {"whole/output": load_file(folder / "kda.safetensors")["whole/output"]}
    for name in ("kda", "port"):
        save_file(port, tmp_path / f"{name}.safetensors")
    (tmp_path / "kda.json").write_text(damaged)
    assert main(["verify", str(tmp_path / "port.safetensors"), "--vectors", str(tmp_path / "kda.json")]) == 2
    message = capsys.readouterr().err
    assert "cannot read the manifest" in message
    assert message.count("\n") == 1
