from prometheus_client.parser import text_string_to_metric_families

from benchmarks.engine_metrics import parse_engine, read_engine

SCRAPE = """
# TYPE trimtab_waiting_requests gauge
trimtab_waiting_requests{task_class="vip"} 3.0
trimtab_waiting_requests{task_class="free"} 0.0
# TYPE trimtab_class_weight gauge
trimtab_class_weight{task_class="vip"} 0.75
# TYPE trimtab_snapshot_version gauge
trimtab_snapshot_version 12.0
# TYPE trimtab_neutral gauge
trimtab_neutral 0.0
# TYPE trimtab_snapshots_total counter
trimtab_snapshots_total{result="applied"} 9.0
trimtab_snapshots_total{result="refused"} 1.0
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{engine="0",model_name="m"} 2.0
"""


def test_the_plugins_figures_are_read() -> None:
    reading = parse_engine(text_string_to_metric_families(SCRAPE))
    assert reading.waiting == {"vip": 3.0, "free": 0.0}
    assert reading.weights == {"vip": 0.75}
    assert reading.snapshot_version == 12
    assert reading.snapshots_applied == 9
    assert reading.neutral is False
    assert reading.preemptions == 2


def test_a_counter_that_has_another_name_in_another_vllm_is_found() -> None:
    older = SCRAPE.replace("num_preemptions_total", "num_preemptions").replace(
        "preemptions counter", "preemptions gauge"
    )
    assert parse_engine(text_string_to_metric_families(older)).preemptions == 2


def test_what_is_not_exported_is_unknown_not_zero() -> None:
    reading = parse_engine(text_string_to_metric_families(""))
    assert reading.snapshot_age_s is None
    assert reading.preemptions is None
    assert reading.snapshots_applied is None


def test_an_engine_that_is_away_has_no_reading() -> None:
    assert read_engine("http://127.0.0.1:9") is None
