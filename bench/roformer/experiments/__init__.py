"""The experiments of the study: one module each, with FULL, QUICK, jobs and run (see roformer/jobs.py)."""

# The module of each experiment, in the order of the report. Imported late: the command's --help needs none.
EXPERIMENTS: dict[str, str] = {
    "translation": "roformer.experiments.translation",  # table 1
    "masked": "roformer.experiments.masked",  # figure 3, left
    "sentences": "roformer.experiments.sentences",  # table 2
    "linear": "roformer.experiments.linear",  # figure 3, right
    "stages": "roformer.experiments.stages",  # table 4
    "long": "roformer.experiments.long",  # table 5
    "lengths": "roformer.experiments.lengths",  # beyond the paper: longer than in training
}
