"""The configuration of a rig: all sections, and the constraints between them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Self

from pydantic import PrivateAttr, model_validator

from sci_stream.config.fields import Section, has_mark, is_loopback, tcp_address
from sci_stream.config.reconstruct_section import ReconstructSection
from sci_stream.config.sections import (
    CalibrationSection,
    CameraSection,
    DrainSection,
    ExperimentSection,
    HealthSection,
    ModulatorSection,
    NetworkSection,
    PolicySection,
    PreviewSection,
    RecordSection,
    RigSection,
    SecuritySection,
)
from sci_stream.config.toml_text import table_text
from sci_stream.model import Policy

_EVERYWHERE = ("0.0.0.0", "::")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class Rig(Section):
    """One rig: its camera, nodes, addresses and outputs. Read by `load_rig`; immutable."""

    # In the order in which an operator fills them.
    rig: RigSection = RigSection()
    camera: CameraSection = CameraSection()
    modulator: ModulatorSection = ModulatorSection()
    calibration: CalibrationSection = CalibrationSection()
    reconstruct: ReconstructSection = ReconstructSection()
    policy: PolicySection = PolicySection()
    record: RecordSection = RecordSection()
    experiment: ExperimentSection = ExperimentSection()
    preview: PreviewSection = PreviewSection()
    network: NetworkSection = NetworkSection()
    security: SecuritySection = SecuritySection()
    health: HealthSection = HealthSection()
    drain: DrainSection = DrainSection()

    _source: Path | None = PrivateAttr(default=None)
    _overridden: tuple[str, ...] = PrivateAttr(default=())

    @property
    def source(self) -> Path | None:
        """Absolute path of the rig file; None for a rig that was not read from a file."""
        return self._source

    @property
    def overridden(self) -> tuple[str, ...]:
        """Names of the environment variables that override the file."""
        return self._overridden

    def set_origin(self, source: Path | None, overridden: tuple[str, ...]) -> Self:
        """Store the origin of the values; called by the loader."""
        self._source = source
        self._overridden = overridden
        return self

    @model_validator(mode="before")
    @classmethod
    def _absent_sections_are_empty(cls, table: object) -> object:
        # The default sections were created on import: their relative paths would not be resolved
        # against the file.
        if isinstance(table, dict):
            return {**{name: {} for name in cls.model_fields}, **table}
        return table

    @model_validator(mode="after")
    def _addresses_differ(self) -> Self:
        taken: dict[str, tuple[str, int]] = {}
        for name, host, port in _addresses(self):
            for other, at in taken.items():
                if _collide((host, port), at):
                    raise ValueError(
                        f"{other} and {name} have the same address: each needs its own port"
                    )
            taken[name] = (host, port)
        return self

    @property
    def reconstruct_names(self) -> list[str]:
        """Names of the reconstruct nodes."""
        return [f"reconstruct-{index}" for index in range(self.reconstruct.nodes)]

    @property
    def health_ports(self) -> dict[str, int]:
        """Ports of the health servers by node, as far as they are fixed."""
        nodes = [("acquire", "acquire", 0), ("sink", "sink", 0)]
        nodes += [(name, "reconstruct", i) for i, name in enumerate(self.reconstruct_names)]
        ports = {name: self.health.port(kind, index) for name, kind, index in nodes}
        return {name: port for name, port in ports.items() if port and self.health.enabled}

    @property
    def encrypted(self) -> bool:
        """Whether the nodes' connections are encrypted."""
        mode = self.security.encryption
        return mode == "on" or (
            mode == "auto"
            and bool(_remote_addresses(self))
            and not self.security.unprotected_network
        )

    @property
    def spans_machines(self) -> bool:
        """Whether nodes on other machines can join."""
        return bool(_remote_addresses(self))

    @model_validator(mode="after")
    def _open_addresses_are_protected(self) -> Self:
        remote = _remote_addresses(self)
        if remote and not self.encrypted and not self.security.unprotected_network:
            raise ValueError(
                f"network.{remote[0]} is open to other machines and security.encryption is off: "
                "anyone who reaches it "
                "could send, read and end series; encrypt, or set security.unprotected_network = "
                "true"
            )
        missing = [name for name in ("acquire_key", "sink_key") if not getattr(self.security, name)]
        if self.encrypted and missing:
            why = (
                f"network.{remote[0]} is open to other machines"
                if remote
                else "security.encryption is on"
            )
            raise ValueError(
                f"{why}: set security.{missing[0]} to the key that `sci-stream keys show` prints "
                "on that node's host "
                "(make keys there with `sci-stream keys new`), or set "
                "security.unprotected_network = true"
            )
        return self

    @model_validator(mode="after")
    def _modulator_is_complete(self) -> Self:
        if not self.modulator.driver and self.modulator != ModulatorSection():
            raise ValueError(
                "modulator.driver is missing: the keys of [modulator] have no effect without it"
            )
        return self

    @model_validator(mode="after")
    def _record_policy_records(self) -> Self:
        if self.policy.mode is Policy.RECORD and not (self.record.enabled and self.record.raw):
            raise ValueError(
                'policy.mode = "record" promises every raw snapshot: it needs record.enabled and '
                "record.raw"
            )
        return self

    def to_toml(self) -> str:
        """Return the complete configuration as a rig file, with resolved paths and without secrets.

        Loading it gives an equal rig, except for the secrets, which are empty, and for bytes in
        paths that are no Unicode, which TOML cannot have.
        """
        note = (
            "# Overridden by the environment: " + ", ".join(self.overridden) + "\n\n"
            if self.overridden
            else ""
        )
        text = note + "\n".join(
            table_text(name, _plain(getattr(self, name))) for name in type(self).model_fields
        )
        return text.encode("utf-8", "replace").decode()


def _plain(section: Section) -> dict[str, object]:
    """Return the set values of a section, with secrets blanked."""
    values = section.model_dump(exclude_none=True)
    fields = type(section).model_fields
    return {
        name: "" if has_mark(fields[name], "secret") else value for name, value in values.items()
    }


def _addresses(rig: Rig) -> Iterator[tuple[str, str, int]]:
    for name in rig.network.listening:
        endpoint = getattr(rig.network, name)
        host, port = tcp_address(endpoint) or (endpoint, 0)
        yield f"network.{name}", host, port
    if rig.preview.enabled and rig.preview.port:
        yield "preview.port", rig.preview.host.lower(), rig.preview.port
    for node, port in rig.health_ports.items():
        kind, _, index = node.partition("-")
        name = f"health.{kind}_port" + (f" (node {index})" if int(index or 0) else "")
        yield name, rig.health.host.lower(), port


def _remote_addresses(rig: Rig) -> list[str]:
    """Return the names of the ``[network]`` addresses that other machines can reach."""
    tcp = {name: tcp_address(endpoint) for name, endpoint in rig.network.listening.items()}
    return [name for name, address in tcp.items() if address and not is_loopback(address[0])]


def _collide(one: tuple[str, int], other: tuple[str, int]) -> bool:
    """Return whether two sockets cannot listen on these addresses at the same time."""
    if one[1] != other[1]:
        return False
    hosts = [_LOOPBACK[0] if host in _LOOPBACK else host for host in (one[0], other[0])]
    return hosts[0] == hosts[1] or (one[1] != 0 and any(host in _EVERYWHERE for host in hosts))
