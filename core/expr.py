"""Expression graphs: a function written once, recorded, stored as data, evaluated with any numbers.

A *number-generic* function does its arithmetic with `+ - * /`, `x[i]` and an object `ops`:

    def pendulum(x, u, ops):
        return ops.stack(x[1], -9.81 * ops.sin(x[0]) + u[0])

`trace` runs it once with a recording `ops` and gives a `Graph`: nodes in order, each an operation
on earlier ones. A graph is data. It goes into JSON with its constants beside it, comes back
checked, and is evaluated with NumPy or with any other `ops`: intervals, jets, torch.

| operation | arguments | attributes | value |
|---|---|---|---|
| input | | name | (n,) or a number |
| constant | | name (of an array) | the array |
| number | | value | a number |
| add, sub, mul, div | a, b | | elementwise |
| neg, abs, sqrt, exp, log, sin, cos, tanh | a | | elementwise |
| maximum, minimum | a, b | | elementwise |
| power | a | exponent, a whole number | elementwise |
| linear | W, x | | W x over the last axis of x |
| index | a | at | a[..., at] |
| stack | a, b, ... | | numbers side by side, a last axis |
| sum | a | | over the last axis |
| expand | a | | a number as a vector of one, which meets every element of another |

The last axis is the vector; axes before it are points, so that one evaluation does them all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .safe_files import MalformedFile
from .spaces import Array

UNARY = ("neg", "abs", "sqrt", "exp", "log", "sin", "cos", "tanh")
BINARY = ("add", "sub", "mul", "div", "maximum", "minimum", "linear")
LEAVES = ("input", "constant", "number")
MOST_NODES = 1_000_000

_ATTRIBUTE = {
    "input": "name",
    "constant": "name",
    "number": "value",
    "power": "exponent",
    "index": "at",
}
_COUNT = dict.fromkeys(LEAVES, 0) | dict.fromkeys(UNARY, 1) | dict.fromkeys(BINARY, 2)
_COUNT |= {"power": 1, "index": 1, "sum": 1, "expand": 1}
OPERATIONS = (*_COUNT, "stack")


@dataclass(frozen=True)
class Node:
    """An operation on earlier nodes.

    Attributes:
        op: one of `OPERATIONS`.
        args: numbers of earlier nodes.
        attribute: of the operation, if it has one; see the module.
    """

    op: str
    args: tuple[int, ...] = ()
    attribute: Any = None


@dataclass(frozen=True)
class Graph:
    """Nodes in order, and which of them is the value.

    Attributes:
        inputs: length of each input vector by name; 0 for a number.
        nodes: each refers to earlier ones only.
        output: number of the node that is the value.
        constants: arrays by name.
    """

    inputs: Mapping[str, int]
    nodes: tuple[Node, ...]
    output: int
    constants: Mapping[str, Array]

    def __call__(self, ops: Any = None, **inputs: Any) -> Any:
        """The value at inputs, with some `ops`; None is NumPy's.

        Raises:
            TypeError: not exactly the inputs of the graph.
            ValueError: an input of another length.
        """
        if set(inputs) != set(self.inputs):
            raise TypeError(f"inputs: got {sorted(inputs)}, allowed {sorted(self.inputs)}")
        ops = NumPy() if ops is None else ops
        values: list[Any] = []
        for node in self.nodes:
            given = [values[k] for k in node.args]
            values.append(self._value(node, given, inputs, ops))
        return values[self.output]

    def _value(self, node: Node, given: list[Any], inputs: Mapping[str, Any], ops: Any) -> Any:
        if node.op == "input":
            value = ops.input(inputs[node.attribute])
            length = self.inputs[node.attribute]
            if length and np.shape(value)[-1:] != (length,):
                raise ValueError(
                    f"{node.attribute}: got shape {np.shape(value)}, allowed (..., {length})"
                )
            return value
        if node.op == "constant":
            return ops.constant(self.constants[node.attribute])
        if node.op == "number":
            return ops.constant(node.attribute)
        method = getattr(ops, node.op)
        if node.op in ("power", "index"):
            return method(*given, node.attribute)
        return method(*given)

    def to_json(self) -> dict[str, Any]:
        """The graph without its constants, as plain JSON."""
        return {
            "inputs": dict(self.inputs),
            "nodes": [
                [node.op, list(node.args), *([] if node.attribute is None else [node.attribute])]
                for node in self.nodes
            ],
            "output": self.output,
        }

    @staticmethod
    def from_json(document: Any, constants: Mapping[str, Array], name: str = "graph") -> Graph:
        """Read what `to_json` gave, checked node by node.

        Raises:
            MalformedFile: it is no graph; says which node and why.
        """
        if not isinstance(document, dict) or set(document) != {"inputs", "nodes", "output"}:
            raise MalformedFile(f"{name}: allowed a table of inputs, nodes and output")
        inputs, listed, output = document["inputs"], document["nodes"], document["output"]
        whole = isinstance(inputs, dict) and all(_whole(v, 0) for v in inputs.values())
        if not whole:
            raise MalformedFile(f"{name}.inputs: allowed lengths of 0 or more by name")
        if not isinstance(listed, list) or not 0 < len(listed) <= MOST_NODES:
            raise MalformedFile(f"{name}.nodes: allowed a list of 1 to {MOST_NODES} nodes")
        nodes = tuple(
            _read_node(f"{name}.nodes[{k}]", k, entry, inputs, constants)
            for k, entry in enumerate(listed)
        )
        _check_lengths(name, nodes, inputs, constants)
        if not _whole(output, 0) or output >= len(nodes):
            raise MalformedFile(f"{name}.output: got {output!r}, allowed 0 to {len(nodes) - 1}")
        for key, array in constants.items():
            if not np.isfinite(array).all():
                raise MalformedFile(f"{name}: constant {key!r} is not finite")
        return Graph(dict(inputs), nodes, output, dict(constants))


def _whole(value: Any, least: int) -> bool:
    return type(value) is int and value >= least


def _read_node(
    where: str, number: int, entry: Any, inputs: Mapping[str, int], constants: Mapping[str, Array]
) -> Node:
    if not isinstance(entry, list) or not 2 <= len(entry) <= 3 or not isinstance(entry[0], str):
        raise MalformedFile(f"{where}: allowed [operation, [arguments], attribute]")
    op, args = entry[0], entry[1]
    if op not in OPERATIONS:
        raise MalformedFile(f"{where}: operation {op!r}, allowed {', '.join(OPERATIONS)}")
    if not isinstance(args, list) or not all(_whole(a, 0) and a < number for a in args):
        raise MalformedFile(f"{where}: arguments {args!r}, allowed numbers of earlier nodes")
    if len(args) != _COUNT.get(op, len(args)) or (op == "stack" and not args):
        raise MalformedFile(f"{where}: {op} of {len(args)} arguments, allowed {_COUNT.get(op, 1)}")
    has = op in _ATTRIBUTE
    if has != (len(entry) == 3):
        raise MalformedFile(f"{where}: {op} takes {_ATTRIBUTE.get(op, 'no attribute')}")
    attribute = entry[2] if has else None
    known = {"input": inputs, "constant": constants}.get(op)
    if known is not None and (not isinstance(attribute, str) or attribute not in known):
        raise MalformedFile(f"{where}: {op} {attribute!r}, allowed {', '.join(known) or 'none'}")
    if op == "number" and not (
        isinstance(attribute, int | float)
        and not isinstance(attribute, bool)
        and math.isfinite(attribute)
    ):
        raise MalformedFile(f"{where}: number {attribute!r}, allowed a finite number")
    if op in ("power", "index") and not _whole(attribute, 0):
        raise MalformedFile(f"{where}: {op} {attribute!r}, allowed a whole number of 0 or more")
    return Node(op, tuple(args), attribute)


def _check_lengths(
    name: str, nodes: Sequence[Node], inputs: Mapping[str, int], constants: Mapping[str, Array]
) -> None:
    """Refuse a graph in which vectors meet vectors of other lengths."""
    lengths: list[int] = []
    for k, node in enumerate(nodes):
        given = [lengths[a] for a in node.args]
        if node.op == "linear":
            W = constants.get(str(nodes[node.args[0]].attribute))
            fits = W is not None and W.ndim == 2 and W.shape[1] == given[1]
            length = 0 if W is None else W.shape[0]
        elif node.op in BINARY:
            fits = given[0] == given[1] or (1 in given and 0 not in given)
            length = max(given)
        elif node.op == "index":
            fits, length = node.attribute < given[0], 0
        elif node.op == "stack":
            fits, length = not any(given), len(given)
        elif node.op == "sum":
            fits, length = given[0] > 0, 0
        elif node.op == "expand":
            fits, length = given[0] == 0, 1
        elif node.op == "input":
            fits, length = True, inputs[node.attribute]
        elif node.op == "constant":
            array = constants[node.attribute]
            fits, length = array.ndim in (1, 2), array.shape[0]
        else:
            fits, length = True, given[0] if given else 0
        if not fits:
            raise MalformedFile(f"{name}.nodes[{k}]: {node.op} of vectors of {given} components")
        lengths.append(length)


# ---------------------------------------------------------------------------------------- recording


class Traced:
    """A value that remembers how it came about."""

    __array_ufunc__ = None  # NumPy leaves arithmetic with a traced value to it

    def __init__(self, recorder: Recorder, number: int, length: int) -> None:
        self.recorder, self.number, self.length = recorder, number, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, at: int) -> Traced:
        if not isinstance(at, int) or not -self.length <= at < self.length:
            raise IndexError(f"index: got {at!r}, allowed 0 to {self.length - 1}")
        return self.recorder.add("index", (self,), at % self.length, length=0)

    def __add__(self, other: Any) -> Traced:
        return self.recorder.binary("add", self, other)

    def __radd__(self, other: Any) -> Traced:
        return self.recorder.binary("add", other, self)

    def __sub__(self, other: Any) -> Traced:
        return self.recorder.binary("sub", self, other)

    def __rsub__(self, other: Any) -> Traced:
        return self.recorder.binary("sub", other, self)

    def __mul__(self, other: Any) -> Traced:
        return self.recorder.binary("mul", self, other)

    def __rmul__(self, other: Any) -> Traced:
        return self.recorder.binary("mul", other, self)

    def __truediv__(self, other: Any) -> Traced:
        return self.recorder.binary("div", self, other)

    def __rtruediv__(self, other: Any) -> Traced:
        return self.recorder.binary("div", other, self)

    def __neg__(self) -> Traced:
        return self.recorder.add("neg", (self,), length=self.length)

    def __pow__(self, exponent: int) -> Traced:
        return self.recorder.power(self, exponent)

    def __bool__(self) -> bool:
        raise TypeError("a traced value has no truth: use ops.maximum and ops.minimum, not `if`")


class Recorder:
    """The `ops` that record. The same operation on the same arguments is one node."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.lengths: list[int] = []
        self.constants: dict[str, Array] = {}
        self._known: dict[Node, int] = {}

    def add(self, op: str, args: Sequence[Traced], attribute: Any = None, *, length: int) -> Traced:
        """The value of an operation on traced values."""
        node = Node(op, tuple(arg.number for arg in args), attribute)
        if node not in self._known:
            self._known[node] = len(self.nodes)
            self.nodes.append(node)
            self.lengths.append(length)
        return Traced(self, self._known[node], length)

    def lift(self, value: Any) -> Traced:
        """A number or an array (n,) as a node of its own.

        Raises:
            TypeError: neither; or a traced value of another recording.
        """
        if isinstance(value, Traced):
            if value.recorder is not self:
                raise TypeError("value: traced by another recording")
            return value
        array = np.asarray(value)
        if array.dtype.kind not in "iuf" or not np.isfinite(array).all():
            raise TypeError(f"value: got {value!r:.60}, allowed finite numbers")
        if array.ndim == 0:
            return self.add("number", (), float(array), length=0)
        return self._constant(array, array.shape[-1])

    def _constant(self, array: Array, length: int) -> Traced:
        array = np.ascontiguousarray(array, np.float64)
        same = (
            name
            for name, known in self.constants.items()
            if known.shape == array.shape and (known == array).all()
        )
        name = next(same, f"c{len(self.constants)}")
        self.constants[name] = array
        return self.add("constant", (), name, length=length)

    def binary(self, op: str, a: Any, b: Any) -> Traced:
        """An elementwise operation on two values; a number meets every element of a vector."""
        left, right = self.lift(a), self.lift(b)
        if right.length and not left.length:
            left = self.add("expand", (left,), length=1)
        if left.length and not right.length:
            right = self.add("expand", (right,), length=1)
        if 1 not in (left.length, right.length) and left.length != right.length:
            raise ValueError(f"{op}: got vectors of {left.length} and {right.length}")
        return self.add(op, (left, right), length=max(left.length, right.length))

    def maximum(self, a: Any, b: Any) -> Traced:
        """The larger, elementwise."""
        return self.binary("maximum", a, b)

    def minimum(self, a: Any, b: Any) -> Traced:
        """The smaller, elementwise."""
        return self.binary("minimum", a, b)

    def power(self, a: Any, exponent: int) -> Traced:
        """A whole power of 0 or more.

        Raises:
            TypeError: another exponent.
        """
        if not _whole(exponent, 0):
            raise TypeError(f"exponent: got {exponent!r}, allowed a whole number of 0 or more")
        base = self.lift(a)
        return self.add("power", (base,), exponent, length=base.length)

    def linear(self, W: Any, x: Any) -> Traced:
        """W x, for an array W (m, n).

        Raises:
            ValueError: W is no matrix of as many columns as x is long.
        """
        matrix, vector = np.asarray(W, np.float64), self.lift(x)
        if matrix.ndim != 2 or matrix.shape[1] != vector.length:
            raise ValueError(f"W: got shape {matrix.shape}, allowed (m, {vector.length})")
        constant = self._constant(matrix, matrix.shape[0])
        return self.add("linear", (constant, vector), length=matrix.shape[0])

    def stack(self, *values: Any) -> Traced:
        """Numbers as a vector."""
        lifted = [self.lift(value) for value in values]
        if not lifted or any(value.length for value in lifted):
            raise ValueError("stack: allowed one or more numbers")
        return self.add("stack", lifted, length=len(lifted))

    def sum(self, a: Any) -> Traced:
        """The sum of a vector."""
        return self.add("sum", (self.lift(a),), length=0)

    def __getattr__(self, name: str) -> Callable[[Any], Traced]:
        if name not in UNARY:
            raise AttributeError(f"ops.{name}: allowed {', '.join(OPERATIONS)}")

        def unary(a: Any) -> Traced:
            value = self.lift(a)
            return self.add(name, (value,), length=value.length)

        return unary


def trace(function: Callable[..., Any], **inputs: int) -> Graph:
    """Record a number-generic function of vectors.

    Args:
        function: takes the inputs by name, and `ops`.
        inputs: how long each input vector is; 0 for a number.

    Raises:
        TypeError, ValueError: what it does cannot be recorded; says what.
    """
    recorder = Recorder()
    given = {
        name: recorder.add("input", (), name, length=length) for name, length in inputs.items()
    }
    value = function(**given, ops=recorder)
    if isinstance(value, list | tuple):
        value = recorder.stack(*value)
    value = recorder.lift(value)
    return Graph(dict(inputs), tuple(recorder.nodes), value.number, recorder.constants)


class NumPy:
    """The `ops` of NumPy, float64."""

    neg, abs, sqrt, exp, log = np.negative, np.abs, np.sqrt, np.exp, np.log
    sin, cos, tanh = np.sin, np.cos, np.tanh
    maximum, minimum = staticmethod(np.maximum), staticmethod(np.minimum)

    @staticmethod
    def input(value: Any) -> Array:
        """An input as float64."""
        return np.asarray(value, np.float64)

    constant = input

    @staticmethod
    def add(a: Array, b: Array) -> Array:
        """Sum."""
        return np.asarray(a + b)

    @staticmethod
    def sub(a: Array, b: Array) -> Array:
        """Difference."""
        return np.asarray(a - b)

    @staticmethod
    def mul(a: Array, b: Array) -> Array:
        """Product."""
        return np.asarray(a * b)

    @staticmethod
    def div(a: Array, b: Array) -> Array:
        """Quotient."""
        return np.asarray(a / b)

    @staticmethod
    def power(a: Array, exponent: int) -> Array:
        """A whole power."""
        return np.asarray(a**exponent)

    @staticmethod
    def linear(W: Array, x: Array) -> Array:
        """W x over the last axis."""
        return np.asarray(x @ W.T)

    @staticmethod
    def index(a: Array, at: int) -> Array:
        """One component."""
        return np.asarray(a[..., at])

    @staticmethod
    def stack(*values: Array) -> Array:
        """Components side by side."""
        return np.stack(np.broadcast_arrays(*values), axis=-1)

    @staticmethod
    def sum(a: Array) -> Array:
        """Over the last axis."""
        return np.asarray(a.sum(axis=-1))

    @staticmethod
    def expand(a: Array) -> Array:
        """A number as a vector of one."""
        return np.asarray(a)[..., np.newaxis]
