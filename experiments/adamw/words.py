"""The text of the page of results under AdamW."""

TITLES = {
    "gpt-bytes": "GPT on the bytes of WikiText-2",
    "vit-cifar10": "Vision transformer on CIFAR-10",
    "gpt-finetune": "GPT, fine-tuned on tiny Shakespeare",
    "transformer-wikitext2-adamw": "Word transformer on WikiText-2",
    "nanogpt-shakespeare": "nanoGPT on the characters of tiny Shakespeare",
    "small-shakespeare": "A small GPT on the characters of tiny Shakespeare",
}
DATA = {
    "gpt-bytes": """Perplexities of bytes are 2 to the power of these figures: 1 % of
1.64 bits are 1.1 % of perplexity.
""",
    "vit-cifar10": """The images had once been stored as JPEG files: accuracies are to
be compared with one another.
""",
    "gpt-finetune": """Every run starts from the model that a dense run of the first
task left.
""",
    "transformer-wikitext2-adamw": """The transformer of the reference tasks, trained by
AdamW in half the epochs.
""",
    "nanogpt-shakespeare": """The settings are nanoGPT's, which publishes 1.4697, the
best of evaluations every 250 steps of another sample. So the best evaluation counts
here too.
""",
    "small-shakespeare": """Small enough for a processor. In a run this short the
warm-up of densities is most of what is sent. Sparse methods clip on each worker.
""",
}
BEST = ("nanogpt-shakespeare",)
"""Tasks whose result is the best evaluation, as it was published."""

INTRODUCTION = """# Results under AdamW

Does training by AdamW arrive where dense training does? Each run below is 8 virtual
workers in one process on one device, as on the page of [results](results.md).
[Reference tasks](training.md) has the recipes.

    python -m experiments.adamw --data DATA --at-once 12 --minutes 9
    python -m experiments.adamw --write docs/experiments/adamw.md

The first runs what is missing and adds a line to `experiments/adamw/runs.jsonl` for
every run that is finished; the second writes this page from those lines.

- *Methods* that send sparse gradients are stepped by thinwire's AdamW, with
  `warmup="auto"`; "AdamW of torch" is what a hook alone gives: torch's optimizer, no
  warm-up. Dense, bf16 and PowerSGD are stepped by torch's AdamW.
- *Peers* are written from their papers. DeMo, SparseLoCo and 1-bit Adam bring their own
  steps. Their values are counted in bfloat16, but for the one bit; SparseLoCo's paper
  cuts values to two bits, which would halve its bytes.
- *Clipping*, where a recipe has it, is of the mean that is delivered. "Clipped by each
  worker": every worker's gradient is held to 1/sqrt(P) of the bound before that.
- *Results* are those of the last evaluation unless the task says otherwise.
- *Against dense*: the mean over common seeds of the difference to dense training at
  the recipe's learning rate, in percent, accuracies in points. **Bold**: behind by more
  than 1 %, or 0.5 points.
- *Bytes* and *rounds*: what a worker sends in a step, and how often it waits for
  others, over the whole run: warm-up counts, and so do local steps, which send nothing.
- *Spikes*: where the mean loss of ten steps lay more than 10 % above the lowest one
  before, by seed. "Not recovered": for more than 50 steps.
"""
