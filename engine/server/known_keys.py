"""Which keys of free JSON objects are read: what else a client writes into them is reported as having no effect.

A shape is a dict of the keys that are read, each with the shape of its value; `ANY` where all of it counts (a JSON
schema, the arguments of a call), a `ByType` where the object's own `type` decides. Lists have the shape of their
items.
"""

from typing import Any, Final


class ByType(dict[str, Any]):
    """Shapes by the value of `type`; the one under "" is for objects without a known one."""


ANY: Final = None


def unread(value: object, shape: Any, path: str) -> list[str]:
    """Paths of the keys in `value` that `shape` does not have. Nulls ask for nothing."""
    if isinstance(value, list):
        return [name for index, item in enumerate(value) for name in unread(item, shape, f"{path}[{index}]")]
    if not isinstance(value, dict) or shape is ANY:
        return []
    if isinstance(shape, ByType):
        shape = shape.get(str(value.get("type")), shape.get("", ANY))
        if shape is ANY:
            return []
    found: list[str] = []
    for key, inner in value.items():
        where = f"{path}.{key}"
        if key not in shape:
            found += [where] if inner is not None else []
        else:
            found += unread(inner, shape[key], where)
    return found
