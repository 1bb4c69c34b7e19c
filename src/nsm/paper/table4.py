"""Table 4: DVS Gestures, started from the trained deterministic network."""

from nsm.paper.runs import Quick, Run, from_rows

QUICK = Quick(inputs=(20, 10), epochs=1, samples=2)


def runs() -> dict[str, Run]:
    """The runs behind the rows."""
    return from_rows("table4")
