"""Sparse gradients with the Trainer of Hugging Face transformers: one callback.

torchrun --nproc-per-node 2 examples/transformers_spardl.py
torchrun --nproc-per-node 2 examples/transformers_spardl.py --resume --steps 40
"""

import argparse

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import thinwire
from thinwire.integrations.transformers import Thinwire

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--folder", default="checkpoint")
parser.add_argument("--resume", action="store_true")
options = parser.parse_args()

torch.manual_seed(0)
config = GPT2Config(vocab_size=64, n_positions=32, n_embd=64, n_layer=2, n_head=2)
model = GPT2LMHeadModel(config)
# Counting: each sequence goes on from a number of its own.
sequences = [(torch.arange(32) + start) % 64 for start in range(640)]

trainer = Trainer(
    model,
    TrainingArguments(
        options.folder,
        max_steps=options.steps,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        save_steps=10,
        logging_steps=10,
        ddp_find_unused_parameters=False,
        report_to="none",
        use_cpu=not torch.cuda.is_available(),
    ),
    train_dataset=[{"input_ids": each, "labels": each} for each in sequences],
    optimizer_cls_and_kwargs=(thinwire.AdamW, {"lr": 1e-3}),
    callbacks=[Thinwire("spardl", density=0.01, warmup="auto")],
)
trainer.train(resume_from_checkpoint=options.resume or None)
