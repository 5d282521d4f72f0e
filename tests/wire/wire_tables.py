"""Write the declared fields, types and payloads into the tables of docs/wire.md; units and meanings
stay as written.

``python -m tests.wire.wire_tables`` rewrites the file after a declaration has changed. A field of a
message without a row gets one at the end of its table, with an empty meaning to fill in; later
reported quantities are in docs/quantities.md.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

from sci_stream.field_types import FieldType
from sci_stream.reports import CalibrationHealth, SolveReport
from sci_stream.wire.kinds import KINDS, MessageKind
from sci_stream.wire.messages import RawRow
from sci_stream.wire.schema import metadata_of, optional_type, types_of

SPECIFICATION = Path(__file__).parents[2] / "docs" / "wire.md"

_KINDS: Mapping[str, MessageKind] = {kind.name: kind for kind in KINDS}
_MAPS: Mapping[str, Mapping[str, Any]] = {
    "report": types_of(SolveReport),
    "health": types_of(CalibrationHealth),
    "rows": types_of(RawRow),
}
_SNAPSHOT = _KINDS["snapshot"].types
_SHAPES = {2: "(H, W)", 3: "(B, H, W)"}


def type_name(annotation: Any) -> str:
    """Return the name of a field's type in docs/wire.md."""
    declared = metadata_of(annotation, FieldType)
    if declared is not None:
        return declared.name
    if (optional := optional_type(annotation)) is not None:
        name = type_name(optional)
        return f"{name}?" if name.isalpha() else f"{name} or nil"
    if get_origin(annotation) is list:
        return "array of maps"
    options = annotation if isinstance(annotation, enum.EnumType) else get_args(annotation)
    if options:
        return ", ".join(f'`"{option}"`' for option in options)
    return "flag" if annotation is bool else "map"


def with_tables(text: str) -> str:
    """Return the specification with its tables as declared."""
    blocks, kind = re.split(r"(\n\n+)", text), ""
    for index, block in enumerate(blocks):
        if heading := re.fullmatch(r"### `(\w+)`", block):
            kind = heading[1]
        header, _, rows = block.partition("\n")
        if header == "| kind | fields | meaning |":
            blocks[index] = "\n".join([header, *_kind_rows(rows.splitlines())])
        elif field := re.match(r"\| field of `(\w+)` \|", header):
            blocks[index] = "\n".join([header, *_field_rows(rows.splitlines(), _MAPS[field[1]])])
        elif header.startswith("| field |") and kind:
            blocks[index] = "\n".join([header, *_field_rows(rows.splitlines(), _KINDS[kind].types)])
        elif header.startswith("| payload |"):
            blocks[index] = "\n".join([header, *_payload_rows(rows.splitlines(), _KINDS[kind])])
    return "".join(blocks)


def _field_rows(rows: list[str], types: Mapping[str, Any]) -> Iterator[str]:
    yield rows[0]
    missing = dict(types)
    for row in rows[1:]:
        names, _, *rest = _cells(row)
        fields = [name for name in re.findall(r"`(\w+)`", names) if name in types]
        for field in fields:
            missing.pop(field)
        if fields:
            yield _row([_quoted(fields), _types(fields, types), *rest])
    for field in missing if types not in _MAPS.values() else ():
        yield _row([f"`{field}`", type_name(types[field]), *[""] * (rows[0].count("|") - 3)])


def _types(fields: list[str], types: Mapping[str, Any]) -> str:
    if len(fields) > 3 and all(types[field] == _SNAPSHOT.get(field) for field in fields):
        return "as in `snapshot`"
    names = [type_name(types[field]) for field in fields]
    return names[0] if len(set(names)) == 1 else ", ".join(names)


def _payload_rows(rows: list[str], kind: MessageKind) -> Iterator[str]:
    yield rows[0]
    meanings = {
        name.partition("`,")[0].strip("`"): meaning for name, _, _, meaning in map(_cells, rows[1:])
    }
    for name, payload in kind.payloads.items():
        optional = ", optional" if payload.optional else ", one or more" if payload.many else ""
        shape = "(H, W, 3)" if name == "picture" else _SHAPES[payload.ndim]
        dtypes = ", ".join(payload.dtypes)
        yield _row([f"`{name}`{optional}", dtypes, shape, meanings.get(name, "")])


def _kind_rows(rows: list[str]) -> Iterator[str]:
    yield rows[0]
    for row in rows[1:]:
        name, _, meaning = _cells(row)
        types = _KINDS[name.strip("`")].types
        yield _row(
            [name, "; ".join(f"`{field}` {type_name(types[field])}" for field in types), meaning]
        )


def _cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip("|").split("|")]


def _row(cells: list[str]) -> str:
    return "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|"


def _quoted(fields: list[str]) -> str:
    return ", ".join(f"`{field}`" for field in fields)


if __name__ == "__main__":
    SPECIFICATION.write_text(with_tables(SPECIFICATION.read_text()))
