import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.sim.recording import FILE, Recording, RecordingScheduler
from benchmarks.sim.sweep import calibrate
from benchmarks.stack.inprocess import InProcessEngine, RequestMaker, SchedulerSize
from benchmarks.stack.inprocess import running_scheduler as running
from training.errors import NotEnoughSteps

SIZES = {
    "slots": 32,
    "step_tokens": 256,
    "chunk_tokens": 64,
    "longest_tokens": 4096,
    "kv_blocks": 999,
    "block_tokens": 16,
}


def written(folder: Path, rows: list[list[object]], rest: str = "") -> Path:
    lines = [SIZES, *rows]
    (folder / FILE).write_text("".join(json.dumps(line) + "\n" for line in lines) + rest)
    return folder


def test_a_step_lasts_until_the_next_begins_while_requests_are_left(tmp_path: Path) -> None:
    rows: list[list[object]] = [
        [10.0 + step, 10.4 + step, step % 40 != 39, [8, 1, 16, 0]] for step in range(80)
    ]
    rows.insert(5, [14.5, 14.6, True, [0, 0, 16, 0]])
    recording = Recording.read(written(tmp_path, rows, rest="[99.0, 99.1, true, [1"))
    samples = recording.samples
    assert len(samples.elapsed_s) == 80, "an empty step is none"
    assert samples.elapsed_s[0] == pytest.approx(1.0)
    assert samples.elapsed_s[39] == pytest.approx(0.4), "nothing was left to do"
    assert samples.loads[0].tolist() == [1, 8, 1, 16, 0]
    with pytest.raises(NotEnoughSteps):
        _ = recording.between(10.0, 12.0).samples


def test_a_calibration_has_the_recorded_engines_sizes_and_speed(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    truth = np.array([5e-3, 4e-4, 1e-3, 2e-7, 1e-8])
    rows: list[list[object]] = []
    now_s = 0.0
    for _ in range(300):
        load = [int(rng.choice([0, 64, 200])), int(rng.integers(1, 33)), 0, 0]
        load[2] = load[1] * int(rng.integers(20, 800))
        load[3] = load[0] * int(rng.integers(0, 1500))
        elapsed_s = float(truth @ [1, *load])
        rows.append([now_s, now_s + elapsed_s, False, load])
        now_s += 1.0
    found = calibrate(Recording.read(written(tmp_path, rows)), client_overhead_s=0.007)
    assert found.coefficients == pytest.approx(truth, rel=1e-4)
    assert found.engine.client_overhead_s == 0.007
    assert {name: getattr(found.engine, name) for name in SIZES} == SIZES
    assert found.steps == 300
    assert found.step_error_ratio == pytest.approx(0, abs=1e-6)


def test_the_recording_scheduler_notes_what_each_step_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    size = SchedulerSize(
        max_num_seqs=4,
        max_num_batched_tokens=64,
        max_model_len=1024,
        blocks=101,
        in_flight=1,
        prefix_caching=False,
    )
    with running(RecordingScheduler, size) as scheduler:
        engine = InProcessEngine(scheduler, in_flight=1)
        maker = RequestMaker(size)
        engine.add([maker.make("long", prompt_token_ids=[7] * 150, max_tokens=3)])
        while not engine.is_idle:
            engine.step()
    recording = Recording.read(tmp_path)
    assert recording.sizes.kv_blocks == 100
    assert recording.sizes.slots == 4
    assert recording.sizes.longest_tokens == 1024
    worked = recording.loads[recording.loads[:, 1:3].sum(axis=1) > 0]
    prefill, decoding, _, context = worked[:, 1:].T.tolist()
    assert prefill == [64, 64, 22, 0, 0]
    assert decoding == [0, 0, 0, 1, 1]
    assert context == [0, 64 * 64, 22 * 128, 0, 0]
    assert not recording.busy[-1]
    assert (recording.end_s >= recording.start_s).all()
