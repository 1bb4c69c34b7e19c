"""A function as one CUDA graph, so that a time is that of the card and not that of launching."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch

Result = TypeVar("Result")


class Graphed(Generic[Result]):
    """Runs a function by itself three times, then captured; on the CPU always by itself.

    Args:
        run: Takes nothing, and does the same work on the same memory every time.
        cuda: Whether it runs on CUDA.
    """

    WARM = 3

    def __init__(self, run: Callable[[], Result], cuda: bool) -> None:
        self.run, self.cuda = run, cuda
        self.graph: Any = None

    def __call__(self) -> Result:
        """Do it once; the result of a replay lies where that of the last one lay."""
        if not self.cuda:
            return self.run()
        if self.graph is None:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(self.WARM):
                    self.run()
            torch.cuda.current_stream().wait_stream(stream)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.result = self.run()
        self.graph.replay()
        return self.result
