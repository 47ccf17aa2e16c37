"""Expression graphs: what is recorded is what the function does, and nothing else is read."""

import json
import math
import time

import numpy as np
import pytest

from palestra.expr import UNARY, Graph, trace
from palestra.safe_files import MalformedFile


class Plain:
    """The same operations with floats, by the math module: an independent `ops`."""

    sqrt, exp, log, sin, cos, tanh = (
        math.sqrt, math.exp, math.log, math.sin, math.cos, math.tanh
    )  # fmt: skip
    abs, maximum, minimum = abs, max, min

    @staticmethod
    def neg(a):
        return -a

    @staticmethod
    def linear(W, x):
        return [sum(w * v for w, v in zip(row, x, strict=True)) for row in W]

    @staticmethod
    def stack(*values):
        return list(values)


def pendulum(x, u, ops):
    spin = -9.81 * ops.sin(x[0]) - 0.1 * x[1] + u[0]
    return ops.stack(x[1], ops.maximum(ops.minimum(spin, 6.0), -6.0))


def test_a_recorded_function_gives_what_the_function_gives():
    graph = trace(pendulum, x=2, u=1)
    rng = np.random.default_rng(0)
    for x, u in zip(rng.normal(size=(20, 2)), 5 * rng.normal(size=(20, 1)), strict=True):
        expected = pendulum(x.tolist(), u.tolist(), Plain())
        np.testing.assert_allclose(graph(x=x, u=u), expected, rtol=1e-14)


def test_many_points_at_once_are_each_point_by_itself():
    W = np.arange(6.0).reshape(3, 2)

    def network(x, p, ops):
        hidden = ops.tanh(ops.linear(W, x) + np.array([0.1, -0.2, 0.3]))
        return p * hidden * ops.sum(hidden) + x[1] ** 3

    graph = trace(network, x=2, p=0)
    x, p = np.random.default_rng(1).normal(size=(7, 2)), np.arange(7.0)
    together = graph(x=x, p=p)
    assert together.shape == (7, 3)
    for k in range(7):
        np.testing.assert_allclose(graph(x=x[k], p=p[k]), together[k], rtol=1e-13)
    hidden = np.tanh(W @ x[4] + [0.1, -0.2, 0.3])
    np.testing.assert_allclose(together[4], 4.0 * hidden * hidden.sum() + x[4, 1] ** 3)


@pytest.mark.parametrize("name", UNARY)
def test_every_function_of_one_argument(name):
    graph = trace(lambda a, ops: getattr(ops, name)(a), a=0)
    expected = -0.7 if name == "neg" else getattr(Plain(), name)(0.7)
    assert graph(a=0.7) == pytest.approx(expected, rel=1e-15)


def test_what_is_computed_twice_is_one_node():
    def twice(x, ops):
        return ops.sin(x[0]) * ops.sin(x[0]) + 2.0 * ops.sin(x[0])

    graph = trace(twice, x=1)
    assert [node.op for node in graph.nodes].count("sin") == 1
    assert len(graph.nodes) == 7  # input, index, sin, mul, number, mul, add


def test_a_graph_survives_its_file():
    graph = trace(pendulum, x=2, u=1)
    again = Graph.from_json(json.loads(json.dumps(graph.to_json())), graph.constants)
    assert again == graph
    np.testing.assert_array_equal(
        again(x=np.array([1.0, 2.0]), u=np.zeros(1)), graph(x=np.array([1.0, 2.0]), u=np.zeros(1))
    )


def test_a_network_of_64_x_64_is_traced_at_once():
    rng = np.random.default_rng(0)
    layers = [(rng.normal(size=(64, 4)), rng.normal(size=64)), (rng.normal(size=(64, 64)),) * 1]

    def network(x, ops):
        (W1, b1), (W2,) = layers
        return ops.tanh(ops.linear(W2, ops.tanh(ops.linear(W1, x) + b1)))

    begun = time.perf_counter()
    graph = trace(network, x=4)
    assert time.perf_counter() - begun < 0.5
    x = rng.normal(size=(100, 4))
    (W1, b1), (W2,) = layers
    np.testing.assert_allclose(graph(x=x), np.tanh(np.tanh(x @ W1.T + b1) @ W2.T), rtol=1e-12)


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (lambda x, ops: x[0] if x[0] else x[1], TypeError, "no truth"),
        (lambda x, ops: x[5], IndexError, "index: got 5"),
        (lambda x, ops: ops.gamma(x), AttributeError, "ops.gamma: allowed"),
        (lambda x, ops: x + np.ones(3), ValueError, "add: got vectors of 2 and 3"),
        (lambda x, ops: ops.linear(np.ones((2, 3)), x), ValueError, r"allowed \(m, 2\)"),
        (lambda x, ops: x ** 0.5, TypeError, "exponent: got 0.5"),
        (lambda x, ops: x + math.nan, TypeError, "allowed finite numbers"),
        (lambda x, ops: x + "1", TypeError, "allowed finite numbers"),
    ],
)  # fmt: skip
def test_what_cannot_be_recorded(function, error, message):
    with pytest.raises(error, match=message):
        trace(function, x=2)


def broken(**changes):
    document = {
        "inputs": {"x": 2},
        "nodes": [["input", [], "x"], ["index", [0], 1], ["sin", [1]]],
        "output": 2,
    }
    return document | changes


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "allowed a table"),
        (broken(more=1), "allowed a table"),
        (broken(inputs={"x": -1}), "inputs"),
        (broken(output=3), "output: got 3, allowed 0 to 2"),
        (broken(output=True), "output: got True"),
        (broken(nodes=[]), "1 to"),
        (broken(nodes=[["import", [], "os"]]), "operation 'import'"),
        (broken(nodes=[["sin", [0]]]), "numbers of earlier nodes"),
        (broken(nodes=[["input", [], "y"]]), "input 'y', allowed x"),
        (broken(nodes=[["number", [], float("inf")]], output=0), "finite"),
        (broken(nodes=[["input", [], "x"], ["index", [0], 2]], output=1), "index of vectors"),
        (broken(nodes=[["input", [], "x"], ["stack", [0]]], output=1), "stack of vectors"),
        (broken(nodes=[["input", [], "x"], ["add", [0]]], output=1), "add of 1 arguments"),
        (broken(nodes=[["constant", [], "c0"]], output=0), "constant 'c0'"),
        (broken(nodes=[["input", [], "x"], ["power", [0], 0.5]], output=1), "power 0.5"),
    ],
)
def test_files_that_are_no_graph(document, message):
    with pytest.raises(MalformedFile, match=message):
        Graph.from_json(document, {})


def test_other_inputs_than_its_own_are_refused():
    graph = trace(pendulum, x=2, u=1)
    with pytest.raises(TypeError, match="allowed"):
        graph(x=np.zeros(2))
    with pytest.raises(ValueError, match=r"x: got shape \(3,\), allowed"):
        graph(x=np.zeros(3), u=np.zeros(1))
