"""A data set as tensors that can live on a device whole, packed until a batch is needed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils import data

from nsm.data.errors import DataError


@dataclass(frozen=True, eq=False, repr=False)
class Dataset(data.Dataset[tuple[Tensor, Tensor]]):
    """Images or frames with their labels.

    What is stored is compact, what comes out is float32: ±1 from packed bits, [0, 1] from bytes.

    Attributes:
        name: The data set's name and split, for messages.
        stored: uint8, (N, C, H, W) grey values or (N, C, H, ceil(W / 8)) packed bits, highest bit first.
        labels: (N,) int64, each the index of a class.
        classes: The classes' names.
        width: W of a packed set, or None where a byte is a pixel.
        recordings: (N,) int64, the recording each window was cut from; None where every input stands alone.

    Example:
        >>> import nsm
        >>> digits = nsm.data.load("mnist", split="test")
        >>> digits
        Dataset(mnist test: 10000 inputs of 1×28×28, 10 classes, 1.1 MB)
        >>> inputs, labels = digits.batch([0, 1, 2])
        >>> inputs.shape, labels.tolist(), inputs.unique().tolist()
        (torch.Size([3, 1, 28, 28]), [7, 2, 1], [-1.0, 1.0])
    """

    name: str
    stored: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    width: int | None = None
    recordings: Tensor | None = None

    def __post_init__(self) -> None:
        """Refuse inputs and labels that do not belong together."""
        n = len(self.stored)
        if self.stored.dtype != torch.uint8 or self.stored.dim() != 4:
            got = f"{self.stored.dtype} of shape {tuple(self.stored.shape)}"
            raise DataError(f"Expected the inputs of {self.name} to be uint8 of shape (N, C, H, W), but got {got}")
        if len(self.labels) != n or (self.recordings is not None and len(self.recordings) != n):
            raise DataError(f"Expected {self.name} to have {n} labels, but got {len(self.labels)}")
        if n and self.labels.is_cpu and not 0 <= int(self.labels.min()) <= int(self.labels.max()) < len(self.classes):
            span = f"{int(self.labels.min())} to {int(self.labels.max())}"
            raise DataError(f"Expected labels of {self.name} in 0 to {len(self.classes) - 1}, but got {span}")

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of one input."""
        c, h, w = self.stored.shape[1:]
        return c, h, self.width or w

    @property
    def background(self) -> float:
        """The value of an empty pixel, to fill borders with: −1 in ±1 sets, 0 in grey and RGB ones."""
        return 0.0 if self.width is None else -1.0

    @property
    def inputs(self) -> Tensor:
        """Every input, float32 (N, C, H, W)."""
        return self._decode(self.stored)

    def batch(self, indices: Tensor | Sequence[int] | slice) -> tuple[Tensor, Tensor]:
        """The inputs (float32) and labels at ``indices``; nothing else is decoded."""
        return self._decode(self.stored[indices]), self.labels[indices]

    def to(self, device: torch.device | str) -> "Dataset":
        """The same data set with its tensors, still packed, on ``device``."""
        recordings = None if self.recordings is None else self.recordings.to(device)
        return replace(self, stored=self.stored.to(device), labels=self.labels.to(device), recordings=recordings)

    def _decode(self, stored: Tensor) -> Tensor:
        if self.width is None:
            return stored.float().div_(255)
        shifts = torch.arange(7, -1, -1, device=stored.device)
        if stored.is_cuda:  # plain arithmetic, which compiled code does in one pass
            states = ((stored.unsqueeze(-1) >> shifts) & 1).float() * 2 - 1
        else:
            table = (torch.arange(256, device=stored.device)[:, None] >> shifts & 1).float() * 2 - 1  # (256, 8)
            states = functional.embedding(stored.int(), table)
        return states.flatten(-2)[..., : self.width].contiguous()

    def __len__(self) -> int:
        """N."""
        return len(self.stored)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """One input (C, H, W), decoded, and its label."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"Expected an index below {len(self)} for {self.name}, but got {index}")
        return self._decode(self.stored[index]), self.labels[index]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        """What a DataLoader asks for: a batch decoded at once."""
        return list(zip(*self.batch(indices), strict=True))

    def __repr__(self) -> str:
        """Name, split and sizes."""
        size = "×".join(map(str, self.shape))
        megabytes = self.stored.numel() / 1e6
        what = f"{len(self)} inputs of {size}, {len(self.classes)} classes, {megabytes:.1f} MB"
        return f"Dataset({self.name}: {what})"


def join(first: Dataset, second: Dataset, *, name: str) -> Dataset:
    """One data set after the other, under one name.

    Raises:
        DataError: Their inputs or classes differ.
    """
    if (first.shape, first.width, first.classes) != (second.shape, second.width, second.classes):
        raise DataError(f"Expected {first.name} and {second.name} to be of one kind, but got {first} and {second}")
    recordings = None
    if first.recordings is not None and second.recordings is not None:
        recordings = torch.cat([first.recordings, second.recordings])
    return replace(
        first,
        name=name,
        stored=torch.cat([first.stored, second.stored]),
        labels=torch.cat([first.labels, second.labels]),
        recordings=recordings,
    )
