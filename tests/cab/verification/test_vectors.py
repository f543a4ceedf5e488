"""Golden vectors: what is exported, and the first stage of a port that differs."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from cab.cli.main import main

GIVEN = ("inputs/", "weights/")
NAMES = ("kda", "dsa", "moba", "nsa", "mlstm", "vanilla")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("vectors")
    for words in (*([name] for name in NAMES), ["linear", "--pattern", "CC"], ["fnet", "--pattern", "NS"]):
        assert main(["export", *words, "--out", str(out)]) == 0
    return out


def computed(folder: Path, name: str) -> dict[str, np.ndarray]:
    return {key: x for key, x in load_file(folder / f"{name}.safetensors").items() if not key.startswith(GIVEN)}


def verify(folder, port, capsys, name="kda"):
    save_file({name: np.ascontiguousarray(x) for name, x in port.items()}, folder / "port.safetensors")
    capsys.readouterr()
    status = main(["verify", str(folder / "port.safetensors"), "--vectors", str(folder / f"{name}.json")])
    return status, capsys.readouterr().out


def test_a_manifest_explains_every_vector_and_defines_every_function(folder):
    manifest, vectors = json.loads((folder / "kda.json").read_text()), load_file(folder / "kda.safetensors")
    rows = {row["name"]: row for row in manifest["vectors"]}
    assert list(rows) != sorted(rows)
    assert {name: tuple(row["shape"]) for name, row in rows.items()} == {name: x.shape for name, x in vectors.items()}
    assert all(x.dtype in (np.float64, np.int64, np.bool_) for x in vectors.values())
    assert rows["weights/convolutions.key.weight"]["layout"] == "4 H 1 E"
    assert rows["weights/convolutions.key.weight"]["meaning"] == "[tap, head, 1, feature], the oldest token first"
    assert {"terms", "write", "unit", "rms_norm"} <= manifest["definitions"].keys()
    parts = ("q_proj", "terms.log_decay", "update.output", "finish", "output", "state.memory")
    stages = [f"whole/{part}" for part in parts]
    assert [name for name in rows if name in stages] == stages
    assert manifest["options"] | {"decay": "softplus", "short_convolution": 4} == manifest["options"]
    assert "log_decay: [B or 1, H, N] per head" in rows["whole/terms.log_decay"]["meaning"]
    np.testing.assert_allclose(vectors["steps/output"], vectors["whole/output"], atol=1e-12)


@pytest.mark.parametrize(("name", "absent"), [("linear", ()), ("fnet", ("steps/output", "whole/state"))])
def test_other_patterns_have_their_own_cases(folder, name, absent):
    vectors = load_file(folder / f"{name}.safetensors")
    assert {"whole/output", "packed/output", "padded_left/output", "gradient/query"} <= vectors.keys()
    assert ("inputs/key" in vectors) == (name == "linear")
    assert not [key for key in vectors if key.startswith(absent)] if absent else "steps/output" in vectors


def test_the_first_stage_that_differs_is_named(folder, capsys):
    port = computed(folder, "kda")
    for name in NAMES:
        own = computed(folder, name)
        assert verify(folder, own, capsys, name) == (0, f"{len(own)} vectors, different: 0, missing: 0\n"), name
    later = {"whole/output": port["whole/output"] + 1.0, "whole/terms.key": port["whole/terms.key"] * (1 + 1e-7)}
    status, text = verify(folder, port | later, capsys)
    assert status == 1
    assert text.startswith("first difference: whole/terms.key (Compute the inputs of the recurrence")
    assert text.endswith("vectors, different: 2, missing: 0\n")
    _, text = verify(folder, {name: x * np.float32(1 + 1e-5) for name, x in port.items()}, capsys)
    assert "different: 0," not in text
    rounded = {name: x.astype(np.float32) if x.dtype == np.float64 else x for name, x in port.items()}
    assert verify(folder, rounded, capsys)[0] == 0


def test_missing_stages_are_named_and_a_token_with_its_call(folder, capsys):
    port = computed(folder, "kda")
    partial = {name: x for name, x in port.items() if not name.startswith(("steps/", "whole/terms.key"))}
    status, text = verify(folder, partial, capsys)
    missing = len(port) - len(partial)
    assert (status, text.splitlines()[0]) == (1, "missing from whole: terms.key")
    assert "missing from steps: state_after_first.memory, " in text
    assert text.endswith(f"{len(port)} vectors, different: 0, missing: {missing}\n")
    later = port["chunks/output"].copy()
    later[1, 8:] += 1.0  # chunks of 7, 1, 11 and 4 tokens
    _, text = verify(folder, port | {"chunks/output": later}, capsys)
    assert "first at token 8, call 2 (counted from 0)" in text


def test_a_normalizer_takes_either_side(folder):
    sums = load_file(folder / "mlstm.safetensors")["whole/update.output"][..., -1]
    assert 0.05 < (np.abs(sums) > 1.0).mean() < 0.95
    rows = {row["name"]: row for row in json.loads((folder / "mlstm.json").read_text())["vectors"]}
    assert rows["whole/state.memory"]["layout"] == "B H 3 7"  # no M without a source


def dsa_port(folder: Path, *, top_k: int = 4, takes_last: bool = False, eps: float = 1e-6) -> dict[str, np.ndarray]:
    """Compute scores, choice and outputs of dsa from the definitions in the manifest."""
    given = load_file(folder / "dsa.safetensors")
    x, w = given["inputs/query"], {name.removeprefix("weights/"): x for name, x in given.items()}
    (batch, n, _), heads, index_heads, width = x.shape, 5, 2, 32
    key = x @ w["indexer.key.weight"].T
    key = (key - key.mean(-1, keepdims=True)) / np.sqrt(key.var(-1, keepdims=True) + eps)
    key = key * w["indexer.key_norm.weight"] + w["indexer.key_norm.bias"]
    query = (x @ w["indexer.query.weight"].T).reshape(batch, n, index_heads, width)
    products = np.maximum(np.einsum("btjf,bsf->btsj", query, key), 0.0)
    scores = np.einsum("btsj,btj->bts", products, x @ w["indexer.weight.weight"].T) / np.sqrt(index_heads * width)
    scores = np.where(np.tri(n, dtype=bool), scores, -np.inf)
    order = np.lexsort((np.arange(n) * (-1 if takes_last else 1) + np.zeros_like(scores), -scores))[..., :top_k]
    chosen = np.zeros(scores.shape, dtype=bool)
    np.put_along_axis(chosen, order, True, axis=-1)
    chosen &= scores > -np.inf
    q, k, v = (
        (x @ w[f"{name}_proj.weight"].T + w[f"{name}_proj.bias"]).reshape(batch, n, heads, -1).swapaxes(1, 2)
        for name in "qkv"
    )
    logits = np.where(chosen[:, None], q @ k.swapaxes(2, 3) / np.sqrt(q.shape[-1]), -np.inf)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    sums = (weights / weights.sum(-1, keepdims=True) @ v).swapaxes(1, 2).reshape(batch, n, -1)
    output = sums @ w["out_proj.weight"].T + w["out_proj.bias"]
    return {"whole/indexer.scores": scores[:, None], "whole/indexer.chosen": chosen[:, None], "whole/output": output}


@pytest.mark.parametrize(
    ("fault", "stage", "different"),
    [
        ({}, "", 0),
        ({"top_k": 3}, "whole/indexer.chosen", 2),
        ({"takes_last": True}, "whole/indexer.chosen", 2),
        ({"eps": 1e-5}, "whole/indexer.scores", 1),
    ],
)
def test_a_port_of_a_selection_shows_its_fault_in_the_choice(folder, capsys, fault, stage, different):
    _, text = verify(folder, dsa_port(folder, **fault), capsys, "dsa")
    assert f"different: {different}," in text
    assert text.startswith(f"first difference: {stage} (" if stage else "missing from")


@pytest.mark.parametrize("name", ["dsa", "moba"])
def test_a_selection_leaves_tokens_out_and_has_ties(folder, name):
    vectors = load_file(folder / f"{name}.safetensors")
    scores, chosen = vectors["whole/indexer.scores"], vectors["whole/indexer.chosen"]
    left_out = np.where(chosen, -np.inf, scores).max(-1)
    smallest = np.where(chosen & (scores > -np.inf), scores, np.inf).min(-1)
    assert ((left_out == smallest) & (left_out > -np.inf)).any()
    assert 0.2 < chosen.sum() / (scores > -np.inf).sum() < 0.8


def test_the_scores_of_blocks_explain_their_choice(folder):
    """Of four blocks of the last target, nsa takes the first, its own, the one before, and the best of the others.

    A compressed key has tokens j and j + 1, and a block tokens 2 b and 2 b + 1.
    """
    vectors = load_file(folder / "nsa.safetensors")
    scores = np.zeros_like(vectors["whole/scores"][:, 0, -1])
    for j, weight in enumerate(vectors["whole/compression_weights"][:, :, -1].sum(1).T):
        for token in (j, j + 1):
            scores[:, token // 2] += weight
    np.testing.assert_allclose(vectors["whole/scores"][:, 0, -1], scores, atol=1e-12)
    best = scores[:, 1:-2].argmax(-1) + 1
    blocks = vectors["whole/selected"][:, 0, -1, ::2]
    assert [np.flatnonzero(row).tolist() for row in blocks] == [[0, one, 10, 11] for one in best]


def test_an_order_of_dimensions_and_a_shape_are_named(folder, capsys):
    memory = load_file(folder / "kda.safetensors")["whole/state.memory"]
    _, text = verify(folder, {"whole/state.memory": memory.swapaxes(2, 3)}, capsys)
    assert "equal if its dimensions are reordered as (0, 1, 3, 2)" in text
    _, text = verify(folder, {"whole/state.memory": memory[:1]}, capsys)
    assert "shape (1, 5, 6, 6), not (2, 5, 6, 6)" in text


@pytest.mark.parametrize(
    ("port", "text", "message"),
    [
        ("whole/outputs", None, "has no vector 'whole/outputs'"),
        ("weights/log_rate", None, "such as whole/output"),
        ("whole/output", "{", "cannot read the manifest"),
        ("whole/output", "[]", "cannot read the manifest"),
        ("whole/output", '{"vectors": [{"name": "whole/output"}]}', "cannot read the manifest"),
    ],
)
def test_an_unknown_vector_and_a_damaged_manifest_are_mistakes_of_the_user(folder, refused, port, text, message):
    for name in ("kda.safetensors", "port.safetensors"):
        save_file({port: np.zeros(1)}, name)
    Path("kda.json").write_text(text or (folder / "kda.json").read_text())
    refused("verify", "port.safetensors", "--vectors", "kda.json" if text else f"{folder}/kda.json", words=[message])
