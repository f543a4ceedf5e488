"""Metrics of preset `paper` against upstream's functions on inputs from seeds."""

import numpy as np
import pytest
import torch

from backbones.layers.points import farthest_points
from tasks.pcc.task import PCC, cloud_scores
from tasks.sr.task import similarity
from tasks.sum.task import rouge
from tasks.tts.audio import RATE
from tasks.tts.distortion import distortions, path_costs
from tests.upstream import paper


def test_distortions_are_fairseqs():
    """fairseq, ``batch_mel_cepstral_distortion`` and ``batch_mel_spectral_distortion`` with torchaudio 2.6."""
    rng = np.random.default_rng(7)

    def wave(length: int) -> np.ndarray:
        time, pitch = np.arange(length) / RATE, rng.uniform(100, 250)
        tone = 0.3 * sum(np.sin(2 * np.pi * pitch * k * time) / k for k in range(1, 8))
        loud = 0.6 + 0.4 * np.sin(2 * np.pi * 3 * time)
        return (tone * loud + 0.01 * rng.standard_normal(length)).astype(np.float32)

    found = distortions([path_costs(wave(a), wave(b)) for a, b in ((9000, 7000), (5000, 8123))])
    assert found == pytest.approx({"mcd": 1.5840614, "msd": 3.0359320}, rel=1e-5)


def test_clouds_are_scored_as_published():
    """pointr, ``Metrics._get_f_score`` (its distances by SciPy's k-d tree) and ``ChamferDistanceL1``, ``L2`` with
    ``ignore_zeros``: zeros count in the F-score alone.
    """
    rng = np.random.default_rng(5)
    truth = rng.uniform(-0.5, 0.5, (600, 3))
    points = np.concatenate([truth[:400] + 0.006 * rng.standard_normal((400, 3)), np.zeros((100, 3))])
    clouds = (torch.from_numpy(cloud.astype(np.float32)).unsqueeze(0) for cloud in (points, truth))
    found = cloud_scores(*clouds, paper("pcc", "pcn", "pointr")["task"]["f_score_of"])
    assert found["f_score"] == pytest.approx(0.39272727, abs=1e-7)
    assert found["f_score_real"] == pytest.approx(0.432, abs=1e-7)
    assert found["cd_l1"] == pytest.approx(21.3013667, rel=1e-5)
    assert found["cd_l2"] == pytest.approx(2.55076489, rel=1e-5)
    secondary = [metric.name for metric in PCC(dataset="pcn", f_score_of="all").metrics if not metric.primary]
    assert secondary == ["f_score_real"]


def test_farthest_points_are_pointnet2s():
    """pointnet2_ops, ``furthest_point_sampling_kernel``, its rule run in a plain loop: 40 points, ten of them zero and
    one near the origin; 50 wanted.
    """
    points = np.random.default_rng(3).uniform(-0.5, 0.5, (40, 3)).astype(np.float32)
    points[30:] = 0
    points[7] *= 0.02
    chosen = farthest_points(torch.from_numpy(points).unsqueeze(0), 50)[0].tolist()
    first = [0, 24, 11, 17, 25, 23, 20, 6, 8, 2, 22, 3, 1, 14, 4, 19, 21, 28, 9, 26, 29, 27, 16, 10, 13, 12, 18, 15, 5]
    assert chosen == first + [0] * 21


def test_images_are_scored_as_published():
    """sr3, core/metrics.py ``calculate_psnr`` and ``calculate_ssim`` with OpenCV."""
    rng = np.random.default_rng(11)
    truth = rng.integers(0, 256, (8, 8, 3)).repeat(4, 0).repeat(4, 1).astype(np.uint8)
    image = np.clip(truth + rng.normal(0, 20, truth.shape), 0, 255).astype(np.uint8)
    assert similarity(image, truth) == pytest.approx({"psnr": 22.54166810405531, "ssim": 0.9396862092077755}, rel=1e-6)


PAIRS = [
    (
        "The dying soldiers were happily lying under grey skies.\nGenerous news: 25 innings, early flies.",
        "A soldier lies dying happily under a sky of flies.\nThe generously new inning was 25 days early, he said.",
    ),
    (
        "Its owner's ties were tied. He cries; she cried on 3,000 relational conditions in the U.S.",
        "It was the owner who tied his tie and cried.\nRelations of 3,000 conditioned the US.",
    ),
    (
        "Police said the gunman – a 23-year-old – was arrested on Tuesday.\nMen and women mourned.",
        "The 23-year-old gunman is under arrest, police say.\nA woman and a man mourn on Tuesdays.",
    ),
]
"""References and summaries with words that NLTK's extensions of Porter's algorithm stem to other stems."""
ROUGE_155 = {
    "rouge1": (62.857, 44.444, 70.588),
    "rouge2": (6.061, 5.883, 18.750),
    "rougeL": (51.429, 38.889, 58.824),
    "rouge1_plain": (40.000, 33.333, 52.941),
    "rouge2_plain": (0.000, 5.883, 12.500),
    "rougeL_plain": (40.000, 33.333, 41.177),
}
"""F of ROUGE-1.5.5.pl ``-c 95 -r 1000 -n 2 -d``, as pyrouge calls it with ``-m`` and without, for each of them."""


def test_summaries_are_scored_by_rouge_155():
    """A sentence per line; the script prints five decimals."""
    scores = [rouge([pair]) for pair in PAIRS]
    for name, printed in ROUGE_155.items():
        assert [row[name] for row in scores] == pytest.approx(printed, abs=0.0011), name
