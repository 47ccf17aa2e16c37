"""Episodes as pictures: of every environment, for files, terminals and notebooks."""

from __future__ import annotations

import base64
import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from palestra.batch import Episodes
from palestra.film import Film, RecordedActions, watch
from palestra.registry import catalogue, resolve
from palestra.rollout import evaluate
from palestra.trajectories import Trajectories
from palestra.views import make

from .toys import Counter, Drift, Swarm

EVERY = sorted(catalogue())
TOYS = str(Path(__file__).with_name("toys.py"))
FOREIGN = ["CartPole-v1", "MountainCarContinuous-v0"]


def is_picture(frame) -> bool:
    return frame.dtype == np.uint8 and frame.ndim == 3 and frame.shape[2] == 3


@pytest.mark.parametrize("name", [*EVERY, *FOREIGN])
def test_every_environment_can_be_watched(name):
    film = watch(name, "random", max_steps=20)
    frames = list(film.frames())
    assert len(frames) > 2
    assert all(is_picture(frame) for frame in frames)
    assert len({frame.shape for frame in frames}) == 1
    assert any((frame != frames[0]).any() for frame in frames)


@pytest.mark.parametrize("name", EVERY)
def test_every_environment_is_a_video_and_shows_itself_in_a_notebook(name, tmp_path, monkeypatch):
    film = watch(name, max_steps=3)
    assert film.save(tmp_path / "film.mp4").stat().st_size > 1000
    monkeypatch.chdir(tmp_path)
    markup = film._repr_html_()
    source = re.search(r'src="data:video/mp4;base64,([^"]+)"', markup)[1]
    assert base64.b64decode(source) == (tmp_path / "film.mp4").read_bytes()
    assert [file.name for file in tmp_path.iterdir()] == ["film.mp4"]  # none is left behind


def test_what_is_shown_is_what_is_evaluated():
    """The last picture of episode 3 is that of the same episode, played step by step."""
    from palestra.policy_loading import load_policy

    made = resolve("CartPole-v1").make(1, render_mode="rgb_array")
    policy, episodes = load_policy("random", made), Episodes(made)
    episodes.seed(5)
    episodes.upcoming[:] = 3
    episodes.begin(made.everyone)
    policy.begin(made.everyone, episodes.streams)
    steps = 0
    while not episodes.ended[0]:
        actions, _ = policy.predict(episodes.observe())
        episodes.advance(actions)
        steps += 1
    frames = list(watch("CartPole-v1", "random", seed=5, episode=3).frames())
    assert len(frames) == steps + 1
    assert np.array_equal(frames[-1], made.render(0))
    length = evaluate("random", "CartPole-v1", episodes=4, seed=5, width=4).column("length")
    assert length[3] == steps


@pytest.mark.parametrize("name", [*EVERY, "CartPole-v1", f"{TOYS}:Counter"])
def test_what_is_noted_of_an_episode_is_what_evaluate_has_in_its_table(name):
    table = evaluate("random", name, episodes=5, seed=11, width=2, max_steps=40).table
    film = watch(name, "random", seed=11, episode=1, episodes=3, max_steps=40)
    for _ in film.frames():
        pass
    for mine, theirs in zip(film.played, table.slice(1, 3).to_pylist(), strict=True):
        numbers = mine.to_json()
        theirs["truncated"] |= theirs.pop("truncated_by_runner")
        assert numbers.keys() == {k for k in theirs if not k.startswith("return/")} - {"duration"}
        for key, value in numbers.items():
            assert value == theirs[key] or (value is None and theirs[key] != theirs[key])


def test_scenes_tell_the_step_and_the_return_so_far():
    film = watch(f"{TOYS}:Counter", "random", episode=7, episodes=2)
    seen = [(s.episode, s.step, s.total, s.picture[0, 0, 0]) for s in film.scenes()]
    assert seen == [(e, k, float(k), k) for e in (7, 8) for k in range(4)]


def test_wrappers_hide_neither_pictures_nor_films_nor_their_lack():
    settings = {"wrappers": ["clip-actions"]}
    plain = list(watch("NMRRelax", "random", max_steps=2).frames())
    assert len(plain) == 60  # its own film
    assert len(list(watch("NMRRelax", "wait", settings=settings, max_steps=2).frames())) == 60
    car = watch("MountainCarContinuous-v0", "random", settings=settings, max_steps=2)
    assert car.fps == 30
    assert len(list(car.frames())) == 3
    with pytest.raises(NotImplementedError, match="Drift draws no pictures"):
        watch(Drift, settings=settings)


def test_an_own_film_goes_at_ten_pictures_a_second():
    assert watch("NMRRelax", "random").fps == 10
    assert watch("CartPole-v1", "random").fps == 50


class DrawnSwarm(Swarm):
    def render(self, row):
        return np.full((4, 6, 3), 40, np.uint8)


def test_several_agents_are_watched_together():
    table = evaluate("random", DrawnSwarm, episodes=2, seed=4, width=1).table.to_pylist()
    film = watch(DrawnSwarm, "random", seed=4, episodes=2)
    assert len(list(film.frames())) == sum(row["length"] + 1 for row in table)
    noted = [(one.total, one.length, one.terminated, one.truncated) for one in film.played]
    keys = "return", "length", "terminated", "truncated"
    assert noted == [tuple(row[key] for key in keys) for row in table]


@pytest.mark.parametrize("view", ["gym", "parallel", "aec"])
def test_what_make_made_is_watched_as_a_copy(view):
    target = Counter if view == "gym" else DrawnSwarm
    made = make(target, view)
    made.reset(seed=3)
    film = watch(made, "random", seed=4)
    again = watch(target, "random", seed=4)
    assert film.target.name == target.__name__
    pictures = list(film.frames())
    assert np.array_equal(pictures, list(again.frames()))
    assert film.played == again.played
    assert made.batch.count[0] == 0 if view == "gym" else made.agents  # it stands where it stood


def test_any_gymnasium_object_is_watched_and_stays_open():
    import gymnasium

    env = gymnasium.make("CartPole-v1", render_mode="rgb_array")
    closed = []
    env.unwrapped.close = lambda: closed.append(1)
    film = watch(env, "random", seed=4)
    again = watch("CartPole-v1", "random", seed=4)
    assert np.array_equal(list(film.frames()), list(again.frames()))
    assert closed == []
    with pytest.raises(NotImplementedError, match='build it with render_mode="rgb_array"'):
        watch(gymnasium.make("CartPole-v1"), "random")
    with pytest.raises(ValueError, match="settings: got g, but the target is built already"):
        watch(env, "random", settings={"g": 1})
    with pytest.raises(ValueError, match="has 4 rows, and one is watched"):
        watch(make(Counter, "vector", rows=4))


def test_names_are_escaped_in_a_notebook():
    def build(rows):
        return Counter(rows)

    build.__name__ = '"><script>alert(1)</script>'
    film = watch(build, "random")
    assert film.target.name == build.__name__
    assert "<script" not in film._repr_html_()


def test_a_recorded_episode_is_filmed_from_its_actions(tmp_path):
    run = tmp_path / "run"
    evaluate("random", "CartPole-v1", episodes=4, seed=5, width=4, run=run, record="trajectories")
    film = Trajectories(run).film(3)
    again = list(film.frames())
    assert np.array_equal(again, list(film.frames()))  # as often as one likes
    live = list(watch("CartPole-v1", "random", seed=5, episode=3).frames())
    assert len(again) == len(live)
    assert all(np.array_equal(a, b) for a, b in zip(again, live, strict=True))


def test_recorded_actions_are_taken_in_their_order():
    policy = RecordedActions(np.array([[1.0], [2.0]]), 2)
    assert [policy.predict(None)[0].item() for _ in range(3)] == [1.0, 2.0, 2.0]


def test_frames_are_not_kept_and_not_played_before_they_are_asked_for():
    film = watch("CartPole-v1", "random", episodes=10**9)
    assert len(list(itertools.islice(film.frames(), 5))) == 5


def test_bad_arguments_are_refused():
    for name, value in (("episode", -1), ("episodes", 0), ("max_steps", 1.5)):
        with pytest.raises(ValueError, match=f"{name}: got"):
            watch("CartPole-v1", "random", **{name: value})
    with pytest.raises(
        NotImplementedError, match=r"Drift draws no pictures: it has no render\(row\)"
    ):
        watch(Drift)
    with pytest.raises(ValueError, match="stdout is not a terminal; save a video"):
        watch("CartPole-v1", "random").show()


@pytest.fixture(autouse=True)
def no_display(monkeypatch):
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)


def test_the_policy_that_ships_is_the_default_and_random_where_there_is_none():
    assert Film("CartPole-v1").policy == "random"
    for name in EVERY:
        if not catalogue()[name].agents:
            assert Film(name).policy == "pretrained"
            assert Film(make(name)).policy == "pretrained"
    assert repr(Film("CartPole-v1", episodes=3, episode=2)) == (
        "CartPole-v1 under random: episodes 2 to 4 of seed 0"
    )
