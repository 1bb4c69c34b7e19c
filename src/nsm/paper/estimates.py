"""A mean with its standard error, and what can be said of differences: two standard errors decide.

That a difference lies within two standard errors of nothing is easy to reach with few seeds, so whoever says it shows
the difference with its standard error.
"""

import math
import statistics
from dataclasses import dataclass
from typing import Any

from nsm.paper.findings import error_of


@dataclass(frozen=True)
class Estimate:
    """A mean and its standard error; the difference of two is that of independent ones.

    >>> apart = Estimate(1.30, 0.03) - Estimate(1.45, 0.04)
    >>> str(apart), apart.negative, apart.zero, apart.positive
    ('-0.150 ± 0.050', True, False, False)
    """

    mean: float
    error: float

    def __sub__(self, other: "Estimate") -> "Estimate":
        return Estimate(self.mean - other.mean, math.hypot(self.error, other.error))

    def __str__(self) -> str:
        digits = 3 if self.error < 0.1 and abs(self.mean) < 10 else 2
        return f"{self.mean:+.{digits}f} ± {self.error:.{digits}f}"

    @property
    def negative(self) -> bool:
        """Whether the mean is below 0 by more than two standard errors."""
        return self.mean < -2 * self.error

    @property
    def positive(self) -> bool:
        """Whether the mean is above 0 by more than two standard errors."""
        return self.mean > 2 * self.error

    @property
    def zero(self) -> bool:
        """Whether the mean is within two standard errors of 0."""
        return not (self.negative or self.positive)


def of_row(row: dict[str, Any]) -> Estimate:
    """The error of a row of a table, or of another summary of seeds."""
    return Estimate(row["mean"], error_of(row))


def of_seeds(values: list[float]) -> Estimate:
    """The mean of one value for each seed; that of a single one has no known error, which is written as 0.

    >>> of_seeds([1.0, 2.0, 3.0]).error == 1 / math.sqrt(3)
    True
    """
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return Estimate(statistics.fmean(values), error)


def paired(one: dict[str, Any], other: dict[str, Any]) -> Estimate:
    """The difference of two summaries of the same networks, seed by seed; of a single network as if they were two.

    >>> summary = {"mean": 2.0, "standard_error": 1.0, "values": [1.0, 3.0]}
    >>> paired({**summary, "values": [1.5, 3.5]}, summary)  # the spread of the seeds does not matter
    Estimate(mean=0.5, error=0.0)
    """
    if len(one["values"]) == 1:
        return of_row(one) - of_row(other)
    pairs = zip(one["values"], other["values"], strict=True)
    return of_seeds([round(a - b, 6) for a, b in pairs])  # errors are recorded with six digits
