"""Table 2: convolutional networks on MNIST, EMNIST letters and N-MNIST, and their comparison on MNIST."""

from nsm.paper.runs import Quick, Run, from_rows

QUICK = Quick(inputs=(2_000, 200), epochs=1, samples=10)


def runs() -> dict[str, Run]:
    """The runs behind the rows."""
    return from_rows("table2")
