"""CUDA tensors: staged over Gloo between two processes, and NCCL alone with itself."""

import pytest
import torch
import torch.distributed as dist

from tests.groups.group_checks import CHECKS, body_of
from tests.workers import pool
from thinwire.groups import Op
from thinwire.groups.nccl import or_reduce_
from thinwire.groups.torch import TorchGroup

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def _staged(group):
    group = TorchGroup(timeout=20.0, device="cuda")
    peer = 1 - group.rank
    sent = body_of(group.rank, 9).cuda()
    received = group.exchange(sent, dst=peer, src=peer, nbytes=None)
    assert received.is_cuda
    assert received.cpu().equal(body_of(peer, 9))
    if group.rank == 0:
        group.exchange(sent, dst=1, src=None, nbytes=9)
    else:
        assert group.exchange(None, dst=None, src=0, nbytes=9).is_cuda
    for bodies in (
        group.all_gather(sent, nbytes=[9, 9]),
        group.all_to_all([sent, sent], nbytes=None),
    ):
        assert all(body.is_cuda for body in bodies)
        assert [body.tolist() for body in bodies] == [
            body_of(rank, 9).tolist() for rank in range(2)
        ]
    total = torch.full((1000,), float(group.rank + 1), device="cuda")
    bits = torch.tensor([1 << group.rank], device="cuda")
    group.all_reduce_((total, Op.SUM), (bits, Op.OR))
    assert total.eq(3.0).all()
    assert bits.item() == 3


@pytest.mark.processes
def test_cuda_tensors_cross_gloo_through_host_memory():
    pool(2).run(_staged)


@pytest.fixture(scope="module")
def nccl():
    store = dist.HashStore()
    dist.init_process_group("nccl", store=store, rank=0, world_size=1)
    yield TorchGroup.own(timeout=20.0)
    dist.destroy_process_group()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_nccl_of_one(check, nccl):
    check(nccl)


def test_nccl_reduces_in_place(nccl):
    bits = torch.tensor([5], device="cuda")
    or_reduce_(bits, nccl)
    assert bits.item() == 5
