"""A window that shows pictures, for `render_mode="human"`."""

from __future__ import annotations

from typing import Any

from ..spaces import Array


class Window:
    """A pygame window of the size of the picture.

    Args:
        title: title of the window.
        fps: pictures a second.

    Attributes:
        dismissed: whether the person has closed it.

    Raises:
        ImportError: pygame is not installed.
    """

    def __init__(self, title: str, fps: float) -> None:
        try:
            import pygame
        except ImportError as missing:
            raise ImportError(
                'render_mode="human" needs pygame: pip install "palestra[view]"'
            ) from missing
        self._pygame: Any = pygame
        self._title, self._fps = title, fps
        self._screen: Any = None
        self.dismissed = False
        self._clock = pygame.time.Clock()

    def show(self, picture: Array, caption: str = "") -> None:
        """Show a uint8 (H, W, 3) picture and keep the pace.

        Args:
            picture: what to show.
            caption: what the title says besides.
        """
        pygame = self._pygame
        if self._screen is None:
            pygame.display.init()
            self._screen = pygame.display.set_mode((picture.shape[1], picture.shape[0]))
        pygame.display.set_caption(f"{self._title}: {caption}" if caption else self._title)
        pygame.event.pump()
        self.dismissed |= bool(pygame.event.peek(pygame.QUIT))
        self._screen.blit(pygame.surfarray.make_surface(picture.swapaxes(0, 1)), (0, 0))
        pygame.display.flip()
        self._clock.tick(self._fps)

    def close(self) -> None:
        """Close the window."""
        if self._screen is not None:
            self._pygame.display.quit()
            self._screen = None
