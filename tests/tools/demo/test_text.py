import pytest
import torch

from thinwire.errors import ConfigError
from thinwire.tools.demo.text import SYMBOLS, Corpus, standard_library, windows


def test_the_same_python_gives_the_same_text():
    text = standard_library()
    assert text == standard_library()
    assert len(text) > 1_000_000
    assert b"import" in text


def test_a_corpus_keeps_its_end_back():
    corpus = Corpus.of(b"ab\n~ \xff\t?" * 1000)
    assert corpus.train[:8].tolist() == [66, 67, 0, 95, 1, 32, 32, 32]
    assert len(corpus.train) + len(corpus.held_out) == 8000
    assert len(corpus.held_out) == 400
    assert max(corpus.train.max(), corpus.held_out.max()) < SYMBOLS


def test_windows_follow_from_their_seed():
    symbols = torch.arange(200, dtype=torch.uint8)
    one, same, other = (windows(symbols, 5, 33, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert (one.diff(dim=1) == 1).all()


def test_every_window_can_be_drawn():
    starts = windows(torch.arange(5), 200, 4, seed=0)[:, 0]
    assert set(starts.tolist()) == {0, 1}


def test_a_python_without_sources_is_an_error(tmp_path):
    (tmp_path / "tiny.py").write_text("pass\n")
    with pytest.raises(ConfigError, match=f"only 5 bytes.*{tmp_path}"):
        standard_library(tmp_path)
