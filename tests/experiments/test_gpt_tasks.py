"""GPTs and the vision transformer: their sizes, their windows, and that they learn."""

import math

import pytest
import torch
from experiments.tasks import task
from experiments.tasks.base import Recipe
from experiments.tasks.gpt import GPT, GPTShape, count
from experiments.tasks.gpts import PRETRAINED
from experiments.tasks.vit import ViT
from experiments.tasks.windows import NATS, PERPLEXITY, Held, Text, WindowData
from torch import nn

from tests.experiments import tiny_data
from thinwire.errors import ConfigError

CPU = torch.device("cpu")
RECIPE = Recipe(epochs=2, epoch_steps=7, batch=4, learning_rate=0.1)
TINY = GPTShape(symbols=5, context=8, width=16, layers=2, heads=2)


def counting(held=None):
    """A text in which every symbol follows from the one before."""
    text = (torch.arange(400) % 5).to(torch.uint8)
    held = held or Held(most=6, stride=16, unit=NATS)
    return WindowData(Text(text, text[:100], 5), CPU, RECIPE, context=8, held=held)


def batch_of(data, rank=0, ranks=3, epoch=0, step=0, seed=0):
    (windows,) = data.batch(rank=rank, ranks=ranks, epoch=epoch, step=step, seed=seed)
    return windows


def test_windows_are_pieces_of_the_text():
    windows = batch_of(counting())
    assert windows.shape == (4, 9)
    assert torch.equal(windows[:, 1:], (windows[:, :-1] + 1) % 5)


def test_batches_follow_from_their_arguments():
    data = counting()
    first = batch_of(data)
    batch_of(data, seed=3, epoch=4)
    assert torch.equal(first, batch_of(data))
    changes = ({"epoch": 1}, {"seed": 1}, {"rank": 1}, {"step": 1})
    assert not any(torch.equal(first, batch_of(data, **each)) for each in changes)
    assert data.steps(3) == data.steps(8) == 7


def test_a_model_that_knows_nothing_has_the_entropy_of_the_symbols():
    class Uniform(nn.Module):
        def forward(self, symbols):
            return torch.zeros(*symbols.shape, 5)

    assert counting().evaluate(Uniform()) == pytest.approx(math.log(5))
    held = Held(most=6, stride=16, unit=PERPLEXITY)
    assert counting(held).evaluate(Uniform()) == pytest.approx(5)


def test_a_gpt_learns_to_count():
    torch.manual_seed(0)
    data, model = counting(), GPT(TINY)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for step in range(40):
        optimizer.zero_grad()
        loss, _ = data.loss(model, (batch_of(data, step=step % 7),), None)
        loss.backward()
        optimizer.step()
    assert data.evaluate(model) < 0.1
    assert model.training


def test_a_gpt_does_not_look_ahead():
    model, symbols = GPT(TINY), torch.zeros(1, 8, dtype=torch.long)
    other = symbols.clone()
    other[0, 5] = 1
    torch.testing.assert_close(model(symbols)[:, :5], model(other)[:, :5])


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        (GPTShape(), 10_942_464),
        (GPTShape(symbols=65, dropout=0.2, bias=False, tied=True), 10_745_088),
        (GPTShape(symbols=65, context=64, width=128, layers=2, heads=4), 421_632),
    ],
)
def test_sizes_are_those_of_the_documents(shape, size):
    assert count(shape) == size


def test_a_vision_transformer_has_its_size():
    model = ViT()
    assert sum(p.numel() for p in model.parameters()) == 3_582_922
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_labels_are_smoothed(tmp_path):
    some = task("vit-cifar10", tiny_data.cifar_npz(tmp_path), verify=False, batch=2)
    data, model = some.data(CPU), some.model()
    images, labels = data.batch(rank=0, ranks=1, epoch=0, step=0, seed=0)
    loss, _ = data.loss(model, (images, labels), None)
    smooth = nn.functional.cross_entropy(model(images), labels, label_smoothing=0.1)
    assert loss.item() == pytest.approx(smooth.item())


def test_bytes_of_wikitext(tmp_path):
    some = task("gpt-bytes", tiny_data.wikitext(tmp_path), verify=False, batch=2)
    windows = batch_of(some.data(CPU))
    assert windows.shape == (2, 257)
    assert set(bytes(windows[0].tolist())) <= set(b"w0123456789 \n")


def shakespeare(folder):
    text = "the cat sat on the mat\n" * 150
    (folder / "input.txt").write_text(text)
    return folder


def test_characters_are_numbered_by_their_codes(tmp_path):
    path = shakespeare(tmp_path)
    some = task("small-shakespeare", path, verify=False, batch=2)
    windows = batch_of(some.data(CPU))
    assert int(windows.max()) < len(set("the cat sat on the mat\n"))
    with pytest.raises(ConfigError, match="not the file of tiny Shakespeare"):
        task("small-shakespeare", path).data(CPU)


def test_finetuning_needs_the_model_it_goes_on_with(tmp_path):
    folder = tmp_path / "tiny-shakespeare"
    folder.mkdir()
    shakespeare(folder)
    some = task("gpt-finetune", tmp_path, verify=False)
    with pytest.raises(ConfigError, match=r"gpt-bytes\.pt.*experiments.adamw"):
        some.model()
    before = GPT(GPTShape())
    torch.save(before.state_dict(), tmp_path / PRETRAINED)
    assert torch.equal(some.model().norm.weight, before.norm.weight)
    assert torch.equal(some.model().logits.weight, before.logits.weight)


def test_texts_that_do_not_fit():
    short = Text(torch.zeros(8, dtype=torch.uint8), torch.zeros(99, dtype=torch.uint8))
    with pytest.raises(ConfigError, match="8 symbols to train on"):
        WindowData(short, CPU, RECIPE, context=8, held=Held())
