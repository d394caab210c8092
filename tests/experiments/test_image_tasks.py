import gzip
import os
import pickle

import numpy as np
import pytest
import torch
from experiments.tasks import cifar10, idx, jpeg, task
from experiments.tasks.images import ImageData, Labelled

from tests.experiments import tiny_data
from thinwire.errors import ConfigError

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    "write",
    [
        tiny_data.cifar_python,
        tiny_data.cifar_binary,
        tiny_data.cifar_archive,
        tiny_data.cifar_npz,
    ],
)
def test_every_form_of_cifar10_holds_the_same_images(tmp_path, write):
    train, test = cifar10.load(write(tmp_path), CPU, verify=False)
    assert train.images.shape == (100, 3, 32, 32)
    batch = tiny_data.CIFAR["data_batch_2"]
    assert torch.equal(train.images[20:40].flatten(1), torch.as_tensor(batch[0]))
    assert train.labels[20:40].tolist() == batch[1]
    pixels, labels = tiny_data.CIFAR["test_batch"]
    assert torch.equal(test.images.flatten(1), torch.as_tensor(pixels))
    assert test.labels.tolist() == labels


def test_fashion_mnist_is_read_and_framed(tmp_path):
    train, test = idx.load(tiny_data.fashion(tmp_path), CPU, verify=False)
    assert train.images.shape == (70, 1, 32, 32)
    assert test.images.shape == (30, 1, 32, 32)
    name = tmp_path / "train-images-idx3-ubyte.gz"
    raw = np.frombuffer(gzip.decompress(name.read_bytes()), np.uint8, offset=16)
    assert torch.equal(
        train.images[:, 0, 2:-2, 2:-2].reshape(-1), torch.as_tensor(raw.copy())
    )
    frame = train.images.clone()
    frame[:, :, 2:-2, 2:-2] = 0
    assert not frame.any()
    assert train.labels[:12].tolist() == [*range(10), 0, 1]


def coefficients():
    """Images of one colour each: only the constant coefficients are not 0."""
    luma, colour = np.zeros((8, 8, 3, 4, 4)), np.zeros((8, 8, 2, 3, 2, 2))
    luma[0, 0] = np.array([-50, 0, 50])[:, None, None]
    colour[0, 0, 1, 2] = 16
    return {
        "Y": luma.astype(np.int8),
        "C": colour.astype(np.int8),
        "over_at": np.array([2 * 16 + 5]),  # image 2, block (1, 1), constant
        "over_val": np.array([300]),
        "qt": np.full((2, 8, 8), 2),
        "label": np.arange(3),
    }


def test_jpeg_coefficients_become_the_colours_they_stand_for(tmp_path):
    # A constant coefficient c with quantiser q is a grey level of 128 + c q / 8.
    for part in ("train", "test"):
        np.savez(tmp_path / f"{part}.npz", **coefficients())
    images = cifar10.load(tmp_path, CPU)[0].images
    assert images.shape == (3, 3, 32, 32)
    assert torch.equal(images[0].unique(), torch.tensor([116], dtype=torch.uint8))
    assert torch.equal(images[1].unique(), torch.tensor([128], dtype=torch.uint8))
    red = [140.5 + 1.402 * 4, 140.5 - 0.714136 * 4, 140.5]
    for channel, level in zip(images[2, :, 20, 20], red, strict=True):
        assert abs(int(channel) - level) <= 1
    assert int(images[2, 2, 12, 12]) == 128 + 300 * 2 // 8


def test_the_transform_of_a_single_wave_is_that_wave():
    some = coefficients()
    some = {**some, "over_at": np.array([], int), "over_val": np.array([], int)}
    some["Y"][:] = 0
    some["C"][:] = 0
    some["Y"][2, 0] = 40  # two half-waves downwards
    images = jpeg.pixels_of(some, CPU)
    place = np.arange(8)
    wave = 128 + 80 * np.cos((2 * place + 1) * 2 * np.pi / 16) / 2 / np.sqrt(8)
    assert np.abs(images[0, 0, :8, 3].numpy() - wave).max() <= 1
    assert (images == images[:, :, :, :1]).all()


def image_data(count=100, batch=4):
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(
        256, (count, 3, 32, 32), generator=generator, dtype=torch.uint8
    )
    return ImageData(
        Labelled(images, torch.arange(count) % 10),
        Labelled(images[:20], torch.arange(20) % 10),
        batch,
    ), images


def batch_of(data, rank=0, ranks=4, epoch=0, step=0, seed=0):
    return data.batch(rank=rank, ranks=ranks, epoch=epoch, step=step, seed=seed)


def test_batches_are_crops_of_the_images_mirrored_or_not():
    data, images = image_data(count=20, batch=4)
    padded = torch.nn.functional.pad(images, [4] * 4)
    mean = images.double().mean((0, 2, 3)).view(3, 1, 1) / 255
    std = images.double().std((0, 2, 3)).view(3, 1, 1) / 255
    batch, labels = batch_of(data, ranks=2, step=1)
    assert batch.shape == (4, 3, 32, 32)
    pixels = ((batch * std + mean) * 255).round().to(torch.uint8)
    for image, label in zip(pixels, labels, strict=True):
        crops = padded.unfold(2, 32, 1).unfold(3, 32, 1)
        same = [
            (crops == some[:, None, None]).all(-1).all(-1).all(1)
            for some in (image, image.flip(2))
        ]
        found = torch.stack(same).nonzero()
        assert len(found) == 1
        assert found[0, 1] % 10 == label


def test_batches_follow_from_their_arguments_and_differ_by_epoch_and_seed():
    one, other = image_data()[0], image_data()[0]
    batch_of(one, epoch=7, seed=3)  # what was drawn before does not matter
    first = batch_of(one)[0]
    assert torch.equal(first, batch_of(other)[0])
    for change in ({"epoch": 1}, {"seed": 1}, {"rank": 1}, {"step": 1}):
        assert not torch.equal(first, batch_of(one, **change)[0])


def test_an_epoch_shows_every_image_once():
    data = ImageData(
        Labelled(torch.zeros(96, 1, 32, 32, dtype=torch.uint8), torch.arange(96) % 10),
        Labelled(torch.zeros(2, 1, 32, 32, dtype=torch.uint8), torch.arange(2)),
        4,
    )
    data.labels = torch.arange(96)  # so that images can be told apart
    assert data.steps(4) == 6
    seen = torch.cat(
        [batch_of(data, rank=r, step=s)[1] for s in range(6) for r in range(4)]
    )
    assert seen.sort().values.tolist() == list(range(96))


@pytest.mark.parametrize(
    ("name", "channels", "parameters"),
    [
        ("resnet20-cifar10", 3, 269_722),
        ("vgg16-cifar10", 3, 14_724_042),
        ("resnet20-fashion", 1, 269_434),
        ("vgg16-fashion", 1, 14_722_890),
    ],
)
def test_networks_have_their_size_and_finite_gradients(
    tmp_path, name, channels, parameters
):
    write = tiny_data.cifar_binary if channels == 3 else tiny_data.fashion
    some = task(name, write(tmp_path), verify=False, batch=2)
    torch.manual_seed(0)
    model, data = some.model(), some.data(CPU)
    assert sum(p.numel() for p in model.parameters()) == parameters
    loss, carry = data.loss(model, batch_of(data, ranks=2), None)
    assert carry is None
    loss.backward()
    assert all(
        p.grad is not None and p.grad.isfinite().all() for p in model.parameters()
    )
    assert 1 < loss.item() < 8
    assert 0 <= data.evaluate(model) <= 100
    assert model.training
    assert data.final(model) == {}


def test_resnet_learns_what_it_is_shown(tmp_path):
    some = task("resnet20-fashion", tiny_data.fashion(tmp_path), verify=False, batch=8)
    torch.manual_seed(0)
    model, data = some.model(), some.data(CPU)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    batch = batch_of(data, ranks=1)
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        loss, _ = data.loss(model, batch, None)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2


def test_evaluation_counts_what_is_right_and_restores_the_mode():
    data, _ = image_data()

    class Knows(torch.nn.Module):
        def forward(self, images):
            assert not self.training
            assert not torch.is_grad_enabled()
            known = torch.arange(len(images)) % 10
            known[:5] = 9 - known[:5]
            return torch.nn.functional.one_hot(known, 10).float()

    model = Knows()
    assert data.evaluate(model) == 75.0
    assert model.training
    model.eval()
    data.evaluate(model)
    assert not model.training


def test_files_that_are_not_the_published_ones_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="data_batch_1 is not the file of CIFAR-10"):
        cifar10.load(tiny_data.cifar_python(tmp_path), CPU)


def test_an_archive_is_checked_as_a_whole(tmp_path):
    with pytest.raises(ConfigError, match=r"cifar-10-python.*is not the file"):
        cifar10.load(tiny_data.cifar_archive(tmp_path), CPU)


class Evil:
    def __reduce__(self):
        return os.system, ("false",)


def write(folder, name, content):
    (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("data_batch_1", pickle.dumps(Evil()), "not a batch of CIFAR-10.*system"),
        ("data_batch_1", b"", "not a batch of CIFAR-10"),
        ("data_batch_1", pickle.dumps({b"data": 1}), "labels"),
        ("cifar-10-python.tar.gz", b"\x1f\x8bnothing", "cannot read"),
        ("train.npz", b"PK nothing", "train.npz.*cannot be read"),
        ("something.else", b"", "cs.toronto.edu"),
    ],
)
def test_bad_files_of_cifar10(tmp_path, name, content, message):
    with pytest.raises(ConfigError, match=message):
        cifar10.load(write(tmp_path, name, content), CPU, verify=False)


@pytest.mark.parametrize(
    "images",
    [np.zeros((4, 32, 32, 3)), np.zeros((4, 3, 32, 32), np.uint8), np.uint8(0)],
)
def test_images_of_another_form_are_refused(tmp_path, images):
    np.savez(tmp_path / "train.npz", images=images, labels=np.zeros(4, np.int64))
    with pytest.raises(ConfigError, match=r"not uint8 \(count, 32, 32, 3\)"):
        cifar10.load(tmp_path, torch.device("cpu"))


def test_an_npz_of_something_else_is_refused(tmp_path):
    np.savez(tmp_path / "train.npz", weights=np.ones(3))
    with pytest.raises(ConfigError, match="holds weights"):
        cifar10.load(tmp_path, CPU)


def test_binary_batches_must_have_whole_rows(tmp_path):
    tiny_data.cifar_binary(tmp_path)
    with (tmp_path / "cifar-10-batches-bin" / "data_batch_3.bin").open("ab") as file:
        file.write(b"x")
    with pytest.raises(ConfigError, match="not a multiple of 3073"):
        cifar10.load(tmp_path, CPU, verify=False)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x1f\x8b\x08junk", "cannot read"),
        (gzip.compress(b"\0\0\x08\x01\0\0\0\x05abcde"), "begins with 00000801"),
        (gzip.compress(tiny_data.idx_bytes(np.ones((3, 28, 28)))[:-1]), "announces"),
        (gzip.compress(b"\0\0\x08\x03"), "announces|do not belong"),
    ],
    # gzip writes the time: the contents would name the tests anew in every process
    ids=["junk", "wrong type", "cut off", "no sizes"],
)
def test_bad_files_of_fashion_mnist(tmp_path, content, message):
    tiny_data.fashion(tmp_path)
    write(tmp_path, "train-images-idx3-ubyte.gz", content)
    with pytest.raises(ConfigError, match=message):
        idx.load(tmp_path, CPU, verify=False)


def test_images_and_labels_must_belong_together():
    images = torch.zeros(3, 1, 32, 32, dtype=torch.uint8)
    with pytest.raises(ConfigError, match="3 images and 2 labels"):
        Labelled(images, torch.arange(2))
    with pytest.raises(ConfigError, match="label of 12"):
        Labelled(images, torch.tensor([0, 12, 1]))


def test_too_many_workers_for_the_data():
    with pytest.raises(ConfigError, match="100 examples do not fill"):
        image_data()[0].steps(26)
