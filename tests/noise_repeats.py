"""Looks for repeated noise at every distance at once: the autocorrelation of a draw, of two draws, and of two calls."""

import torch

from nsm.noise import Bernoulli

SHAPES = [(1000, 784), (100, 32, 24, 24), (128, 1024), (3, 5, 7, 11, 13), (4096, 257), (100_003,)]
LIMIT = 9.0  # standard deviations: under 1e-18 for one lag, so under 1e-11 for the ten million looked at


def check_no_repeats(shape: tuple[int, ...], device: str = "cpu", *, compiled: bool = False) -> None:
    """Draw two tensors in one call, and again in a second call; none may hold a stretch of itself or of another."""
    torch.manual_seed(0)

    def two(template: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        noise = Bernoulli(0.5)
        first = noise.sample(template.shape, device=template.device)
        return first, noise.sample(template.shape, device=template.device)

    if compiled:
        torch._dynamo.reset()
        two = torch.compile(two, fullgraph=True)
    template = torch.empty(shape, device=device)
    draws = [2 * draw.flatten().double() - 1 for _ in range(2) for draw in two(template)]
    check_uncorrelated(draws)


def check_uncorrelated(draws: list[torch.Tensor]) -> None:
    """No pair of ±1 sequences may agree with a shifted copy of the other, at any circular shift."""
    n = len(draws[0])
    spectra = [torch.fft.rfft(draw) for draw in draws]
    for i in range(len(draws)):
        for j in range(i, len(draws)):
            correlation = torch.fft.irfft(spectra[i] * spectra[j].conj(), n) / n**0.5
            if i == j:
                correlation[0] = 0  # every sequence agrees with itself
            worst = correlation.abs().max().item()
            if worst > LIMIT:
                shift = correlation.abs().argmax().item()
                raise AssertionError(f"draw {i} repeats in draw {j} at a distance of {shift}: {worst:.0f} sigma")
