"""The plugin's scheduler, and a line in a file for each step of the engine.

Started by ``--scheduler-cls benchmarks.sim.recording.RecordingScheduler``. The plugin's own
statistics are sums; what is fitted and judged here are single steps.
"""

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput

from dataplane.scheduler import TrimtabScheduler
from training.simulator.step_fit import StepSamples

SCHEDULER = "benchmarks.sim.recording.RecordingScheduler"
FILE = "steps.jsonl"
"""In the folder of the engine's metrics, which is the one folder that it is told."""


@dataclass(frozen=True, slots=True)
class EngineSizes:
    """What the engine schedules with. Attributes: chunk_tokens: 0: no limit."""

    slots: int
    step_tokens: int
    chunk_tokens: int
    longest_tokens: int
    kv_blocks: int
    block_tokens: int


class RecordingScheduler(TrimtabScheduler):
    """Writes the engine's sizes, then a line ``start_s, end_s, busy, load`` for each step.

    ``busy`` says whether requests are left at the end; the next step then follows at once.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        folder = Path(os.environ["PROMETHEUS_MULTIPROC_DIR"])
        self._lines = (folder / FILE).open("w", buffering=1, encoding="utf-8")
        self._started_s = 0.0
        self._load: list[int] = []
        sizes = EngineSizes(
            slots=self.max_num_active_reqs,
            step_tokens=self._view.step_tokens,
            chunk_tokens=self.scheduler_config.long_prefill_token_threshold,
            longest_tokens=self.max_model_len,
            kv_blocks=self._view.total_blocks - 1,  # vLLM keeps one for itself
            block_tokens=self._view.block_tokens,
        )
        self._lines.write(json.dumps(asdict(sizes)) + "\n")

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:  # noqa: FBT001, FBT002 - vLLM's signature
        """Note what the step computes."""
        self._started_s = time.perf_counter()
        prompts = set(self._view.prompt_ids())
        output = super().schedule(throttle_prefills)
        prompts.update(new.req_id for new in output.scheduled_new_reqs)
        prompts.update(output.scheduled_cached_reqs.resumed_req_ids)
        self._load = self._load_of(output.num_scheduled_tokens, prompts)
        return output

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> Any:
        """Note when it ended."""
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        line = [self._started_s, time.perf_counter(), self.has_unfinished_requests(), self._load]
        self._lines.write(json.dumps(line) + "\n")
        return outputs

    def shutdown(self) -> None:
        """Close the file."""
        self._lines.close()
        super().shutdown()

    def _load_of(self, scheduled: dict[str, int], prompts: set[str]) -> list[int]:
        """Prefill tokens, decoding sequences, KV tokens, and chunk tokens times context."""
        chunks = {name: tokens for name, tokens in scheduled.items() if name in prompts}
        context = sum(
            tokens * (self.requests[name].num_computed_tokens - tokens)
            for name, tokens in chunks.items()
        )
        decoding = len(scheduled) - len(chunks)
        kv_tokens = self._view.kv_tokens() - self._view.block_tokens  # without vLLM's own block
        return [sum(chunks.values()), decoding, kv_tokens, context]


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """The steps of an engine, up to the moment of reading.

    Attributes:
        start_s: [N] on the machine's monotonic clock, as ``time.perf_counter``.
        end_s: [N].
        busy: [N] whether requests were left at the end.
        loads: [N, 5] as in ``StepSamples``.
    """

    sizes: EngineSizes
    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    busy: NDArray[np.bool_]
    loads: NDArray[np.float64]

    @classmethod
    def read(cls, folder: Path) -> "Recording":
        """From the engine's metrics folder; a line that is being written is left out."""
        text = (folder / FILE).read_text(encoding="utf-8")
        first, *lines = text[: text.rfind("\n")].splitlines()
        rows = [json.loads(line) for line in lines]
        return cls(
            sizes=EngineSizes(**json.loads(first)),
            start_s=np.array([row[0] for row in rows], dtype=np.float64),
            end_s=np.array([row[1] for row in rows], dtype=np.float64),
            busy=np.array([row[2] for row in rows], dtype=np.bool_),
            loads=np.array([[1, *row[3]] for row in rows], dtype=np.float64).reshape(-1, 5),
        )

    def between(self, start_s: float, end_s: float) -> "Recording":
        """The steps that ran within a stretch of time."""
        inside = (self.start_s >= start_s) & (self.end_s <= end_s)
        return Recording(
            self.sizes,
            self.start_s[inside],
            self.end_s[inside],
            self.busy[inside],
            self.loads[inside],
        )

    @property
    def samples(self) -> StepSamples:
        """The steps as the simulator understands them: one follows the other.

        While requests are left, a step lasts until the next one begins: what the engine does
        between two steps is part of what a step costs. Steps that computed nothing are left out.

        Raises:
            NotEnoughSteps: there are too few.
        """
        following_s = np.append(self.start_s[1:], np.inf)
        end_s = np.where(self.busy & np.isfinite(following_s), following_s, self.end_s)
        worked = self.loads[:, 1:3].sum(axis=1) > 0
        return StepSamples((end_s - self.start_s)[worked], self.loads[worked])
