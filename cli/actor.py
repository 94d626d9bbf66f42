"""Who asks for a change, and why: every change is kept with both."""

import getpass

from cli.failure import ExitCode, fail


def accountable(actor: str | None, reason: str) -> str:
    """Who asks: the given name, or the user's. Leaves when name or reason is empty."""
    name = _user_name() if actor is None else actor
    if not (name.strip() and reason.strip()):
        fail(
            "a change needs an actor and a reason",
            fix="pass --reason TEXT (and --actor NAME)",
            code=ExitCode.USAGE,
        )
    return name


def _user_name() -> str:
    """Of whoever runs this; empty where the system has none, as in many containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""
