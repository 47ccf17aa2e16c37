"""`palestra replay` and `palestra dataset`: what an evaluation recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .app import HOLDS, REFUTED, app
from .options import AsJson
from .terminal import print_json, print_table


@app.command()
def replay(
    folder: Annotated[Path, typer.Argument(help="A run folder of evaluate --record.")],
    episode: Annotated[int, typer.Argument(help="Its number.")],
    environment: Annotated[
        str | None, typer.Option(help="What to play it in, if the run names a file or module.")
    ] = None,
    save: Annotated[
        Path | None, typer.Option(help="Also write it as a video, .mp4 or .gif.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Play a recorded episode again from its stored actions; compare bit for bit."""
    from palestra.trajectories import Trajectories

    from ..replaying import step_rows

    played = Trajectories(folder).replay(episode, environment)
    if save is not None:
        Trajectories(folder).film(episode, environment).save(save)
    if as_json:
        print_json(played.to_json() | ({} if save is None else {"video": str(save)}))
    else:
        recorded = played.recorded
        title = f"{played.environment}: episode {episode} of seed {played.seed}"
        print_table(title, ("step", "action", "reward", "ends"), step_rows(recorded))
        if played.difference is None:
            print(f"the same, bit for bit, in all {len(recorded)} steps")
        else:
            print(f"NOT the same: {played.difference}")
        if save is not None:
            print(f"video: {save}")
    return HOLDS if played.same else REFUTED


@app.command()
def dataset(
    folder: Annotated[Path, typer.Argument(help="A run folder of evaluate --record.")],
    out: Annotated[
        str, typer.Option("--out", metavar="ID", help="Of the dataset, such as room/expert-v0.")
    ],
    description: Annotated[str | None, typer.Option(help="What it is, for people.")] = None,
    author: Annotated[str | None, typer.Option(help="Who made it.")] = None,
    author_email: Annotated[str | None, typer.Option(help="Where to ask.")] = None,
    code_permalink: Annotated[str | None, typer.Option(help="Where the code is.")] = None,
    as_json: AsJson = False,
) -> int:
    """Write recorded episodes as a Minari dataset, which minari.load_dataset reads."""
    from palestra.trajectories import Trajectories

    written = Trajectories(folder).to_minari(
        out,
        description=description,
        author=author,
        author_email=author_email,
        code_permalink=code_permalink,
    )
    document = {
        "dataset": out,
        "folder": str(written.storage.data_path.parent),
        "episodes": int(written.total_episodes),
        "steps": int(written.total_steps),
    }
    if as_json:
        print_json(document)
    else:
        print("{dataset}: {episodes} episodes, {steps} steps, in {folder}".format(**document))
    return HOLDS
