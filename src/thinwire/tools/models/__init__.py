"""Image models of the literature, which benchmarks and experiments share."""

from thinwire.tools.models.resnet import ResNet20
from thinwire.tools.models.vgg import VGG16

__all__ = ["VGG16", "ResNet20"]
