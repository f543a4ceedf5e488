"""What a run of preset `paper` does around its network, against upstream's rules: precision, ends, features, scores."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from cab import Pattern, build_backbone
from cab.efficiency.subjects import AttentionSubject
from tasks.sr.task import SR, Diffusion
from tasks.sum.data import file_pairs
from tasks.tts.audio import RATE, read_wave
from tasks.tts.distortion import distortions, path_costs
from tests.cab.config.test_compose_paper import composed
from tests.helpers.tasks.layouts import write_clips, write_pairs
from tests.helpers.tasks.records import in_order, ready

SPEECH = composed("tts", "ljspeech", "fastspeech2", "paper")["task"]
AS_FAIRSEQ = {name: SPEECH[name] for name in ("as_fairseq", "chosen_by")}


@pytest.mark.parametrize("room", [-1, 0, 1])
def test_ends_are_paragens(room: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ParaGen 4e33a90, ``Seq2SeqTask._collate``: an end behind every source and target, then both are cut."""
    monkeypatch.setenv("CAB_CACHE", str(tmp_path / "cache"))  # nothing that other code has encoded
    ends = composed("sum", "multi_news", "transformer", "paper")["task"]["ends"]
    folder = write_pairs(tmp_path)
    whole = ready("sum", folder, source_len=500, target_len=500)
    pairs = file_pairs(folder / "sum")
    texts = next(iter(pairs.read("train")))
    source, target = (whole.bpe.encode(text, add_special_tokens=False).ids for text in texts)
    lengths = {"source_len": len(source) + room, "target_len": len(target) + room}
    data = ready("sum", folder, ends=ends, **lengths).training_set
    batch = data.__getitems__([0])
    expected = [*source, data.end][: lengths["source_len"]], [data.begin, *[*target, data.end][: lengths["target_len"]]]
    assert [batch[name][0].tolist() for name in ("source", "target")] == list(expected)  # type: ignore[index]


def energies(wave: np.ndarray, durations: list[int]) -> list[float]:
    """fairseq, ``extract_energy``: spectra of 1,024 samples without a window, log(mean + 1) a phoneme."""
    padded = np.pad(wave, 512, mode="reflect")
    frames = [np.linalg.norm(np.fft.rfft(padded[i : i + 1024])) for i in range(0, len(padded) - 1023, 256)]
    ends = np.cumsum(durations)
    return [math.log(np.mean(frames[end - n : end]) + 1) for n, end in zip(durations, ends, strict=True)]


def test_clips_have_fairseqs_targets(tmp_path: Path) -> None:
    task = ready("tts", write_clips(tmp_path), **AS_FAIRSEQ)
    batch, utterance = task.training_set.__getitems__([0]), task.training_set.utterances[0]
    wave = read_wave(tmp_path / "tts" / "wavs" / f"{utterance.name}.wav")
    expected = energies(wave, [utterance.start, *utterance.durations])[1:]
    assert batch["energy"][0].tolist() == pytest.approx([*expected, 0.0], abs=1e-3)
    assert batch["frames"].shape[1] == len(utterance.mel) // 4


def test_waves_of_files_are_scored_and_dev_is_divided_by_targets(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """fairseq, ``dump_result`` and ``valid_step_with_inference``."""
    rng = np.random.default_rng(2)
    spoken, target = (0.003 * rng.standard_normal(n).astype(np.float32) for n in (RATE // 2, RATE // 4))
    task = ready("tts", write_clips(tmp_path), **AS_FAIRSEQ)
    monkeypatch.setattr(task, "waves", lambda *_: [spoken, target])
    monkeypatch.setattr(task, "synthesize", lambda *_: [None])
    monkeypatch.setattr(task, "target", lambda *_: None)
    for split in task.splits.values():
        split.utterances = split.utterances[:1]
    network: Any = None
    # libsndfile, by which fairseq writes its waves, rounds down.
    rounded = [(np.floor(wave * 2**15) / 2**15).astype(np.float32) for wave in (spoken, target)]
    of_files, unrounded = (distortions([path_costs(*pair)]) for pair in (rounded, (spoken, target)))
    assert task.evaluate(network, in_order) == pytest.approx(of_files, rel=1e-5)
    assert of_files["mcd"] != pytest.approx(unrounded["mcd"], rel=1e-5)
    frames = [1 + len(wave) // 275 for wave in (spoken, target)]
    assert task.validate(network, in_order) == pytest.approx(unrounded["mcd"] * frames[0] / frames[1])


def test_the_coarse_cloud_has_as_many_points_of_the_view_as_centers() -> None:
    """pointr, ``PoinTr.forward``: ``fps(xyz, self.num_query)``, whatever the view has; 30 points, 35 centers."""
    sizes = {"embed_dim": 12, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1, "first_samples": 20}
    sizes |= {"num_proxies": 11, "num_queries": 35, "num_neighbors": 3, "num_proxy_neighbors": 4, "num_global": 16}
    view = torch.from_numpy(np.random.default_rng(3).uniform(0.1, 0.5, (1, 30, 3)).astype(np.float32))
    coarse = build_backbone("pointr", attention="vanilla", pattern="NC", **sizes).eval()(view)[0]
    assert coarse.shape == (1, 70, 3)
    seen = coarse[0, 35:]
    assert {tuple(point) for point in seen.tolist()} == {tuple(point) for point in view[0].tolist()}
    assert (seen == view[0, 0]).all(dim=1).sum() == 6  # as the first, and for the five that the view lacks


@pytest.mark.parametrize("length", [256, 512, 1024, 2048, 4096, 8192])
def test_the_factor_of_appendix_g_is_skyformers(length: int) -> None:
    """pkuzengqi/Skyformer 1a677cb, src/models/attention_informer.py: ceil(features / ln(length)), 16 features."""
    subject = AttentionSubject.parse("probsparse").for_length(length)
    assert subject.all_options(Pattern.NS)["factor"] == math.ceil(16 / np.log(length))


def test_images_of_a_batch_share_a_step_of_the_noise() -> None:
    """sr3, ``GaussianDiffusion.p_losses``: one t a batch, a level for each image between its two."""
    config = composed("sr", "ffhq", "sr3", "paper")["task"]
    task = SR(dataset="ffhq", step_of=config["step_of"], diffusion_steps=config["diffusion_steps"])
    task.diffusion = Diffusion(task.diffusion_steps)
    images = {name: torch.zeros(16, 3, 4, 4) for name in ("truth", "blurred")}
    network = mock.Mock(side_effect=lambda image, _: image[:, 3:])
    for _ in range(5):
        task.loss(network, images)
        level = network.call_args.args[1]
        step = int((task.diffusion.levels > level.max().item()).sum())
        low, high = (task.diffusion.levels[i].float() for i in (step, step - 1))
        assert ((level >= low) & (level <= high)).all()
        assert len(level.unique()) > 1
