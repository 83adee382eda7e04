"""A Transformer with AMP: fp32, bf16 autocast, fp16 autocast with GradScaler."""

from __future__ import annotations

from validation import training
from validation.checks import Settings
from validation.model import SMALL, Size
from validation.outcome import DOES_NOT_HOLD, HOLDS, Outcome


def run(settings: Settings) -> Outcome:
    """Trains once in each precision; the bits are compared with the reference by the caller."""
    return train_all(SMALL)


def train_all(size: Size, *, judge_learning: bool = True) -> Outcome:
    """The outcome over all precisions at `size`; a few steps only are too short to learn in."""
    digests: dict[str, str] = {}
    traces: dict[str, list[str]] = {}
    faults: list[str] = []
    for precision in training.PRECISIONS:
        trained = training.start(size, precision)
        skipped = _train_watching(trained)
        digests[precision] = training.run_digest(trained)
        traces[precision] = [loss.hex() for loss in trained.losses]
        if judge_learning and not training.learnt(trained):
            faults.append(
                f"{precision} does not learn: loss {trained.losses[0]:.3f} at first,"
                f" {trained.losses[-1]:.3f} after {trained.done} steps"
            )
        if precision == "fp16":
            faults += _scaler_faults(trained, skipped)
            overflowed = len(skipped)
    evidence = "; ".join(faults) or (
        f"{size.steps} steps each in {', '.join(training.PRECISIONS)};"
        f" {overflowed} fp16 step(s) overflowed, skipped, scale halved"
    )
    return Outcome(
        "transformer",
        DOES_NOT_HOLD if faults else HOLDS,
        evidence,
        digests=digests,
        details={"losses": traces},
    )


def _train_watching(run: training.Training) -> list[int]:
    """Trains `run`; returns the steps that left the parameters and moments as they were."""
    skipped = []
    before = training.weights_digest(run)
    for index in range(run.size.steps):
        training.train(run, index + 1)
        after = training.weights_digest(run)
        # The very first step also creates the optimizer's state; zero moments tell the skip.
        first_skipped = index == 0 and not any(
            bool(state["exp_avg"].any()) for state in run.optimizer.state.values()
        )
        if after == before or first_skipped:
            skipped.append(index)
        before = after
    return skipped


def _scaler_faults(run: training.Training, skipped: list[int]) -> list[str]:
    """What is wrong between the steps that were skipped and the scale that followed."""
    scales = [training.OVERFLOWING_SCALE, *run.scales]
    halved = [i for i in range(run.done) if scales[i + 1] == scales[i] / 2]
    if not halved:
        return [f"no fp16 step overflowed at scale {training.OVERFLOWING_SCALE:g}"]
    if halved != skipped:
        return [f"the scale was halved after steps {halved}, but steps {skipped} were skipped"]
    return []
