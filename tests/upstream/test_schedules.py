"""Learning rates of preset `paper` and SR3's noise schedule against upstream's functions."""

import pytest

from cab.config.run_config import TrainerConfig
from tasks.sr.task import Diffusion
from tests.upstream import paper

INVERSE_SQRT = {1: 1.25e-7, 10: 1.25e-6, 2000: 2.5e-4, 3999: 4.99875e-4, 4000: 5e-4, 8000: 3.5355339e-4, 16000: 2.5e-4}
"""fairseq, ``InverseSquareRootSchedule.step_update``: rate after so many updates, peak 5e-4, warm-up 4,000."""
POLYNOMIAL = {1: 1.25e-7, 2000: 2.5e-4, 4000: 5e-4, 4001: 4.9996875e-4, 8000: 3.75e-4, 16000: 1.25e-4}
"""fairseq, ``PolynomialDecayLRSchedule.step_update``: the same to 20,000 updates, power 1."""
NOISE = {
    0: (1.0, 0.999999499999875, 1.0, 0.0),
    1: (0.999999499999875, 0.9999964989963722, 0.8571839928627014, 0.14281600713729858),
    500: (0.7316080977775552, 0.7306922826630112, 0.003927328623831272, 0.9958785772323608),
    1000: (0.28597865663662947, 0.28526238388233366, 0.0015574918361380696, 0.9970510601997375),
    1999: (0.006656035641881134, 0.006622671844605626, 6.656327605014667e-05, 0.9949870109558105),
}
"""sr3, ``GaussianDiffusion.set_new_noise_schedule`` (linear, 2,000 steps, 1e-6 to 1e-2): sqrt(alpha-bar) before and
after a step, and the two coefficients of the posterior's mean, in float32; then the posterior's variance."""
VARIANCE = {1: 8.571841476623376e-07, 500: 0.002494811313226819, 1000: 0.005000772420316935, 1999: 0.009999994188547134}


@pytest.mark.parametrize(
    ("schedule", "expected"), [("inverse_sqrt", INVERSE_SQRT), ("linear", POLYNOMIAL)], ids=["inverse_sqrt", "linear"]
)
def test_fairseqs_rates(schedule, expected):
    """While warming up ours is one update ahead (docs/howto/fairseq.md): fairseq's first one has rate 0."""
    trainer = TrainerConfig(**{**paper("tts", "ljspeech", "transformer_tts")["trainer"], "schedule": schedule})
    for updates, value in expected.items():
        step = updates - 1 if updates < trainer.warmup_steps else updates
        assert trainer.learning_rate * trainer.rate(1)(step) == pytest.approx(value, rel=1e-6), updates


@pytest.mark.parametrize(("backbone", "sample_size"), [("fastspeech2", 48), ("transformer_tts", 6800)])
def test_clipping_and_eps_are_of_fairseqs_gradients(backbone, sample_size):
    """fairseq, ``Trainer.train_step``: micro-batches' gradients are added up and divided by the sample size, sentences
    (``FastSpeech2Loss``) or target steps (``Tacotron2Criterion``), before they are clipped at 5 and given to Adam.
    """
    trainer = TrainerConfig(**paper("tts", "ljspeech", backbone)["trainer"])
    assert trainer.micro_batch_size is not None
    larger = sample_size / (trainer.batch_size / trainer.micro_batch_size)  # our mean over theirs
    assert trainer.eps == pytest.approx(1e-8 * larger)
    limit = 5.0 * larger if backbone == "fastspeech2" else 0.0  # 4,250 is never reached
    assert trainer.max_grad_norm == pytest.approx(limit)


@pytest.mark.parametrize("step", NOISE)
def test_noise_schedule(step):
    diffusion = Diffusion(paper("sr", "ffhq", "sr3")["task"]["diffusion_steps"])
    before, after, of_image, of_noisy = NOISE[step]
    assert diffusion.levels[step].item() == pytest.approx(before, rel=1e-12)
    assert diffusion.levels[step + 1].item() == pytest.approx(after, rel=1e-12)
    assert diffusion.weight_of_image[step].item() == pytest.approx(of_image, rel=1e-6)
    assert diffusion.weight_of_noisy[step].item() == pytest.approx(of_noisy, rel=1e-6, abs=1e-9)
    if step in VARIANCE:
        assert diffusion.variance[step].item() == pytest.approx(VARIANCE[step], rel=1e-5)
