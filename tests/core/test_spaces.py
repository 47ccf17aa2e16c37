"""Trees of arrays, the check of actions, and sampling of legal actions."""

import copy
import pickle

import numpy as np
import pytest
from gymnasium import spaces

from palestra.spaces import (
    ActionCheck,
    LegalDiscrete,
    LegalMultiDiscrete,
    allocate,
    draw_legal,
    leaves,
    legal_space,
    put,
    take,
)
from palestra.spaces import copy as copy_tree

from .toys import ECHOED, legal_actions


@pytest.mark.parametrize("kind", ECHOED)
def test_a_tree_of_zeros_has_the_shapes_and_dtypes_of_the_space(kind):
    space = ECHOED[kind]
    space.seed(0)
    sample = space.sample()
    blank = allocate(space, (4, 2))
    assert [path for path, _ in leaves(blank)] == [path for path, _ in leaves(sample)]
    for (_, zeros), (_, one) in zip(leaves(blank), leaves(sample), strict=True):
        assert zeros.shape == (4, 2, *np.shape(one))
        assert zeros.dtype == np.asarray(one).dtype
        assert zeros.flags.c_contiguous
        assert not zeros.any()


@pytest.mark.parametrize("kind", ECHOED)
def test_rows_put_into_a_tree_come_out_again(kind):
    space = ECHOED[kind]
    tree = allocate(space, (3,))
    values = legal_actions(space, np.random.default_rng(1).random, ())
    put(tree, 1, values)
    kept = copy_tree(tree)
    for path, leaf in leaves(take(tree, 1)):
        assert (leaf == dict(leaves(values))[path]).all()
    for _, leaf in leaves(take(tree, np.array([True, False, True]))):
        assert not leaf.any()
    put(tree, slice(None), allocate(space, ()))
    for path, leaf in leaves(take(kept, 1)):  # a copy shares nothing
        assert (leaf == dict(leaves(values))[path]).all()


@pytest.mark.parametrize(
    "space", [spaces.Text(5), spaces.Sequence(spaces.Discrete(2)), spaces.Dict(a=spaces.Text(1))]
)
def test_spaces_without_a_fixed_shape_are_refused(space):
    for make in (allocate, ActionCheck):
        with pytest.raises(TypeError, match="allowed Box, Discrete, MultiDiscrete, MultiBinary"):
            make(space, (2,))


BOX = spaces.Box(np.array([-1, 0], np.float32), np.array([1, np.inf], np.float32))
HALF_BYTE = spaces.Box(0, 15, (1,), np.uint8)
MANY = spaces.MultiDiscrete([2, 5], start=[1, 0])

REFUSED = {
    "shape": (
        BOX,
        np.zeros((3, 2), np.float32),
        ValueError,
        r"got shape \(3, 2\), allowed \(2, 2\)",
    ),
    "no rows": (BOX, np.zeros(2, np.float32), ValueError, "got shape"),
    "above": (
        BOX,
        [[0, 0], [1.5, 0]],
        ValueError,
        "row 1, component 0: got 1.5, allowed -1.0",
    ),
    "below": (BOX, [[0, 0], [0, -1]], ValueError, "row 1, component 1: got -1.0, allowed 0.0"),
    "nan": (BOX, [[0, np.nan], [0, 0]], ValueError, "row 0, component 1: got nan"),
    "inf": (BOX, [[0, np.inf], [0, 0]], ValueError, "row 0, component 1: got inf"),
    "overflow": (BOX, [[0, 1e300], [0, 0]], ValueError, "row 0, component 1: got inf"),
    "strings": (BOX, [["a", "b"], ["c", "d"]], TypeError, "expected finite numbers"),
    "objects": (BOX, [[None, 0], [0, 0]], TypeError, "expected finite numbers"),
    "complex": (BOX, np.zeros((2, 2), complex), TypeError, "expected finite numbers"),
    "booleans": (BOX, np.zeros((2, 2), bool), TypeError, "expected finite numbers"),
    "wraps": (HALF_BYTE, [[256], [0]], ValueError, "row 0, component 0: got 256, allowed 0 to 15"),
    "float pixels": (HALF_BYTE, [[1.0], [0.0]], TypeError, "expected integers"),
    "float choice": (spaces.Discrete(3), [0.0, 1.0], TypeError, "expected integers"),
    "choice": (spaces.Discrete(3), [0, 3], ValueError, "row 1: got 3, allowed 0 to 2"),
    "negative": (spaces.Discrete(3), [-1, 0], ValueError, "row 0: got -1, allowed 0 to 2"),
    "start": (spaces.Discrete(3, start=-1), [2, 0], ValueError, "got 2, allowed -1 to 1"),
    "huge": (
        spaces.Discrete(3, start=-1),
        np.array([2**64 - 1, 0], np.uint64),
        ValueError,
        "allowed",
    ),
    "part": (MANY, [[1, 0], [0, 4]], ValueError, "row 1, component 0: got 0, allowed 1 to 2"),
    "bits": (spaces.MultiBinary(2), [[0, 1], [2, 0]], ValueError, "got 2, allowed 0 to 1"),
    "none": (spaces.Discrete(3), None, TypeError, "expected integers"),
    "missing": (spaces.Dict(a=BOX), {}, ValueError, r"expected a mapping with \['a'\]"),
    "unknown": (spaces.Dict(a=BOX), {"b": 0}, ValueError, r"got \['b'\]"),
    "not a dict": (spaces.Dict(a=BOX), [1], ValueError, "expected a mapping"),
    "in a dict": (spaces.Dict(a=BOX), {"a": [[2, 0], [0, 0]]}, ValueError, r"action\['a'\]: row 0"),
    "short tuple": (spaces.Tuple([BOX]), (), ValueError, "expected a tuple of 1 parts"),
    "in a tuple": (spaces.Tuple([BOX]), ([[2, 0], [0, 0]],), ValueError, r"action\[0\]: row 0"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_actions_outside_the_space_are_refused(case):
    space, actions, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        ActionCheck(space, (2,))(actions)


@pytest.mark.parametrize("kind", ECHOED)
def test_actions_inside_the_space_come_out_unchanged_in_its_dtypes(kind):
    space = ECHOED[kind]
    actions = legal_actions(space, np.random.default_rng(2).random, (3,))
    checked = ActionCheck(space, (3,))(actions)
    for (_, given), (_, taken) in zip(leaves(actions), leaves(checked), strict=True):
        assert taken.dtype == given.dtype
        assert (taken == given).all()


def test_lists_other_integers_and_other_orders_are_converted():
    check = ActionCheck(MANY, (2,))
    for given in (
        [[1, 0], [2, 4]],
        np.array([[1, 0], [2, 4]], np.int16),
        np.asfortranarray([[1, 0], [2, 4]]),
        np.array([[1, 9, 0, 9], [2, 9, 4, 9]])[:, ::2],
    ):
        taken = check(given)
        assert taken.tolist() == [[1, 0], [2, 4]]
        assert taken.dtype == np.int64
        assert taken.flags.c_contiguous
    assert ActionCheck(BOX, (2,))([[1, 0], [-1, 2]]).dtype == np.float32
    assert ActionCheck(spaces.MultiBinary(2), (1,))([[True, False]]).dtype == np.int8


def test_an_unbounded_box_still_refuses_what_is_not_finite():
    check = ActionCheck(spaces.Box(-np.inf, np.inf, (1,), np.float64), (1,))
    assert check([[1e308]]) == 1e308
    for wrong in (np.nan, np.inf, -np.inf):
        with pytest.raises(ValueError, match="action: row 0, component 0: got"):
            check([[wrong]])


def test_the_place_of_an_agent_is_named():
    with pytest.raises(ValueError, match="action: row 1, agent 2: got 7, allowed 0 to 3"):
        ActionCheck(spaces.Discrete(4), (2, 3))([[0, 0, 0], [0, 0, 7]])


def test_a_copied_check_names_the_same_part():
    check = ActionCheck(spaces.Dict(a=spaces.Tuple([BOX])), (2,))
    for twin in (copy.deepcopy(check), pickle.loads(pickle.dumps(check))):
        with pytest.raises(ValueError, match=r"action\['a'\]\[0\]: row 0"):
            twin({"a": ([[2, 0], [0, 0]],)})
    named = ActionCheck(BOX, (2,), "action of leader")
    with pytest.raises(ValueError, match="action of leader: row 0"):
        pickle.loads(pickle.dumps(named))([[2, 0], [0, 0]])


def mask_of_two() -> np.ndarray:
    return np.array([True, False, True])


def mask_of_dials() -> np.ndarray:
    return np.array([False, True, True, True, False])


def test_legal_discrete_samples_every_legal_action_and_no_other():
    space = LegalDiscrete(spaces.Discrete(3, start=5), mask_of_two)
    space.seed(0)
    assert {int(space.sample()) for _ in range(50)} == {5, 7}
    assert int(space.sample(mask=np.array([0, 1, 0], np.int8))) == 6
    assert space == spaces.Discrete(3, start=5)


def test_legal_multi_discrete_samples_every_legal_action_and_no_other():
    space = LegalMultiDiscrete(spaces.MultiDiscrete([3, 2], start=[1, 10]), mask_of_dials)
    space.seed(0)
    samples = [space.sample() for _ in range(50)]
    assert {tuple(s.tolist()) for s in samples} == {(2, 10), (3, 10)}
    assert all(s.dtype == space.dtype and space.contains(s) for s in samples)
    only = (np.array([1, 0, 0], np.int8), np.array([0, 1], np.int8))
    assert space.sample(mask=only).tolist() == [1, 11]


@pytest.mark.parametrize(
    "space",
    [
        legal_space(spaces.Discrete(3), mask_of_two),
        legal_space(spaces.MultiDiscrete([3, 2]), mask_of_dials),
    ],
)
def test_legal_spaces_are_seeded_copied_and_pickled(space):
    space.seed(3)
    expected = [np.asarray(space.sample()).tolist() for _ in range(10)]
    for twin in (copy.deepcopy(space), pickle.loads(pickle.dumps(space))):
        assert type(twin) is type(space)
        assert twin == space
        twin.seed(3)
        assert [np.asarray(twin.sample()).tolist() for _ in range(10)] == expected


def test_legal_choices_are_drawn_uniformly():
    masks = np.tile(mask_of_dials(), (20_000, 1))
    chosen = draw_legal(np.random.default_rng(0), masks, [3, 2])
    assert abs((chosen[:, 0] == 1).mean() - 0.5) < 4 * 0.5 / np.sqrt(20_000)
    assert (chosen[:, 1] == 0).all()
