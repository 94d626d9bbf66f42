import os
import signal
import threading

import numpy as np
import pytest
import pytorch_lightning as pl
import torch

from models.bundle import Bundle
from models.classes import TaskClass
from models.window import Window
from training import fit as fit_module
from training.dataset import Examples, build_examples
from training.errors import FitDiverged
from training.fit import FitOptions, fit
from training.task import masked_cross_entropy

BRIEF = FitOptions(max_epochs=3)


@pytest.fixture(scope="module")
def examples(history: Window, classes: tuple[TaskClass, ...]) -> Examples:
    return build_examples([history], classes)


def test_loss_is_the_mean_over_what_the_mask_leaves() -> None:
    logits = torch.tensor([[0.0, 5.0], [np.log(3.0), -7.0]])
    target = torch.tensor([[1.0, 0.3], [0.25, 0.9]])
    mask = torch.tensor([[True, False], [True, False]])
    expected = (np.log(2) - 0.25 * np.log(0.75) - 0.75 * np.log(0.25)) / 2
    assert float(masked_cross_entropy(logits, target, mask)) == pytest.approx(expected, rel=1e-6)


def test_network_learns_what_persistence_and_the_mean_cannot_know(examples: Examples) -> None:
    metrics = fit(examples, FitOptions(seed=3)).metrics
    assert metrics["validation_loss"] < 0.7 * metrics["constant_loss"]
    assert metrics["validation_loss"] < 0.5 * metrics["persistence_loss"]
    assert metrics["gain_over_persistence_ratio"] == pytest.approx(
        1 - metrics["validation_loss"] / metrics["persistence_loss"]
    )


def test_validation_loss_is_that_of_the_returned_network(examples: Examples) -> None:
    fitted = fit(examples, BRIEF)
    _, held_out = examples.split(BRIEF.holdout_ratio)
    with torch.inference_mode():
        logits = fitted.network.logits(torch.from_numpy(held_out.features))
    loss = masked_cross_entropy(
        logits, torch.from_numpy(held_out.target), torch.from_numpy(held_out.mask)
    )
    assert float(loss) == pytest.approx(fitted.metrics["validation_loss"], rel=1e-5)
    assert fitted.metrics["validation_loss"] == min(e["validation_loss"] for e in fitted.epochs)
    assert [set(epoch) for epoch in fitted.epochs] == [{"train_loss", "validation_loss"}] * 3


def test_same_seed_gives_the_same_network_and_another_seed_another(examples: Examples) -> None:
    state = torch.random.get_rng_state()
    first, second, other = (
        fit(examples, FitOptions(max_epochs=2, seed=seed)) for seed in (1, 1, 2)
    )
    assert first.epochs == second.epochs
    assert first.epochs != other.epochs
    weights = second.network.state_dict()
    for name, tensor in first.network.state_dict().items():
        assert torch.equal(tensor, weights[name]), name
    assert torch.equal(torch.random.get_rng_state(), state)


def test_fit_stops_when_the_hold_out_gets_no_better(examples: Examples) -> None:
    patient = FitOptions(max_epochs=50, patience_epochs=2, learning_rate=0.3)
    assert len(fit(examples, patient).epochs) < 50


def test_fit_starts_from_the_untrained_network(examples: Examples) -> None:
    still = fit(examples, FitOptions(max_epochs=1, learning_rate=0.0, seed=6))
    for name, tensor in Bundle.untrained(6).network.state_dict().items():
        assert torch.equal(still.network.state_dict()[name], tensor), name


class _InterruptAfter(pl.Callback):
    """Sends this process the signal of Ctrl-C in the middle of an epoch."""

    def __init__(self, epochs: int) -> None:
        self._epochs = epochs

    def on_train_batch_start(self, trainer: pl.Trainer, *_: object) -> None:
        if trainer.current_epoch == self._epochs:
            self._epochs = -1
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize(("whole_epochs", "kept"), [(0, 1), (2, 3)])
def test_ctrl_c_keeps_the_epochs_so_far_and_restores_the_handler(
    examples: Examples, monkeypatch: pytest.MonkeyPatch, whole_epochs: int, kept: int
) -> None:
    build = fit_module._trainer

    def interrupted(options: FitOptions, best: pl.Callback, *, progress: bool) -> pl.Trainer:
        trainer = build(options, best, progress=progress)
        trainer.callbacks.append(_InterruptAfter(whole_epochs))
        return trainer

    monkeypatch.setattr(fit_module, "_trainer", interrupted)
    handler = signal.getsignal(signal.SIGINT)
    fitted = fit(examples, FitOptions(max_epochs=50))
    assert fitted.interrupted
    assert len(fitted.epochs) == kept
    assert signal.getsignal(signal.SIGINT) is handler


def test_fit_whose_loss_is_never_a_number_is_an_error(examples: Examples) -> None:
    with pytest.raises(FitDiverged, match="no number in any of 1 epochs"):
        fit(examples, FitOptions(learning_rate=1e30))


def test_fit_runs_outside_the_main_thread(examples: Examples) -> None:
    epochs: list[int] = []
    thread = threading.Thread(target=lambda: epochs.append(len(fit(examples, BRIEF).epochs)))
    thread.start()
    thread.join()
    assert epochs == [3]
