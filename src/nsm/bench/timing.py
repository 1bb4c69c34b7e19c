"""Times that can be compared: runs taken in turn, the median of several, and how far they spread."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

Run = Callable[[], object]
Clock = Callable[[Run, int], float]


class Wrong(Exception):
    """A result was not what it must be, so its time means nothing."""


def wall(run: Run, calls: int) -> float:
    """Seconds of one call, as a user waits for them: all work of a GPU is awaited before and after."""
    _wait()
    began = time.perf_counter()
    for _ in range(calls):
        run()
    _wait()
    return (time.perf_counter() - began) / calls


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


@dataclass(frozen=True)
class Timing:
    """Repeated times of one thing, in seconds."""

    times: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """The median."""
        return statistics.median(self.times)

    @property
    def spread(self) -> tuple[float, float]:
        """The lower and the upper quartile."""
        return quartiles(self.times)

    def over(self, other: "Timing") -> tuple[float, tuple[float, float]]:
        """The ratio of the medians, and the quartiles of the ratios round by round."""
        rounds = [a / b for a, b in zip(self.times, other.times, strict=True)]
        return self.seconds / other.seconds, quartiles(rounds)

    def scaled(self, factor: float) -> "Timing":
        """The times of ``factor`` times the work."""
        return Timing(tuple(factor * value for value in self.times))


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """The lower and the upper quartile."""
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def interleave(
    runs: Mapping[str, Run], rounds: int, *, calls: int = 1, warm: int = 1, clock: Clock = wall
) -> dict[str, Timing]:
    """Time several things in turn, so that what slows the machine for a while slows all of them.

    Every other round goes backwards, so that none always follows the same one.
    """
    for run in runs.values():
        for _ in range(warm):
            run()
    times: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds):
        for name in list(runs)[:: 1 if number % 2 == 0 else -1]:
            times[name].append(clock(runs[name], calls))
    return {name: Timing(tuple(values)) for name, values in times.items()}


@dataclass(frozen=True)
class Contender:
    """One way to do a work.

    Attributes:
        name: What it is.
        run: Does it once.
        check: Raises `Wrong` where the result is not what it must be.
        scale: The work is this many runs.
    """

    name: str
    run: Run
    check: Callable[[], object]
    scale: float = 1.0


@dataclass
class Race:
    """The fastest way of each side, timed in turn, and all ways that were tried."""

    best: dict[str, tuple[str, Timing]] = field(default_factory=dict)
    tried: list[dict[str, Any]] = field(default_factory=list)


def race(
    sides: Mapping[str, Sequence[Contender]], rounds: int, *, calls: int = 1, warm: int = 2, clock: Clock = wall
) -> Race:
    """Check every contender, find the fastest of each side in three rounds, then time the fastest ones in turn.

    One that cannot run here is left out, with its reason, as long as its side has another; a wrong one stops the race.
    """
    found = Race()
    winners: dict[str, Contender] = {}
    for side, contenders in sides.items():
        ready = []
        for contender in contenders:
            try:
                contender.check()
                ready.append(contender)
            except Wrong as wrong:
                raise Wrong(f"{contender.name}: {wrong}") from None
            except RuntimeError as error:
                if not ready and contender is contenders[-1]:
                    raise
                reason = (str(error).splitlines() or [type(error).__name__])[0]
                found.tried.append({"side": side, "name": contender.name, "seconds": None, "reason": reason})
        trial = interleave({c.name: c.run for c in ready}, 3, calls=calls, warm=warm, clock=clock)
        winners[side] = min(ready, key=lambda c: trial[c.name].seconds * c.scale)
        for contender in ready:
            timing = trial[contender.name].scaled(contender.scale)
            way = {"side": side, "name": contender.name, "seconds": timing.seconds, "spread": timing.spread, "n": 3}
            found.tried.append(way | ({"scale": contender.scale} if contender.scale != 1 else {}))
    final = interleave({side: c.run for side, c in winners.items()}, rounds, calls=calls, warm=1, clock=clock)
    found.best = {side: (c.name, final[side].scaled(c.scale)) for side, c in winners.items()}
    return found
