"""Node maps without a camera: made up, or from the archive of real cameras, on memory in place of
registers.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

genapi = pytest.importorskip(
    "genicam.genapi", reason="genicam is not installed: pip install '.[genicam]'"
)

ARCHIVE = "genicam_xml.tar.xz"
_NAMESPACE = 'xmlns="http://www.genicam.org/GenApi/Version_1_1"'
_VERSIONS = " ".join(
    f'{key}="{value}"'
    for key, value in {
        "ModelName": "Made", "VendorName": "Up", "ToolTip": "", "StandardNameSpace": "GEV",
        "SchemaMajorVersion": 1,
        "SchemaMinorVersion": 1, "SchemaSubMinorVersion": 0, "MajorVersion": 1, "MinorVersion": 0,
        "SubMinorVersion": 0,
        "ProductGuid": "1F3C6A72-7842-4edd-9130-E2E90A2058BA",
        "VersionGuid": "2F3C6A72-7842-4edd-9130-E2E90A2058BA",
    }.items()
)  # fmt: skip


class Memory(genapi.AbstractPort):  # type: ignore[misc] # the library has no types
    """A port whose registers are memory, 0 until they are written."""

    def __init__(self) -> None:
        super().__init__()
        self._bytes: dict[int, int] = {}
        self.reads = 0

    def read(self, address: int, length: int) -> bytes:
        self.reads += 1
        return bytes(self._bytes.get(address + i, 0) for i in range(length))

    def write(self, address: int, data: bytes) -> None:
        self._bytes.update(enumerate(data, address))

    def get_access_mode(self) -> Any:
        return genapi.EAccessMode.RW


def made_up(features: Mapping[str, object]) -> Any:
    """Return a node map with these features: ``{"Gain": 3.0, "GainAuto": ["Off", "Continuous"]}``.

    An enumeration has the first value of its list; a tuple (value, unit) gives a unit; None makes a
    category, bytes the content of a register with text, of which there may be one.
    """
    nodes = "".join(_node(name, value) for name, value in features.items())
    listed = "".join(f"<pFeature>{name}</pFeature>" for name in features)
    node_map = _loaded(
        f"<RegisterDescription {_VERSIONS} {_NAMESPACE}><Category "
        f'Name="Root">{listed}</Category>{nodes}'
        '<Port Name="Device"/></RegisterDescription>'
    )
    for text in (value for value in features.values() if isinstance(value, bytes)):
        _PORTS[-1].write(_TEXT_ADDRESS, text)
    return node_map


class RealCameras(Mapping[str, Any]):
    """Node maps of the cameras in the archive by the names of their files, each loaded when it is
    first read.
    """

    def __init__(self, data: Path) -> None:
        self.texts: dict[str, str] = {}
        self._maps: dict[str, Any] = {}
        with tarfile.open(data / ARCHIVE) as archive:
            for member in archive:
                file = archive.extractfile(member) if member.name.endswith(".xml") else None
                if file is None or "aravis-tests" in member.name:
                    continue
                text = file.read().decode("utf-8-sig", "replace")
                if not text.startswith("<"):
                    text = text.partition("\n")[
                        2
                    ]  # some begin with a line about where they were found
                if 'Name="Width"' in text:
                    self.texts[Path(member.name).stem] = text

    def __getitem__(self, name: str) -> Any:
        if name not in self._maps:
            self._maps[name] = _loaded(self.texts[name])
        return self._maps[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.texts)

    def __len__(self) -> int:
        return len(self.texts)


def _loaded(text: str) -> Any:
    nodes = genapi.NodeMap()
    nodes.load_xml_from_string(text)
    port = Memory()
    nodes.connect(port, "Device")
    _PORTS.append(port)  # the library does not keep it alive
    return nodes


_PORTS: list[Memory] = []
_TEXT_ADDRESS = 1000


def _node(name: str, given: object) -> str:
    value, unit = given if isinstance(given, tuple) else (given, "")
    match value:
        case None:
            return f'<Category Name="{name}"/>'
        case bool():
            return f'<Boolean Name="{name}"><Value>{int(value)}</Value></Boolean>'
        case int():
            limits = "<Min>0</Min><Max>100000</Max>"
            return f'<Integer Name="{name}"><Value>{value}</Value>{limits}</Integer>'
        case float():
            of_unit = f"<Unit>{unit}</Unit>" if unit else ""
            limits = "<Min>0</Min><Max>100000</Max>"
            return f'<Float Name="{name}"><Value>{value}</Value>{limits}{of_unit}</Float>'
        case bytes():
            of_register = (
                f"<Address>{_TEXT_ADDRESS}</Address><Length>{len(value)}</Length>"
                "<AccessMode>RW</AccessMode>"
            )
            return f'<StringReg Name="{name}">{of_register}<pPort>Device</pPort></StringReg>'
        case list():
            entries = "".join(
                f'<EnumEntry Name="{entry}"><Value>{i}</Value></EnumEntry>'
                for i, entry in enumerate(value)
            )
            return f'<Enumeration Name="{name}">{entries}<Value>0</Value></Enumeration>'
    raise TypeError(f"no feature of this kind: {value!r}")
