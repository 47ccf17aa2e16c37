"""The page of a run folder: `palestra report RUN`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from palestra.batch import BatchEnv, Episodes
from palestra.claims import Quantity
from palestra.config import build
from palestra.figures import distributions, learning_curve
from palestra.policy import begin as begin_policy
from palestra.policy import takes_masks
from palestra.policy_loading import load_policy
from palestra.registry import is_registered, load_object, resolve
from palestra.report import Report
from palestra.safe_files import strict_json
from palestra.spaces import Array
from palestra.stats import episodes_mean, success_rate
from palestra.store import RunFolder
from palestra.train import PROGRESS
from palestra.wrappers import WRAPPERS

from .experiment import names
from .experiment import run as run_experiment

MOST_FRAMES = 200


def write_page(folder: str | Path, out: str | Path | None = None) -> Path:
    """Write `report.html` of a training, an evaluation or an experiment.

    Args:
        folder: the run folder.
        out: where to write; by default `report.html` in the folder.

    Raises:
        FileNotFoundError: not a run folder.
        ValueError: a run of a kind that has no page, or that is not finished.
    """
    stored = RunFolder.open(folder)
    kind = stored.config.get("kind")
    target = Path(out) if out is not None else Path(folder) / "report.html"
    if kind == "training":
        return _training_page(stored).write(target)
    if kind in ("evaluation", "experiment") and not stored.finished:
        raise ValueError(f"{folder}: this {kind} is not finished; run its command again first")
    if kind == "evaluation":
        return _evaluation_page(stored).write(target)
    if kind == "experiment":
        cls = load_object(names()[stored.config["experiment"]])
        findings = run_experiment(build(cls, stored.config["options"]), folder).findings
        return findings.report.write(target)
    raise ValueError(f"{folder}: a run of kind {kind!r} has no page")


def _training_page(stored: RunFolder) -> Report:
    config = stored.config
    checkpoint = stored.latest("step-")
    if checkpoint is None:
        raise FileNotFoundError(f"{stored.path}: no checkpoint yet; nothing to show")
    curve = strict_json((checkpoint / PROGRESS).read_bytes(), PROGRESS)["curve"]
    last = curve[-1]
    page = Report(
        f"{config['algorithm']} on {config['environment']}",
        subtitle=f"{last['steps']} steps, seed {config['seed']}",
    )
    page.headline([("return at the end", _quantity(last))])
    page.plot(
        f"Return on {config['evaluation_episodes']} held-out episodes",
        *learning_curve(
            {
                config["algorithm"]: [
                    ([p["steps"] for p in curve], [p["mean"] for p in curve]),
                ]
            }
        ),
    )
    columns = ("steps", "return")
    page.table("Evaluations", columns, [(int(p["steps"]), _quantity(p)) for p in curve])
    # a run folder may come from anywhere: code that it names is not run
    if is_registered(config["environment"]) and set(config["wrappers"]) <= set(WRAPPERS):
        frames = episode_frames(
            config["environment"],
            str(stored.path),
            config["evaluation_seed"],
            {**config["settings"], "wrappers": config["wrappers"]},
        )
        if frames:
            page.animation("One held-out episode", frames, fps=10)
    page.facts({**_facts(config), **config["machine"]})
    return page


def _evaluation_page(stored: RunFolder) -> Report:
    config = stored.config
    table = stored.read("episodes")
    page = Report(
        f"{config['policy']} on {config['environment']}",
        subtitle=f"episodes 0 to {config['episodes'] - 1} of seed {config['seed']}",
    )
    rows, returns = [], table.column("return").to_numpy()
    for name in table.column_names:
        if name == "episode":
            continue
        values = table.column(name).to_numpy()
        mean = (
            success_rate(int(values.sum()), len(values))
            if values.dtype == np.bool_
            else episodes_mean(values)
        )
        rows.append((name, _interval(mean)))
    page.table("Means over episodes, with 95 % intervals", ("what", "mean"), rows)
    page.plot("Return of every episode", *distributions({"return": returns}, x_label="return"))
    page.facts({**_facts(config), **config["machine"]})
    return page


def episode_frames(
    target: Any, policy: Any, seed: int, settings: dict[str, Any], most: int = MOST_FRAMES
) -> list[Array]:
    """Pictures of episode 0 of a seed under a policy; empty if the environment draws nothing.

    One picture a step, or the environment's own `film` where steps differ in length.
    """
    env = resolve(target).make(1, **settings)
    try:
        if type(env).render is BatchEnv.render:
            return []
        actor = load_policy(policy, env)
        episodes = Episodes(env)
        episodes.seed(seed)
        episodes.begin(env.everyone)
        begin_policy(actor, env.everyone, episodes.streams)
        try:
            frames = [env.render(0)]
        except (NotImplementedError, ImportError):
            return []  # a foreign environment built without render_mode
        state, fresh = None, np.ones(1, np.bool_)
        while not episodes.ended[0] and len(frames) < most:
            masks = episodes.masks()
            wanted = {"action_masks": masks} if masks is not None and takes_masks(actor) else {}
            actions, state = actor.predict(
                episodes.observe(), state=state, episode_start=fresh, deterministic=True, **wanted
            )
            fresh = np.zeros(1, np.bool_)
            episodes.advance(actions)
            frames.append(env.render(0))
        return list(env.film(0)) if hasattr(env, "film") else frames
    finally:
        env.close()


def _facts(config: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key != "machine"}


def _quantity(point: dict[str, Any]) -> Quantity:
    low, high = point["low"], point["high"]
    return Quantity(point["mean"], None if low is None else (low, high))


def _interval(mean: Any) -> Quantity:
    return Quantity(mean.estimate, None if mean.low is None else (mean.low, mean.high))
