"""Every row of every table of the paper, and ours beside them, in the order in which they are shown.

A row is what a reader sees; a *run* is what a computer does: some networks trained by one recipe. Several rows may
come from one run, like those of Table 1 whose weights are scaled after training. The result of the run ``name`` is
``results/paper/<name>.json``.
"""

from dataclasses import dataclass, replace

from nsm import recipes
from nsm.recipes import CIFAR10_CNN, CIFAR100_CNN, DVS_CNN, EMNIST_CNN, MNIST_CNN, NMNIST_CNN, PI_MNIST, Recipe


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of a table.

    Attributes:
        table: table1 to table4.
        data: The data set as shown; an unofficial one says so.
        model: The model as shown.
        paper: The paper's test error in percent, for a tuned recipe that of the plain one; None where it has none.
        run: The run it comes from; None for a figure of others that we do not run.
        recipe: How that run's networks are trained; None with ``run``.
        last: Over how many last epochs the error is averaged.
        measure: Which error of the run: that of its networks as trained ("error"), of their average over the windows
            of a recording ("recordings"), or scaled by 0.1 in one of the ways of `nsm.paper.scaling`.
        start: The run whose trained deterministic network is the start of this one's.
        sizes: Training and test inputs the data set must have for this row.
        own: Whether the row is ours rather than the paper's.
        reason: Why there is no result, where there is none.
        note: What a reader of the figure must know.
    """

    table: str
    data: str
    model: str
    paper: float | None = None
    run: str | None
    recipe: Recipe | None
    last: int = 10
    measure: str = "error"
    start: str | None = None
    sizes: tuple[int, int] | None = None
    own: bool = False
    reason: str = "not run yet"
    note: str | None = None


def _table1() -> list[Row]:
    def row(
        model: str, paper: float | None, run: str, recipe: Recipe, measure: str = "error", own: bool = False
    ) -> Row:
        return Row(
            table="table1", data="PI MNIST", model=model, paper=paper, run=run, recipe=recipe, last=50,
            measure=measure, sizes=(60_000, 10_000), own=own,
            note=_NOTES.get(run) if measure == "error" else _scaled(measure, recipe),
        )  # fmt: skip

    additive, rectifier = replace(PI_MNIST, unit="additive"), replace(PI_MNIST, unit="dCNN")
    harder, rectified = recipes.PI_MNIST_HARDER, replace(recipes.PI_MNIST_HARDER, unit="dCNN")
    unbiased, alone = recipes.PI_MNIST_HARDER_UNBIASED, "pi-mnist-nsm-harder-unbiased"
    both, each = "weights and biases", "each row by its own factor"
    return [
        row("NSM", 1.36, "pi-mnist-nsm", PI_MNIST),
        row("StNN", 1.47, "pi-mnist-stnn", replace(PI_MNIST, unit="StNN")),
        row("NSM scaled (weights)", 1.38, "pi-mnist-nsm", PI_MNIST, "weights"),
        row("NSM scaled (weights and biases)", 1.38, "pi-mnist-nsm", PI_MNIST, both),
        row("NSM scaled (output layer too)", None, "pi-mnist-nsm", PI_MNIST, "output too", own=True),
        row(f"NSM scaled ({each}, with its bias)", None, "pi-mnist-nsm", PI_MNIST, "rows", own=True),
        row("NSM, tuned", 1.36, "pi-mnist-nsm-tuned", recipes.PI_MNIST_TUNED, own=True),
        row("NSM, harder inputs", 1.36, "pi-mnist-nsm-harder", harder, own=True),
        row("NSM, harder inputs, scaled (weights)", 1.38, "pi-mnist-nsm-harder", harder, "weights", own=True),
        row("NSM, harder inputs, scaled (weights and biases)", 1.38, "pi-mnist-nsm-harder", harder, both, own=True),
        row("NSM, harder inputs, no biases", 1.36, alone, unbiased, own=True),
        row("NSM, harder inputs, no biases, scaled (weights)", 1.38, alone, unbiased, "weights", own=True),
        row(f"NSM, harder inputs, no biases, scaled ({each})", None, alone, unbiased, "rows", own=True),
        row("NSM, synapse noise", None, "pi-mnist-nsm-synapse", _synapse(PI_MNIST), own=True),
        row("additive noise", None, "pi-mnist-additive", additive, own=True),
        row("ReLU network", None, "pi-mnist-relu", rectifier, own=True),
        row("ReLU network, harder inputs", None, "pi-mnist-relu-harder", rectified, own=True),
    ]


def _table2() -> list[Row]:
    rows = []
    for data, short, recipe, papers, sizes in (
        ("MNIST", "mnist", MNIST_CNN, (0.880, 0.775, 0.805), (60_000, 10_000)),
        ("EMNIST letters", "emnist", EMNIST_CNN, (6.938, 6.185, 6.256), (124_800, 20_800)),
        ("EMNIST letters (unofficial split)", "emnist-unofficial", _UNOFFICIAL, (None,) * 3, (117_248, 10_400)),
        ("N-MNIST", "nmnist", NMNIST_CNN, (0.927, 0.689, 0.701), (60_000, 10_000)),
        ("N-MNIST (1,000 + 100 recordings)", "nmnist-subset", NMNIST_CNN, (None,) * 3, (1_000, 100)),
    ):
        for unit, paper in zip(("dCNN", "bNSM", "gNSM"), papers, strict=True):
            rows.append(_convolutional("table2", data, short, unit, paper, replace(recipe, unit=unit), sizes))
        if data == "MNIST":
            for unit, paper in zip(("dCNN", "bNSM", "gNSM", "bNSM (BinConcrete)"), (*papers, 0.78), strict=True):
                tuned = replace(recipes.MNIST_CNN_TUNED, unit=unit)
                row = _convolutional("table2", data, short, f"{unit}, tuned", paper, tuned, sizes)
                rows.append(replace(row, reason=_OTHERS))
            for unit in ("bNSM", "gNSM"):
                noisy = replace(_synapse(recipe), unit=unit)
                rows.append(_convolutional("table2", data, short, f"{unit}, synapse noise", None, noisy, sizes))
            for unit, paper in (
                ("bNSM (STE)", 2.13), ("BD", 3.11), ("wBD", 2.72), ("SN", 2.05), ("BN", 1.10),
                ("bNSM (BinConcrete)", 0.78),
            ):  # fmt: skip
                rows.append(_convolutional("table2", data, short, unit, paper, replace(recipe, unit=unit), sizes))
    return rows


def _table3() -> list[Row]:
    rows = []
    for data, short, recipe, papers in (
        ("CIFAR-10", "cifar10", CIFAR10_CNN, (9.98, 10.35, 10.47, 9.94, 9.81)),
        ("CIFAR-100", "cifar100", CIFAR100_CNN, (34.85, 34.84, 34.37, 35.19, 34.93)),
    ):
        for model, paper in zip(("bNSM", "gNSM", "dCNN", "bNSM*", "gNSM*"), papers, strict=True):
            trained = f"{short}-dcnn" if model in ("bNSM", "gNSM") else None
            learnt = replace(recipe, unit=model.removesuffix("*"))
            rows.append(_convolutional("table3", data, short, model, paper, learnt, (50_000, 10_000), start=trained))
        brief = replace(recipe, unit="dCNN", epochs=60, schedule_epochs=30)  # for others to begin with
        fresh, imitating, turned, hasty = (
            replace(each, data=recipe.data)
            for each in (
                recipes.CIFAR10_CNN_TUNED, recipes.CIFAR10_CNN_IMITATING, recipes.CIFAR10_CNN_MUON,
                recipes.CIFAR10_CNN_MUON_SHORT,
            )
        )  # fmt: skip
        for model, paper, learnt, trained in (
            ("dCNN, short", None, brief, None),
            ("bNSM, tuned", papers[0], imitating, f"{short}-dcnn-short"),
            ("gNSM, tuned", papers[1], replace(imitating, unit="gNSM"), f"{short}-dcnn-short"),
            *([("bNSM*, tuned", papers[3], fresh, None)] if data == "CIFAR-10" else []),
            *([("bNSM*, Muon, short", papers[3], hasty, None)] if data == "CIFAR-10" else []),
            ("bNSM*, Muon", papers[3], turned, None),
            ("dCNN, Muon", papers[2], replace(turned, unit="dCNN"), None),
        ):
            row = _convolutional("table3", data, short, model, paper, learnt, (50_000, 10_000), start=trained)
            rows.append(replace(row, reason=_OTHERS))
    return rows


def _table4() -> list[Row]:
    reason = "another system's figure, which the paper quotes"
    rows = [
        Row(
            table="table4", data="DVS Gestures", model="IBM EEDN", paper=8.23, run=None, recipe=None, reason=reason
        )
    ]  # fmt: skip
    for unit, paper in (("bNSM", 8.56), ("gNSM", 8.83), ("dCNN", 9.16)):
        trained = None if unit == "dCNN" else "dvs-dcnn"
        recipe = replace(DVS_CNN, unit=unit)
        row = _convolutional("table4", "DVS Gestures", "dvs", unit, paper, recipe, None, start=trained)
        rows += [row, replace(row, model=f"{unit}, whole recordings", paper=None, measure="recordings", own=True)]
    return rows


_REASONS = {
    "EMNIST letters": "the official files were not at hand; an unofficial split has rows of its own",
    "N-MNIST": "the 70,000 recordings were not at hand; 1,000 + 100 of them have rows of their own",
    "DVS Gestures": "the recordings were not at hand, but for ten to test with",
}
_OTHERS = "the time on a GPU went to other rows"
_HARDER = (
    "learns from two copies of every digit in each epoch, cut from grey pixels at random levels; in one of them pixels "
    "are flipped where that raises the loss. The test digits are those of the other rows"
)
_IMITATES = (
    "begins by imitating a deterministic network of 60 epochs, a start that was tried on MNIST's validation digits "
    "alone; all other settings are those of the networks from scratch"
)
_HUNDRED = "100 test recordings: one of them is 1 %, which ± over seeds does not show; run on CPU cores"
_NOTES = {  # run: what a reader must know
    "pi-mnist-nsm-harder": _HARDER,
    "pi-mnist-nsm-harder-unbiased": _HARDER,
    "pi-mnist-relu-harder": _HARDER,
    "mnist-wbd": "the five networks began with the same hidden weights, so ± may be too small",
    "nmnist-subset-dcnn": _HUNDRED,
    "nmnist-subset-bnsm": _HUNDRED,
    "nmnist-subset-gnsm": _HUNDRED,
    "cifar10-bnsm-scratch-tuned": "the third test of this row: without decay of weights it had 9.10, with 0.05 8.81",
    "cifar10-bnsm-scratch-muon": (
        "once the test error after 60 epochs was known, learning was made longer, as far as the time on a GPU went; "
        "schedule, averages and decay were rescaled with it, nothing else was changed"
    ),
    "cifar100-bnsm": "a first start, which kept the trained network's classifier, had 37.08",
    **{f"{data}-{unit}-tuned": _IMITATES for data in ("cifar10", "cifar100") for unit in ("bnsm", "gnsm")},
}
_UNOFFICIAL = replace(EMNIST_CNN, data="emnist-letters-unofficial")


def _scaled(measure: str, recipe: Recipe) -> str:
    """What a reader must know of a row with scaled weights."""
    if measure == "rows":
        return "each row of the weights by its own factor between 0.1 and 10; of the networks after the last epoch"
    whole = measure != "weights" or not recipe.bias  # all that the law of a unit depends on
    biases = "" if whole else ". Biases stay as they are, so firing probabilities change"
    return f"× 0.1; of the networks after the last epoch{biases}"


def _synapse(recipe: Recipe) -> Recipe:
    return replace(recipe, site="synapse", draw="moments")


def _convolutional(
    table: str,
    data: str,
    short: str,
    model: str,
    paper: float | None,
    recipe: Recipe,
    sizes: tuple[int, int] | None,
    start: str | None = None,
) -> Row:
    words = model.lower().replace("*", " scratch").translate(str.maketrans("", "", ",()")).split()
    run = "-".join([short, *(word for word in words if word != "noise")])
    return Row(
        table=table,
        data=data,
        model=model,
        paper=paper,
        run=run,
        recipe=recipe,
        start=start,
        sizes=sizes,
        own=paper is None or "," in model,
        reason=_REASONS.get(data, Row.reason),
        note=_NOTES.get(run),
    )


ROWS: tuple[Row, ...] = (*_table1(), *_table2(), *_table3(), *_table4())
