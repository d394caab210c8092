"""VGG-16 for images of 32 x 32: 14,724,042 parameters with three channels.

Simonyan, Zisserman, ICLR 2015, configuration D, as is usual on CIFAR-10: BatchNorm
after every convolution, and one linear layer instead of three.
"""

from torch import Tensor, nn

from thinwire.tools.models.resnet import convolution

# Channels and number of the convolutions before each pooling.
STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))


class VGG16(nn.Module):
    """Images in, logits out."""

    def __init__(self, channels: int, classes: int = 10) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for width, depth in STAGES:
            for _ in range(depth):
                layers += [convolution(channels, width), nn.ReLU(inplace=True)]
                channels = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.logits = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.logits(self.features(images).flatten(1))
        return logits
