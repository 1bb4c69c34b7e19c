"""How good probabilities are: error, and whether confidence deserves its name.

All take probabilities (B, C) and labels (B,), and return a scalar tensor.
"""

import torch
from torch import Tensor


def error_rate(probabilities: Tensor, labels: Tensor) -> Tensor:
    """The share of inputs whose most probable class is not the label.

    >>> error_rate(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]))
    tensor(0.5000)
    """
    _check(probabilities, labels)
    return (probabilities.argmax(-1) != labels).to(probabilities.dtype).mean()


def negative_log_likelihood(probabilities: Tensor, labels: Tensor) -> Tensor:
    """−log of the label's probability, averaged, in nats; a probability of 0 counts as the smallest of its type."""
    _check(probabilities, labels)
    chosen = probabilities.gather(-1, labels[:, None]).clamp(min=torch.finfo(probabilities.dtype).tiny)
    return -chosen.log().mean()


def brier_score(probabilities: Tensor, labels: Tensor) -> Tensor:
    """The squared distance of the probabilities from the label's one-hot vector, averaged: 0 is perfect, 2 the worst.

    >>> brier_score(torch.tensor([[1.0, 0.0], [0.5, 0.5]]), torch.tensor([0, 1]))
    tensor(0.2500)
    """
    _check(probabilities, labels)
    truth = torch.nn.functional.one_hot(labels, probabilities.shape[-1]).to(probabilities.dtype)
    return (probabilities - truth).square().sum(-1).mean()


def reliability(probabilities: Tensor, labels: Tensor, bins: int = 15) -> tuple[Tensor, Tensor, Tensor]:
    """Count, mean confidence and accuracy of the inputs in each of ``bins`` equal bins of confidence, (bins,) each.

    Bins are open to the left, as in (0.2, 0.3]; an empty one has confidence and accuracy 0.
    """
    _check(probabilities, labels)
    if bins < 1:
        raise ValueError(f"Expected argument `bins` to be positive, but got {bins}")
    confidence, label = probabilities.double().max(-1)
    place = (confidence * bins).ceil().long().clamp(1, bins) - 1
    count, total, right = (
        torch.zeros(bins, dtype=torch.float64, device=place.device).index_add_(0, place, value)
        for value in (torch.ones_like(confidence), confidence, (label == labels).double())
    )
    return count, total / count.clamp(min=1), right / count.clamp(min=1)


def expected_calibration_error(probabilities: Tensor, labels: Tensor, bins: int = 15) -> Tensor:
    """How far confidence is from accuracy: their distance in each bin of confidence, averaged over inputs."""
    count, confidence, accuracy = reliability(probabilities, labels, bins)
    return (count * (confidence - accuracy).abs()).sum() / count.sum()


def _check(probabilities: Tensor, labels: Tensor) -> None:
    if probabilities.dim() != 2 or labels.shape != probabilities.shape[:1] or len(labels) == 0:
        raise ValueError(
            "Expected arguments `probabilities` and `labels` to have shapes (batch, classes) and (batch,), not empty, "
            f"but got {tuple(probabilities.shape)} and {tuple(labels.shape)}"
        )
    if labels.is_floating_point() or int(labels.min()) < 0 or int(labels.max()) >= probabilities.shape[1]:
        raise ValueError(
            f"Expected argument `labels` to be integers in 0 to {probabilities.shape[1] - 1}, but got "
            f"{labels.dtype} from {labels.min().item()} to {labels.max().item()}"
        )
