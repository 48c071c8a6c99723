"""Child process that evaluates a model's Python expression: numbers, units, lists. The output is one JSON line.

It evaluates only the syntax nodes named here, by walking the syntax tree: imports, attributes, files and network
are not accessible. The process limits time and memory.
"""

import ast
import json
import math
import operator
import re
import statistics
import sys
from collections.abc import Callable
from typing import Any, Final

_MAX_CODE: Final = 20_000
_MAX_SHOWN: Final = 4000
_MEMORY_BYTES: Final = 1 << 29
_CPU_S: Final = 4
_MAX_POWER: Final = 100_000


class Refused(Exception):
    """The code uses something that is not available; the message names it."""


class Quantity:
    """A number with a unit: `dims` are the exponents of metre, kilogram, second, ampere, kelvin, bit."""

    __slots__ = ("dims", "value")

    def __init__(self, value: float, dims: tuple[int, ...]) -> None:
        self.value, self.dims = value, dims

    def __mul__(self, other: Any) -> Any:
        """The product; a plain number if the units cancel out."""
        if isinstance(other, Quantity):
            return _plain(
                self.value * other.value, tuple(a + b for a, b in zip(self.dims, other.dims, strict=True))
            )
        return Quantity(self.value * other, self.dims)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Any:
        if isinstance(other, Quantity):
            return _plain(
                self.value / other.value, tuple(a - b for a, b in zip(self.dims, other.dims, strict=True))
            )
        return Quantity(self.value / other, self.dims)

    def __rtruediv__(self, other: Any) -> Any:
        """A number divided by this quantity."""
        return Quantity(other / self.value, tuple(-d for d in self.dims))

    def __pow__(self, power: int) -> Any:
        """The power with an integer exponent."""
        return _plain(self.value**power, tuple(d * power for d in self.dims))

    def __add__(self, other: Any) -> "Quantity":
        """The sum; both must have the same unit dimensions."""
        return Quantity(self.value + self._same(other), self.dims)

    __radd__ = __add__

    def __sub__(self, other: Any) -> "Quantity":
        """The difference; both must have the same unit dimensions."""
        return Quantity(self.value - self._same(other), self.dims)

    def __neg__(self) -> "Quantity":
        return Quantity(-self.value, self.dims)

    def __lt__(self, other: Any) -> bool:
        """Compare; both must have the same unit dimensions."""
        return self.value < self._same(other)

    def _same(self, other: Any) -> float:
        if other == 0 and not isinstance(other, Quantity):
            return 0.0  # the start value of sum()
        if not isinstance(other, Quantity) or other.dims != self.dims:
            raise Refused("these units cannot be added or compared")
        return other.value


def _plain(value: float, dims: tuple[int, ...]) -> Any:
    return Quantity(value, dims) if any(dims) else value


def _unit(value: float, **powers: int) -> Quantity:
    return Quantity(value, tuple(powers.get(name, 0) for name in ("m", "kg", "s", "a", "k", "bit")))


# Exact by definition (BIPM, The International System of Units, 9th edition; international yard and pound of 1959).
_BASE: Final = {
    "m": _unit(1, m=1), "g": _unit(1e-3, kg=1), "s": _unit(1, s=1), "A": _unit(1, a=1), "K": _unit(1, k=1),
    "Hz": _unit(1, s=-1), "N": _unit(1, kg=1, m=1, s=-2), "Pa": _unit(1, kg=1, m=-1, s=-2),
    "J": _unit(1, kg=1, m=2, s=-2), "W": _unit(1, kg=1, m=2, s=-3), "V": _unit(1, kg=1, m=2, s=-3, a=-1),
    "L": _unit(1e-3, m=3), "bit": _unit(1, bit=1), "B": _unit(8, bit=1),
}  # fmt: skip
_PREFIXES: Final = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "c": 1e-2, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_MORE: Final = {
    "minute": _unit(60, s=1), "min_": _unit(60, s=1), "hour": _unit(3600, s=1), "h": _unit(3600, s=1),
    "day": _unit(86_400, s=1), "week": _unit(604_800, s=1), "inch": _unit(0.0254, m=1), "foot": _unit(0.3048, m=1),
    "feet": _unit(0.3048, m=1), "ft": _unit(0.3048, m=1), "yard": _unit(0.9144, m=1), "mile": _unit(1609.344, m=1),
    "miles": _unit(1609.344, m=1), "nmi": _unit(1852, m=1), "lb": _unit(0.45359237, kg=1),
    "oz": _unit(0.028349523125, kg=1), "tonne": _unit(1000, kg=1), "gallon": _unit(3.785411784e-3, m=3),
    "pint": _unit(4.73176473e-4, m=3), "acre": _unit(4046.8564224, m=2), "hectare": _unit(1e4, m=2),
    "mph": _unit(0.44704, m=1, s=-1), "kmh": _unit(1 / 3.6, m=1, s=-1), "knot": _unit(1852 / 3600, m=1, s=-1),
    "bar": _unit(1e5, kg=1, m=-1, s=-2), "psi": _unit(6894.757293168, kg=1, m=-1, s=-2),
    "kWh": _unit(3.6e6, kg=1, m=2, s=-2), "Wh": _unit(3600, kg=1, m=2, s=-2), "cal": _unit(4.184, kg=1, m=2, s=-2),
    "kcal": _unit(4184, kg=1, m=2, s=-2), "hp": _unit(745.69987158227, kg=1, m=2, s=-3),
    "KiB": _unit(8 * 2**10, bit=1), "MiB": _unit(8 * 2**20, bit=1), "GiB": _unit(8 * 2**30, bit=1),
}  # fmt: skip
UNITS: Final = {
    **{prefix + name: unit * factor for prefix, factor in _PREFIXES.items() for name, unit in _BASE.items()},
    **_BASE,
    **_MORE,
}
_FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    **{n: getattr(math, n) for n in ("sqrt", "exp", "log", "log2", "log10", "sin", "cos", "tan", "asin", "acos",
                                     "atan", "atan2", "floor", "ceil", "gcd", "lcm", "comb", "hypot", "radians",
                                     "degrees", "isqrt")},
    **{n: getattr(statistics, n) for n in ("mean", "median", "stdev", "variance")},
    "abs": abs, "round": round, "min": min, "max": max, "sum": sum, "len": len, "sorted": sorted, "int": int,
    "float": float, "list": list, "range": range, "zip": zip, "factorial": math.factorial,
    "c_to_f": lambda c: c * 9 / 5 + 32, "f_to_c": lambda f: (f - 32) * 5 / 9,
}  # fmt: skip
_CONSTANTS: Final = {"pi": math.pi, "e": math.e, "tau": math.tau, "True": True, "False": False}
_BINARY: Final = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
_COMPARED: Final = {
    ast.Lt: operator.lt, ast.Gt: operator.gt, ast.LtE: operator.le, ast.GtE: operator.ge, ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}  # fmt: skip
# A number followed by its unit: "5 km" becomes 5*km, but "1e3" and "5 to" stay unchanged.
_TIMES: Final = re.compile(r"(?<=\d)\s*(?=[A-Za-z])(?!e[+-]?\d)(?!\s*(?:to|in|as|if|else|for|and|or)\b)")
_INTO: Final = re.compile(r"^(?P<what>.+?)\s+(?:to|in|as)\s+(?P<unit>[A-Za-z][A-Za-z0-9_*/^ ]*)$", re.DOTALL)


class _Walker:
    def __init__(self) -> None:
        self.names: dict[str, Any] = {}

    def run(self, code: str) -> Any:
        """Run the statements; return the value of the last expression."""
        value: Any = None
        for statement in ast.parse(code.strip()).body:
            if isinstance(statement, ast.Expr):
                value = self.of(statement.value)
            elif isinstance(statement, ast.Assign) and all(isinstance(t, ast.Name) for t in statement.targets):
                value = self.of(statement.value)
                for target in statement.targets:
                    assert isinstance(target, ast.Name)
                    self.names[target.id] = value
            else:
                raise Refused(f"{type(statement).__name__} is not available: only expressions and assignments are")
        return value

    def of(self, node: ast.expr) -> Any:  # noqa: C901, PLR0911, PLR0912 - one case for each kind of node
        """Evaluate an expression."""
        match node:
            case ast.Constant(value=int() | float()):
                return node.value
            case ast.Name(id=name):
                return self._look_up(name)
            case ast.BinOp(left=left, op=ast.Pow(), right=right):
                return _power(self.of(left), self.of(right))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                return _BINARY[type(op)](self.of(left), self.of(right))
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                return -self.of(inner)
            case ast.UnaryOp(op=ast.UAdd(), operand=inner):
                return self.of(inner)
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                return not self.of(inner)
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARED:
                return _COMPARED[type(op)](self.of(left), self.of(right))
            case ast.IfExp(test=test, body=body, orelse=other):
                return self.of(body) if self.of(test) else self.of(other)
            case ast.List(elts=items) | ast.Tuple(elts=items):
                return [self.of(item) for item in items]
            case ast.Subscript(value=inner, slice=index) if not isinstance(index, ast.Slice):
                return self.of(inner)[self.of(index)]
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
                return _FUNCTIONS[name](*[self.of(argument) for argument in arguments])
            case ast.ListComp(elt=item, generators=[one]) | ast.GeneratorExp(elt=item, generators=[one]):
                return self._each(item, one)
        raise Refused(f"{ast.unparse(node)[:60]!r} is not available here")

    def _each(self, item: ast.expr, one: ast.comprehension) -> list[Any]:
        if not isinstance(one.target, ast.Name):
            raise Refused("a comprehension has one plain name")
        values = []
        for value in self.of(one.iter):
            self.names[one.target.id] = value
            if all(self.of(test) for test in one.ifs):
                values.append(self.of(item))
        return values

    def _look_up(self, name: str) -> Any:
        for table in (self.names, _CONSTANTS, UNITS):
            if name in table:
                return table[name]
        raise Refused(f"{name!r} is not a unit, function or name that was set")


def _power(base: Any, power: Any) -> Any:
    if abs(power) > _MAX_POWER:
        raise Refused(f"powers end at {_MAX_POWER}")
    return base**power


def evaluate(code: str) -> str:
    """Evaluate the code and format the result; `5 km to miles` converts. Raises: Refused, arithmetic errors."""
    if len(code) > _MAX_CODE:
        raise Refused(f"the code is longer than {_MAX_CODE} characters")
    code = _TIMES.sub("*", code.replace("^", "**"))
    into = _INTO.match(code.strip())
    if into is not None and "\n" not in into["unit"]:
        value, unit = _Walker().run(into["what"]), _Walker().run(into["unit"])
        if isinstance(value, Quantity) and isinstance(unit, Quantity):
            if value.dims != unit.dims:
                raise Refused("these units are of different kinds")
            return f"{value.value / unit.value:.12g} {into['unit'].strip()}"
    return _shown(_Walker().run(code))


def _shown(value: Any) -> str:
    if isinstance(value, Quantity):
        names = ("m", "kg", "s", "A", "K", "bit")
        unit = "*".join(f"{n}^{d}" if d != 1 else n for n, d in zip(names, value.dims, strict=True) if d)
        return f"{value.value:.12g} {unit}"
    if isinstance(value, float):
        return f"{value:.15g}"
    if isinstance(value, list):
        value = [_shown(item) if isinstance(item, Quantity) else item for item in value]
    text = str(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]} [{len(text)} characters]"


def _bound() -> None:
    try:
        import resource
    except ImportError:
        return
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_S, _CPU_S))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main() -> None:
    """Answer one request."""
    _bound()
    sys.set_int_max_str_digits(_MAX_SHOWN * 10)
    try:
        answer = {"text": evaluate(sys.stdin.read(_MAX_CODE + 1))}
    except SyntaxError as error:
        answer = {"error": f"this is not an expression: {error.msg}"}
    except (Refused, ArithmeticError, ValueError, TypeError, LookupError, RecursionError) as error:
        answer = {"error": f"{error}" or type(error).__name__}
    except MemoryError:
        answer = {"error": "it needs too much memory"}
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main()
