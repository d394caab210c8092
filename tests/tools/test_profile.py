import json
from dataclasses import replace
from pathlib import Path

import pytest

from thinwire.cost import Link
from thinwire.errors import ConfigError
from thinwire.tools import profile
from thinwire.tools.profile import Profile

PROFILE = Profile(
    latency=1e-4,
    pair=120e6,
    together=110e6,
    flow=100e6,
    flows=119e6,
    latencies=((0.0, 1e-4), (1.1e-4, 0.0)),
    bandwidths=((0.0, 120e6), (121e6, 0.0)),
    exchange=((8, 2e-4), (4096, 3e-4)),
    direct=((8, 1e-4), (4096, 2e-4)),
    all_reduce=((8, 1e-4),),
    ranks=2,
    hosts=2,
    ranks_per_host=1,
    ranks_per_machine=2,
    cores=2,
    shaped=True,
    backend="gloo",
    date="2025-11-16T08:00:00+00:00",
)


def saved(tmp_path: Path, **changes: object) -> Path:
    path = tmp_path / "link.json"
    PROFILE.write(path)
    found = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in found.items() if v is not None}))
    return path


def test_a_profile_comes_back_as_it_was_written(tmp_path):
    path = tmp_path / "link.json"
    PROFILE.write(path)
    assert profile.read(path) == PROFILE


def test_its_link_is_that_of_all_ranks_at_once():
    assert PROFILE.link == Link(latency=1e-4, bandwidth=110e6)


def test_a_connection_is_capped_where_several_get_more():
    assert PROFILE.capped
    assert not replace(PROFILE, flow=118e6).capped


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"thinwire_profile": None}, "not a link profile"),
        ({"thinwire_profile": 1}, "version 1"),
        ({"direct": []}, "direct of a profile are not rising pairs"),
        ({"direct": [[8, 1.0], [4, 2.0]]}, "direct of a profile are not rising"),
        ({"exchange": [[8, 2.0], [9, 1.0]]}, "exchange of a profile are not rising"),
        ({"all_reduce": [8, 1.0]}, "all_reduce of a profile are not rising pairs"),
        ({"together": 0}, "together of a profile cannot be 0"),
        ({"pair": "fast"}, "pair of a profile cannot be 'fast'"),
        ({"latency": -1e-3}, "latency of a profile cannot be -0.001"),
        ({"latency": float("nan")}, "latency of a profile cannot be nan"),
        ({"shaped": 1}, "shaped of a profile cannot be 1"),
        ({"ranks": True}, "ranks of a profile cannot be True"),
        ({"date": "yesterday"}, "date of a profile cannot be 'yesterday'"),
        ({"ranks": 3}, "latencies of a profile are not 3 rows"),
        ({"bandwidths": [[0, 1], [1]]}, "bandwidths of a profile are not 2 rows"),
        ({"bandwidths": 7}, "bandwidths of a profile are not 2 rows"),
        ({"bandwidths": [[0, "a"], [1, 0]]}, "bandwidths of a profile are not 2 rows"),
        ({"flow": None}, "no flow in this profile"),
        ({"colour": "red"}, "unknown 'colour'"),
    ],
)
def test_what_is_no_profile_is_refused_with_its_fault(tmp_path, changes, said):
    path = saved(tmp_path, **changes)
    with pytest.raises(ConfigError, match=said) as caught:
        profile.read(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "{", "\x00", "7"])
def test_any_other_file_is_refused(tmp_path, text):
    path = tmp_path / "link.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match="measure anew with thinwire bench net"):
        profile.read(path)


def test_a_file_that_is_not_there_is_said_so(tmp_path):
    with pytest.raises(ConfigError, match="no such file"):
        profile.read(tmp_path / "none.json")
    with pytest.raises(ConfigError, match="there is no folder"):
        PROFILE.write(tmp_path / "none" / "link.json")
