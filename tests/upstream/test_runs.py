"""What a run of preset `paper` does around its network, against upstream's rules: ends, targets, scores, noise."""

import math
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from cab import Pattern, build_backbone
from cab.efficiency.subjects import AttentionSubject
from tasks.sr.task import SR, Diffusion
from tasks.sum.data import file_pairs
from tasks.tts.audio import NUM_MELS, RATE, features, read_wave
from tasks.tts.data import Scale, Utterance, Utterances
from tasks.tts.distortion import distortions, path_costs
from tasks.tts.phonemes import END_TOKEN
from tests.helpers.tasks.layouts import write_clips, write_pairs
from tests.helpers.tasks.records import in_order, ready
from tests.upstream import paper


@pytest.mark.parametrize("room", [-1, 0, 1])
def test_ends_are_paragens(room, tmp_path, monkeypatch):
    """ParaGen 4e33a90, ``Seq2SeqTask._collate``: an end behind every source and target, then both are cut."""
    monkeypatch.setenv("CAB_CACHE", str(tmp_path / "cache"))  # nothing that other code has encoded
    ends = paper("sum", "multi_news", "transformer")["task"]["ends"]
    folder = write_pairs(tmp_path)
    whole = ready("sum", folder, source_len=500, target_len=500)
    texts = next(iter(file_pairs(folder / "sum").read("train")))
    source, target = (whole.bpe.encode(text, add_special_tokens=False).ids for text in texts)
    lengths = {"source_len": len(source) + room, "target_len": len(target) + room}
    data = ready("sum", folder, ends=ends, **lengths).training_set
    batch = data.__getitems__([0])
    expected = [*source, data.end][: lengths["source_len"]], [data.begin, *[*target, data.end][: lengths["target_len"]]]
    assert [batch[name][0].tolist() for name in ("source", "target")] == list(expected)  # type: ignore[index]


DURATIONS = [3, 5, 1, 7, 4]
ENERGY = (4.293850, 4.297422, 4.309478, 4.294216, 4.286580)
PITCH = (5.241877, 5.443406, 5.151037, 5.281128, 5.455693)
"""fairseq, examples/speech_synthesis/data_utils.py, ``extract_energy`` and ``extract_pitch`` (its F0 given), with these
durations; the zeros of the end token are ``TextToSpeechDataset.__getitem__``'s."""


def test_pitch_and_energy_are_logarithms_of_means():
    rng = np.random.default_rng(0)
    mel, _, energy = features((0.1 * rng.standard_normal(20 * 256)).astype(np.float32), as_fairseq=True)
    pitch = np.log(rng.uniform(80, 300, 21))
    only = Utterance("a", [5, END_TOKEN], [4, 5, 6, 7, 8], DURATIONS, 0, mel, pitch, energy)
    ones = np.ones(NUM_MELS, dtype=np.float32)
    batch = Utterances([only], Scale((0 * ones, ones), (5.2, 0.3), (2.0, 0.5)), as_fairseq=True).__getitems__([0])
    assert batch["energy"][0].tolist() == pytest.approx([*ENERGY, 0.0], abs=2e-4)
    assert batch["pitch"][0].tolist() == pytest.approx([*PITCH, 0.0], abs=1e-5)
    assert batch["durations"][0].tolist() == [*DURATIONS, 0]
    assert batch["aligned"][0].tolist() == [4, 5, 6, 7, 8, END_TOKEN]
    assert not batch["aligned_padding"].any()


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    return write_clips(tmp_path_factory.mktemp("clips"))


@pytest.fixture(scope="module")
def speech(clips):
    config = paper("tts", "ljspeech", "fastspeech2")["task"]
    return ready("tts", clips, **{name: config[name] for name in ("as_fairseq", "chosen_by")})


def energies(wave: np.ndarray, durations: list[int]) -> list[float]:
    """fairseq, ``extract_energy``: spectra of 1,024 samples without a window, log(mean + 1) a phoneme."""
    padded = np.pad(wave, 512, mode="reflect")
    frames = [np.linalg.norm(np.fft.rfft(padded[i : i + 1024])) for i in range(0, len(padded) - 1023, 256)]
    ends = np.cumsum(durations)
    return [math.log(np.mean(frames[end - n : end]) + 1) for n, end in zip(durations, ends, strict=True)]


def test_clips_have_fairseqs_targets(clips, speech):
    batch, utterance = speech.training_set.__getitems__([0]), speech.training_set.utterances[0]
    wave = read_wave(clips / "tts" / "wavs" / f"{utterance.name}.wav")
    expected = energies(wave, [utterance.start, *utterance.durations])[1:]
    assert batch["energy"][0].tolist() == pytest.approx([*expected, 0.0], abs=1e-3)
    assert batch["frames"].shape[1] == len(utterance.mel) // 4


def test_waves_of_files_are_scored_and_dev_is_divided_by_targets(speech, monkeypatch):
    """fairseq, ``dump_result`` and ``valid_step_with_inference``."""
    rng = np.random.default_rng(2)
    spoken, target = (0.003 * rng.standard_normal(n).astype(np.float32) for n in (RATE // 2, RATE // 4))
    monkeypatch.setattr(speech, "waves", lambda *_: [spoken, target])
    monkeypatch.setattr(speech, "synthesize", lambda *_: [None])
    monkeypatch.setattr(speech, "target", lambda *_: None)
    for split in speech.splits.values():
        monkeypatch.setattr(split, "utterances", split.utterances[:1])
    network: Any = None
    # libsndfile, by which fairseq writes its waves, rounds down.
    rounded = [(np.floor(wave * 2**15) / 2**15).astype(np.float32) for wave in (spoken, target)]
    of_files, unrounded = (distortions([path_costs(*pair)]) for pair in (rounded, (spoken, target)))
    assert speech.evaluate(network, in_order) == pytest.approx(of_files, rel=1e-5)
    assert of_files["mcd"] != pytest.approx(unrounded["mcd"], rel=1e-5)
    frames = [1 + len(wave) // 275 for wave in (spoken, target)]
    assert speech.validate(network, in_order) == pytest.approx(unrounded["mcd"] * frames[0] / frames[1])


def test_the_coarse_cloud_has_as_many_points_of_the_view_as_centers():
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
def test_the_factor_of_appendix_g_is_skyformers(length):
    """pkuzengqi/Skyformer 1a677cb, src/models/attention_informer.py: ceil(features / ln(length)), 16 features."""
    subject = AttentionSubject.parse("probsparse").for_length(length)
    assert subject.all_options(Pattern.NS)["factor"] == math.ceil(16 / np.log(length))


def test_images_of_a_batch_share_a_step_of_the_noise():
    """sr3, ``GaussianDiffusion.p_losses``: one t a batch, a level for each image between its two."""
    config = paper("sr", "ffhq", "sr3")["task"]
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
