"""ONNX files made to do harm, or damaged, are refused by a clear error."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from palestra.onnx_export import export_onnx
from palestra.onnx_policy import ONNX_LIMIT, OnnxPolicy, sealed
from palestra.policy_loading import load_policy
from palestra.safe_files import MalformedFile, UnsafeFile

from .toys import Drift

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
helper, numpy_helper = pytest.importorskip("onnx.helper"), pytest.importorskip("onnx.numpy_helper")

FLOAT = onnx.TensorProto.FLOAT
ACTIONS = spaces.Box(-1.0, 1.0, (1,), np.float32)


def model(nodes, constants=(), **options):
    """x (B, 2) float32 -> y (B, 1), by the nodes."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", FLOAT, ["B", 2])],
        [helper.make_tensor_value_info("y", FLOAT, ["B", 1])],
        initializer=list(constants),
    )
    given = {"opset_imports": [helper.make_opsetid("", 17)], "ir_version": 8} | options
    return helper.make_model(graph, **given)


def tensor(name, values):
    return numpy_helper.from_array(np.asarray(values, np.float32), name)


WEIGHT = tensor("w", [[0.5], [0.25]])
PRODUCT = helper.make_node("MatMul", ["x", "w"], ["y"])


def read(made):
    return OnnxPolicy(made.SerializeToString(), ACTIONS, name="file")


def test_the_model_that_the_others_change_is_accepted():
    action, _ = read(model([PRODUCT], [WEIGHT])).predict(np.array([[1.0, 2.0]], np.float32))
    assert np.array_equal(action, [[1.0]])


@pytest.mark.parametrize("place", ["initialiser", "attribute"])
def test_data_outside_the_file_is_not_read(place, tmp_path, monkeypatch):
    secret = tmp_path / "secret"
    secret.write_bytes(np.array([0.5, 0.25], np.float32).tobytes())
    outside = onnx.TensorProto(
        name="w", dims=[2, 1], data_type=FLOAT, data_location=onnx.TensorProto.EXTERNAL
    )
    outside.external_data.add(key="location", value="secret")
    if place == "initialiser":
        made = model([PRODUCT], [outside])
    else:
        made = model([helper.make_node("Constant", [], ["w"], value=outside), PRODUCT])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnsafeFile, match="tensor 'w' lies in another file"):
        read(made)


def test_operators_that_are_not_standard_are_refused():
    own = helper.make_node("MatMul", ["x", "w"], ["y"], domain="com.example")
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)]
    with pytest.raises(UnsafeFile, match=r"operator com\.example\.MatMul, allowed only"):
        read(model([own], [WEIGHT], opset_imports=imports))


def test_functions_of_the_file_are_refused():
    made = model([PRODUCT], [WEIGHT])
    made.functions.append(
        helper.make_function(
            "own", "f", ["a"], ["b"], [helper.make_node("Relu", ["a"], ["b"])], made.opset_import
        )
    )
    with pytest.raises(UnsafeFile, match="defines functions"):
        read(made)


def test_control_flow_that_may_never_end_is_refused():
    same = helper.make_node("Identity", ["go"], ["on"])
    boolean = onnx.TensorProto.BOOL
    body = helper.make_graph(
        [same],
        "body",
        [
            helper.make_tensor_value_info("i", onnx.TensorProto.INT64, []),
            helper.make_tensor_value_info("go", boolean, []),
        ],
        [helper.make_tensor_value_info("on", boolean, [])],
    )
    loop = helper.make_node("Loop", ["", "yes"], [], body=body)
    yes = numpy_helper.from_array(np.array(True), "yes")
    with pytest.raises(UnsafeFile, match="operator Loop has a graph inside"):
        read(model([loop, PRODUCT], [WEIGHT, yes]))


def test_a_tensor_that_fills_the_memory_is_refused_before_it_is_made():
    shape = numpy_helper.from_array(np.array([2**20, 2**20], np.int64), "shape")
    nodes = [
        helper.make_node("ConstantOfShape", ["shape"], ["large"]),
        helper.make_node("ReduceSum", ["large"], ["sum"], keepdims=1),
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node("Add", ["product", "sum"], ["y"]),
    ]
    with pytest.raises(UnsafeFile, match="large is a tensor of"):
        read(model(nodes, [WEIGHT, shape]))


def test_a_file_that_is_too_large_is_not_read(tmp_path):
    with open(tmp_path / "large.onnx", "wb") as file:
        file.truncate(ONNX_LIMIT + 1)
    with pytest.raises(UnsafeFile, match="larger than 268435456 bytes"):
        load_policy(tmp_path / "large.onnx", Drift(1))


@pytest.mark.parametrize(
    "options",
    [{"opset_imports": [helper.make_opsetid("", 99)]}, {"ir_version": 99}, {"opset_imports": []}],
    ids=["operators", "format", "none"],
)
def test_versions_that_nobody_reads_are_malformed(options):
    with pytest.raises(MalformedFile, match="file: not an ONNX model"):
        read(model([PRODUCT], [WEIGHT], **options))


# --- files that we wrote, changed -----------------------------------------------------------------


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    path = tmp_path_factory.mktemp("onnx") / "K.onnx"
    export_onnx(np.array([[0.5, 0.1]]), Drift, path)
    return path.read_bytes()


def test_a_truncated_file_is_refused(exported):
    for cut in range(len(exported)):
        with pytest.raises((MalformedFile, UnsafeFile)):
            OnnxPolicy(exported[:cut], ACTIONS)


def test_a_flipped_bit_is_noticed(exported):
    for place in range(len(exported)):
        damaged = bytearray(exported)
        damaged[place] ^= 1 << place % 8
        with pytest.raises((MalformedFile, UnsafeFile)):
            OnnxPolicy(bytes(damaged), ACTIONS)


def test_a_changed_weight_is_noticed_and_the_error_says_so(exported):
    made = onnx.load_model_from_string(exported)
    gain = next(c for c in made.graph.initializer if list(c.dims) == [2, 1])
    gain.CopyFrom(numpy_helper.from_array(np.array([[9.0], [9.0]]), gain.name))
    with pytest.raises(MalformedFile, match="damaged or changed after it was exported"):
        read(made)


def changed(exported, change):
    """The exported file with a change by someone who also writes the SHA-256 anew."""
    made = onnx.load_model_from_string(exported)
    said = {entry.key: entry for entry in made.metadata_props}
    change(said, made)
    made.metadata_props.remove(said["palestra.sha256"])
    return OnnxPolicy(sealed(made.SerializeToString()), ACTIONS, name="file")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda said, made: setattr(said["palestra.action_space"], "value", "{"), "not JSON"),
        (
            lambda said, made: setattr(said["palestra.action_space"], "value", '{"type": "X"}'),
            "expected an object whose type",
        ),
        (
            lambda said, made: setattr(
                said["palestra.action_space"], "value", '{"type": "Discrete", "n": 3, "start": 0}'
            ),
            "action is .*, expected",
        ),
        (
            lambda said, made: setattr(
                said["palestra.observation_space"], "value", said["palestra.action_space"].value
            ),
            "observation is .*, expected",
        ),
        (
            lambda said, made: made.metadata_props.remove(said["palestra.observation_space"]),
            "has no palestra.observation_space",
        ),
        (
            lambda said, made: made.metadata_props.append(said["palestra.version"]),
            "metadata palestra.version is given twice",
        ),
        (
            lambda said, made: made.graph.input.append(
                helper.make_tensor_value_info("extra", FLOAT, ["B", 3])
            ),
            "input extra .* is not known",
        ),
        (
            lambda said, made: made.graph.input.append(
                helper.make_tensor_value_info("state", FLOAT, ["B", 3])
            ),
            "next_state is None, expected",
        ),
        (
            lambda said, made: made.graph.input.append(
                helper.make_tensor_value_info("action_mask", onnx.TensorProto.BOOL, ["B", 3])
            ),
            "action_mask is .*, expected",
        ),
        (
            lambda said, made: made.graph.output.append(
                helper.make_tensor_value_info("observation", FLOAT, ["B", 2])
            ),
            "output observation is not known|not an ONNX model",
        ),
        (
            lambda said, made: setattr(
                made.graph.input[0].type.tensor_type.shape.dim[0], "dim_value", 1
            ),
            "observation is .*, expected",
        ),
    ],
)
def test_a_file_that_is_not_what_it_says_is_malformed(exported, change, reason):
    with pytest.raises(MalformedFile, match=reason):
        changed(exported, change)


def test_a_memory_without_measure_is_refused(exported):
    def change(said, made):
        made.graph.input.append(helper.make_tensor_value_info("state", FLOAT, ["B", 2**27]))

    with pytest.raises(UnsafeFile, match="remembers 134217728 numbers a row"):
        changed(exported, change)
