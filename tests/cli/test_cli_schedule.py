import json
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from typer.testing import CliRunner

from cli.main import app
from cli.schedule import run_of_schedule
from controlplane.clock import SystemClock
from training.schedule.folder import StateFolder
from training.schedule.journal import StartedBy, Timetable

ROOT = Path(__file__).resolve().parents[2]
RUNNER = CliRunner()


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "trimtab.yaml"
    path.write_text(
        f"training: {{state: {tmp_path}/state}}\n"
        f"registry: {{tracking_uri: 'sqlite:///{tmp_path}/mlflow.db'}}\n"
        "classes: {vip: {slo: {ttft_s: 1}}}\n"
    )
    return path


@pytest.fixture
def folder(tmp_path: Path) -> StateFolder:
    return StateFolder(tmp_path / "state")


def parsed(arguments: list[str]) -> dict[str, Any]:
    """The options of a command line, as the command would get them."""
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands"):
        name, *arguments = arguments
        command = command.commands[name]
    options: dict[str, Any] = command.make_context("command", list(arguments)).params
    return options


def test_cron_job_runs_a_command_that_exists() -> None:
    manifest = yaml.safe_load((ROOT / "deploy/cronjob.yaml").read_text())
    assert (manifest["apiVersion"], manifest["kind"]) == ("batch/v1", "CronJob")
    assert manifest["spec"]["concurrencyPolicy"] == "Forbid"
    pod = manifest["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    (container,) = pod["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["resources"].keys() == {"requests", "limits"}
    program, *arguments = container["command"]
    assert program == "trimtab"
    assert parsed(arguments)["since"] == 86_400
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}


def test_run_of_a_schedule_is_a_command_that_exists(config: Path) -> None:
    addresses = {"--prometheus": "http://127.0.0.1:1", "--control-plane": None}
    command = run_of_schedule(since_s=31_622_400, config=config, addresses=addresses)
    module = command.index("cli")
    options = parsed(list(command[module + 1 :]))
    assert options["since"] == 31_622_400
    assert options["started_by"] is StartedBy.SCHEDULE
    assert options["as_json"]
    assert (options["prometheus"], options["control_plane"]) == ("http://127.0.0.1:1", None)
    assert (options["gate"], options["promote"]) == (True, False)
    command = run_of_schedule(since_s=600.0, config=config, addresses={}, promote=True)
    assert parsed(list(command[module + 1 :]))["promote"]


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        (["--cron", "61 * * * *"], "higher than the maximum"),
        (["--cron", "0 0 31 2 *"], "never comes"),
        (["--cron", "0 0 * * *", "--timezone", "Mars/Olympus"], "Mars/Olympus"),
        ([], "a schedule needs its times"),
    ],
)
def test_bad_schedule_is_refused_with_the_reason_and_an_example(
    config: Path, arguments: list[str], cause: str
) -> None:
    refused = RUNNER.invoke(app, ["train", "schedule", *arguments, "--config", str(config)])
    assert refused.exit_code == 2
    assert cause in refused.stderr
    assert '"0 */6 * * *" is every six hours' in refused.stderr


def test_second_schedule_is_refused(config: Path, folder: StateFolder) -> None:
    with folder.keep_schedule():
        refused = RUNNER.invoke(
            app, ["train", "schedule", "--cron", "0 0 * * *", "--config", str(config)]
        )
    assert refused.exit_code == 3
    assert "keeps the schedule" in refused.stderr


def test_run_is_refused_while_another_is_in_hand(config: Path, folder: StateFolder) -> None:
    with folder.retrain(StartedBy.HAND, SystemClock()):
        refused = RUNNER.invoke(app, ["train", "run", "--since", "20m", "--config", str(config)])
    assert refused.exit_code == 3
    assert "another retraining is in hand" in refused.stderr
    assert "trimtab train status" in refused.stderr


@pytest.mark.system
def test_one_run_at_once_fails_as_the_run_does(config: Path, unused_tcp_port: int) -> None:
    url = f"http://127.0.0.1:{unused_tcp_port}"
    arguments = ["--now", "--since", "20m", "--config", str(config), "--prometheus", url]
    assert RUNNER.invoke(app, ["train", "schedule", *arguments]).exit_code == 3
    shown = json.loads(
        RUNNER.invoke(app, ["train", "status", "--json", "--config", str(config)]).stdout
    )
    (run,) = shown["runs"]
    assert (run["outcome"], run["started_by"]) == ("failed", "schedule")
    assert url in run["cause"]


def test_status_of_a_new_installation_says_so(config: Path) -> None:
    shown = RUNNER.invoke(app, ["train", "status", "--config", str(config)])
    assert shown.exit_code == 0
    assert "no schedule was ever kept" in shown.stdout


def test_status_shows_the_last_runs_and_the_next(config: Path, folder: StateFolder) -> None:
    clock = SystemClock()
    with folder.retrain(StartedBy.HAND, clock) as run:
        run.version = "7"
    folder.journal.set_timetable(Timetable("0 0 * * *", "UTC"))
    arguments = ["train", "status", "--config", str(config)]
    shown = RUNNER.invoke(app, arguments)
    assert "no process keeps the schedule" in shown.stdout
    with folder.keep_schedule():
        shown = RUNNER.invoke(app, arguments)
        document = json.loads(RUNNER.invoke(app, [*arguments, "--json"]).stdout)
    assert "next run" in shown.stdout
    assert "done" in shown.stdout
    assert document["schedule_runs"]
    assert 0 < document["next_run_unix_s"] - clock.unix_s() <= 86_400
    assert document["runs"][0]["version"] == "7"


def test_run_whose_process_is_gone_is_lost(config: Path, folder: StateFolder) -> None:
    folder.journal.begin(StartedBy.SCHEDULE, 1_700_000_000.0)
    shown = RUNNER.invoke(app, ["train", "status", "--json", "--config", str(config)])
    (run,) = json.loads(shown.stdout)["runs"]
    assert run["outcome"] == "lost"
    assert "killed" in run["cause"]
