"""Claims of the paper, and what can become of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from nsm.paper.findings import Findings

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


@dataclass(frozen=True)
class Claim:
    """A claim of the paper and how it is judged; made by `claim`."""

    title: str
    rule: str
    sources: tuple[str, ...]
    look: Callable[[Findings], Judged | None]

    def judge(self, findings: Findings) -> Verdict:
        """What becomes of it."""
        judged, paper = self.look(findings), " ".join((self.look.__doc__ or "").split())
        if judged is None:
            return Verdict(self.title, paper, OPEN, OPEN, self.rule, self.sources)
        outcome = (judged.verdict, judged.found, self.rule, self.sources, judged.quick, judged.parts)
        return Verdict(self.title, paper, *outcome)


def claim(title: str, rule: str, *sources: str) -> Callable[[Callable[[Findings], Judged | None]], Claim]:
    """Make a claim of a function that looks at what was found; None where the records it needs are not there.

    Args:
        title: The claim in a few words; the function's docstring is what the paper says.
        rule: When it counts as confirmed.
        sources: Files under results/.
    """
    return lambda look: Claim(title, rule, sources, look)


def short(*found: dict[str, Any]) -> bool:
    """Whether a record is of a short version."""
    return any(each.get("quick") for each in found)
