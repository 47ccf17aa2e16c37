"""`palestra watch`: episodes as pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .app import HOLDS, app
from .options import AsJson, Quiet, Set, settings_of
from .terminal import print_json, say


@app.command()
def watch(
    environment: str,
    policy: Annotated[
        str | None,
        typer.Option(
            help="pretrained, a name, run folder or file; default: pretrained, or random."
        ),
    ] = None,
    save: Annotated[
        Path | None, typer.Option(help="Write a video, .mp4 or .gif, instead of showing it.")
    ] = None,
    episodes: Annotated[int, typer.Option(help="How many.")] = 1,
    episode: Annotated[int, typer.Option(help="The first one.")] = 0,
    seed: Annotated[int, typer.Option(help="Whose episodes.")] = 0,
    max_steps: Annotated[int, typer.Option(help="Leave an episode after so many.")] = 10_000,
    fps: Annotated[float | None, typer.Option(help="Pictures a second.")] = None,
    width: Annotated[int | None, typer.Option(help="Of the video, in pixels.")] = None,
    settings: Set = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> int:
    """Show episodes in a window or the terminal, or save a video.

    A window needs a display and the extra `view`; without a display the terminal shows them in
    coarse colours. A video needs the extra `video`.
    """
    from palestra.film import Film

    film = Film(
        environment,
        policy,
        seed=seed,
        episode=episode,
        episodes=episodes,
        settings=settings_of(settings),
        max_steps=max_steps,
    )
    if save is None and not as_json:
        say(f"{film}")
        film.show(fps)
        return HOLDS
    return save_film(film, save, fps, width, as_json, quiet)


def save_film(
    film: Any, save: Path | None, fps: float | None, width: int | None, as_json: bool, quiet: bool
) -> int:
    """Write a video and say so."""
    from palestra.progress import progress_bar

    if save is None:
        raise ValueError("--save: not given; --json says what was saved")
    with progress_bar(f"{film}", len(film.chosen), not quiet) as advance:
        written = film.save(save, fps=fps, width=width, advance=advance)
    if as_json:
        print_json({"video": str(written), "film": str(film), "bytes": written.stat().st_size})
    else:
        print(f"{written}: {film}")
    return HOLDS
