"""Videos: what is written plays, whatever becomes of the process that wrote it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import imageio_ffmpeg
import numpy as np
import pytest

from palestra.video import Video

SCRIPT = """
import numpy as np, os, sys, time
from palestra.video import Video

video = Video(sys.argv[1], 20)
for k in range(30):
    video.add(np.full((48, 64, 3), 8 * k, np.uint8))
"""


def decoded(path) -> list[np.ndarray]:
    """The frames of a video, by ffmpeg."""
    reader = imageio_ffmpeg.read_frames(str(path))
    width, height = next(reader)["source_size"]
    return [np.frombuffer(frame, np.uint8).reshape(height, width, 3) for frame in reader]


def moving(count, shape=(60, 80)):
    """A red square that moves to the right on white."""
    for k in range(count):
        frame = np.full((*shape, 3), 255, np.uint8)
        frame[10:30, k : k + 20] = (200, 30, 30)
        yield frame


@pytest.mark.parametrize("suffix", [".mp4", ".gif", ".MP4"])
def test_frames_come_back_in_number_size_and_colour(tmp_path, suffix):
    path = tmp_path / f"film{suffix}"
    with Video(path, 20) as video:
        for frame in moving(25):
            video.add(frame)
        assert not path.exists()  # it appears at once, complete
    assert video.frames == 25
    assert list(tmp_path.iterdir()) == [path]
    for expected, frame in zip(moving(25), decoded(path), strict=True):
        assert frame.shape == (60, 80, 3)
        assert np.abs(frame.astype(int) - expected).mean() < 6


def test_odd_sizes_are_padded_with_white(tmp_path):
    with Video(tmp_path / "film.mp4", 20) as video:
        for frame in moving(5, shape=(61, 81)):
            video.add(frame)
    (first, *_) = decoded(tmp_path / "film.mp4")
    assert first.shape == (62, 82, 3)
    assert first[-1].min() > 240


@pytest.mark.parametrize("suffix", [".mp4", ".gif"])
def test_pictures_are_scaled_to_a_width(tmp_path, suffix):
    with Video(tmp_path / f"film{suffix}", 20, width=40) as video:
        for frame in moving(5):
            video.add(frame)
    (first, *_) = decoded(tmp_path / f"film{suffix}")
    assert first.shape == (30, 40, 3)
    assert first[10, 4, 0] > 150 > first[10, 4, 1]  # the square is where it was


def test_a_file_of_the_name_is_replaced_when_the_new_one_is_whole(tmp_path):
    path = tmp_path / "film.mp4"
    path.write_bytes(b"old")
    with Video(path, 20) as video:
        video.add(next(moving(1)))
        assert path.read_bytes() == b"old"
    assert len(decoded(path)) == 1


def test_a_video_without_frames_leaves_no_file(tmp_path):
    with Video(tmp_path / "film.mp4", 20):
        pass
    assert not list(tmp_path.iterdir())


def test_closing_twice_is_closing(tmp_path):
    video = Video(tmp_path / "film.mp4", 20)
    video.add(next(moving(1)))
    video.close()
    video.close()
    assert len(decoded(tmp_path / "film.mp4")) == 1


def test_a_video_that_nobody_closed_plays_after_the_process_has_ended(tmp_path):
    path = tmp_path / "film.mp4"
    subprocess.run([sys.executable, "-c", SCRIPT, path], check=True)
    assert len(decoded(path)) == 30


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL on Windows")
def test_what_a_killed_process_leaves_plays(tmp_path):
    script = SCRIPT + "print('written', flush=True)\ntime.sleep(60)\n"
    process = subprocess.Popen(
        [sys.executable, "-c", script, tmp_path / "film.mp4"], stdout=subprocess.PIPE
    )
    process.stdout.readline()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    until = time.monotonic() + 20
    while True:  # ffmpeg ends by itself, when it sees that nobody writes any more
        (left,) = tmp_path.iterdir()
        if left.stat().st_size and len(decoded(left)) == 30:
            break
        assert time.monotonic() < until
        time.sleep(0.1)
    assert left.name.startswith(".film-")


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        (np.zeros((4, 4, 3)), "float64"),
        (np.zeros((4, 4), np.uint8), r"\(4, 4\)"),
        (np.zeros((4, 4, 4), np.uint8), "uint8"),
        (np.zeros((0, 4, 3), np.uint8), "pixels"),
        (np.zeros((8, 4, 3), np.uint8), r"the first one had \(60, 80, 3\)"),
    ],
)
def test_what_is_no_frame_is_refused_and_the_video_goes_on(tmp_path, frame, said):
    with Video(tmp_path / "film.mp4", 20) as video:
        video.add(next(moving(1)))
        with pytest.raises(ValueError, match=said):
            video.add(frame)
        video.add(next(moving(1)))
    assert len(decoded(tmp_path / "film.mp4")) == 2


def test_bad_arguments_are_refused(tmp_path, monkeypatch):
    for fps in (0, 101, float("nan")):
        with pytest.raises(ValueError, match="fps: got"):
            Video(tmp_path / "film.mp4", fps)
    with pytest.raises(ValueError, match=r"suffix must be one of \.mp4, \.gif"):
        Video(tmp_path / "film.avi", 20)
    with pytest.raises(ValueError, match="width: got 3, allowed 16"):
        Video(tmp_path / "film.mp4", 20, width=3)
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        Video(tmp_path / "nowhere" / "film.mp4", 20)
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(ImportError, match=r"pip install 'palestra\[video\]'"):
        Video(tmp_path / "film.mp4", 20)


def test_when_ffmpeg_ends_its_reason_is_said(tmp_path):
    video = Video(tmp_path / "film.mp4", 20)
    video.add(next(moving(1)))
    video._process.kill()
    video._process.wait()
    with pytest.raises(OSError, match="ffmpeg failed"):
        video.add(next(moving(1)))
    with pytest.raises(OSError, match="ffmpeg failed"):
        video.close()
    assert not list(tmp_path.iterdir())


MEMORY = """
import json, numpy as np, palestra
from pathlib import Path
from palestra.film import Film

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20

from palestra.video import Video
film = Film("CartPole-v1", "random", episodes=200)
ends, seen = [], []
with Video("film.mp4", 30) as video:
    for frame in film.frames(lambda done: seen.append(resident())):
        video.add(frame)
print(json.dumps([len(seen), seen[19], seen[-1], video.frames]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_does_not_grow_with_two_hundred_episodes(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", MEMORY], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    episodes, early, late, frames = json.loads(done.stdout.splitlines()[-1])
    assert episodes == 200
    assert late - early < 50  # MiB
    assert len(decoded(tmp_path / "film.mp4")) == frames
