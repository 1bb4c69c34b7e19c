"""Table 3: the all-convolutional network on CIFAR-10 and CIFAR-100, from a trained network and from scratch (*)."""

from nsm.paper.runs import Quick, Run, from_rows

QUICK = Quick(inputs=(100, 20), epochs=1, samples=2)


def runs() -> dict[str, Run]:
    """The runs behind the rows."""
    return from_rows("table3")
