"""`cab export RESULT`: Hugging Face loads the folder, its logits are the run's, and its ids those of the corpus."""

from pathlib import Path

import pytest
import torch

from cab.cli.main import main
from cab.config.compose import compose
from cab.records.files import kept_weights, record_path
from cab.runner.cell import Cell
from cab.runner.engine import make_backbone
from cab.runner.run import run_cell
from cab.weights import load_network
from tests.helpers.made_records import make_record

LM = ["task=lm", "dataset=synthetic", "pattern=CS", "preset=smoke", "trainer.max_steps=1", "task.context_lengths=[]"]
OWN = """\
from attentions.linear import LinearAttention

class Own(LinearAttention):
    pass
"""


@pytest.mark.slow  # importing transformers takes most of it
@pytest.mark.parametrize(("backbone", "attention"), [("llama", "gla"), ("gpt2", "local*1,s4d"), ("gpt2", "own.py:Own")])
def test_hugging_face_computes_our_logits(backbone, attention, tmp_path, monkeypatch):
    transformers = pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    Path("own.py").write_text(OWN)
    config = compose([*LM, f"backbone={backbone}", f"attention='{attention}'", "results_dir=results", "device=cpu"])
    record = run_cell(config).record
    result = record_path(Path("results"), record.hash)
    assert main(["export", str(result), "--out", "out/model"]) == 0
    Path("own.py").rename("moved.py")  # the folder has a copy
    model = transformers.AutoModelForCausalLM.from_pretrained("out/model", trust_remote_code=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained("out/model", trust_remote_code=True)
    Path("moved.py").rename("own.py")
    ours = Cell.from_config(config)
    ours.task.setup(None)
    network = make_backbone(ours).eval()
    load_network(network, kept_weights(result))
    tokens = torch.from_numpy(ours.task.corpus.read("test", 0, 90))[None]
    with torch.no_grad():
        logits = network(tokens)
        torch.testing.assert_close(model(tokens).logits, logits, atol=1e-5, rtol=0)
        padded, mask = torch.nn.functional.pad(tokens, (3, 0), value=1), torch.ones(1, 93, dtype=torch.long)
        mask[:, :3] = 0
        torch.testing.assert_close(model(padded, mask).logits[:, 3:], logits, atol=1e-5, rtol=0)
        generated = model.generate(tokens[:, :20], max_new_tokens=3, do_sample=False)
        assert generated.shape == (1, 23)
        assert generated[0, 20] == logits[0, 19].argmax()
    text = ours.task.corpus.text(tokens[0].tolist())
    assert tokenizer(text)["input_ids"] == tokens[0].tolist()
    assert tokenizer.decode(tokens[0]) == text
    assert tokenizer("Kept \u2603")["input_ids"][-1] == 3


def test_refused(tmp_path, monkeypatch, cab):
    monkeypatch.chdir(tmp_path)
    result = make_record({"mse": 1.0}).write(tmp_path)
    assert "is of task lstf: only models of task lm are exported" in cab("export", result, "--out", "out", status=2).err
    cab("export", "missing.json", "--out", "out", status=2)
    cab("export", result, "x=1", "--out", "out", status=2)
    assert not Path("out").exists()
