"""An engine as Prometheus sees it: the plugin's metrics and nothing behind them."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

CLASSES = ("vip", "batch")


class EngineMetrics:
    """The plugin's metrics, as docs/architecture.md names them, on a port."""

    def __init__(self, port: int = 0) -> None:
        registry = CollectorRegistry()
        label = ("task_class",)
        self.arrived = Counter("trimtab_requests_arrived", "-", label, registry=registry)
        self.finished = Counter(
            "trimtab_requests_finished", "-", ("task_class", "outcome"), registry=registry
        )
        self.prompt = Counter("trimtab_prompt_tokens", "-", label, registry=registry)
        self.generation = Counter("trimtab_generation_tokens", "-", label, registry=registry)
        self.ttft = Histogram("trimtab_ttft_seconds", "-", label, registry=registry)
        self.waiting = Gauge("trimtab_waiting_requests", "-", label, registry=registry)
        self.past = Gauge("trimtab_waiting_past_slo_requests", "-", label, registry=registry)
        self.oldest = Gauge("trimtab_oldest_wait_seconds", "-", label, registry=registry)
        for name in CLASSES:
            for metric in (
                *(self.arrived, self.prompt, self.generation, self.ttft),
                *(self.waiting, self.past, self.oldest),
            ):
                metric.labels(name)
            for outcome in ("met", "late", "failed", "aborted"):
                self.finished.labels(name, outcome)
        self._server, self._thread = start_http_server(port, "127.0.0.1", registry)
        self.port = self._server.server_port

    def serve_one(self, name: str, outcome: str) -> None:
        self.arrived.labels(name).inc()
        self.prompt.labels(name).inc(100)
        self.generation.labels(name).inc(10)
        self.ttft.labels(name).observe(0.25)
        self.finished.labels(name, outcome).inc()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
