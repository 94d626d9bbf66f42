"""The commands against a real loopback server."""

import asyncio
import json
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import Result
from door import Door
from typer.testing import CliRunner

from cli.main import app
from controlplane.snapshot import ClassDecision, Feature, Mode, Plan, unexplained_plan
from models.classes import TaskClass

PLAN = Plan(
    Mode.LEARNED,
    "champion 3",
    (
        ClassDecision("vip", 0.7, 0.6, 0.125, (Feature("demand_share", None),), ("step",)),
        ClassDecision("batch", 0.3, 0.4, -0.125, (Feature("demand_share", 0.5),)),
    ),
    model_version="3",
    window_end_unix_s=1_700_000_000.0,
)


async def _run(*arguments: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, app, arguments)


@pytest.fixture
def taken_address() -> Iterator[str]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture
def silent_address() -> Iterator[str]:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # and not listening
        yield f"127.0.0.1:{bound.getsockname()[1]}"


async def test_get_shows_a_table_for_people_and_json_for_programs(door: Door) -> None:
    await door.publisher.publish(PLAN)
    table = await _run("weights", "get", "--address", door.address)
    assert table.exit_code == 0
    assert "version 1, learned, apq" in table.stdout
    assert "0.7000" in table.stdout
    line = await _run("weights", "get", "--address", door.address, "--json")
    snapshot = json.loads(line.stdout)
    assert [policy["weight"] for policy in snapshot["classes"]] == [0.7, 0.3]
    assert (snapshot["mode"], snapshot["model_version"]) == ("learned", "3")


async def test_get_names_the_trial_under_way(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    await door.publisher.publish(PLAN)
    assert "canary" not in (await _run("weights", "get", "--address", door.address)).stdout
    monkeypatch.setattr(door.desk, "_canary", lambda: "challenger 4 on trial")
    shown = await _run("weights", "get", "--address", door.address)
    assert shown.stdout.splitlines()[-1] == "canary: challenger 4 on trial"


async def test_watch_prints_a_line_per_snapshot_until_the_control_plane_leaves(door: Door) -> None:
    await door.publisher.publish(PLAN)
    watching = asyncio.create_task(_run("weights", "watch", "--address", door.address, "--json"))
    async with asyncio.timeout(10.0):
        while door.broadcast.listeners == 0:  # noqa: ASYNC110 - the watcher is another thread
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    await door.publisher.publish(PLAN)
    await asyncio.sleep(0.1)
    door.broadcast.close()
    result = await watching
    assert [json.loads(line)["version"] for line in result.stdout.splitlines()] == [1, 2]
    assert result.exit_code == 3
    assert "ended the stream" in result.stderr


async def test_explain_shows_how_each_weight_came_about(door: Door) -> None:
    await door.publisher.publish(PLAN)
    table = await _run("explain", "1", "--address", door.address)
    assert table.exit_code == 0
    for part in ("demand_share", "rule share", "0.1250", "step", "0.7000", "champion 3"):
        assert part in table.stdout
    line = await _run("explain", "1", "--address", door.address, "--json")
    assert json.loads(line.stdout)["plan"]["classes"][0]["rule_share"] == 0.6


async def test_explain_of_an_unknown_version_is_a_usage_error(door: Door) -> None:
    await door.publisher.publish(PLAN)
    result = await _run("explain", "77", "--address", door.address)
    assert result.exit_code == 2
    assert "version 77" in result.stderr
    assert "fix:" in result.stderr


@pytest.mark.parametrize("version", [2**63 - 1, 2**63, 2**64 - 1, 2**64])
async def test_explain_of_a_version_of_any_size_is_a_usage_error(door: Door, version: int) -> None:
    await door.publisher.publish(PLAN)
    result = await _run("explain", str(version), "--address", door.address)
    assert result.exit_code == 2
    assert "version" in result.stderr


@pytest.mark.parametrize("quoted", ["[/b] <html>", "[red", "[/", "\\[bold]"])
async def test_reason_that_quotes_markup_is_shown_as_it_is(
    door: Door, task_classes: tuple[TaskClass, ...], quoted: str
) -> None:
    plan = unexplained_plan(Mode.STATIC, quoted, task_classes, (0.7, 0.3))
    await door.publisher.publish(plan)
    for command in (("weights", "get"), ("explain", "1")):
        result = await _run(*command, "--address", door.address)
        assert result.exit_code == 0
        assert quoted in result.stdout


async def test_doctor_shows_what_others_answered_as_it_is(
    tmp_path: Path, silent_address: str
) -> None:
    config = tmp_path / "trimtab.yaml"
    url = f"http://{silent_address}/[/b]"
    config.write_text(
        f"listen: {silent_address}\nmetrics_listen: 127.0.0.1:0\nprometheus: {{url: '{url}'}}\n"
        f"registry: {{tracking_uri: 'sqlite:///{tmp_path}/mlflow.db'}}\n"
        "classes: {vip: {slo: {ttft_s: 1}}}\n"
    )
    result = await _run("doctor", "--config", str(config))
    assert result.exit_code == 1
    assert f"prometheus: {url} does not answer" in result.stdout


@pytest.mark.parametrize("command", [("weights", "get"), ("weights", "watch"), ("explain", "1")])
async def test_nobody_there_is_unavailable(command: tuple[str, ...], silent_address: str) -> None:
    result = await _run(*command, "--address", silent_address)
    assert result.exit_code == 3
    assert silent_address in result.stderr
    assert "trimtab serve" in result.stderr


@pytest.mark.parametrize("key", ["listen", "metrics_listen"])
async def test_serve_on_a_taken_port_is_a_usage_error(
    tmp_path: Path, taken_address: str, key: str
) -> None:
    other = "metrics_listen" if key == "listen" else "listen"
    config = tmp_path / "trimtab.yaml"
    config.write_text(
        f"{key}: {taken_address}\n{other}: 127.0.0.1:0\n"
        f"store: {{path: {tmp_path / 'trimtab.db'}}}\n"
        "classes: {vip: {slo: {ttft_s: 1}}}\n"
    )
    # A process of its own: it handles signals, which a thread can't.
    result = await _serve(config)
    assert result[0] == 2
    assert f"{taken_address} is in use" in result[1]
    assert "fix:" in result[1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("classes: {vip: {}}", "classes.vip.slo: Field required"),
        ("classes: {vip: {slo: {ttft_s: 1}}}\nrules: [{task_class: x}]", "'x' is not one of"),
    ],
)
async def test_serve_with_a_wrong_configuration_is_a_usage_error(
    tmp_path: Path, text: str, expected: str
) -> None:
    config = tmp_path / "trimtab.yaml"
    config.write_text(text)
    result = await _run("serve", "--config", str(config))
    assert result.exit_code == 2
    assert expected in result.stderr
    missing = await _run("serve", "--config", str(tmp_path / "absent.yaml"))
    assert missing.exit_code == 2
    assert "absent.yaml" in missing.stderr


async def test_serve_on_a_damaged_store_is_a_usage_error(tmp_path: Path) -> None:
    store = tmp_path / "trimtab.db"
    store.write_text("no database " * 100)
    config = tmp_path / "trimtab.yaml"
    config.write_text(
        "listen: 127.0.0.1:0\nmetrics_listen: 127.0.0.1:0\n"
        f"store: {{path: {store}}}\nclasses: {{vip: {{slo: {{ttft_s: 1}}}}}}\n"
    )
    code, stderr = await _serve(config)
    assert code == 2
    assert "trimtab.db" in stderr


async def test_serve_ends_in_order_while_prometheus_and_the_registry_hang(tmp_path: Path) -> None:
    writers: list[asyncio.StreamWriter] = []

    async def drip(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        writer.write(b"HTTP/1.0 200 OK\r\n\r\n")
        with suppress(ConnectionError):
            while True:
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.2)

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    config = tmp_path / "trimtab.yaml"
    config.write_text(
        "listen: 127.0.0.1:0\nmetrics_listen: 127.0.0.1:0\n"
        f"prometheus: {{url: '{url}'}}\nregistry: {{tracking_uri: '{url}'}}\n"
        f"store: {{path: {tmp_path / 'trimtab.db'}}}\nclasses: {{vip: {{slo: {{ttft_s: 1}}}}}}\n"
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "cli", "serve", "--config", str(config)),
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    async with asyncio.timeout(60.0):
        while b'"serving"' not in await process.stderr.readline():
            pass
        await asyncio.sleep(5.0)  # into the import of the registry and the first window
    process.terminate()
    _, stderr = await asyncio.wait_for(process.communicate(), 25.0)
    assert (process.returncode, b'"stopped"' in stderr) == (0, True)
    server.close()
    for writer in writers:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def _serve(config: Path) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "cli", "serve", "--config", str(config)),
        stderr=asyncio.subprocess.PIPE,
    )
    _, stderr = await asyncio.wait_for(process.communicate(), 60.0)
    return process.returncode, stderr.decode()
