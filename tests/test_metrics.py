import math

import numpy as np
import pytest
import sklearn.metrics
import torch

from nsm import metrics


@pytest.fixture
def forecast() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    probabilities = (2 * torch.randn(500, 4, generator=generator, dtype=torch.float64)).softmax(-1)
    return probabilities, torch.randint(4, (500,), generator=generator)


def test_against_scikit_learn(forecast):
    p, y = forecast
    one_hot = np.eye(4)[y]
    assert metrics.error_rate(p, y).item() == pytest.approx(1 - sklearn.metrics.accuracy_score(y, p.argmax(-1)))
    assert metrics.negative_log_likelihood(p, y).item() == pytest.approx(sklearn.metrics.log_loss(y, p.numpy()))
    assert metrics.brier_score(p, y).item() == pytest.approx(((p.numpy() - one_hot) ** 2).sum(1).mean())


def test_calibration_error_bin_by_bin(forecast):
    p, y = forecast
    confidence, right = p.amax(-1).numpy(), (p.argmax(-1) == y).numpy()
    expected = 0.0
    for k in range(10):
        inside = (confidence > k / 10) & (confidence <= (k + 1) / 10)
        if inside.any():
            expected += inside.mean() * abs(confidence[inside].mean() - right[inside].mean())
    assert metrics.expected_calibration_error(p, y, bins=10).item() == pytest.approx(expected)
    count, _, _ = metrics.reliability(p, y, bins=10)
    assert count.sum() == 500
    assert count[:2].sum() == 0  # four classes: confidence is above ¼


def test_extremes():
    p, y = torch.eye(3), torch.arange(3)
    assert metrics.error_rate(p, y) == 0
    assert metrics.brier_score(p, y) == 0
    assert metrics.negative_log_likelihood(p, y) == 0
    assert metrics.expected_calibration_error(p, y) == 0
    wrong = y.roll(1)
    assert metrics.error_rate(p, wrong) == 1
    assert metrics.brier_score(p, wrong) == 2
    assert metrics.expected_calibration_error(p, wrong) == 1
    assert math.isfinite(metrics.negative_log_likelihood(p, wrong))


@pytest.mark.parametrize(
    ("p", "y", "message"),
    [
        (torch.ones(3, 2), torch.zeros(2, dtype=torch.long), r"but got \(3, 2\) and \(2,\)"),
        (torch.ones(0, 2), torch.zeros(0, dtype=torch.long), r"not empty, but got \(0, 2\)"),
        (
            torch.ones(3, 2),
            torch.tensor([0, 1, 2]),
            "`labels` to be integers in 0 to 1, but got torch.int64 from 0 to 2",
        ),
        (torch.ones(3, 2), torch.tensor([0, -1, 1]), "from -1 to 1"),
        (torch.ones(3, 2), torch.ones(3), "torch.float32"),
    ],
)
def test_bad_input(p, y, message):
    for function in (metrics.error_rate, metrics.brier_score, metrics.expected_calibration_error):
        with pytest.raises(ValueError, match=message):
            function(p, y)
    with pytest.raises(ValueError, match="`bins` to be positive"):
        metrics.reliability(torch.ones(1, 2) / 2, torch.zeros(1, dtype=torch.long), bins=0)
