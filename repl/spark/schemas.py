"""The schemas of the two modes (visible and physical), and the columns that ``.schema(…)`` may select."""

from __future__ import annotations

import difflib
from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from repl.spark.columns import TYPES
from repl.spark.options import Mode
from repl.spark.physical import SCHEMA
from vlsn.errors import BadArgument

VISIBLE: Final[StructType] = from_arrow_schema(pa.schema(TYPES))
PHYSICAL: Final[StructType] = from_arrow_schema(SCHEMA)
SCHEMAS: Final = {Mode.VISIBLE: VISIBLE, Mode.PHYSICAL: PHYSICAL}


def check_schema(schema: StructType, mode: Mode) -> tuple[str, ...]:
    """Returns the requested columns in order. Each must be a column of the mode, of the right type, and requested
    once. Raises ``BadArgument``."""
    known = SCHEMAS[mode]
    names: list[str] = list(schema.names)
    for field in schema.fields:
        if field.name not in known.names:
            near = difflib.get_close_matches(field.name, known.names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"mode={mode} has {', '.join(known.names)}"
            raise BadArgument(f"vlsnlog has no column {field.name!r}; {hint}")
        right = known[field.name].dataType
        if field.dataType != right:
            asked = field.dataType.simpleString()
            raise BadArgument(f"column {field.name!r} is {right.simpleString()}, not {asked}; cast it after the read")
    if not names:
        raise BadArgument("the schema has no column; leave .schema(…) out, or name some")
    if len(set(names)) < len(names):
        raise BadArgument("the schema names a column twice")
    return tuple(names)
