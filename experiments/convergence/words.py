"""The text of the page of results."""

TITLES = {
    "resnet20-cifar10": "ResNet-20 on CIFAR-10, 8 workers",
    "lstm-wikitext2": "Two-layer LSTM on WikiText-2, 8 workers",
    "ncf-ratings": "Recommendation with sparse embeddings, 4 workers",
}
STAGES = {
    1: "the comparison",
    2: "the other methods",
    3: "a density of 0.1 %",
    4: "the rest",
}
DATA = {
    "resnet20-cifar10": """The images had once been stored as JPEG files and have lost
what JPEG leaves out. ResNet-20 was published with 91.25 % (He et al., 2016), on the
images themselves and after 64,000 steps of 128 images, about five times as many images
as here. So all accuracies are some points below published ones, dense included; they
are to be compared with one another. How many points are due to what was not measured.
""",
    "lstm-wikitext2": """The 10,000 most frequent words, all others as one, as in Penn
Treebank; the size of the "small" network of Zaremba et al. (2014), with one table for
input and output. Fewer names to guess make perplexities lower than with all words: they
are to be compared with one another. The perplexity is that of the validation text; that
of the test text is in the results' file.
""",
    "ncf-ratings": """MovieTweetings' ratings. Gradients of the two tables of embeddings
are sparse: their rows are added up whole, and the method reduces the rest of the model:
1,745 of all parameters, so that 1 % of it are 17 entries. Sending that little is all
that selection can save here, next to the rows. `min_size=4096` leaves a vector of fewer
elements to the dense all-reduce. A hit or a miss of one of the 1,430 users is 0.07
points.
""",
}
INTRODUCTION = """# Results

Does training with every method arrive where dense training does? Each run below is P
virtual workers in one process on one device: the collectives, codecs and residuals of
real processes; `tests/experiments/test_virtual.py` compares the two on a processor and
finds the same parameters. [Reference tasks](training.md) says how to train, [choose a
method](../guides/choose.md) what follows.

    python -m experiments.convergence --data DATA --at-once 14 --minutes 9
    python -m experiments.convergence --write docs/experiments/results.md

The first runs what is missing and adds a line to `experiments/convergence/runs.jsonl`
for every run that is finished; the second writes this page from those lines. One run
alone is `python -m experiments.train`, with the same recipe.

- *Methods* that send lists code them as `elias-fano+bfloat16` unless another codec is
  named. "Momentum before selection" is `--feedback momentum`, "clipped by each worker"
  is `--clip-locally`: every worker's gradient is held to 1/sqrt(P) of the bound before
  it is reduced. Else the optimizer has the momentum, and the mean is clipped.
- *Results* are those of the last epoch, never of the best one.
- *Against dense*: the mean over seeds of the difference to the dense run of the same
  seed that clips as the method does, or to the first dense row where there is none.
  Other dense rows are compared with the first: what their own difference changes.
  **Bold**: behind by more than 0.5 points, or 2 % of perplexity.
- *Sent*: bytes of a worker in a step, the mean over workers and over the steps of the
  last epoch, the finite check included. *Smaller*: the first dense row over that.
- *Card*: whether the busiest worker sent what the method's card says.
- *Wire*: a forecast, not a measurement: rounds and bytes as counted, at 1 Gbit/s and
  50 us a message, with nothing else on the wire and nothing overlapped. With 8 workers
  the finite check took 14 small messages of it, 0.7 ms, and takes 3, 0.15 ms, in the
  later runs: those of the LSTM that are dense and clipped by each worker, spardl with
  log4 or 0.1 %, and gtopk with falling densities. Plain dense and PowerSGD go without.
  What the processor adds is in [performance](performance.md).
- *Residual*: its norm, the mean over workers, after a third of the epochs, two thirds
  and all of them, for the first seed. With momentum before selection it is the momentum
  that waits, which is several gradients long.
- *Over gradient*: the same, divided by the norm of a worker's gradient before clipping,
  the mean over workers and over the last four steps of the epoch. "-": not recorded.
- *Replicas*: in the last step of every epoch the means that all ranks were given were
  compared; had one bit differed, there would be no result. Dense and PowerSGD are
  computed once for all virtual workers: there is nothing to compare.
"""
