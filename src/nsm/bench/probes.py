"""What the machine itself can do, measured: products, memory, random numbers, integers."""

from typing import Any

import torch

from nsm.bench.timing import interleave
from nsm.noise import integers

ROUNDS = 5


def limits(device: str, dtype: torch.dtype) -> dict[str, float]:
    """The rates of one run: multiply-adds, bytes and 16-bit random numbers, each per second."""
    n = 8192 if device == "cuda" else 1024
    many = 2**28 if device == "cuda" else 2**24
    a, b = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
    source = torch.zeros(many, device=device, dtype=torch.int8)
    target = torch.empty_like(source)
    times = interleave(
        {
            "products": lambda: a @ b,
            "memory": lambda: target.copy_(source),
            "random": lambda: integers((many // 4,), torch.int16, None, torch.device(device)),
        },
        ROUNDS,
        calls=10 if device == "cuda" else 1,
    )
    return {
        "multiply_adds": n**3 / min(times["products"].times),
        "bytes": 2 * many / min(times["memory"].times),
        "random_numbers": many // 4 / min(times["random"].times),
    }


def _chain(x: torch.Tensor) -> torch.Tensor:
    for k in range(256):
        x = (x * 0x5851F42D) ^ (k + 0x2545F491)  # a product and a xor, which nothing simplifies
    return x


def integer_rate(device: str, count: int = 2**24) -> float:
    """32-bit integer instructions per second, half of them products, from a long chain of them in registers."""
    x: Any = torch.arange(count, dtype=torch.int32, device=device)
    chain: Any = torch.compile(_chain)
    time = interleave({"chain": lambda: chain(x)}, ROUNDS, warm=2)["chain"]
    return 2 * 256 * count / min(time.times)
