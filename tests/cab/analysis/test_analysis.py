"""Dilution and gradients of scores, against their definitions; the command on fresh networks and on records."""

import json
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cab import build_attention
from cab.analysis.dilution import effective_weights, mass_of_neighbors
from cab.analysis.gradients import recorded, score_gradients
from cab.analysis.subject import AnalyzedNetwork, subject_of
from cab.cli.main import main
from cab.files.text_table import read_csv
from cab.spec import Spec
from tests.helpers.command import cab

SMOKE = ["task=lm", "dataset=synthetic", "backbone=gpt2", "pattern=CS", "preset=smoke", "device=cpu"]


def fresh(attention: str) -> AnalyzedNetwork:
    subject = subject_of([*SMOKE, f"attention={attention}"])
    for parameter in subject.network.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.3)
    return subject


@pytest.mark.parametrize("causal", [True, False])
def test_uniform_attention_reaches_the_diagonal(causal):
    """Of 100 tokens that all see as many, r of the neighbors hold exactly r; what is rounded up is little."""
    mass = mass_of_neighbors(torch.ones(2, 100, 100), causal)
    share = torch.arange(1, 101, dtype=torch.float64) / 100
    assert ((mass - share) > -1e-9).all()
    torch.testing.assert_close(mass, share, atol=0.05 if causal else 1e-9, rtol=0)
    assert 0.5 < mass.mean() < 0.54


def test_neighbors_alternate_and_begin_with_the_token_itself():
    weights = torch.zeros(1, 4, 4)
    weights[0, 1] = torch.tensor([1.0, 4.0, 2.0, -3.0])  # order of token 1: itself, left, right, the last
    mass = mass_of_neighbors(weights, is_causal=False)
    torch.testing.assert_close(mass[[24, 49, 74, 99]], torch.tensor([0.4, 0.5, 0.7, 1.0]).double())
    assert (mass_of_neighbors(torch.eye(5)[None], is_causal=True) == 1).all()


@pytest.mark.parametrize("name", ["vanilla", "linear", "norm_attention", "diag_attention", "transnormer_t1"])
def test_effective_weights_are_the_weights(name):
    module = build_attention(name, pattern="CS", embed_dim=12, num_heads=2).double().eval()
    inner = getattr(module, "form", module)
    x = torch.randn(9, 12, dtype=torch.float64)
    q, k, _ = (heads[0] for heads in inner.project(x[None], x[None], x[None]))
    if name in ("vanilla", "diag_attention"):
        weights = (q @ k.mT * 6**-0.5).masked_fill(torch.ones(9, 9).triu(1).bool(), -torch.inf).softmax(dim=-1)
    else:
        shift = 0.0 if name == "transnormer_t1" else 1.0
        weights = ((F.elu(q) + shift) @ (F.elu(k) + shift).mT).tril()
    found = effective_weights(module, x, torch.Generator().manual_seed(1)).abs()
    expected = weights.abs() / weights.abs().sum(dim=-1, keepdim=True)
    torch.testing.assert_close(found / found.sum(dim=-1, keepdim=True), expected, rtol=1e-5, atol=1e-7)


def test_a_method_without_heads_has_what_its_inputs_do():
    module = build_attention("s4d", pattern="CS", embed_dim=8, num_heads=2)
    weights = effective_weights(module, torch.randn(7, 8), torch.Generator())
    assert weights.shape == (1, 7, 7)
    assert not weights[0].triu(1).any()
    assert (weights[0].diagonal() > 0).all()


@pytest.mark.parametrize("name", ["vanilla", "linear"])
def test_gradients_of_scores_are_equation_7(name):
    """dL/ds_ij = f'(s)/f(s) p_ij (dL/do_i) (v_j - o_i), with f'/f of one for softmax and 1/s without it."""
    subject = fresh(name)
    subject.network.double()
    with recorded(subject) as layers:
        subject.cell.task.loss(subject.network, subject.batch(1)).backward()
        for layer in layers:
            for s, o, v in layer.reads:
                seen = torch.ones_like(s).tril()
                f = (s.exp() if name == "vanilla" else s) * seen
                p = f / f.sum(dim=-1, keepdim=True)
                torch.testing.assert_close(p @ v, o)
                towards = o.grad @ v.mT - (o.grad * o).sum(dim=-1, keepdim=True)
                expected = p * towards / (1.0 if name == "vanilla" else s)
                torch.testing.assert_close(s.grad, expected.detach(), rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("name", ["vanilla", "linear", "transnormer_t1"])
def test_gradients_stay_below_their_bounds(name):
    bounds = {"vanilla": "bound_softmax", "linear": "bound_linear"}
    subject = fresh(name)
    for row in score_gradients(subject, rows=2):
        assert 0 < row["median"] <= row["q90"] <= row["q99"] <= row["largest"]
        assert row["largest"] <= row[bounds.get(name, "bound_norm")]
    slots = [slot for _, slot in subject.attention_layers()]
    assert not any(slot.use_reference for slot in slots)
    assert all("reference" not in vars(getattr(slot, "form", slot)) for slot in slots)


def test_a_layer_without_scores_has_dashes_and_the_loss_no_norm(tmp_path, monkeypatch, capsys):
    config = SimpleNamespace(attention=Spec("linear"))
    network = SimpleNamespace(title="a network", cell=SimpleNamespace(config=config))
    columns = ["median", "q90", "q99", "largest", "smallest_score", "bound_softmax", "bound_linear", "bound_norm"]
    layers = [{"layer": "first"}, {"layer": "second", **{name: 10.0**i for i, name in enumerate(columns)}}]
    norms = [{"step": step, "loss": 9.0, "all": 2.0 * step - 1, "second": 1.0} for step in (1, 2)]
    monkeypatch.setattr("cab.analysis.subject.subject_of", lambda *_: network)
    monkeypatch.setattr("cab.analysis.gradients.score_gradients", lambda *_, **__: layers)
    monkeypatch.setattr("cab.analysis.gradients.norms_over_training", lambda *_: norms)
    assert main(["paper", "gradients", *SMOKE, "--steps", "2", "--out", str(tmp_path)]) == 0
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert shown[1:4] == [["layer", *columns], ["first", *"--------"], ["second", *(f"1.00e+0{i}" for i in range(8))]]
    assert shown[-3:] == [["parameters", "SD", "/", "mean"], ["all", "0.500"], ["second", "0.000"]]
    assert [row["attention"] for row in read_csv(tmp_path / "norms.csv")] == ["linear", "linear"]


@pytest.mark.slow
def test_a_fresh_network_and_a_record(tmp_path):
    def printed(*arguments: object, status: int = 0) -> str:
        process = cab(*map(str, arguments), cwd=tmp_path)
        assert process.returncode == status, process.stderr
        return process.stderr if status else process.stdout

    overrides = [*SMOKE, "attention=linear"]
    assert "untrained" in printed("paper", "gradients", *overrides, "--steps", 3, "--out", "a")
    assert [row["step"] for row in read_csv(tmp_path / "a/norms.csv")] == ["1", "2", "3"]
    assert len(read_csv(tmp_path / "a/gradients.csv")) == 2
    printed("run", *overrides, "trainer.max_steps=2", "results_dir=r")
    (record,) = (tmp_path / "r").glob("*.json")
    shown = printed("paper", "dilution", record, "--out", "b")
    assert ", trained" in shown
    assert "area" in shown
    assert len(read_csv(tmp_path / "b/dilution.csv")) == 200
    (record.with_suffix("") / "weights.pt").unlink()
    assert "has no weights at" in printed("paper", "dilution", record, status=2)
    assert json.loads(record.read_text())
