"""Screens: a window, and half blocks in a terminal."""

from __future__ import annotations

import importlib.util
import io

import numpy as np
import pytest

from palestra import screens
from palestra.screens import TerminalScreen, fitted, screen


def test_a_picture_is_scaled_by_means_over_areas():
    picture = np.zeros((4, 6, 3), np.uint8)
    picture[:, :3] = 100
    picture[::2] += 50
    assert fitted(picture, 6, 4).tolist() == picture.tolist()
    half = fitted(picture, 3, 2)
    assert half.shape == (2, 3, 3)
    assert half[:, :, 0].tolist() == [[125, 75, 25]] * 2
    assert fitted(picture, 100, 40).shape == (40, 60, 3)
    assert set(np.unique(fitted(picture, 100, 40))) == {0, 50, 100, 150}
    assert fitted(np.zeros((1000, 2, 3), np.uint8), 80, 50).shape == (50, 1, 3)


def test_half_blocks_show_two_pixels_a_character(monkeypatch):
    from rich.console import Console

    out = io.StringIO()
    place = TerminalScreen(1000)
    place.console = place.live.console = Console(
        file=out, force_terminal=True, color_system="truecolor", width=40, height=12
    )
    picture = np.zeros((2, 2, 3), np.uint8)
    picture[0, 0] = 255, 0, 0
    picture[1] = 0, 0, 255
    with place:
        assert place.show(picture, "step 1")
    shown = out.getvalue()
    assert "\x1b[38;2;255;0;0;48;2;255;0;0m" in shown  # the upper left corner is larger now
    assert "\x1b[38;2;0;0;255;48;2;0;0;255m" in shown
    assert "step 1" in shown
    assert max(line.count("▀") for line in shown.splitlines()) == 18  # 18 x 18 pixels


def test_without_a_display_and_a_terminal_the_error_names_save(monkeypatch):
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    with pytest.raises(ValueError, match="stdout is not a terminal; save a video"):
        screen("x", 10)
    with pytest.raises(ValueError, match="no display for a window; save a video"):
        screen("x", 10, "window")
    with pytest.raises(ValueError, match="got 'paper', allowed auto, window, terminal"):
        screen("x", 10, "paper")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setenv("LINES", "24")
    monkeypatch.delenv("NO_COLOR", raising=False)
    with pytest.raises(ValueError, match="30 columns and 24 lines, at least 40 and 12"):
        screen("x", 10)


@pytest.mark.skipif(importlib.util.find_spec("pygame") is None, reason="needs pygame")
def test_a_window_shows_pictures_until_it_is_closed(monkeypatch):
    import pygame

    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    assert screens.has_display()
    with screen("palestra: toys", 1000) as place:
        assert place.show(np.full((40, 60, 3), 77, np.uint8), "step 1")
        assert pygame.display.get_caption()[0] == "palestra: toys: step 1"
        assert pygame.display.get_surface().get_at((3, 5))[:3] == (77, 77, 77)
        pygame.event.post(pygame.event.Event(pygame.QUIT))
        assert not place.show(np.zeros((40, 60, 3), np.uint8), "step 2")
    assert not pygame.display.get_init()
