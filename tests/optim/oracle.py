"""The rule of docs/guides/adamw.md in float64: slow, and as it stands there."""

import torch

LONGEST_DECAY = 64


class Oracle:
    """Follows an optimizer: `step(delivered)` before each of its steps, then `check()`.

    It starts each step from the optimizer's own parameters, so that roundings of half
    precision do not add up; moments, waits and pending decay are its own. `delivered`
    has masks; the elements of other parameters are delivered if they are not zero.
    """

    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.state = {}
        self.checked = 0

    def step(self, delivered=()):
        given = [
            (param, group, self._mask(param, dict(delivered)))
            for group in self.optimizer.param_groups
            for param in group["params"]
            if param.grad is not None
        ]
        whole = all(bool(mask.all()) for p, _, mask in given if not p.grad.is_sparse)
        self.expected = {
            param: self._stepped(param, group, mask, whole=whole)
            for param, group, mask in given
        }

    def check(self):
        for param, (wanted, error) in self.expected.items():
            found = param.detach().double()
            kind = torch.finfo(param.dtype)
            room = error + wanted.abs() * kind.eps + kind.tiny * kind.eps
            wrong = (found - wanted).abs() > room
            assert not wrong.any(), (found[wrong], wanted[wrong], room[wrong])
            self.checked += 1

    def _new(self, param):
        zero = torch.zeros(param.shape, dtype=torch.float64)
        names = ("m", "v", "last")
        return {"t": 0, "decays": 0, **{name: zero.clone() for name in names}} | {
            "decay": zero + 1
        }

    def _mask(self, param, delivered):
        if param.grad.is_sparse:
            mask = torch.zeros(param.shape, dtype=torch.bool)
            mask[tuple(param.grad.coalesce().indices())] = True
            return mask
        return delivered.get(param, param.grad != 0)

    def _stepped(self, param, group, mask, *, whole):
        mine = self.state.setdefault(param, self._new(param))
        rows = param.grad.is_sparse
        d = param.grad.to_dense().double() * (-1 if group["maximize"] else 1)
        lr, eps = float(group["lr"]), group["eps"]
        beta1, beta2 = map(float, group["betas"])
        mine["t"] += 1
        t = mine["t"]
        tau = torch.ones_like(d) if rows else t - mine["last"]

        m = beta1**tau * mine["m"] + (1 - beta1**tau) * d / tau
        v = beta2**tau * mine["v"] + (1 - beta2**tau) * d**2 / tau
        farthest = max(1, (1 - beta1) / (1 - beta2) ** 0.5)
        least = ((1 - beta1**tau) / farthest) ** 2 * d**2 / tau
        root = (torch.maximum(v, least) / (1 - beta2**t)).sqrt() + eps
        change = lr * tau**1.125 * (m / (1 - beta1**t)) / root

        mine["decay"] *= 1 - lr * group["weight_decay"]
        mine["decays"] += lr * group["weight_decay"] != 0 or mine["decays"] > 0
        due = mine["decays"] >= LONGEST_DECAY
        decayed = param.detach().double() * mine["decay"]
        wanted = torch.where(mask, decayed - change, param.detach().double())
        if due or (whole and not rows):
            wanted = torch.where(mask, wanted, decayed)
            mine["decays"] = 0
        mine["decay"][mask | due] = 1
        mine["m"][mask], mine["v"][mask], mine["last"][mask] = m[mask], v[mask], t
        return wanted, 2e-5 * lr * tau**0.625
