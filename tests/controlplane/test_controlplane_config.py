from collections.abc import Callable
from pathlib import Path

import pytest

from controlplane.config import MAX_CLASSES, MAX_RULES, Config, load_config
from controlplane.config.table import config_table
from controlplane.errors import ConfigError
from controlplane.snapshot import ClassRule, Discipline
from dataplane.subscriber import messages as engine
from models.classes import LatePolicy, Slo, TaskClass

MINIMAL = "classes: {vip: {slo: {ttft_s: 1}}}\n"
Load = Callable[[str], Config]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def write_and_load(text: str) -> Config:
        path = tmp_path / "trimtab.yaml"
        path.write_text(text)
        return load_config(path)

    return write_and_load


def _problems(load: Load, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(text)
    return str(caught.value)


def test_classes_are_all_that_is_required(load: Load) -> None:
    config = load(MINIMAL)
    assert config.task_classes == (TaskClass("vip", Slo(1.0)),)
    assert config.listen == "127.0.0.1:9440"
    assert config.discipline is Discipline.APQ
    assert (config.tick_s, config.ttl_s) == (5.0, 30.0)


def test_a_class_carries_all_its_numbers_and_rules_keep_their_order(load: Load) -> None:
    config = load(
        """
classes:
  vip:
    slo: {ttft_s: 0.5, tpot_s: 0.1, e2e_s: 9}
    value: 8
    floor: 0.1
    late: demote
    max_wait_s: 3
  long: {slo: {ttft_s: 9}}
rules:
  - {task_class: long, min_prompt_tokens: 4096}
  - {task_class: vip, max_prompt_tokens: 100}
"""
    )
    assert config.task_classes[0] == TaskClass(
        "vip", Slo(0.5, 0.1, 9.0), value=8.0, floor=0.1, late=LatePolicy.DEMOTE, max_wait_s=3.0
    )
    assert config.class_rules == (ClassRule("long", 4096, None), ClassRule("vip", None, 100))


def test_environment_wins_over_the_file(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMTAB_PROMETHEUS__URL", "http://prom:1234")
    monkeypatch.setenv("TRIMTAB_TICK_S", "2")
    config = load(MINIMAL + "prometheus: {url: 'http://file:9', timeout_s: 1.5}\n")
    assert config.prometheus.url == "http://prom:1234"
    assert config.prometheus.timeout_s == 1.5
    assert config.tick_s == 2.0


def test_all_wrong_keys_are_named_at_once(load: Load, tmp_path: Path) -> None:
    text = _problems(
        load,
        "listen: nowhere\ntick_s: 0\nfoo: 1\n"
        "prometheus: {urll: x}\nclasses: {a: {slo: {ttft_s: -1}}}\n",
    )
    lines = text.splitlines()
    assert all(line.startswith(f"{tmp_path / 'trimtab.yaml'}: ") for line in lines)
    keys = {line.split(": ")[1] for line in lines}
    assert keys == {"listen", "tick_s", "foo", "prometheus.urll", "classes.a.slo.ttft_s"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("prometheus: {scrape_interval_s: 30, staleness_s: 20}", ["(30)", "(20)"]),
        ("rules: [{task_class: nope}]", ["rules.0.task_class", "'nope'", "(vip)"]),
        ("rules: [{task_class: vip, min_prompt_tokens: 9, max_prompt_tokens: 3}]", ["(9)", "(3)"]),
        ("tick_s: 7", ["(60 s)", "tick_s (7)"]),
        ("ttl_s: 6", ["ttl_s: 6", "tick_s (5)"]),
        ("prometheus: {timeout_s: 5}", ["prometheus.timeout_s: 5", "tick_s (5)"]),
        ("guardrails: {hold_after_missed: 6, static_after_missed: 6}", ["(6)", "hold_after"]),
        ("metrics_listen: 127.0.0.1:9440", ["127.0.0.1:9440", "listen"]),
        ("canary: {block_s: 20}", ["block_s: 20", "washout_s (15)", "tick_s (5)"]),
        ("canary: {washout_s: 60}", ["canary.block_s: 60", "washout_s (60)"]),
        ("dither: {amplitude: 0.08}", ["0.32", "max_log_share_step (0.2)"]),
        ("listen: 192.0.2.1:9440", ["192.0.2.1", "no TLS"]),
        ("listen: example.org:9440", ["example.org", "no TLS"]),
        ("listen: 127.0.0.1:99999", ["host:port"]),
        ("store: {retention: 5}", ["store.retention", "no such option"]),
    ],
)
def test_contradiction_names_what_contradicts(load: Load, text: str, expected: list[str]) -> None:
    problems = _problems(load, f"{MINIMAL}{text}\n")
    for part in expected:
        assert part in problems


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("rules: [{task_class: vip, min_prompt_tokens: 4294967296}]", "rules.0.min_prompt_tokens"),
        ("rules: [{task_class: vip, max_prompt_tokens: 4294967296}]", "rules.0.max_prompt_tokens"),
        ("rules: [" + "{task_class: vip}, " * 257 + "]", "rules"),
        ("store: {retention_snapshots: 10000000000000000000}", "store.retention_snapshots"),
        ("limits: {max_message_bytes: 2147483648}", "limits.max_message_bytes"),
    ],
)
def test_number_that_the_protocol_or_the_store_can_not_hold_is_refused(
    load: Load, text: str, key: str
) -> None:
    assert f"trimtab.yaml: {key}: " in _problems(load, f"{MINIMAL}{text}\n")


def test_as_many_classes_and_rules_as_an_engine_takes_are_accepted(load: Load) -> None:
    classes = {f"c{number}": "{slo: {ttft_s: 1}}" for number in range(MAX_CLASSES + 1)}
    lines = [f"  {name}: {section}" for name, section in classes.items()]
    rules = "rules: [" + "{task_class: c0}, " * MAX_RULES + "]"
    config = load("\n".join(["classes:", *lines[:-1], rules]))
    assert (len(config.classes), len(config.rules)) == (MAX_CLASSES, MAX_RULES)
    assert (MAX_CLASSES, MAX_RULES) == (engine.MAX_CLASSES, engine.MAX_RULES)
    assert "classes: " in _problems(load, "\n".join(["classes:", *lines]))


def test_floors_that_leave_no_room_are_refused(load: Load) -> None:
    problems = _problems(
        load, "classes: {a: {slo: {ttft_s: 1}, floor: 0.6}, b: {slo: {ttft_s: 1}, floor: 0.5}}"
    )
    assert "a 0.6, b 0.5" in problems
    assert "1.1" in problems


def test_several_contradictions_are_named_at_once(load: Load) -> None:
    problems = _problems(load, f"{MINIMAL}tick_s: 7\nttl_s: 8\nrules: [{{task_class: x}}]\n")
    assert len(problems.splitlines()) == 3


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("classes: {a: {slo: {ttft_s: 1}}, a: {slo: {ttft_s: 2}}}", "'a' stands here twice"),
        ("classes: [", "not valid YAML"),
        ("- 1\n- 2\n", "must be a mapping"),
        ("1: 2\n", "must be a mapping"),
        ("", "classes: Field required"),
        ("classes: {}", "classes"),
        ("? [a]\n: b\n", "can't be a key"),
        ("tick_s: 2024-13-45", "can't be read: month"),
        ("tick_s: !!int abc", "can't be read: invalid literal"),
        ("tick_s: " + "9" * 5000, "can't be read"),
        ("[" * 5000, "nested too deeply"),
        ("classes: {'a b': {slo: {ttft_s: 1}}}", "a b"),
    ],
)
def test_file_that_is_no_configuration_is_refused(load: Load, text: str, expected: str) -> None:
    assert expected in _problems(load, text)


def test_unreadable_file_is_refused_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.yaml: can't be read: No such file"):
        load_config(tmp_path / "absent.yaml")
    with pytest.raises(ConfigError, match="Is a directory"):
        load_config(tmp_path)
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_config(binary)


def test_environment_that_is_no_json_is_refused(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIMTAB_CLASSES", "{nope")
    assert "environment" in _problems(load, MINIMAL)


def test_example_in_deploy_is_valid() -> None:
    config = load_config(ROOT / "deploy" / "trimtab.yaml")
    assert len(config.classes) == 5
    assert config.class_rules[0].task_class == "long_prompt"


def test_table_has_a_row_with_a_meaning_for_every_option() -> None:
    rows = config_table().splitlines()[2:]
    assert "| `tick_s` | `5.0` | time between two decisions |" in rows
    assert any(row.startswith("| `classes.NAME.slo.ttft_s` | required |") for row in rows)
    assert all(row.split("|")[3].strip() for row in rows)
