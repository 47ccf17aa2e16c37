"""Episodes as pictures: of every environment, for files, terminals and notebooks."""

from __future__ import annotations

import base64
import io
import itertools
import re

import numpy as np
import pytest

import palestra
from palestra.batch import Episodes
from palestra.film import Film, RecordedActions, half_blocks, watch
from palestra.registry import catalogue, resolve
from palestra.rollout import evaluate
from palestra.trajectories import Trajectories

from .toys import Drift

EVERY = sorted(catalogue())
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
def test_every_environment_is_a_video_and_shows_itself_in_a_notebook(name, tmp_path):
    film = watch(name, max_steps=3)
    assert film.save(tmp_path / "film.mp4").stat().st_size > 1000
    from PIL import Image

    markup = film._repr_html_()
    assert "<script" not in markup
    source = re.search(r'src="data:image/webp;base64,([^"]+)"', markup)[1]
    with Image.open(io.BytesIO(base64.b64decode(source))) as picture:
        assert picture.n_frames > 1


def test_what_is_shown_is_what_is_evaluated():
    """The last picture of episode 3 is that of the same episode, played step by step."""
    from palestra.policy_loading import load_policy

    env = palestra.make("CartPole-v1", "vector", rows=1)
    del env
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


def test_a_recorded_episode_is_filmed_from_its_actions(tmp_path):
    run = tmp_path / "run"
    evaluate("random", "CartPole-v1", episodes=4, seed=5, width=4, run=run, record="trajectories")
    again = list(Trajectories(run).film(3).frames())
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
    with pytest.raises(ValueError, match="neither a display nor a terminal"):
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
    assert repr(Film("CartPole-v1", episodes=3, episode=2)) == (
        "CartPole-v1 under random: episodes 2 to 4 of seed 0"
    )


# --- the terminal ---------------------------------------------------------------------------------


def cells(text):
    found = re.findall(r"\x1b\[38;2;(\d+);(\d+);(\d+);48;2;(\d+);(\d+);(\d+)m▀", text)
    return [tuple(map(int, cell)) for cell in found]


def test_half_blocks_are_means_of_the_pixels_under_them():
    frame = np.zeros((4, 4, 3), np.uint8)
    frame[:2, :2], frame[2:, 2:] = (200, 0, 0), (0, 0, 100)
    frame[0, 0] = (100, 0, 0)
    text = half_blocks(frame, columns=2, lines=10)
    assert cells(text) == [(175, 0, 0, 0, 0, 0), (0, 0, 0, 0, 0, 100)]


@pytest.mark.parametrize("shape", [(400, 600), (1, 1), (3, 1000), (1000, 3), (7, 5)])
def test_half_blocks_fit_the_terminal(shape):
    frame = np.full((*shape, 3), 50, np.uint8)
    text = half_blocks(frame, columns=80, lines=24)
    lines = text.split("\r\n")
    assert len(lines) <= 24
    assert all(line.count("▀") <= 80 for line in lines)
    assert set(cells(text)) == {(50,) * 6}
