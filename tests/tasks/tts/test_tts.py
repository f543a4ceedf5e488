"""TTS: splits, losses, scores, baselines; features, text, alignments; tests/upstream has the distortions."""

import math

import numpy as np
import pytest
import torch

from cab import UserError
from cab.cli.main import main
from tasks.tts import phonemes
from tasks.tts.audio import HOP, N_FFT, RATE, features, griffin_lim, mel_filters, read_wave
from tasks.tts.data import Utterance, split_at_end, split_by_chapter
from tasks.tts.distortion import distortions, log_mel_power, path_costs
from tasks.tts.durations import aligned_tokens, attended_durations
from tasks.tts.phonemes import ALIGNED, PUNCTUATION, WRITTEN, Phone, read_phones, written_tokens
from tasks.tts.task import mean_phonemes, spoken_by_phoneme
from tests.helpers.tasks.layouts import grid, put, tone, write_clips
from tests.helpers.tasks.records import in_order, network, ready
from tests.tasks.test_files import GOOD


def test_targets_are_rounded_durations_and_normalized_frames_in_groups_of_four(tmp_path):
    task = ready("tts", write_clips(tmp_path))
    train, scale = task.splits["train"], task.scale
    first, batch = train.utterances[0], train.__getitems__([0, 1])
    frames = [round(t * RATE / HOP) for t in (0.05, 0.1, 0.21, 0.28)]
    assert (first.durations, first.start) == (np.diff(frames).tolist(), frames[0])
    assert first.aligned == [ALIGNED[phone] for phone in ("S", "EY1", "T")]
    assert first.written[-1] == 2
    mel = np.concatenate([np.asarray(utterance.mel) for utterance in train.utterances])
    np.testing.assert_allclose(scale.mel[0], mel.mean(axis=0), atol=1e-4)
    np.testing.assert_allclose(scale.mel[1], mel.std(axis=0), rtol=1e-3)
    np.testing.assert_allclose(scale.log_mel(scale.normal(mel)), mel, atol=1e-4)
    assert batch["mel"].shape[1] == sum(first.durations)
    pitch = (np.asarray(first.pitch)[frames[1] : frames[2]] - scale.pitch[0]) / scale.pitch[1]
    assert batch["pitch"][0, 1].item() == pytest.approx(pitch.mean(), abs=1e-4)
    grouped = train.__getitems__([0])["frames"][0].reshape(-1, 80)
    assert len(grouped) == 4 * -(-len(first.mel) // 4)
    np.testing.assert_allclose(grouped[: len(first.mel)].numpy(), scale.normal(np.asarray(first.mel)), atol=1e-6)


def test_splits():
    names = [f"LJ00{c}-{i:04d}" for c in (1, 2, 3, 4, 5) for i in range(2)]
    chapters = {split: sorted({int(name[4]) for name in clips}) for split, clips in split_by_chapter(names).items()}
    assert chapters == {"train": [4, 5], "dev": [3], "test": [1, 2]}
    assert {k: len(v) for k, v in split_at_end(names, 3).items()} == {"train": 4, "dev": 3, "test": 3}


def test_the_losses_by_hand(tmp_path):
    task = ready("tts", write_clips(tmp_path), num_prompt_steps=2)
    batch = task.splits["train"].__getitems__([0, 3])
    fast = network("tts", task, "fastspeech2").eval()
    with torch.no_grad():
        out = fast(batch["aligned"], None, durations=batch["durations"], pitch=batch["pitch"], energy=batch["energy"])
        expected = (out.mel - batch["mel"])[~out.mel_padding].abs().mean()
        expected += (out.log_duration - (batch["durations"] + 1.0).log()).square().mean()
        expected += (out.pitch - batch["pitch"]).square().mean() + (out.energy - batch["energy"]).square().mean()
        assert task.loss(fast, batch).sum().item() == pytest.approx(expected.item(), rel=1e-5)
        slow = network("tts", task, "transformer_tts").eval()
        torch.manual_seed(1)
        got = task.loss(slow, batch).sum().item()
        torch.manual_seed(1)
        mask = batch["frames_padding"]
        own = ~mask & (torch.arange(mask.shape[1]) >= 2)
        out = slow(batch["written"], batch["written_padding"], batch["frames"], mask)
        errors = [(x - batch["frames"])[own] for x in (out.before, out.after)]
        expected = sum(error.abs().mean() + error.square().mean() for error in errors)
        stops = []
        for row, steps in enumerate((~mask).sum(dim=1).tolist()):
            p = out.stop_logits[row, :steps].sigmoid()
            stops += [*-(1 - p[:-1]).log(), -5.0 * p[-1].log()]
        assert got == pytest.approx((expected + torch.stack(stops).mean()).item(), rel=1e-4)


def test_what_is_given_is_not_scored(tmp_path):
    task = ready("tts", write_clips(tmp_path), num_prompt_steps=2)
    backbone = network("tts", task, "transformer_tts").eval()
    backbone.prenet.dropout = 0.0
    with torch.no_grad():
        scores = task.evaluate(backbone, in_order)
        spoken = task.synthesize(backbone, task.splits["test"].__getitems__([0, 1]))
    pairs = zip(spoken, [task.target(utterance, backbone) for utterance in task.splits["test"].utterances], strict=True)
    waves = [[griffin_lim(mel[min(8, len(mel) - 1) :], iterations=2) for mel in pair] for pair in pairs]
    assert scores == distortions(path_costs(a, b) for a, b in waves)
    assert [len(mel) for mel in spoken] == [12, 12]


def test_durations_of_a_teacher(tmp_path):
    """A record of a trained network gives every token its frames; the tokens are those of the text."""
    folder = write_clips(tmp_path / "data", alignments=False)
    with pytest.raises(UserError, match="Montreal Forced Aligner"):
        ready("tts", folder).backbone_options("fastspeech2")
    cell = "task=tts dataset=ljspeech backbone=transformer_tts attention=abc pattern=NS preset=smoke device=cpu"
    cell += " task.num_held_out=2 trainer.max_steps=2 trainer.validate_every=2"
    assert main(["run", *cell.split(), f"data_root={folder}", f"results_dir={tmp_path / 'r'}"]) == 0
    [record] = (tmp_path / "r").glob("*.json")
    task = ready("tts", folder, teacher=str(record))
    for utterance in task.splits["train"].utterances:
        assert sum(utterance.durations) == len(utterance.mel)
        assert len(utterance.durations) == len(utterance.aligned) == len(utterance.written)
        assert min(utterance.durations) >= 0
    assert task.fingerprint()["teacher"] == record.stem


def test_a_score_does_not_depend_on_the_precision_of_the_network():
    expected = log_mel_power(tone())
    with torch.autocast("cpu", torch.bfloat16):
        assert np.array_equal(log_mel_power(tone()), expected)


def test_attended_durations_by_hand():
    assert attended_durations(torch.tensor([[0.9, 0.1, 0.0], [0.6, 0.4, 0.0], [0.1, 0.2, 0.7]]), 11) == [8, 0, 3]
    written, aligned = ("AA1", "|", ".", "</s>"), ("AA1", "sp", "sp", "sp")
    assert aligned_tokens([WRITTEN[t] for t in written]) == [ALIGNED[t] for t in aligned]


def test_the_mean_sound_of_a_phoneme_by_hand():
    """Frames 1, 2, 3, 5 of one phoneme and 7 of the other, in quarters; what was never heard is the mean frame."""

    def utterance(aligned: list[int], durations: list[int], levels: list[float], start: int = 0) -> Utterance:
        mel = np.repeat(np.array(levels)[:, None], 2, axis=1)
        return Utterance("u", [], aligned, durations, start, mel, np.zeros(len(mel)), np.zeros(len(mel)))

    means = mean_phonemes([utterance([8, 9], [2, 1], [99, 1, 2, 7], start=1), utterance([8], [4], [3, 5, 4, 6])])
    found = {part: value[0] for part, value in means.items()}
    assert found == {(8, 0): 2.0, (8, 1): 5.0, (8, 2): 3.0, (8, 3): 6.0, (9, 0): 7.0}
    asked = utterance([9, 8, 5], [1, 2, 1], [0.0] * 6, start=1)
    assert spoken_by_phoneme(asked, means, np.array([-1.0, -1.0]))[:, 0].tolist() == [-1, 7, 2, 3, -1, -1]


@pytest.mark.slow
def test_real_clips(samples):
    wave = read_wave(samples / "tts" / "wavs" / "LJ001-0002.wav")
    mel, pitch, _ = features(wave)
    phones, _ = read_phones(samples / "tts" / "TextGrid" / "LJSpeech" / "LJ001-0002.TextGrid")
    given = next(line for line in (samples / "tts" / "phonemes.txt").read_text().splitlines() if "LJ001-0002" in line)
    assert [phone.name for phone in phones] == given.split("{")[1].split("}")[0].split()
    assert 100 < np.median(np.exp(pitch)) < 350
    assert len(mel) == 1 + len(wave) // HOP
    text = (samples / "tts" / "metadata.csv").read_text().splitlines()[1].split("|")[2]
    tokens = [token for token in written_tokens(text) if token not in ("|", *PUNCTUATION)]
    assert [t.rstrip("012") for t in tokens] == [p.name.rstrip("012") for p in phones if p.name not in ("sp", "sil")]


def test_log_mel_against_numpy():
    wave = tone()
    mel, pitch, energy = features(wave)
    assert len(mel) == len(pitch) == len(energy) == 1 + len(wave) // HOP
    padded = np.pad(wave, N_FFT // 2, mode="reflect")
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(N_FFT) / N_FFT)
    for frame in (0, 7, len(mel) - 1):
        spectrum = np.abs(np.fft.rfft(padded[frame * HOP : frame * HOP + N_FFT] * window))
        np.testing.assert_allclose(mel[frame], np.log(np.maximum(mel_filters().numpy() @ spectrum, 1e-5)), atol=1e-2)
        assert energy[frame] == pytest.approx(math.log(np.linalg.norm(spectrum)), abs=1e-3)
    assert np.median(np.exp(pitch)) == pytest.approx(180.0, rel=0.02)
    assert all(np.isfinite(x).all() for x in features(np.zeros(5000, dtype=np.float32)))  # of silence


def test_griffin_lim_comes_near_the_wave():
    mel, *_ = features(tone())
    again, *_ = features(griffin_lim(mel, iterations=32))
    length = min(len(mel), len(again))
    assert np.abs(mel[:length] - again[:length])[mel[:length] > mel.max() - 4].mean() < 0.5


def test_text_becomes_phonemes():
    assert (len(phonemes.ARPABET), len(ALIGNED), len(WRITTEN)) == (69, 76, 80), "as published"
    assert " ".join(written_tokens("In being modern, don't!")) == "IH0 N | B IY1 IH0 NG | M AA1 D ER0 N , | D OW1 N T !"
    for word in ("Blorptastique", "xqz", "Tulowitzki's", "well-known", "zhā"):
        assert set() < set(phonemes.pronounce(word)) <= set(phonemes.ARPABET)
    assert phonemes.pronounce("blorptastique's")[-1] == "Z"
    for text, same in (("ﬁnd", "find"), ("café", "cafe"), ("“Yes” – (no)", "Yes no"), ("don’t", "don't")):
        assert written_tokens(text) == written_tokens(same)


@pytest.mark.parametrize("text", ["born in 1963", "cats & dogs", "Straße"])
def test_a_character_without_phonemes_is_refused(text):
    with pytest.raises(UserError, match=f"the character '{phonemes.unspoken(text)}' of '{text}' has no phonemes"):
        written_tokens(text)


@pytest.mark.parametrize(
    "content",
    [
        GOOD.encode("utf-8-sig"),
        GOOD.encode("utf-16"),
        GOOD.replace("\n", "\r\n").encode(),
        GOOD.replace("\n", "\r").replace("    ", "\t").encode(),
        GOOD.replace("intervals [2]:", "intervals [2]").rstrip("\n").encode(),
    ],
)
def test_alignments_lose_their_outer_silence_in_every_dialect(content, tmp_path):
    phones = [Phone("HH", 0.1, 0.2), Phone("sp", 0.2, 0.3), Phone("AH0", 0.3, 0.5)]
    assert read_phones(put(tmp_path / "a.TextGrid", content)) == (phones, 0.6)


def test_times_without_an_interval_are_silence(tmp_path):
    """Some programs do not write intervals without a phone."""
    path = put(tmp_path / "a.TextGrid", grid(("HH", 0.1, 0.2), ("AH0", 0.3, 0.5), end=0.6))
    assert [phone.name for phone in read_phones(path)[0]] == ["HH", "sil", "AH0"]
