"""The JSON Schema (2020-12) of a command's output, generated from the structs, the quantities and the parts.

It covers the mistakes that ``readings.parse`` finds within single entries. A schema cannot express contradictions
between entries, such as two devices with one id.
"""

from __future__ import annotations

from typing import Any

import msgspec

from nodevet.checks.core.model import ReadingStatus
from nodevet.checks.core.parts import PART_NAMES, PartKind
from nodevet.checks.core.quantities import QUANTITIES, Quantity, QuantityKind
from nodevet.checks.core.readings import LARGEST_NUMBER, SCHEMA, VENDOR_PART, Document

DIALECT = "https://json-schema.org/draft/2020-12/schema"
DEFINITIONS = "#/$defs/"
LARGEST_INDEX = 65535


def readings_schema() -> dict[str, Any]:
    """Return the schema as a JSON value."""
    (_, structs) = msgspec.json.schema_components((Document,), ref_template=DEFINITIONS + "{name}")
    kinds = sorted({quantity.part for quantity in QUANTITIES.values()}, key=list(PartKind).index)
    return {
        "$schema": DIALECT,
        "$id": f"urn:{SCHEMA.replace('.', ':').replace('/', ':')}",
        "$ref": f"{DEFINITIONS}Document",
        "$defs": {
            **{name: struct for name, struct in structs.items() if name not in ("PartEntry", "PartKind")},
            "DeviceEntry": _device(structs["DeviceEntry"]),
            "ReadingEntry": _reading(structs["ReadingEntry"]),
            **{f"part_{kind.value}": _part(kind) for kind in kinds},
            **{f"quantity_{key}": _quantity(quantity) for key, quantity in QUANTITIES.items()},
        },
    }


def _device(struct: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a device: either readings, at least one, or a failure."""
    some = {"required": ["readings"], "properties": {"readings": {"minItems": 1}, "failure": {"type": "null"}}}
    none = {"required": ["failure"], "properties": {"readings": {"maxItems": 0}, "failure": {"not": {"type": "null"}}}}
    return {**struct, "oneOf": [some, none]}


def _reading(struct: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a reading: one of the quantities, with a value exactly when its status is ``ok``."""
    properties = {**struct["properties"], "quantity": {"enum": list(QUANTITIES)}, "part": True, "value": True}
    failed = [status.value for status in ReadingStatus if status is not ReadingStatus.OK]
    return {
        **struct,
        "properties": properties,
        "oneOf": [{"$ref": f"{DEFINITIONS}quantity_{key}"} for key in QUANTITIES],
        "if": {"required": ["status"], "properties": {"status": {"enum": failed}}},
        "then": {"properties": {"value": {"type": "null"}}},
        "else": {"required": ["value"], "properties": {"value": {"not": {"type": "null"}}}},
    }


def _quantity(quantity: Quantity) -> dict[str, Any]:
    """Return the schema of a reading of *quantity*."""
    whole = quantity.part is PartKind.DEVICE
    part: dict[str, Any] = {"$ref": f"{DEFINITIONS}part_{quantity.part.value}"}
    return {
        "description": quantity.help,
        "examples": [_example(quantity)],
        "required": ["quantity"] if whole else ["quantity", "part"],
        "properties": {
            "quantity": {"const": quantity.key},
            "part": {"anyOf": [part, {"type": "null"}]} if whole else part,
            "value": {"anyOf": [_value(quantity), {"type": "null"}]},
        },
    }


def _example(quantity: Quantity) -> dict[str, Any]:
    """Return a reading of *quantity* as a healthy device may print it."""
    whole: dict[str, Any] = {"quantity": quantity.key, "value": quantity.example}
    if quantity.part is PartKind.DEVICE:
        return whole
    part: dict[str, Any] = {"kind": quantity.part.value, "name": min(PART_NAMES[quantity.part])}
    return {**whole, "part": {**part, "index": 0} if quantity.part is PartKind.LINK else part}


def _value(quantity: Quantity) -> dict[str, Any]:
    """Return the schema of a value of *quantity*. A value out of its range is read as an error of the device."""
    match quantity.kind:
        case QuantityKind.FLAG:
            return {"type": "boolean"}
        case QuantityKind.STATE:
            return {"type": "string", "enum": list(quantity.states)}
        case QuantityKind.TEXT if quantity.key == "compute_process_ids":
            return {"type": "string", "pattern": r"^(\d{1,10}(,\d{1,10})*)?$"}
        case QuantityKind.TEXT:
            return {"type": "string", "maxLength": 500}
    unit = f"In {quantity.unit.replace('_', ' ')}." if quantity.unit else "A count."
    low = -LARGEST_NUMBER if quantity.low is None else quantity.low
    high = LARGEST_NUMBER if quantity.high is None else quantity.high
    return {"type": "number", "description": unit, "minimum": low, "maximum": high}


def _part(kind: PartKind) -> dict[str, Any]:
    """Return the schema of a part of *kind*."""
    names = sorted(PART_NAMES[kind])
    index: dict[str, Any] = {"type": "integer", "minimum": 0, "maximum": LARGEST_INDEX}
    is_link = kind is PartKind.LINK
    return {
        "type": "object",
        "additionalProperties": False,
        "required": ["kind", *(["name"] if "" not in names else []), *(["index"] if is_link else [])],
        "properties": {
            "kind": {"const": kind.value},
            "name": {"anyOf": [{"enum": names}, {"type": "string", "pattern": VENDOR_PART}]},
            "index": index if is_link else {"anyOf": [index, {"type": "null"}]},
        },
    }
