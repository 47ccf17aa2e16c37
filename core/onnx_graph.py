"""Write an ONNX graph node by node.

Everything that palestra exports is put together here from the standard operators of one version
of the format, so that a file needs no converter to be made and runs on any runtime since 2022.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .onnx_policy import PRODUCER
from .spaces import Array

OPSET = 17  # version of the operators; onnxruntime reads it since 1.12
IR_VERSION = 8  # version of the file format that goes with it
BATCH = "B"  # name of the dimension whose size is open


class Graph:
    """A graph under construction. Values are known by their names, which the methods return."""

    def __init__(self) -> None:
        import onnx

        self._onnx = onnx
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []

    def input(self, name: str, dtype: Any, shape: Sequence[int]) -> str:
        """An input (B, *shape)."""
        self._inputs.append(self._described(name, dtype, shape))
        return name

    def output(self, name: str, value: str, dtype: Any, shape: Sequence[int]) -> None:
        """Give a value (B, *shape) out under a name; a file lists them in alphabetical order."""
        self._nodes.append(self._onnx.helper.make_node("Identity", [value], [name]))
        self._outputs.append(self._described(name, dtype, shape))

    def constant(self, array: Any) -> str:
        """An array that is part of the file."""
        name = f"constant{len(self._constants)}"
        given = np.asarray(array, order="C")
        self._constants.append(self._onnx.numpy_helper.from_array(given, name))
        return name

    def node(self, operator: str, *values: str, **attributes: Any) -> str:
        """The value that an operator makes of others."""
        return self.nodes(operator, *values, outputs=1, **attributes)[0]

    def nodes(self, operator: str, *values: str, outputs: int, **attributes: Any) -> list[str]:
        """The values that an operator with several results makes of others."""
        names = [f"value{len(self._nodes)}.{i}" for i in range(outputs)]
        made = self._onnx.helper.make_node(operator, list(values), names, **attributes)
        self._nodes.append(made)
        return names

    def cast(self, value: str, dtype: Any) -> str:
        """The value as numbers of another type."""
        return self.node("Cast", value, to=self._type(dtype))

    def model(self, name: str, metadata: Mapping[str, str]) -> bytes:
        """The bytes of the file; equal graphs give equal bytes."""
        from . import __version__

        helper = self._onnx.helper
        graph = helper.make_graph(
            self._nodes,
            name,
            self._inputs,
            sorted(self._outputs, key=lambda output: str(output.name)),
            initializer=self._constants,
        )
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name=PRODUCER,
            producer_version=__version__,
        )
        helper.set_model_props(model, dict(metadata))
        content: bytes = model.SerializeToString(deterministic=True)
        return content

    def _described(self, name: str, dtype: Any, shape: Sequence[int]) -> Any:
        return self._onnx.helper.make_tensor_value_info(name, self._type(dtype), [BATCH, *shape])

    def _type(self, dtype: Any) -> int:
        return int(self._onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def row_products(graph: Graph, x: str, matrix: Array) -> str:
    """Products matrix @ x of every row of x (B, n)."""
    return graph.node("MatMul", x, graph.constant(np.ascontiguousarray(matrix.T)))
