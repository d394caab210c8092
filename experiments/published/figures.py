"""Figures of gTop-k's authors, and the models that SparDL's compare."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Model:
    """A published row: size, batch of a worker, and samples per second of a worker."""

    name: str
    size: int
    batch: int
    alone: float
    by_ranks: dict[int, tuple[float, float, float]]  # dense, top-k, gTop-k

    @property
    def step(self) -> float:
        """Seconds of one worker's step."""
        return self.batch / self.alone

    def efficiency(self, reduction: float) -> float:
        """A worker's throughput relative to alone, if a reduction takes so long."""
        return self.step / (self.step + reduction)

    def published(self, ranks: int) -> list[float]:
        """Seconds by which the published steps are longer than one worker's."""
        return [self.batch / each - self.step for each in self.by_ranks[ranks]]


GTOPK = (
    Model(
        "ResNet-20",
        269_722,
        128,
        920.6,
        {
            4: (821.7, 908.8, 916.3),
            8: (705.2, 753.0, 868.7),
            16: (520.4, 737.6, 808.5),
            32: (287.9, 696.0, 789.3),
        },
    ),
    Model(
        "VGG-16",
        14_700_000,
        128,
        1317.3,
        {
            4: (104.2, 110.6, 131.1),
            8: (92.6, 109.9, 130.6),
            16: (39.5, 97.9, 126.4),
            32: (12.6, 63.0, 123.2),
        },
    ),
    Model(
        "ResNet-50",
        25_600_000,
        256,
        52.9,
        {
            4: (39.0, 37.7, 39.8),
            8: (37.0, 35.7, 39.7),
            16: (23.2, 34.5, 39.1),
            32: (10.7, 30.6, 39.1),
        },
    ),
    Model(
        "AlexNet",
        61_000_000,
        64,
        173.5,
        {
            4: (14.0, 14.2, 16.5),
            8: (12.1, 13.9, 16.4),
            16: (4.9, 13.4, 16.4),
            32: (1.23, 9.24, 15.78),
        },
    ),
    Model(
        "LSTM-PTB",
        66_000_000,
        # That of the speed runs is not known. With 20, of the released configuration,
        # dense would have been faster than the wire; 100 is of later plots.
        100,
        392.0,
        {
            4: (12.7, 19.9, 17.8),
            8: (8.7, 18.6, 17.6),
            16: (4.1, 14.8, 15.1),
            32: (2.1, 5.4, 10.8),
        },
    ),
)
SPARDL = {"VGG-16": 14_700_000, "VGG-19": 20_100_000, "ResNet-50": 25_600_000}
