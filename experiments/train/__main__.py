"""`python -m experiments.train`: train a reference task with a method."""

from experiments.train.command import main

main()
