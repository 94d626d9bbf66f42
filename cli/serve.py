"""`trimtab serve`: run the control plane."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from cli.failure import ExitCode, fail
from controlplane import service
from controlplane.config import Config, load_config
from controlplane.errors import AddressInUse, ConfigError, StoreError
from controlplane.log import configure_log

ConfigFile = Annotated[
    Path, typer.Option("--config", "-c", help="YAML file; TRIMTAB_ variables win over it.")
]


def serve(config: ConfigFile) -> None:
    """Run the control plane until SIGTERM or Ctrl-C."""
    settings = configuration(config)
    configure_log()
    try:
        asyncio.run(service.serve(settings))
        # All is in order. A thread that waits for an answer that never ends would hold the
        # process until somebody kills it.
        sys.stderr.flush()
        os._exit(ExitCode.OK)
    except AddressInUse as error:
        fail(
            str(error),
            fix="stop what listens there, or change `listen` or `metrics_listen`",
            code=ExitCode.USAGE,
        )
    except StoreError as error:
        fail(
            f"the snapshot store can't be opened: {error}",
            fix="give each control plane a writable `store.path`, or move a damaged file away",
            code=ExitCode.USAGE,
        )


def configuration(path: Path) -> Config:
    """Load the configuration, or leave with every problem in it."""
    try:
        return load_config(path)
    except ConfigError as error:
        fail(
            str(error),
            fix="correct what is named above, or pass another file with --config",
            code=ExitCode.USAGE,
        )
