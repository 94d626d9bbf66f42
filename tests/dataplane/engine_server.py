"""A running engine, as the tests see it."""

import itertools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx
from loopback_control_plane import ControlPlane, eventually, push, snapshot
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.stack.engine import MODEL_NAME, VllmEngine


class Server:
    """One running engine and the control plane that it follows."""

    def __init__(self, engine: VllmEngine, control_plane_port: int = 0) -> None:
        self.engine = engine
        self.control_plane_port = control_plane_port
        self.http = httpx.Client(base_url=engine.url, timeout=120.0)
        self._versions = itertools.count(1)

    def complete(self, prompt: str, task_class: object = None, **fields: object) -> httpx.Response:
        body = {
            "model": MODEL_NAME,
            "prompt": prompt,
            "max_tokens": 24,
            "temperature": 0,
            "ignore_eos": True,
            **({} if task_class is None else {"vllm_xargs": {"task_class": task_class}}),
            **fields,
        }
        return self.http.post("/v1/completions", json=body)

    def tokens(self, prompt: str, **fields: object) -> list[int]:
        answer = self.complete(prompt, return_token_ids=True, **fields).raise_for_status().json()
        token_ids: list[int] = answer["choices"][0]["token_ids"]
        return token_ids

    def value(self, name: str, **labels: str) -> float | None:
        page = self.http.get("/metrics").text
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                if sample.name == name and sample.labels == labels:
                    return float(sample.value)
        return None

    def arrived(self, task_class: str) -> float:
        return self.value("trimtab_requests_arrived_total", task_class=task_class) or 0.0

    def finished(self, task_class: str, outcome: str) -> float:
        labels = {"task_class": task_class, "outcome": outcome}
        return self.value("trimtab_requests_finished_total", **labels) or 0.0

    def waits(self, task_class: str, count: int) -> bool:
        return self.value("trimtab_waiting_requests", task_class=task_class) == count

    @contextmanager
    def all_slots_taken(self, slots: int, task_class: str = "default") -> Iterator[None]:
        """So many requests that run until the context ends."""
        body = {
            "model": MODEL_NAME,
            "prompt": "a",
            "max_tokens": 4000,
            "stream": True,
            "ignore_eos": True,
            "vllm_xargs": {"task_class": task_class},
        }
        with ExitStack() as streams:
            answers = []
            for _ in range(slots):
                stream = streams.enter_context(
                    self.http.stream("POST", "/v1/completions", json=body)
                )
                # Kept: an iterator that is dropped takes its connection along.
                answers.append(stream.iter_lines())
                next(answers[-1])
            yield

    def publish(self, plane: ControlPlane, **fields: object) -> None:
        """Push a newer snapshot and wait until it is in force."""
        version = next(self._versions)
        plane.say.put(push(snapshot(version, **fields), nonce=str(version)))
        eventually(lambda: any(m.ack.version == version for m in plane.of_kind("ack")))
