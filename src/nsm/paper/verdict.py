"""What can become of a claim of the paper."""

from collections.abc import Sequence
from dataclasses import dataclass

CONFIRMED, NOT_CONFIRMED, MIXED, OPEN = "confirmed", "not confirmed", "mixed", "not yet measured"


@dataclass(frozen=True)
class Verdict:
    """What became of a claim.

    Attributes:
        title: The claim in a few words.
        paper: What the paper says.
        verdict: confirmed, not confirmed, mixed, or not yet measured.
        found: The numbers.
        rule: When a claim counts as confirmed.
        sources: Files under results/.
        quick: Whether a record behind it is of a short version.
        parts: The numbers one by one, where there are many.
    """

    title: str
    paper: str
    verdict: str
    found: str
    rule: str
    sources: tuple[str, ...]
    quick: bool = False
    parts: Sequence[str] = ()


@dataclass(frozen=True)
class Judged:
    """What became of the parts of a claim; of none where numbers were found, but not those that decide."""

    holds: Sequence[bool]
    found: str
    quick: bool = False
    parts: Sequence[str] = ()

    @property
    def verdict(self) -> str:
        """Confirmed if all parts hold, mixed if some do."""
        if not self.holds:
            return OPEN
        if all(self.holds):
            return CONFIRMED
        return MIXED if any(self.holds) else NOT_CONFIRMED
