"""Channel: a list is sealed once, and all ranks use what its bytes decode to."""

from dataclasses import dataclass, field
from functools import partial
from itertools import product

import pytest
import torch

from tests.groups.faulty import Fault, Faulty
from tests.laws.cases import CODECS
from thinwire.channel import Channel, ListSpec
from thinwire.codecs import Codec, CodecWrapper, Split
from thinwire.errors import ConfigError, WireError
from thinwire.groups import simulate
from thinwire.sparse import SparseVector
from thinwire.wire import Packet

SIZE = 40
LISTS = {
    "none": {},
    "one": {3: 1.0},
    "two": {0: -2.0, 39: 5.0},
    "three": {1: 1.0, 2: 0.0, 3: -7.0},
}
MESSAGES = [(), ("one",), ("none",), ("two", "three"), ("one", "none", "one", "three")]


def vector(name):
    return SparseVector.of(LISTS[name], SIZE)


# One of each kind: exact, lossy, of unknown length. The laws try them all.
KINDS = ("raw", "int32+bfloat16", "unsized")


def specs(message, *, known=True):
    return [ListSpec(SIZE, len(LISTS[name]) if known else None) for name in message]


def entries(sealed):
    return [each.vector.to_dict() for each in sealed]


def expected(message):
    return [LISTS[name] for name in message]


def test_seal_adopts_what_everyone_will_decode():
    exact = SparseVector.of({2: 1.0 + 2.0**-9, 5: 3.0}, size=SIZE)

    def body(group):
        channel = Channel(group, CODECS["int32+bfloat16"])
        mine = channel.seal(exact)
        (theirs,) = channel.exchange(
            [mine], dst=1 - group.rank, src=1 - group.rank, expect=[ListSpec(SIZE, 2)]
        )
        return mine, theirs

    for mine, theirs in simulate(2, body):
        assert mine.vector.to_dict() == {2: 1.0, 5: 3.0}
        assert theirs.vector.to_dict() == mine.vector.to_dict()
        assert torch.equal(theirs.body, mine.body)
        read = CODECS["int32+bfloat16"].decode(Packet.parse(mine.body), SIZE)
        assert read.to_dict() == mine.vector.to_dict()


@pytest.mark.parametrize("codec", KINDS)
@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
def test_messages_of_any_kind_cross(codec, known):
    # Both ranks send lengths or neither does; an empty message has a known length.
    sized = known and CODECS[codec].nbytes(SIZE, 1) is not None
    for left, right in product(MESSAGES, MESSAGES):
        if sized or bool(left) == bool(right):
            swap = partial(cross, codec=codec, messages=(left, right), known=known)
            got = simulate(2, swap)
            assert got == [expected(right), expected(left)], (left, right)


def test_an_empty_message_crosses_a_list_of_unknown_length():
    # The number of entries is known, so all ranks can know that lengths travel.
    messages = (), ("two",)
    got = simulate(2, lambda group: cross(group, "unsized", messages, known=True))
    assert got == [[LISTS["two"]], []]


def cross(group, codec, messages, *, known):
    """What this rank gets when two ranks swap their messages."""
    channel = Channel(group, CODECS[codec])
    peer = 1 - group.rank
    message = [channel.seal(vector(name)) for name in messages[group.rank]]
    expect = specs(messages[peer], known=known)
    return entries(channel.exchange(message, dst=peer, src=peer, expect=expect))


@pytest.mark.parametrize("codec", KINDS)
@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
@pytest.mark.parametrize("message", MESSAGES, ids=str)
def test_a_message_goes_one_way(codec, known, message):
    def body(group):
        channel = Channel(group, CODECS[codec])
        expect = specs(message, known=known)
        if group.rank == 0:
            sent = [channel.seal(vector(name)) for name in message]
            return entries(channel.exchange(sent, dst=1, src=None, expect=expect))
        return entries(channel.exchange([], dst=None, src=0, expect=expect))

    assert simulate(2, body) == [[], expected(message)]


@pytest.mark.parametrize("codec", KINDS)
def test_a_list_that_is_passed_on_stays_the_same_bytes(codec):
    ranks = 4

    def body(group):
        channel = Channel(group, CODECS[codec], step=group.size)
        value = 1.0 + group.rank + 2.0**-9
        mine = channel.seal(SparseVector.of({group.rank: value}, SIZE))
        held = [mine]
        after, before = (group.rank + 1) % ranks, (group.rank - 1) % ranks
        for _ in range(ranks - 1):
            held += channel.exchange(
                held[-1:], dst=after, src=before, expect=[ListSpec(SIZE, 1)]
            )
        return held

    held = simulate(ranks, body)
    for rank, distance in product(range(ranks), range(ranks)):
        origin = held[(rank - distance) % ranks][0]
        assert torch.equal(held[rank][distance].body, origin.body)
        assert entries([held[rank][distance]]) == entries([origin])


def test_a_rank_exchanges_with_itself():
    def body(group):
        channel = Channel(group, Split())
        message = [channel.seal(vector("two"))]
        return entries(channel.exchange(message, dst=0, src=0, expect=specs(["two"])))

    assert simulate(1, body) == [[LISTS["two"]]]


@pytest.mark.parametrize("codec", KINDS)
@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_all_gather_gives_every_list_in_order_of_rank(codec, known, ranks):
    def body(group):
        channel = Channel(group, CODECS[codec])
        mine = channel.seal(SparseVector.of({group.rank: 2.0}, SIZE))
        expect = ListSpec(SIZE, 1 if known else None)
        gathered = channel.all_gather(mine, expect=expect)
        assert gathered[group.rank] is mine
        return entries(gathered)

    everything = [{rank: 2.0} for rank in range(ranks)]
    assert simulate(ranks, body) == [everything] * ranks


@pytest.mark.parametrize("codec", KINDS)
@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_all_to_all_gives_what_every_rank_sent_here(codec, known, ranks):
    """Rank r sends rank t the numbers from r to r + t - 1."""

    def body(group):
        me, channel = group.rank, Channel(group, CODECS[codec])
        lists = [
            channel.seal(SparseVector.of({me + i: 1.0 + me for i in range(to)}, SIZE))
            for to in range(ranks)
        ]
        lists[me] = None
        spec = ListSpec(SIZE, me if known else None)
        received = channel.all_to_all(lists, expect=[spec] * ranks)
        assert received.pop(me) is None
        return [each.vector.to_dict() for each in received]

    assert simulate(ranks, body) == [
        [{r + i: 1.0 + r for i in range(to)} for r in range(ranks) if r != to]
        for to in range(ranks)
    ]


@dataclass(frozen=True)
class Recorder(CodecWrapper):
    """Raw, and a note of every key and source it was given."""

    codec: Codec = field(default_factory=Split)
    keys: list = field(default_factory=list)
    sources: list = field(default_factory=list)

    def encode(self, vector, *, source=None, key=0):
        self.keys.append(key)
        self.sources.append(source)
        return self.codec.encode(vector, key=key)

    def decode(self, packet, size, nnz=None, *, key=0):
        self.keys.append(key)
        return self.codec.decode(packet, size, nnz)

    def adopt(self, packet, vector, *, key=0):
        return self.decode(packet, vector.size, key=key)

    def header(self, size, nnz):
        return None


def test_both_ends_and_every_rank_use_one_key():
    def body(group):
        codec = Recorder()
        channel = Channel(group, codec, step=5, seed=9)
        sealed = channel.seal(vector("one"), part=2)
        spec = ListSpec(SIZE, 1, part=2)
        channel.all_gather(sealed, expect=spec)
        ring = (group.rank + 1) % 3, (group.rank - 1) % 3
        channel.exchange([sealed], dst=ring[0], src=ring[1], expect=[spec])
        unread = len(codec.keys)
        assert sealed.vector is sealed.vector
        assert len(codec.keys) == unread + 1  # decoded when it is looked at, and once
        return codec.keys

    keys = simulate(3, body)
    assert {len(each) for each in keys} == {5}
    assert len(set().union(*keys)) == 1


def test_keys_tell_seeds_steps_and_parts_apart():
    codec = Recorder()
    for seed, step, part in product(range(8), range(8), range(8)):
        Channel(None, codec, step=step, seed=seed).seal(vector("one"), part=part)
    assert len(set(codec.keys)) == 8**3
    assert all(0 <= key < 2**63 for key in codec.keys)


def test_a_source_reaches_the_encoder():
    codec = Recorder()
    Channel(None, codec).seal(vector("one"), source=torch.neg)
    Channel(None, codec).seal(vector("one"))
    assert codec.sources == [torch.neg, None]


@pytest.mark.parametrize("kind", ["flip", "truncate"])
@pytest.mark.parametrize("codec", ["raw", "unsized"])
@pytest.mark.parametrize("call", ["exchange", "all_gather"])
def test_damage_is_reported_with_the_rank_it_came_from(kind, codec, call):
    def body(group):
        damaged = Faulty(group, Fault(0, kind)) if group.rank == 0 else group
        channel = Channel(damaged, CODECS[codec])
        sealed = channel.seal(vector("two"))
        if call == "all_gather":
            return channel.all_gather(sealed, expect=ListSpec(SIZE, 2))
        peer = (group.rank + 1) % 2
        return channel.exchange(
            [sealed], dst=peer, src=peer, expect=[ListSpec(SIZE, 2)]
        )

    with pytest.raises(WireError, match="rank 1"):
        simulate(2, body)


@pytest.mark.parametrize(
    ("codec", "sent", "expect", "said"),
    [
        ("raw", ["one"], specs(["two"]), "from rank 1: .* lists 1 entries, not 2"),
        (
            "raw",
            ["one"],
            [ListSpec(41, 1)],
            "from rank 1: .* for a vector of 40, not 41",
        ),
        (
            "unsized",
            ["two"],
            [ListSpec(SIZE, 3)],
            "from rank 1: .* lists 2 entries, not 3",
        ),
        ("unsized", ["one", "two"], specs(["one"]), "from rank 1: more than 1 lists"),
        ("unsized", ["one"], specs(["one", "two"]), "from rank 1: 1 lists, not 2"),
        ("unsized", [], specs(["one"]), "from rank 1: 0 lists, not 1"),
    ],
)
def test_another_message_than_expected_is_refused(codec, sent, expect, said):
    def body(group):
        channel = Channel(group, CODECS[codec])
        if group.rank == 0:
            return channel.exchange([], dst=None, src=1, expect=expect)
        message = [channel.seal(vector(name)) for name in sent]
        # A message of data-dependent lists has no length even when it is empty.
        announced = specs(sent or ["none"])
        return channel.exchange(message, dst=0, src=None, expect=announced)

    with pytest.raises(WireError, match=said):
        simulate(2, body)


def test_using_another_codec_changes_nothing_else():
    channel = Channel(None, Split(), step=3, seed=4)
    other = channel.using(CODECS["int32+bfloat16"])
    assert other == Channel(None, CODECS["int32+bfloat16"], step=3, seed=4)
    assert channel.codec == Split()
    assert Channel(None).using(Split()).seal(vector("one")).body.numel() == 48


def test_without_a_codec_no_list_travels():
    def body(group):
        channel = Channel(group)
        sealed = channel.using(Split()).seal(vector("one"))
        with pytest.raises(ConfigError, match="no codec"):
            channel.seal(vector("one"))
        with pytest.raises(ConfigError, match="no codec"):
            channel.all_gather(sealed, expect=ListSpec(SIZE, 1))
        with pytest.raises(ConfigError, match="no codec"):
            channel.exchange([sealed], dst=0, src=0, expect=[ListSpec(SIZE, 1)])

    simulate(1, body)
