"""Early stopping: a label is settled wrongly as seldom as was asked, and by samples of the same stream."""

import pytest
import torch

from law import check_rate
from nsm.sampling import Confident, predict
from test_sampling import close, images, small


def votes_of(p: torch.Tensor, n: int, inputs: int) -> torch.Tensor:
    """(n, inputs) votes drawn from the class probabilities p."""
    return torch.multinomial(p, n * inputs, replacement=True).reshape(n, inputs)


def settle(error: float, votes: torch.Tensor, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """When each input was settled (n + 1 if never) and on which class."""
    watch = Confident(error).watch(votes.shape[1], votes.device)
    when = torch.full((votes.shape[1],), len(votes) + 1)
    on = torch.full((votes.shape[1],), -1)
    for k, vote in enumerate(votes, 1):
        settled = watch.update(vote, classes) & (when > len(votes))
        when[settled] = k
        assert watch.counts is not None
        on[settled] = watch.counts.argmax(-1)[settled]
    return when, on


@pytest.mark.parametrize("p", [[0.5, 0.5], [0.5, 0.3, 0.2], [0.4, 0.3, 0.3], [0.1] * 10], ids=str)
@pytest.mark.parametrize("error", [0.2, 0.05])
def test_no_majority_is_seldom_settled(p, error):
    """The promise at its edge: no class has more than half of the votes."""
    torch.manual_seed(0)
    n = 20_000
    when, _ = settle(error, votes_of(torch.tensor(p), 150, n), len(p))
    settled = int((when <= 150).sum())
    check_rate(settled, n, error / 2, tolerance=error / 2)  # somewhere between never and `error`


def test_a_majority_is_settled_soon_and_on_the_right_class():
    torch.manual_seed(0)
    when, on = settle(0.01, votes_of(torch.tensor([0.02, 0.95, 0.03]), 100, 5000), 3)
    assert (when <= 100).all()
    assert when.double().mean() < 14
    wrong = int((on != 1).sum())
    check_rate(wrong, 5000, 0.005, tolerance=0.005)
    certain, _ = settle(0.01, torch.zeros(30, 1, dtype=torch.int64), 3)
    assert certain.tolist() == [9]
    certain, _ = settle(0.001, torch.zeros(30, 1, dtype=torch.int64), 3)
    assert certain.tolist() == [12]


def test_a_fair_bet_is_a_martingale():
    """With votes for the leader at exactly one half, mean wealth stays at its start however long it runs."""
    win = torch.tensor([0.6, 0.75, 0.9, 1.0], dtype=torch.float64)
    torch.testing.assert_close(0.5 * (2 * win) + 0.5 * (2 - 2 * win), torch.ones(4, dtype=torch.float64))
    starts = [0.9 * 0.1**k for k in range(60)]
    assert sum(starts) == pytest.approx(1.0)


def test_early_stopping_takes_samples_of_the_same_stream():
    model, x = small(), images(40)
    whole = predict(model, x, 60, seed=3, keep_samples=True)
    assert whole.samples is not None
    stopped = predict(model, x, 60, seed=3, stop=Confident(0.05))
    for chunk_size in (1, 7, 60):
        close(predict(model, x, 60, seed=3, stop=Confident(0.05), chunk_size=chunk_size), stopped)
    assert stopped.num_samples.min() < 60
    for i, n in enumerate(stopped.num_samples.tolist()):
        torch.testing.assert_close(stopped.probabilities[i], whole.samples[:n, i].mean(0), atol=1e-6, rtol=0)
    with pytest.raises(ValueError, match=r"Expected argument `error` to be in \(0, 1\), but got 0"):
        Confident(0)
