"""Types of fields that several sections share: paths, addresses, names, and what every section has in common."""

from __future__ import annotations

import ipaddress
import math
import re
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo
from pydantic.config import JsonDict

SECRET: Final[JsonDict] = {"secret": True}
"""Marks a field whose value is never written into a recording, a log or a message."""

PUBLIC_KEY: Final = re.compile(r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")
"""A CURVE key as text: 40 characters of the Z85 alphabet."""

LONGEST_IPC_PATH = 107
"""Bytes that the operating system leaves for the path of a local socket."""


class Section(BaseModel):
    """One table of a rig file: unknown keys are errors, values are taken as they are written, nothing changes later."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, validate_default=True)


def _resolved(path: Path, info: ValidationInfo) -> Path:
    """Take a relative path from the folder of the rig file, where there is one."""
    folder = (info.context or {}).get("folder")
    path = path.expanduser()
    return path if folder is None else folder / path


def _empty_is_none(value: Any) -> Any:
    return None if value == "" else value


RigPath = Annotated[Path, Field(strict=False), AfterValidator(_resolved)]
"""A path; a relative one starts at the folder of the rig file, ``~`` is the home folder."""

OptionalPath = Annotated[RigPath | None, BeforeValidator(_empty_is_none)]
"""A path, or ``""`` for none."""


def _checked_endpoint(endpoint: str) -> str:
    if endpoint.startswith("ipc://"):
        path = endpoint.removeprefix("ipc://")
        if not 0 < len(path.encode()) <= LONGEST_IPC_PATH:
            raise ValueError(f"the path of an ipc:// address has 1 to {LONGEST_IPC_PATH} bytes, not {len(path)}")
        return endpoint
    if tcp_address(endpoint) is None:
        raise ValueError("expected tcp://HOST:PORT with a port of 1 to 65535, or ipc://PATH")
    if "*" in endpoint:
        raise ValueError("other nodes connect to this address: name the host, * is none")
    return endpoint


def tcp_address(endpoint: str) -> tuple[str, int] | None:
    """Return host and port of a ``tcp://`` address; None if it is none."""
    match = re.fullmatch(r"tcp://(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):([0-9]{1,5})", endpoint)
    if match is None or not 1 <= int(match[2]) <= 65535:
        return None
    return match[1].strip("[]").lower(), int(match[2])


def is_loopback(host: str) -> bool:
    """Return whether only programs on this machine can reach a host name or address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


Endpoint = Annotated[str, AfterValidator(_checked_endpoint)]
"""A ZeroMQ address that one node binds and others connect to."""


def expiry_s(text: str) -> float:
    """Return the Unix time that an `Expiry` means, infinity for ``""``."""
    return datetime.fromisoformat(text).timestamp() if text else math.inf


def _checked_expiry(text: str) -> str:
    try:
        zone = datetime.fromisoformat(text).tzinfo if text else True
    except ValueError:
        zone = None
    if zone is None:
        raise ValueError("expected a date and time with its zone, such as 2027-01-31T00:00:00Z")
    return text


Expiry = Annotated[str, AfterValidator(_checked_expiry)]
"""A moment, ISO 8601 with its zone, or ``""`` for never."""


def _checked_name(name: str) -> str:
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name) is None:
        raise ValueError("expected 1 to 64 letters, digits and . _ -, the first a letter or digit")
    return name


def _checked_denoiser(name: str) -> str:
    for part in name.split("+"):
        _checked_name(part)
    return name


def _checked_device(device: str) -> str:
    if re.fullmatch(r"auto|cpu|cuda(:[0-9]{1,3})?", device) is None:
        raise ValueError("expected auto, cpu, cuda or cuda:N")
    return device


def _checked_key(key: str) -> str:
    if key and PUBLIC_KEY.fullmatch(key) is None:
        raise ValueError("expected a public key of 40 characters, as sci-stream keys show prints it")
    return key


PublicKey = Annotated[str, AfterValidator(_checked_key)]
"""A host's public CURVE key as text, or ``""`` for none."""

Name = Annotated[str, AfterValidator(_checked_name)]
"""Part of file names and messages."""

DenoiserName = Annotated[str, AfterValidator(_checked_denoiser)]
"""The name of a denoiser, or of several joined by a plus sign."""

Device = Annotated[str, AfterValidator(_checked_device)]
"""What to compute on."""
