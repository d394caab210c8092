"""A GPT that trains in a second, on a text in which symbols follow one another."""

from pathlib import Path

import torch
from experiments.tasks.base import Recipe
from experiments.tasks.gpt import GPTShape
from experiments.tasks.windows import NATS, Held, Text, WindowTask

SHAPE = GPTShape(symbols=7, context=8, width=16, layers=1, heads=2)
RECIPE = Recipe(
    epochs=2,
    epoch_steps=6,
    batch=2,
    learning_rate=1e-2,
    optimizer="adamw",
    betas=(0.9, 0.95),
    weight_decay=0.1,
)


def load(path, verify):
    text = (torch.arange(900) ** 2 % 7).to(torch.uint8)
    return Text(text[:800], text[800:], 7)


TASK = WindowTask(
    name="tiny",
    recipe=RECIPE,
    path=Path(),
    verify=False,
    load=load,
    shape=SHAPE,
    held=Held(most=20, stride=4, unit=NATS),
)
