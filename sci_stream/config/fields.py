"""Field types that several sections share (paths, addresses, names), field marks, and the base
class of sections.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo
from pydantic.config import JsonDict
from pydantic.fields import FieldInfo

from sci_stream.recon.denoisers.plugin_code import NETWORK_FILES

# Marks a field whose value is never written into a recording, a log or a message.
SECRET: JsonDict = {"secret": True}

T = TypeVar("T")
Rare = Annotated[T, Field(json_schema_extra={"expert": True})]
"""The type of a field that is rarely needed: the page that `config init` writes leaves it out."""

# A CURVE public key as text is 32 bytes in Z85: 40 characters of its alphabet.
PUBLIC_KEY = re.compile(r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")

# In brackets, perhaps with the interface of a link-local address.
_IPV6 = r"\[[0-9A-Fa-f:.]+(?:%[\w.-]+)?\]"

# sockaddr_un.sun_path has 108 bytes on Linux, of which one is the final NUL.
LONGEST_IPC_PATH = 107


class Section(BaseModel):
    """One table of a rig file: unknown keys are errors, types are not coerced, instances are
    immutable.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, validate_default=True,
        use_attribute_docstrings=True,
    )  # fmt: skip

    @classmethod
    def __pydantic_init_subclass__(cls, **_: object) -> None:
        """Put each description on one line."""
        for field in cls.model_fields.values():
            field.description = " ".join((field.description or "").split())


def has_mark(field: FieldInfo, mark: Literal["secret", "expert"]) -> bool:
    """Return whether a field's value must not be shown, or whether it is rarely needed."""
    return isinstance(field.json_schema_extra, dict) and bool(field.json_schema_extra.get(mark))


def fields_of(field: FieldInfo | None) -> Mapping[str, FieldInfo]:
    """Return the fields of a table by key; empty for a field that is no table."""
    model = model_of(field)
    return {} if model is None else model.model_fields


def model_of(field: FieldInfo | None) -> type[BaseModel] | None:
    """Return the model of a table, which may be optional; None for a field that is no table."""
    if field is None:
        return None
    candidates = (field.annotation, *get_args(field.annotation))
    return next(
        (kind for kind in candidates if isinstance(kind, type) and issubclass(kind, BaseModel)),
        None,
    )


def _resolved(path: Path, info: ValidationInfo) -> Path:
    """Resolve a relative path against the folder of the rig file, if it was read from one."""
    folder = (info.context or {}).get("folder")
    path = path.expanduser()
    return path if folder is None else folder / path


def _empty_is_none(value: object) -> object:
    return None if value == "" else value


RigPath = Annotated[Path, Field(strict=False), AfterValidator(_resolved)]
"""A path; relative to the folder of the rig file, ``~`` is the home folder."""

OptionalPath = Annotated[RigPath | None, BeforeValidator(_empty_is_none)]
"""A path, or ``""`` for none."""


def checked_endpoint(endpoint: str) -> str:
    """Return an `Endpoint` if it is valid. Raises ValueError."""
    if endpoint.startswith("ipc://"):
        path = endpoint.removeprefix("ipc://")
        if not 0 < len(path.encode()) <= LONGEST_IPC_PATH:
            raise ValueError(
                f"the path of an ipc:// address has 1 to {LONGEST_IPC_PATH} bytes, not {len(path)}"
            )
        return endpoint
    if tcp_address(endpoint) is None:
        raise ValueError("expected tcp://HOST:PORT with a port of 1 to 65535, or ipc://PATH")
    if "*" in endpoint:
        raise ValueError("other nodes connect to this address: name the host, * is not one")
    return endpoint


def tcp_address(endpoint: str) -> tuple[str, int] | None:
    """Return host and port of a ``tcp://`` address; None for any other address."""
    match = re.fullmatch(rf"tcp://({_IPV6}|[^\s:/\[\]]+):([0-9]{{1,5}})", endpoint)
    if match is None or not 1 <= int(match[2]) <= 65535:
        return None
    host, zone, interface = match[1].strip("[]").partition("%")
    return host.lower() + zone + interface, int(match[2])


def network_location(host: str, port: int) -> str:
    """Return ``HOST:PORT`` as in a URL: an IPv6 address is in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is reachable from this machine only."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


Endpoint = Annotated[str, AfterValidator(checked_endpoint)]
"""A ZeroMQ address that one node binds and others connect to."""

Host = Annotated[str, Field(min_length=1, max_length=253)]
"""A host name or address that an HTTP server listens on."""

Port = Annotated[int, Field(ge=0, le=65535)]
"""A port that an HTTP server listens on; 0 for any free one."""


def _matching(pattern: str, expected: str) -> AfterValidator:
    def check(text: str) -> str:
        if re.fullmatch(pattern, text) is None:
            raise ValueError(f"expected {expected}")
        return text

    return AfterValidator(check)


Token = Annotated[
    str,
    Field(repr=False, json_schema_extra=SECRET),
    _matching(r"[ -~]{0,256}", "up to 256 printable ASCII characters"),
]
"""A secret that clients of an HTTP server send in a header or cookie, or ``""`` for none."""

Webhook = Annotated[
    str,
    Field(repr=False, json_schema_extra={**SECRET, "expert": True}),
    _matching(
        r"(https?://[!-.0-?A-~]+(/[!-~]*)?)?",
        "http:// or https:// and printable ASCII characters, without user and password",
    ),
]
"""An address that alarms are sent to, which is a secret; ``""`` for none."""

_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
_NAME_WORDS = "1 to 64 letters, digits and . _ -, the first a letter or digit"
_SOLVER = rf"({_NAME}|([A-Za-z_][\w.]*|[^:+]+\.py):[A-Za-z_][\w.]*|[^:+]+\.(pt|pt2|onnx))"


def _resolved_file(name: str, info: ValidationInfo) -> str:
    if name.endswith(NETWORK_FILES):
        return str(_resolved(Path(name), info))
    path, _, function = name.rpartition(":")
    return f"{_resolved(Path(path), info)}:{function}" if path.endswith(".py") else name


PublicKey = Annotated[
    str,
    _matching(
        rf"({PUBLIC_KEY.pattern})?",
        "a public key of 40 characters, as printed by sci-stream keys show",
    ),
]
"""A host's public CURVE key as text, or ``""`` for none."""

Name = Annotated[str, _matching(_NAME, _NAME_WORDS)]
"""A name that may appear in file names and messages."""

SolverName = Annotated[str, _matching(_SOLVER, _NAME_WORDS), AfterValidator(_resolved_file)]
"""The name of a solver, ``module:Class``, ``file.py:Class`` or a file of a network, paths as in
`RigPath`."""

Device = Annotated[str, _matching(r"auto|cpu|cuda(:[0-9]{1,3})?", "auto, cpu, cuda or cuda:N")]
"""A compute device."""
