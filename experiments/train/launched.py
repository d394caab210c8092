"""The rank of this process, if torchrun (or the like) has started it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from thinwire.errors import ConfigError


def launched() -> bool:
    """Whether a launcher has given this process a rank."""
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()


def world() -> int:
    """How many processes the launcher has started."""
    return int(os.environ["WORLD_SIZE"])


def leads() -> bool:
    """Whether this process evaluates, logs and writes files: rank 0."""
    return not launched() or os.environ["RANK"] == "0"


def device_of(name: str) -> torch.device:
    """The device of this process: "cpu", "cuda", or "auto" for what there is."""
    if name not in {"auto", "cpu", "cuda"}:
        raise ConfigError(f"device is {name!r}: choose auto, cpu or cuda")
    there = torch.cuda.is_available()
    if name == "cuda" and not there:
        raise ConfigError("no CUDA device is available: choose --device cpu")
    if name == "cpu" or not there:
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))


@contextmanager
def process_group(device: torch.device) -> Iterator[None]:
    """The group of all processes, for as long as they train."""
    cuda = device.type == "cuda"
    if cuda:
        torch.cuda.set_device(device)
    else:
        threads = (os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        torch.set_num_threads(max(1, threads))
    dist.init_process_group("nccl" if cuda else "gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()
