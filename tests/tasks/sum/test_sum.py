"""Sum: files, lengths, likelihood, search, baselines, what the generator promises; tests/upstream has ROUGE."""

import pytest
import torch
from torch.nn import functional as F

from tasks.sum.data import clean, find_pairs
from tasks.sum.task import lead, right_words, rouge, split_sentences
from tests.helpers.tasks.layouts import SOURCE, TARGET, write_pairs
from tests.helpers.tasks.records import in_order, network, ready


def test_lines_become_documents_and_summaries(tmp_path):
    pairs = list(find_pairs("multi_news", None, write_pairs(tmp_path)).read("val"))
    assert len(pairs) == 6
    document = "First one. It goes on. \n More here. ||||| Second one. It ends. Number 2 of val."
    assert pairs[2] == (document, f"{TARGET} 2")
    assert clean("a story_separator_special_tag b") == "a ||||| b"


def test_tokens_are_cut_and_framed(tmp_path):
    task = ready("sum", write_pairs(tmp_path))
    batch = task.splits["train"].__getitems__([3, 0])
    assert (batch["source"].shape, batch["target"].shape) == ((2, 20), (2, 10))  # begin, eight tokens, end
    assert batch["target"][:, [0, -1]].tolist() == [[0, 2]] * 2
    assert (task.splits["train"].begin, task.splits["train"].end, task.splits["train"].pad) == (0, 2, 1)
    whole = ready("sum", tmp_path, source_len=500, target_len=500)
    text = whole.bpe.decode(whole.splits["train"].__getitems__([3])["source"][0].tolist())  # type: ignore[index]
    assert text == clean(f"{SOURCE} Number 3 of train.")


def test_scores_by_hand():
    assert right_words(["a b c d", "a b c d"], ["a x c d", "a b"], slice(1, 4)) == pytest.approx(100 * 3 / 6)
    assert rouge([("a b c", "")])["rouge1"] == 0.0
    assert rouge([("empty", "")])["rouge1"] == 100.0  # '<empty>' as published


def test_sentences_are_split_by_the_rule():
    text = 'He said "Stop." Then 3 left! – Why? in vain.\nNew line e.g. here'
    assert split_sentences(text) == ['He said "Stop.', "Then 3 left!", "– Why? in vain.", "New line e.g. here"]


def test_validation_is_the_likelihood_of_the_tokens(tmp_path):
    folder = write_pairs(tmp_path)
    (folder / "sum/val.src.cleaned").write_text("Short.\n" + f"{SOURCE}\n" * 5)  # padded in a batch
    task = ready("sum", folder, source_len=500)
    backbone = network("sum", task).eval()
    with torch.no_grad():
        score, losses = task.validate(backbone, in_order), []
        for i in range(6):
            batch = task.splits["val"].__getitems__([i])
            logits = backbone(batch["source"], batch["target"][:, :-1])[0].double()
            losses.append(F.cross_entropy(logits, batch["target"][0, 1:], reduction="none"))
    assert score == pytest.approx(torch.cat(losses).mean().item(), rel=1e-4)


def test_baselines_are_first_sentences_and_another_summary(tmp_path):
    assert lead("One is here. Two.\nThree. ||||| Four comes! Five.") == "One is here. Four comes!"
    task = ready("sum", write_pairs(tmp_path))
    references = [reference for _, reference in task.splits["test"].read_texts()]
    assert task.baselines()["another_summary"] == rouge(zip(references, [*references[1:], references[0]], strict=True))


def test_empty_examples_can_be_left_out(tmp_path, caplog):
    folder = write_pairs(tmp_path)
    (folder / "sum" / "train.src.cleaned").write_text("a\n ||||| \nc\nd\n\nf\n")
    (folder / "sum" / "train.tgt").write_text("a\nb\nc\n\ne\nf\n")
    task = ready("sum", folder, empty="skip")
    assert [summary for _, summary in task.splits["train"].read_texts()] == ["a", "c", "f"]
    assert "skipped 3 examples of train" in caplog.text
