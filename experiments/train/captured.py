"""The forward and backward of all workers as one CUDA graph.

Launched one by one, the small kernels of eight workers keep a processor busy for longer
than the device. In a graph, every worker is a branch of its own, and a step is one
launch. Inputs are copied to where the graph reads them; gradients land in the rows.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from experiments.tasks.base import Batch, Carry
from experiments.train.replicas import Replicas

_WARM_UP = 3


class Captured:
    """Replays the step that it was made with, on other batches.

    Dropout draws from torch's generator as it stands when `replay` is called, one
    worker after the other: seed it before.
    """

    def __init__(
        self, replicas: Replicas, batches: Sequence[Batch], carries: Sequence[Carry]
    ) -> None:
        self._replicas = replicas
        self._batches = [tuple(t.clone() for t in batch) for batch in batches]
        self._carries = [pytree.tree_map(_cloned, carry) for carry in carries]
        self._losses = torch.zeros(len(batches), device=replicas.rows.device)
        self._streams = [torch.cuda.Stream() for _ in batches]  # type: ignore[no-untyped-call]
        self._graph = torch.cuda.CUDAGraph()
        self._capture()

    def replay(
        self, batches: Sequence[Batch], carries: Sequence[Carry] | None
    ) -> Tensor:
        """Gradients into the rows; the losses. None goes on from the last carries."""
        rooms = [room for batch in self._batches for room in batch]
        torch._foreach_copy_(rooms, [tensor for batch in batches for tensor in batch])
        if carries is not None:
            _copy_tree(self._carries, carries)
        self._graph.replay()
        return self._losses

    def _capture(self) -> None:
        """Warm up beside the main stream, as capture demands, then record."""
        buffers = [
            b.clone() for model in self._replicas.models for b in model.buffers()
        ]
        carries = pytree.tree_map(_cloned, self._carries)
        beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            for _ in range(_WARM_UP):
                self._step()
        torch.cuda.current_stream().wait_stream(beside)
        torch.cuda.synchronize()
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._step()
        held = [b for model in self._replicas.models for b in model.buffers()]
        with torch.no_grad():
            for buffer, before in zip(held, buffers, strict=True):
                buffer.copy_(before)
            _copy_tree(self._carries, carries)

    def _step(self) -> None:
        self._replicas.share_buffers()
        main = torch.cuda.current_stream()
        for rank, stream in enumerate(self._streams):
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                loss, carry, _ = self._replicas.backward(
                    rank, self._batches[rank], self._carries[rank]
                )
                with torch.no_grad():
                    self._losses[rank].copy_(loss)
                    _copy_tree(self._carries[rank], carry)
        for stream in self._streams:
            main.wait_stream(stream)


def _cloned(leaf: object) -> object:
    return leaf.clone() if isinstance(leaf, Tensor) else leaf


def _copy_tree(rooms: object, leaves: object) -> None:
    pairs = zip(pytree.tree_leaves(rooms), pytree.tree_leaves(leaves), strict=True)
    for room, leaf in pairs:
        if isinstance(room, Tensor):
            room.copy_(leaf)
