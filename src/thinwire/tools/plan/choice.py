"""A method as named on the command line, and the cost of one reduction."""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from thinwire import catalog
from thinwire.codecs import Codec
from thinwire.collectives import BF16, AllGather, GTopK, SparDL
from thinwire.collectives.collective import packet_nbytes
from thinwire.cost import Cost, Curve, Link, Rounds
from thinwire.errors import ConfigError
from thinwire.reducers import Pipeline
from thinwire.sparse import keep_count
from thinwire.tools.plan import waits
from thinwire.tools.plan.estimated import EstimatedCodec

_LENGTH_NBYTES = 8
_LARGE = (100_000, 1000)  # a vector and a list that no codec thinks too small for it


@dataclass(frozen=True, slots=True)
class Choice:
    """A method with its options, a density and a codec; both None where it has none.

    >>> choice = Choice.parse("spardl:teams=2", density=0.01)
    >>> choice.label, choice.codec
    ('spardl teams=2', 'elias-fano+bfloat16')
    """

    method: str
    options: tuple[tuple[str, Any], ...] = ()
    density: float | None = None
    codec: str | None = None

    @classmethod
    def parse(
        cls, text: str, density: float = 0.01, codec: str | None = None
    ) -> "Choice":
        """The choice that a text such as "gtopk:variant=tree" names.

        What has no density or no codec leaves the one that is offered alone.
        """
        name, _, rest = text.strip().partition(":")
        if name == "auto":
            raise ConfigError(
                "auto measures methods while it trains and takes the fastest: it has "
                "no time of its own to forecast; leave it out"
            )
        options = dict(_option(text, each) for each in rest.split(":") if each)
        made = catalog.reducer(name, density=density, **options)
        return cls(
            name,
            tuple(sorted(options.items())),
            None if made.collective.density is None else density,
            None if made.codec is None else codec or catalog.codec_name(made.codec),
        )

    @property
    def label(self) -> str:
        """The name of the method in a table."""
        said = [f"{name}={value}" for name, value in self.options]
        return " ".join([self.method, *said])

    @property
    def reducer(self) -> Pipeline:
        """The reducer of this choice."""
        return _reducer(self)

    def with_options(self, **options: Any) -> "Choice":
        """The same with these options changed."""
        changed = {**dict(self.options), **options}
        return replace(self, options=tuple(sorted(changed.items())))

    def at_density(self, density: float) -> "Choice":
        """The same at another density, if it has one."""
        return self if self.density is None else replace(self, density=density)

    def own_rounds(self, rounds: Rounds) -> Curve:
        """Of these, the ones that the collective has."""
        collective = self.reducer.collective
        if isinstance(collective, BF16 | AllGather):
            return rounds.direct
        return rounds.exchange if collective.coded else rounds.all_reduce

    def check(self, ranks: int) -> None:
        """Raise the `ConfigError` that training would raise."""
        self.reducer.collective.check(ranks)

    def cost(self, size: int, ranks: int) -> Cost:
        """The cost of one reduction."""
        return self.own_cost(size, ranks) + self.guard_cost(size, ranks)

    def own_cost(self, size: int, ranks: int) -> Cost:
        """The collective's part."""
        cost = self.reducer.collective.cost(size, ranks, self.weighed)
        if self.weighed is self.reducer.codec:
            return cost
        # A length travels ahead of every packet.
        return cost + Cost(cost.rounds, _LENGTH_NBYTES * cost.rounds)

    def guard_cost(self, size: int, ranks: int) -> Cost:
        """The guard's part. Plain DDP needs no guard, and `dense` is that."""
        if self.method == "dense":
            return Cost()
        pipeline = replace(self.reducer, codec=self.weighed)
        whole = pipeline.cost(size, ranks)
        part = pipeline.collective.cost(size, ranks, self.weighed)
        return Cost(whole.rounds - part.rounds, whole.nbytes - part.nbytes)

    @property
    def weighed(self) -> Codec | None:
        """The codec, for cards: one that says how long packets are."""
        codec = self.reducer.codec
        if codec is None or codec.nbytes(*_LARGE) is not None:
            return codec
        return EstimatedCodec(codec)

    def detour(self, size: int, ranks: int, link: Link) -> float:
        """Seconds by which ranks wait longer, or less long, than their card says."""
        gtopk = self.reducer.collective
        if not isinstance(gtopk, GTopK) or gtopk.variant == "naive":
            return 0.0
        if ranks & (ranks - 1) == 0:
            return 0.0
        codec = self.weighed
        packet = packet_nbytes(codec, size, keep_count(size, gtopk.density))
        played = [gtopk.schedule(rank, ranks) for rank in range(ranks)]
        plain = Link(link.latency, link.bandwidth)
        said = plain.seconds(gtopk.cost(size, ranks, codec))
        return waits.seconds(played, packet, plain) - said

    def awake(self, ranks: int) -> float:
        """The share of the ranks that send in a round, on average.

        >>> Choice.parse("gtopk:variant=tree").awake(8), Choice.parse("gtopk").awake(8)
        (0.2916666666666667, 1.0)
        """
        gtopk = self.reducer.collective
        if ranks == 1 or not isinstance(gtopk, GTopK) or gtopk.variant != "tree":
            return 1.0
        # Up the tree and down again, a message to or from all ranks but one.
        messages = 2 * (ranks - 1)
        return messages / (ranks * len(gtopk.schedule(0, ranks)))

    def lists(self, size: int, ranks: int) -> int:
        """The number of lists or chunks that a rank processes, of any length."""
        collective = self.reducer.collective
        if isinstance(collective, SparDL):
            teams = collective.teams_for(size, ranks, self.weighed)
            return 2 * (ranks // teams) + teams.bit_length()
        if isinstance(collective, BF16):
            return 2 * ranks
        if not collective.coded:
            return 0
        return collective.cost(size, ranks, self.weighed).rounds


def _option(text: str, given: str) -> tuple[str, Any]:
    name, equals, value = given.partition("=")
    if not equals:
        raise ConfigError(
            f"method is {text!r}: write options as name=value after a colon, such as "
            "'spardl:teams=2'"
        )
    return name.strip(), int(value) if value.strip().isdecimal() else value.strip()


@lru_cache(maxsize=256)
def _reducer(choice: Choice) -> Pipeline:
    density = {} if choice.density is None else {"density": choice.density}
    options: dict[str, Any] = {**density, **dict(choice.options)}
    own = catalog.reducer(choice.method, **options)
    if own.codec is None or catalog.codec_name(own.codec) == choice.codec:
        return own
    return catalog.reducer(choice.method, codec=choice.codec, **options)
