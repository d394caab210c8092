"""Given gradients of which a part is delivered, and an optimizer that steps on them."""

from dataclasses import dataclass, field

import torch
from torch import nn

import thinwire
from thinwire.layout import Layout


@dataclass
class Unit:
    layout: Layout
    indices: torch.Tensor


@dataclass
class Told:
    units: tuple = ()
    finite: bool = True
    untouched: frozenset = frozenset()


@dataclass
class Source:
    """Stands in for what `attach` returns."""

    parameters: dict
    told: Told = field(default_factory=Told)

    def deliveries(self):
        return self.told


def parameters(dtype=torch.float32):
    """Parameters that lie in memory in all ways, one of them with gaps."""
    torch.manual_seed(0)
    tensors = [
        torch.randn(40, 30),
        torch.randn(7),
        torch.randn(()),
        torch.randn(0, 3),
        torch.randn(4, 3, 5, 5).to(memory_format=torch.channels_last),
        torch.randn(20, 11).t(),
    ]
    made = [nn.Parameter(tensor.to(dtype)) for tensor in tensors]
    return [*made, nn.Parameter(torch.randn(20, 13).to(dtype)[:, :9])]


class Training:
    """Steps of an optimizer on random gradients, of which a part is delivered.

    With `known`, the optimizer is told of the delivered elements in two units.
    """

    def __init__(self, params, *, known, density=0.1, **options):
        self.params, self.density = params, density
        self.names = {str(i): p for i, p in enumerate(params)}
        self.source = Source(self.names) if known else None
        # The last parameter is not reduced by anyone.
        half = len(params) // 2
        layout = Layout.of(self.names.items())
        names = layout.names[:-1]
        self.layouts = [layout.pick(names[:half]), layout.pick(names[half:])]
        self.random = torch.Generator().manual_seed(1)
        options = {"lr": 1e-2, "betas": (0.9, 0.99), "weight_decay": 0.1} | options
        self.optimizer = thinwire.AdamW(groups_of(params), state=self.source, **options)

    def draw(self, density=None):
        """New gradients; the masks of what each delivers."""
        density = self.density if density is None else density
        masks = {}
        for param in self.params:
            grad = torch.randn(param.shape, generator=self.random)
            mask = torch.rand(param.shape, generator=self.random) < density
            if param is self.params[-1]:
                mask = torch.ones_like(mask)
            param.grad = torch.empty_like(param).copy_(grad * mask)
            masks[param] = param.grad != 0
        self.deliver(masks, whole=density == 1)
        return masks

    def deliver(self, masks, *, whole):
        if self.source is None:
            return
        units = []
        for layout in self.layouts:
            flat = torch.zeros(layout.size, dtype=torch.bool)
            for name, view in layout.views(flat).items():
                view.copy_(masks[self.names[name]])
            flat[::97] = True  # lists are padded with zeros
            units.append(Unit(layout, flat.nonzero().view(-1).int()))
        self.source.told = Told(() if whole else tuple(units))

    def values(self):
        return [param.detach().clone() for param in self.params]


def groups_of(params):
    """Groups that differ in everything."""
    other = {"lr": 3e-2, "weight_decay": 0.0, "betas": (0.5, 0.6), "maximize": True}
    return [{"params": params[::2]}, {"params": params[1::2], "eps": 1e-5} | other]


def follow(training, oracle, densities):
    for density in densities:
        oracle.step(training.draw(density))
        training.optimizer.step()
        oracle.check()


def assert_same(found, wanted):
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one, other)
