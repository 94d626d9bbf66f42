"""Fitting the network to examples, on the CPU.

The same seed and examples give the same network. How many threads torch may use is for the
process to say.
"""

import copy
import logging
import signal
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

import numpy as np
import pytorch_lightning as pl
import torch
from numpy.typing import NDArray
from pytorch_lightning.callbacks import Callback, EarlyStopping, RichProgressBar
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, TensorDataset

from models.lstm import ResidualLstm
from training.dataset import MIN_EXAMPLES, Examples
from training.errors import FitDiverged
from training.online.anchor import Anchor
from training.online.batches import HalfAndHalf
from training.task import ViolationTask, masked_cross_entropy


@dataclass(frozen=True, slots=True)
class FitOptions:
    """How to fit.

    Attributes:
        max_epochs: passes over the examples, at most.
        patience_epochs: passes without a better hold-out loss before it stops.
        holdout_ratio: newest part of the examples, which is not learned from.
        seed: of the initial weights and of the order of examples.
        min_examples: with fewer there is no fit.
    """

    max_epochs: int = 100
    patience_epochs: int = 20
    batch_size: int = 32
    learning_rate: float = 5e-3
    weight_decay: float = 1e-3
    holdout_ratio: float = 0.2
    seed: int = 0
    min_examples: int = MIN_EXAMPLES


@dataclass(frozen=True, slots=True, eq=False)
class WarmStart:
    """Fine-tuning what serves, instead of a fresh network.

    Attributes:
        network: to start from and to stay near of; it is left as it is.
        anchor_strength: of the pull back to its parameters.
        kept: examples of earlier times, half of each batch; None: there are none yet.
        champion: to compare the forecast with; None: it has none.
        forecast_only: what also steers stays exactly as it is.
    """

    network: ResidualLstm
    anchor_strength: float
    kept: Examples | None
    champion: ResidualLstm | None = None
    forecast_only: bool = False


@dataclass(frozen=True, slots=True)
class Fitted:
    """What a fit gave.

    Attributes:
        network: of the epoch with the lowest hold-out loss.
        metrics: losses on the hold-out, of the network, of the champion if it forecasts anything,
            and of the two forecasts that know nothing: all stays as it was
            (persistence), and each class's mean (constant).
        held_out: the examples that it was not fitted to.
        epochs: ``train_loss`` and ``validation_loss`` of each epoch.
        interrupted: stopped by Ctrl-C after these epochs.
    """

    network: ResidualLstm
    metrics: Mapping[str, float]
    epochs: tuple[Mapping[str, float], ...]
    interrupted: bool
    held_out: Examples


def fit(
    examples: Examples,
    options: FitOptions,
    *,
    warm: WarmStart | None = None,
    progress: bool = False,
) -> Fitted:
    """Fit a fresh network, or go on with one. Ctrl-C ends the fit and keeps the best epoch so far.

    Raises:
        FitDiverged: the loss was no number in any epoch.
    """
    known, held_out = examples.split(options.holdout_ratio)
    with torch.random.fork_rng(devices=[]), _quiet_lightning():
        torch.manual_seed(options.seed)
        network = ResidualLstm() if warm is None else copy.deepcopy(warm.network).train()
        best = _BestEpoch(network)
        trainer = _trainer(options, best, progress=progress)
        task = ViolationTask(
            network,
            learning_rate=options.learning_rate,
            weight_decay=options.weight_decay,
            anchor=None if warm is None else Anchor(warm.network, warm.anchor_strength),
            forecast_only=warm is not None and warm.forecast_only,
        )
        with _stop_on_sigint(trainer) as stopped:
            trainer.fit(
                task,
                train_dataloaders=_training_batches(
                    known, None if warm is None else warm.kept, options.batch_size
                ),
                val_dataloaders=DataLoader(_tensors(held_out), batch_size=len(held_out)),
            )
    if best.weights is None:
        raise FitDiverged(f"the loss was no number in any of {len(best.epochs)} epochs")
    network.load_state_dict(best.weights)
    return Fitted(
        network=network.eval(),
        metrics={
            **_metrics(known, held_out, validation_loss=best.loss),
            **_against(
                None if warm is None else warm.champion, held_out, validation_loss=best.loss
            ),
        },
        epochs=tuple(best.epochs),
        interrupted=stopped.is_set(),
        held_out=held_out,
    )


class _BestEpoch(Callback):
    """Keeps the losses of every epoch and the weights of the best."""

    def __init__(self, network: ResidualLstm) -> None:
        self._network = network
        self.loss = float("inf")
        self.weights: dict[str, Tensor] | None = None
        self.epochs: list[dict[str, float]] = []

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: ARG002 - Lightning's signature
        """The hold-out was scored just before, with the same weights."""
        losses = {
            name: float(trainer.callback_metrics[name])
            for name in ("train_loss", "validation_loss")
        }
        self.epochs.append(losses)
        if losses["validation_loss"] < self.loss:
            self.loss = losses["validation_loss"]
            state = self._network.state_dict()
            self.weights = {name: tensor.clone() for name, tensor in state.items()}


def _trainer(options: FitOptions, best: _BestEpoch, *, progress: bool) -> pl.Trainer:
    stopping = EarlyStopping(
        "validation_loss", patience=options.patience_epochs, check_on_train_epoch_end=False
    )
    return pl.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=options.max_epochs,
        gradient_clip_val=1.0,
        callbacks=[best, stopping, *([RichProgressBar()] if progress else [])],
        logger=False,  # the registry logs the run
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=progress,
        num_sanity_val_steps=0,
        log_every_n_steps=1,
    )


def _training_batches(
    recent: Examples, kept: Examples | None, size: int
) -> DataLoader[tuple[Tensor, ...]]:
    if kept is None:
        return DataLoader(_tensors(recent), batch_size=size, shuffle=True)
    halves = HalfAndHalf(len(recent), len(kept), size)
    both: ConcatDataset[tuple[Tensor, ...]] = ConcatDataset([_tensors(recent), _tensors(kept)])
    return DataLoader(both, batch_sampler=halves)


def _tensors(examples: Examples) -> TensorDataset:
    parts = (examples.features, examples.target, examples.mask)
    return TensorDataset(*(torch.from_numpy(np.ascontiguousarray(part)) for part in parts))


def _metrics(known: Examples, held_out: Examples, *, validation_loss: float) -> dict[str, float]:
    persistence = _loss_of_forecast(held_out.persistence, held_out)
    seen = known.mask.sum(axis=0)  # [C]
    mean = (known.target * known.mask).sum(axis=0) / np.maximum(seen, 1)  # [C]
    overall = known.target[known.mask].mean()
    constant = np.where(seen > 0, mean, overall)  # [C]
    return {
        "examples": len(known),
        "holdout_examples": len(held_out),
        "validation_loss": validation_loss,
        "persistence_loss": persistence,
        "constant_loss": _loss_of_forecast(
            np.broadcast_to(constant, held_out.mask.shape), held_out
        ),
        "gain_over_persistence_ratio": 1 - validation_loss / persistence,
    }


def _against(
    champion: ResidualLstm | None, held_out: Examples, *, validation_loss: float
) -> dict[str, float]:
    if champion is None:
        return {}
    with torch.inference_mode():
        logits = champion.logits(torch.from_numpy(held_out.features))  # [N, C]
    loss = masked_cross_entropy(
        logits, torch.from_numpy(held_out.target), torch.from_numpy(held_out.mask)
    )
    return {
        "champion_loss": float(loss),
        "gain_over_champion_ratio": 1 - validation_loss / float(loss),
    }


def _loss_of_forecast(forecast: NDArray[np.float32], examples: Examples) -> float:
    """The loss of a forecast [N, C] in (0, 1), on the scale of the network's."""
    logits = torch.logit(torch.tensor(forecast, dtype=torch.float64))  # [N, C]
    target = torch.tensor(examples.target, dtype=torch.float64)  # [N, C]
    return float(masked_cross_entropy(logits, target, torch.tensor(examples.mask)))


@contextmanager
def _stop_on_sigint(trainer: pl.Trainer) -> Iterator[threading.Event]:
    """Let Ctrl-C end the fit once the first epoch is over; a second one is as usual.

    Lightning's own handling leaves the process with SIGINT ignored and exits.
    """
    stopped = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopped  # only the main thread may, or need, handle signals
        return

    def stop(_signal: int, _frame: FrameType | None) -> None:
        stopped.set()
        trainer.should_stop = True
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _quiet_lightning() -> Iterator[None]:
    """Keep its notes on hardware and its advice on worker processes to itself."""
    logger = logging.getLogger("pytorch_lightning")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*does not have many workers")
            warnings.filterwarnings("ignore", ".*LeafSpec.* is deprecated")  # its own use of torch
            yield
    finally:
        logger.setLevel(level)
