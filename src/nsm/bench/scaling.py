"""How time and memory grow with width, fan-in, batch and samples, and what limits them.

A layer is an `NSMLinear` of 1024 inputs and 512 units on a batch of 1,000, of which one number at a time is changed
over three decades; samples are those of `predict` with the MNIST CNN. Beside each time stand the shortest ones that
the machine's own rates allow (`nsm.bench.probes`): for the products, for every tensor that must be read or written
once, and for the random numbers.
"""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nsm import record
from nsm.bench import checks
from nsm.bench.graphs import Graphed
from nsm.bench.inference import peak_bytes
from nsm.bench.probes import limits
from nsm.bench.timing import interleave
from nsm.data import load
from nsm.layers import NSMLinear
from nsm.networks import bnsm, mnist_cnn
from nsm.noise import Bernoulli
from nsm.sampling import predict

BASE = {"width": 512, "fan-in": 1024, "batch": 1000}
SIZES = {  # three decades each
    "cuda": {
        "width": (32, 128, 512, 2048, 8192, 32768),
        "fan-in": (32, 128, 512, 2048, 8192, 32768),
        "batch": (100, 400, 1600, 6400, 25_600, 102_400),
        "samples": (1, 4, 16, 64, 256, 1024),
    },
    "cpu": {
        "width": (16, 64, 256, 1024, 4096, 16384),
        "fan-in": (16, 64, 256, 1024, 4096, 16384),
        "batch": (10, 40, 160, 640, 2560, 10_240),
        "samples": (1, 4, 16, 64, 256, 1024),
    },
}
IMAGES = {"cuda": 1000, "cpu": 10}
SITES = ("neuron", "synapse")


def measure(quick: bool = False, device: str | None = None) -> dict[str, Any]:
    """All curves; ``quick`` takes every other size below the largest, and fewer repeats."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    rounds, rates, rows = (3 if quick else 7), limits(device, dtype), []
    for axis, sizes in SIZES[device].items():
        for size in sizes[:-1:2] if quick else sizes:
            for site in SITES:
                measured = _samples if axis == "samples" else _layer
                rows.append(measured(axis, size, site, device, dtype, rounds, rates))
    return {"device": device, "dtype": str(dtype), "quick": quick, "limits": rates, "base": BASE, "rows": rows}


def _layer(
    axis: str, size: int, site: str, device: str, dtype: torch.dtype, rounds: int, rates: Mapping[str, float]
) -> dict[str, Any]:
    """One forward pass of one layer."""
    at = {**BASE, axis: size}
    width, fan_in, batch = at["width"], at["fan-in"], at["batch"]
    draw: Any = "moments" if site == "synapse" else "auto"
    torch.manual_seed(0)
    layer = NSMLinear(fan_in, width, noise=Bernoulli(0.5), site=site, draw=draw, device=device, dtype=dtype)  # type: ignore[arg-type]
    z = (2 * torch.randint(2, (batch, fan_in), device=device) - 1).to(dtype)

    @torch.no_grad()
    def run() -> Tensor:
        return layer(z)

    checks.close(run().abs(), torch.ones(batch, width, device=device), 0, "states")
    checks.follows_the_law(layer, z[:1000], draws=1, slack=2e-2)
    calls = 20 if device == "cuda" else 1
    timing = interleave({"layer": Graphed(run, device == "cuda")}, rounds, calls=calls)["layer"]
    products, bytes_each = (2 if site == "neuron" else 1), dtype.itemsize
    moved = bytes_each * (batch * fan_in * products + width * fan_in * products + batch * width * (products + 1))
    return {
        "axis": axis,
        "size": size,
        "site": site,
        "seconds": timing.seconds,
        "spread": timing.spread,
        "n": rounds,
        "bytes": peak_bytes(run, device),
        "limit": {
            "matrix units": products * batch * fan_in * width / rates["multiply_adds"],
            "memory bandwidth": moved / rates["bytes"],
            "random numbers": (batch * fan_in / 2 if site == "neuron" else batch * width) / rates["random_numbers"],
        },
    }


@functools.cache
def _network(site: str, device: str) -> tuple[torch.nn.Module, Tensor]:
    torch.manual_seed(0)
    draw: Any = "moments" if site == "synapse" else "auto"
    net = mnist_cnn(functools.partial(bnsm, site=site, draw=draw)).to(device)  # type: ignore[arg-type]
    return net, load("mnist", "test").inputs[: IMAGES[device]].to(device)


def _samples(
    axis: str, size: int, site: str, device: str, dtype: torch.dtype, rounds: int, rates: Mapping[str, float]
) -> dict[str, Any]:
    """A prediction with so many samples, the first layer's moments shared."""
    net, x = _network(site, device)

    def run() -> Tensor:
        with torch.autocast(device, torch.bfloat16, enabled=dtype == torch.bfloat16):
            return predict(net, x, size, seed=0).probabilities

    checks.close(run().sum(1), torch.ones(len(x), device=device), 1e-2, "the sum of probabilities")
    timing = interleave({"predict": run}, min(rounds, 3), warm=0)["predict"]
    rows, products = size * len(x), (2 if site == "neuron" else 1)
    units = 32 * 12 * 12 + 64 * 4 * 4 + 512  # drawn after pooling, where that is allowed: the least there can be
    inputs = 784 + 32 * 12 * 12 + 64 * 4 * 4
    multiply_adds = products * (64 * 8 * 8 * 800 + 512 * 1024) + 10 * 512
    multiply_adds += (products - 1) * 32 * 24 * 24 * 25  # of the first layer every sample has the noisy product
    return {
        "axis": axis,
        "size": size,
        "site": site,
        "seconds": timing.seconds,
        "spread": timing.spread,
        "n": len(timing.times),
        "bytes": peak_bytes(run, device),
        "limit": {
            "matrix units": rows * multiply_adds / rates["multiply_adds"],
            "memory bandwidth": rows * dtype.itemsize * 2 * units / rates["bytes"],
            "random numbers": rows * (inputs / 2 if site == "neuron" else units) / rates["random_numbers"],
        },
    }


def table(found: Mapping[str, Any]) -> str:
    """Every point as a line of text, with the limit that is nearest."""
    from nsm.bench.report import duration

    lines = []
    for row in found["rows"]:
        name, least = max(row["limit"].items(), key=lambda item: item[1])
        place = f"{row['axis']} {row['size']}, {row['site']}"
        limit = f"{name} {duration(least)} ({least / row['seconds']:.0%})"
        lines.append(f"{place:<24}{duration(row['seconds']):>10}{row['bytes'] / 1e6:>12.2f} MB   limit: {limit}")
    return "\n".join(lines)


def markdown(found: Mapping[str, Any]) -> str:
    """The ends of every curve as Markdown, with the limit that is nearest."""
    from nsm.bench.report import duration

    head = f"### {found['hardware']}, {found['dtype'].removeprefix('torch.')}"
    lines = [
        head,
        "",
        "| | noise | size | time | peak memory | nearest limit | its share |",
        "|---|---|---|---|---|---|---|",
    ]
    for axis in dict.fromkeys(row["axis"] for row in found["rows"]):
        for site in SITES:
            rows = [row for row in found["rows"] if (row["axis"], row["site"]) == (axis, site)]
            for row in (rows[0], rows[-1]):
                name, least = max(row["limit"].items(), key=lambda item: item[1])
                memory = f"{row['bytes'] / 1e6:,.0f} MB" if row["bytes"] >= 1e9 else f"{row['bytes'] / 1e6:.3g} MB"
                cells = (axis, site, f"{row['size']:,}", duration(row["seconds"]), memory, name)
                lines.append("| " + " | ".join(cells) + f" | {least / row['seconds']:.0%} |")
    return "\n".join(lines)


def save(path: Path, found: dict[str, Any]) -> list[Path]:
    """Write the record, and a picture of it beside (PNG and SVG)."""
    record.write(path, found)
    return [path, *plot(found, path.with_suffix(".png"))]


def plot(found: Mapping[str, Any], path: Path) -> list[Path]:
    """Time and limits above, memory below; a column for each axis."""
    from matplotlib.figure import Figure

    axes_names = list(dict.fromkeys(row["axis"] for row in found["rows"]))
    figure = Figure(figsize=(3.4 * len(axes_names), 6.4), layout="constrained")
    grid = figure.subplots(2, len(axes_names), squeeze=False)
    styles = {"neuron": ("#0072B2", "o"), "synapse": ("#D55E00", "s")}
    dashes = {"matrix units": "--", "memory bandwidth": ":", "random numbers": "-."}
    for column, name in enumerate(axes_names):
        for site, (colour, marker) in styles.items():
            rows = [row for row in found["rows"] if (row["axis"], row["site"]) == (name, site)]
            sizes = [row["size"] for row in rows]
            _curve(grid[0][column], sizes, [row["seconds"] for row in rows], colour, marker, site)
            _curve(grid[1][column], sizes, [max(1, row["bytes"]) / 1e6 for row in rows], colour, marker, site)
            for limit, style in dashes.items():
                least = [row["limit"][limit] for row in rows]
                label = f"{limit}, {site}"
                grid[0][column].plot(sizes, least, style, color=colour, alpha=0.6, linewidth=1, label=label)
        grid[1][column].set_xlabel(name)
        grid[0][column].set_title(name)
    grid[0][0].set_ylabel("seconds; dashed: the limits")
    grid[1][0].set_ylabel("peak memory, MB")
    figure.legend(*grid[0][-1].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    figure.suptitle(
        f"{found.get('hardware') or record.hardware()}, {found['dtype'].removeprefix('torch.')}", x=0.01, ha="left"
    )
    targets = [path, path.with_suffix(".svg")]
    for target in targets:
        target.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(target, dpi=130, metadata={"Date": None} if target.suffix == ".svg" else None)
    return targets


def _curve(axes: Any, sizes: Sequence[int], values: Sequence[float], colour: str, marker: str, label: str) -> None:
    axes.loglog(sizes, values, color=colour, marker=marker, markersize=4, label=label)
    axes.grid(alpha=0.3)
