"""A picture of a data set: images side by side, or for events a row of frames over time."""

from pathlib import Path

import numpy as np

from nsm.data.dataset import Dataset


def montage(dataset: Dataset, path: str | Path, count: int = 40) -> None:
    """Write a PNG of ``count`` inputs, each under its class; frames of one input make one row.

    They are the first ones; of recordings cut into windows, the first window of each comes first.

    Raises:
        OSError: ``path`` cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    order = np.arange(len(dataset))
    if dataset.recordings is not None:
        first = np.diff(dataset.recordings.cpu().numpy(), prepend=-1) != 0
        order = np.concatenate([order[first], order[~first]])
    inputs, labels = dataset.to("cpu").batch(order[:count].tolist())
    pixels = (inputs.numpy() - dataset.background) / (1 - dataset.background)  # (B, C, H, W), all in [0, 1]
    titles = [dataset.classes[label] for label in labels.tolist()]
    over_time = pixels.shape[1] not in (1, 3)
    if over_time:  # one input a row, its frames from left to right
        columns, tiles = pixels.shape[1], pixels.reshape(-1, 1, *pixels.shape[2:])
        titles = [t for title in titles for t in (title, *[""] * (columns - 1))]
    else:
        columns, tiles = min(10, len(pixels)), pixels
    rows = -(-len(tiles) // columns)
    height = rows * 1.25 + 0.4
    figure = Figure(figsize=(columns * 1.1, height), dpi=100)
    FigureCanvasAgg(figure)
    figure.suptitle(str(dataset)[len("Dataset(") : -1], fontsize=9)
    for axes, tile, title in zip(np.ravel(figure.subplots(rows, columns, squeeze=False)), tiles, titles, strict=False):
        axes.imshow(tile.transpose(1, 2, 0), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        axes.set_title(title, fontsize=7, pad=2, loc="left" if over_time else "center")
    for axes in figure.axes:
        axes.axis("off")
    figure.tight_layout(pad=0.4, rect=(0, 0, 1, 1 - 0.25 / height))
    temporary = Path(f"{path}.tmp")
    try:
        figure.savefig(temporary, format="png")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
