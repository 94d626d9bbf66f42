"""What values of the configuration may be: addresses, names, numbers."""

import ipaddress
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Seconds = Positive
ClassName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
Tokens = Annotated[int, Field(ge=0, lt=2**32)]
"""As many as the protocol can say."""
Priority = Annotated[int, Field(ge=-(2**31), lt=2**31)]
"""Likewise."""
ShortText = Annotated[str, Field(min_length=1, max_length=256)]


def _address(text: str) -> str:
    host, colon, port = text.rpartition(":")
    if not (colon and host and port.isdecimal() and int(port) <= 65535):  # noqa: PLR2004 - the last port
        raise ValueError(f"expected host:port, got {text!r}")
    return text


def _loopback(text: str) -> str:
    host = text.rpartition(":")[0].strip("[]")
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise ValueError(
            f"{host} is not a loopback address, and there is no TLS yet to listen on others with"
        )
    return text


Address = Annotated[str, AfterValidator(_address)]
LoopbackAddress = Annotated[Address, AfterValidator(_loopback)]


class Section(BaseModel):
    """Part of the configuration. Unknown keys are errors: they would do nothing."""

    model_config = ConfigDict(extra="forbid", frozen=True)
