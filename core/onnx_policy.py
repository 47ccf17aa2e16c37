"""Policies in ONNX files: those that `palestra.export_onnx` writes, and plain networks.

An exported file says by its metadata what it takes and gives, so it comes back as the policy that
it was: with masks, memory, and a space of actions of any kind. Of any other file this much is
asked: one float32 input, and a first output that is the action.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import spaces

from .policy import Space, batch_size
from .safe_files import MalformedFile, UnsafeFile, strict_json
from .space_json import space_from_json
from .spaces import Array, Tree, leaves

ONNX_LIMIT = 2**28  # bytes of a file; a large convolutional actor has some 10 MB
TENSOR_LIMIT = 2**28  # numbers of a tensor that a file makes without being given one
STATE_LIMIT = 2**24  # numbers that a row remembers
STANDARD = ("", "ai.onnx")  # domains of the operators of the format itself
PRODUCER = "palestra"
METADATA = "palestra."  # how the keys of our metadata begin
MASK = "action_mask"


def sealed(content: bytes) -> bytes:
    """The bytes of a file with their SHA-256 behind them, as one more entry of the metadata."""
    import onnx

    digest = hashlib.sha256(content).hexdigest()
    entry = onnx.StringStringEntryProto(key=f"{METADATA}sha256", value=digest)
    seal: bytes = onnx.ModelProto(metadata_props=[entry]).SerializeToString()
    return content + seal


def input_names(space: Space) -> dict[str, Space]:
    """The inputs of an exported file that hold the observation, and the space of each."""
    if not isinstance(space, spaces.Dict):
        return {"observation": space}
    return {f"observation.{key}": part for key, part in space.spaces.items()}


class OnnxPolicy:
    """A policy in the ONNX format, run by onnxruntime on one thread. It acts deterministically.

    A file of `palestra.export_onnx` is checked against its own metadata. Any other network takes
    one float32 input (B, ...), and its first output is the action: for a Box the action itself,
    saturated at its bounds; for Discrete the action as an integer (B,), or one number a choice
    (B, n), of which the largest is taken.

    Args:
        content: the bytes of the file.
        action_space: Box or Discrete; an exported file has its own instead, of any kind.
        name: how to call the file in errors.

    Attributes:
        sha256: of the file.
        session: of onnxruntime.
        metadata: what an exported file says of itself, without the `palestra.` of the keys.
        exported: whether `palestra.export_onnx` wrote the file.
        takes_masks: the network has an input for masks.

    Raises:
        ImportError: onnx or onnxruntime is not installed.
        MalformedFile: not an ONNX model, one that does not take or give what it should, or an
            exported file that is not what was written.
        UnsafeFile: larger than 256 MiB; data outside the file, operators that are not standard,
            control flow, or tensors of more than 2**28 numbers.
        ValueError: an action space other than Box or Discrete, for a file that has none itself.
    """

    def __init__(self, content: bytes, action_space: Space, name: str = "ONNX") -> None:
        self.name = name
        self.sha256 = hashlib.sha256(content).hexdigest()
        self.session, self.metadata = _open(content, name)
        self.exported = bool(self.metadata)
        if self.exported and sealed(content[: -len(sealed(b""))]) != content:
            raise MalformedFile(
                f"{name}: was damaged or changed after it was exported: its SHA-256 is another"
            )
        self.action_space = action_space
        self.takes_masks = False
        self._state: dict[str, Any] = {}
        if self.exported:
            self.observation_space = self._stored_space("observation")
            self.action_space = self._stored_space("action")
            self._check_signature()
            return
        if not isinstance(action_space, spaces.Box | spaces.Discrete):
            raise ValueError(f"{name}: got action space {action_space}, allowed Box or Discrete")
        inputs = self.session.get_inputs()
        if len(inputs) != 1 or inputs[0].type != "tensor(float)":
            found = ", ".join(f"{i.name} {i.type}" for i in inputs)
            raise MalformedFile(f"{name}: inputs {found}, allowed one of float32")
        self._input = inputs[0]

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
        action_masks: Any = None,
    ) -> tuple[Array, Any]:
        """Run the network on observations (B, ...); it has no random numbers to draw.

        Raises:
            ValueError: observations, masks or outputs of another shape than the network or the
                action space has.
        """
        if not self.exported:
            return self._plain_action(observation), state
        rows = batch_size(observation)
        given = {
            f"observation.{path}" if path else "observation": array
            for path, array in leaves(observation)
        }
        expected = input_names(self.observation_space)
        if set(given) != set(expected):
            raise ValueError(f"{self.name}: got {sorted(given)}, allowed {sorted(expected)}")
        feeds = {
            key: self._fitting(key, given[key], rows, part.shape or (), part.dtype)
            for key, part in expected.items()
        }
        if self.takes_masks:
            width = self._mask_width()
            masks = np.ones((rows, width), np.bool_) if action_masks is None else action_masks
            feeds[MASK] = self._fitting(MASK, masks, rows, (width,), np.dtype(np.bool_))
        for key, (shape, dtype) in self._state.items():
            before = np.zeros((rows, *shape), dtype) if state is None else state[key]
            if episode_start is not None:
                fresh = np.asarray(episode_start, np.bool_).reshape(rows, *(1 for _ in shape))
                before = np.where(fresh, np.zeros((), dtype), before)
            feeds[key] = self._fitting(key, before, rows, shape, dtype)
        wanted = ["action", *(f"next_{key}" for key in self._state)]
        action, *after = self._run(wanted, feeds)
        space = self.action_space
        if action.shape != (rows, *(space.shape or ())) or action.dtype != space.dtype:
            raise ValueError(
                f"{self.name}: gives {action.dtype} {action.shape}, which does not fit {space}"
            )
        return action, dict(zip(self._state, after, strict=True)) if self._state else state

    def _run(self, wanted: list[str] | None, feeds: dict[str, Array]) -> list[Array]:
        try:
            return [np.asarray(value) for value in self.session.run(wanted, feeds)]
        except Exception as reason:  # onnxruntime has a class for each of its error codes
            raise ValueError(f"{self.name}: cannot be run ({reason})") from None

    def _fitting(
        self, key: str, value: Any, rows: int, shape: tuple[int, ...], dtype: Any
    ) -> Array:
        array = np.asarray(value)
        if array.shape != (rows, *shape) or not np.can_cast(array.dtype, dtype, "same_kind"):
            raise ValueError(
                f"{self.name}: got {key} {array.dtype} {array.shape}, allowed {dtype} "
                f"{(rows, *shape)}"
            )
        return np.ascontiguousarray(array, dtype)

    def _mask_width(self) -> int:
        space = self.action_space
        if isinstance(space, spaces.Discrete):
            return int(space.n)
        if isinstance(space, spaces.MultiDiscrete):
            return int(space.nvec.sum())
        return 2 * int(np.prod(space.shape or ()))

    # --- what an exported file says of itself -----------------------------------------------------

    def _stored_space(self, kind: str) -> Space:
        key = f"{kind}_space"
        if key not in self.metadata:
            raise MalformedFile(f"{self.name}: the metadata has no {METADATA}{key}")
        where = f"{self.name} {key}"
        return space_from_json(strict_json(self.metadata[key].encode(), where), where)

    def _check_signature(self) -> None:
        """Refuse a network whose inputs and outputs are not those that its metadata says."""
        inputs = {i.name: (i.type, _row_shape(i)) for i in self.session.get_inputs()}
        outputs = {o.name: (o.type, _row_shape(o)) for o in self.session.get_outputs()}
        for name, space in input_names(self.observation_space).items():
            self._check_value(name, inputs.pop(name, None), space.dtype, space.shape or ())
        if MASK in inputs:
            self.takes_masks = True
            self._check_value(MASK, inputs.pop(MASK), np.bool_, (self._mask_width(),))
        space = self.action_space
        self._check_value("action", outputs.pop("action", None), space.dtype, space.shape or ())
        for name, (kind, shape) in inputs.items():
            known = {"tensor(float)": np.float32, "tensor(double)": np.float64}.get(kind)
            if not name.startswith("state") or known is None or not _is_fixed(shape):
                raise MalformedFile(f"{self.name}: input {name} {kind} {shape} is not known")
            assert shape is not None
            if math.prod(shape) > STATE_LIMIT:
                raise UnsafeFile(f"{self.name}: remembers {math.prod(shape)} numbers a row")
            self._check_value(f"next_{name}", outputs.pop(f"next_{name}", None), known, shape)
            self._state[name] = (shape, np.dtype(known))
        if outputs:
            raise MalformedFile(f"{self.name}: output {sorted(outputs)[0]} is not known")

    def _check_value(self, name: str, found: Any, dtype: Any, shape: tuple[int, ...]) -> None:
        names = {"float16": "float16", "float32": "float", "float64": "double", "bool": "bool"}
        plain = np.dtype(dtype).name
        expected = (f"tensor({names.get(plain, plain)})", tuple(shape))
        if found != expected:
            raise MalformedFile(f"{self.name}: {name} is {found}, expected {expected}")

    # --- any other network ------------------------------------------------------------------------

    def _plain_action(self, observation: Tree) -> Array:
        ((_, array),) = leaves(observation)
        rows = batch_size(observation)
        given = np.ascontiguousarray(array, np.float32)
        expected = self._input.shape[1:]
        fits = given.ndim == len(expected) + 1 and all(
            not isinstance(n, int) or n == have
            for n, have in zip(expected, given.shape[1:], strict=False)
        )
        if not fits:
            raise ValueError(
                f"{self.name}: got observations {given.shape}, allowed {tuple(self._input.shape)}"
            )
        out = self._run(None, {self._input.name: given})[0]
        space = self.action_space
        if isinstance(space, spaces.Discrete):
            if out.shape == (rows, int(space.n)) and out.dtype.kind == "f":
                out = out.argmax(axis=1)
            if out.reshape(rows, -1).shape == (rows, 1) and out.dtype.kind in "iu":
                return np.asarray(out.reshape(rows).astype(space.dtype) + space.start)
        elif isinstance(space, spaces.Box) and out.size == rows * int(np.prod(space.shape)):
            u = np.clip(out.reshape(rows, *space.shape), space.low, space.high)
            return u.astype(space.dtype)
        raise ValueError(f"{self.name}: gives {out.dtype} {out.shape}, which does not fit {space}")


def _row_shape(value: Any) -> tuple[Any, ...] | None:
    """The shape behind the batch; None where the first dimension is not open."""
    shape = tuple(value.shape)
    return shape[1:] if shape and not isinstance(shape[0], int) else None


def _is_fixed(shape: tuple[Any, ...] | None) -> bool:
    return shape is not None and all(type(n) is int and n >= 0 for n in shape)


# --- reading --------------------------------------------------------------------------------------


def _open(content: bytes, name: str) -> tuple[Any, dict[str, str]]:
    """A session of onnxruntime for a file that was looked through, and our metadata in it."""
    try:
        import onnx
        import onnxruntime
    except ImportError:
        raise ImportError(
            f"{name}: an ONNX policy needs onnx and onnxruntime; pip install 'palestra[onnx]'"
        ) from None
    if len(content) > ONNX_LIMIT:
        raise UnsafeFile(f"{name}: larger than {ONNX_LIMIT} bytes")
    try:
        model = onnx.load_model_from_string(content)
    except Exception as reason:  # the error classes differ by how protobuf was built
        raise MalformedFile(f"{name}: not an ONNX model ({reason})") from None
    _refuse_unsafe(model, name)
    metadata = _metadata(model, name)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4  # what goes wrong is raised below
    options.add_session_config_entry("session.load_model_format", "ONNX")  # and not its own format
    try:
        session = onnxruntime.InferenceSession(
            content, options, providers=["CPUExecutionProvider"], enable_fallback=False
        )
    except Exception as reason:  # onnxruntime has a class for each of its error codes
        raise MalformedFile(f"{name}: not an ONNX model ({reason})") from None
    return session, metadata


def _metadata(model: Any, name: str) -> dict[str, str]:
    """What an exported file says of itself, without the `palestra.` of the keys."""
    metadata: dict[str, str] = {}
    if model.producer_name == PRODUCER:
        metadata["producer"] = PRODUCER  # the metadata stand last in a file: they may be cut off
    for entry in model.metadata_props:
        if not (isinstance(entry.key, str) and isinstance(entry.value, str)):
            raise MalformedFile(f"{name}: the metadata are not UTF-8 text")  # protobuf gives bytes
        key = entry.key.removeprefix(METADATA)
        if key in metadata:
            raise MalformedFile(f"{name}: metadata {entry.key} is given twice")
        if key != entry.key:
            metadata[key] = entry.value
    return metadata


def _refuse_unsafe(model: Any, name: str) -> None:
    """Refuse what could read other files, run other code, never end, or fill the memory."""
    import onnx

    if model.functions:
        raise UnsafeFile(f"{name}: defines functions, allowed only operators of the format")
    for node in model.graph.node:
        if node.domain not in STANDARD:
            raise UnsafeFile(
                f"{name}: operator {node.domain}.{node.op_type}, allowed only those of the format"
            )
        for attribute in node.attribute:
            if attribute.HasField("g") or attribute.graphs:
                raise UnsafeFile(f"{name}: operator {node.op_type} has a graph inside")
    for tensor in _tensors(model.graph):
        if tensor.external_data or tensor.data_location == onnx.TensorProto.EXTERNAL:
            raise UnsafeFile(f"{name}: tensor {tensor.name!r} lies in another file")
    try:
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except Exception as reason:  # the checks are written in C++ and raise what they like
        raise MalformedFile(f"{name}: not an ONNX model ({reason})") from None
    graph = inferred.graph
    for value in (*graph.value_info, *graph.input, *graph.output):
        sizes = [d.dim_value for d in value.type.tensor_type.shape.dim if d.HasField("dim_value")]
        if any(n < 0 for n in sizes) or math.prod(sizes) > TENSOR_LIMIT:
            raise UnsafeFile(f"{name}: {value.name} is a tensor of {sizes} numbers or more")


def _tensors(graph: Any) -> Iterator[Any]:
    """Every tensor that a graph without graphs inside holds."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for node in graph.node:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
                yield from (sparse.values, sparse.indices)
