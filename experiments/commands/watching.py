"""`palestra watch`: episodes as pictures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .app import HOLDS, app
from .options import AsJson, Quiet, Set, settings_of
from .terminal import print_json, print_table, say

if TYPE_CHECKING:
    from palestra.film import Film

MOST_SHOWN = 6


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
    view: Annotated[
        str, typer.Option(help="window, terminal, or auto: a window where there can be one.")
    ] = "auto",
    settings: Set = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> int:
    """Show episodes in a window or the terminal, or save a video.

    A window needs a display and the extra `view`; closing it ends the show. Without one, a terminal
    of 40 columns that has colours shows them in half blocks. A pipe or a file can show nothing: use
    --save, which needs the extra `video`.
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
        film.show(fps, view)
        _show_played(film)
        return HOLDS
    return save_film(film, save, fps, width, as_json, quiet)


def save_film(
    film: Film, save: Path | None, fps: float | None, width: int | None, as_json: bool, quiet: bool
) -> int:
    """Write a video and say so."""
    from palestra.progress import progress_bar

    if save is None:
        raise ValueError("--save: not given; --json says what was saved")
    with progress_bar(f"{film}", len(film.chosen), not quiet) as advance:
        written = film.save(save, fps=fps, width=width, advance=advance)
    if as_json:
        document = {"video": str(written), "film": str(film), "bytes": written.stat().st_size}
        print_json(document | {"episodes": [one.to_json() for one in film.played]})
    else:
        _show_played(film)
        print(f"{written}: {film}")
    return HOLDS


def _show_played(film: Film) -> None:
    """Episodes side by side: metrics are many, episodes that one looks at are few."""
    numbers = [one.to_json() for one in film.played]
    shown = numbers[:MOST_SHOWN]
    if not shown:
        return
    rows = [(key, *(_cell(one[key]) for one in shown)) for key in shown[0] if key != "episode"]
    more = f"; the first {len(shown)} of {len(numbers)}" if len(numbers) > len(shown) else ""
    heads = [f"episode {one['episode']}" for one in shown]
    print_table(f"{film}{more}", ("", *heads), rows)


def _cell(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else value
