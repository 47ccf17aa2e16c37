"""`palestra list`, `info`, `cite`, `warmup`, `anchors`, `results`, `version`: what there is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .app import HOLDS, REFUTED, app
from .options import AsJson, Quiet, Seed, Set, settings_of
from .terminal import print_json, print_table


@app.command("list")
def list_command(
    check: Annotated[bool, typer.Option(help="Import the plug-ins; show the broken ones.")] = False,
    as_json: AsJson = False,
) -> int:
    """Environments, policies and experiments, with those of plug-ins."""
    from palestra.registry import catalogue, kebab, plugins

    from .. import CATALOGUE as EXPERIMENTS

    policies = _policy_names()
    found = plugins(load=check)
    if as_json:
        print_json(
            {
                "environments": [
                    {"id": e.id, "summary": e.summary, "agents": e.agents}
                    for e in catalogue().values()
                ],
                "plugins": [vars(p) for p in found],
                "policies": policies,
                "experiments": sorted(EXPERIMENTS),
            }
        )
    else:
        rows = [(kebab(e.name), e.id, e.summary) for e in catalogue().values()]
        print_table("Environments", ("name", "id", "what it asks"), rows)
        if found:
            listed = [(p.name, p.distribution, p.entry_point, p.problem) for p in found]
            print_table("Plug-ins", ("name", "distribution", "target", "problem"), listed)
        print_table("Policies", ("name", "target"), sorted(policies.items()))
        print_table("Experiments", ("name", "target"), sorted(EXPERIMENTS.items()))
    return REFUTED if check and any(p.problem for p in found) else HOLDS


def _policy_names() -> dict[str, str]:
    """Names only: the module of policies would import numba."""
    import importlib.metadata

    from palestra.controllers import CATALOGUE

    plugged = importlib.metadata.entry_points(group="palestra.policies")
    built_in = {"random": "built in", "pretrained": "ships with the environment"}
    return {**{point.name: point.value for point in plugged}, **CATALOGUE, **built_in}


@app.command()
def info(target: str, settings: Set = None, as_json: AsJson = False) -> int:
    """What an environment is: spaces, horizon, settings, metrics, anchors."""
    import inspect

    from palestra.gym_batch import GymBatch
    from palestra.registry import anchors_of, resolve
    from palestra.shipped import shelf_of

    found = resolve(target)
    shelf = shelf_of(found)
    env = found.make(1, **settings_of(settings))
    kind: type[Any] = type(env.copies[0].unwrapped if isinstance(env, GymBatch) else env)
    document = {
        "name": found.name,
        "target": found.reference,
        "observation_space": str(env.observation_space),
        "action_space": str(env.action_space),
        "agents": list(env.agents),
        "horizon": env.horizon,
        "settings": [p for p in inspect.signature(kind).parameters if p != "rows"],
        "options": ["episode", *env.option_names],
        "metrics": list(env.metrics()),
        "anchors": vars(a) if found.entry and (a := anchors_of(found.entry)) else None,
        "tuned": sorted(shelf.tuned()) or None,
        "pretrained": shelf.card(),
    }
    env.close()
    if as_json:
        print_json({**document, "doc": inspect.getdoc(kind)})
        return HOLDS
    print_table(found.name, ("", ""), [(k, v) for k, v in document.items() if v is not None])
    print(inspect.getdoc(kind) or "")
    return HOLDS


@app.command()
def cite(target: str, as_json: AsJson = False) -> int:
    """BibTeX of palestra and of the papers that an environment stands on."""
    from palestra.registry import resolve
    from palestra.shipped import palestra_reference, shelf_of

    found = [palestra_reference(), *shelf_of(resolve(target)).references()]
    if as_json:
        print_json([{"key": entry.key, **entry.fields} for entry in found])
    else:
        print("\n\n".join(entry.text for entry in found))
    return HOLDS


@app.command()
def warmup(
    targets: Annotated[list[str] | None, typer.Argument()] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> int:
    """Compile the kernels of environments ahead of time, so that the first run does not wait."""
    from palestra.progress import progress_bar
    from palestra.registry import catalogue

    from ..measure import compile_kernels

    chosen = targets or list(catalogue())
    seconds = {}
    with progress_bar("compiling kernels", len(chosen), not quiet) as advance:
        for target in chosen:
            seconds[target] = compile_kernels(target)
            if not as_json:
                print(f"{target}: {seconds[target]:.1f} s")
            advance(1)
    if as_json:
        print_json({"seconds": seconds})
    return HOLDS


@app.command()
def anchors(
    target: str,
    episodes: Annotated[int, typer.Option(help="How many.")] = 1024,
    seed: Seed = 0,
    quiet: Quiet = False,
) -> int:
    """Measure an environment's anchors: random policy, best classical one, bound."""
    from ..measure import measure_anchors

    print_json(measure_anchors(target, episodes, seed or 0, progress=not quiet))
    return HOLDS


@app.command()
def results(
    target: str,
    runs: Annotated[int, typer.Option(help="Training runs of each tuned algorithm.")] = 5,
    training_seed: Annotated[int, typer.Option(help="Of the first; the others follow.")] = 10,
    episodes: Annotated[int, typer.Option(help="Held-out episodes of every score.")] = 1024,
    seed: Annotated[int, typer.Option(help="Whose episodes.")] = 2025,
    pages: Annotated[str, typer.Option(help="The folder of the page.")] = "docs/results",
    out: Annotated[str, typer.Option(help="The folder of the runs.")] = "runs/results",
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> int:
    """Measure everything that ships with an environment; write its page and trained policy."""
    from ..results import Plan, span, write_results

    plan = Plan(target, runs, training_seed, episodes, seed)
    found = write_results(plan, Path(pages), Path(out), progress=not quiet)
    if as_json:
        print_json(found)
    else:
        rows = [(row["policy"], f"{row['estimate']:.4f}", span(row)) for row in found["rows"]]
        print_table(target, ("policy", found["metric"], "95 % interval"), rows)
    return HOLDS


@app.command()
def version(as_json: AsJson = False) -> int:
    """Versions of palestra and what it stands on, for a bug report."""
    from palestra.machine import machine

    document = machine()
    if as_json:
        print_json(document)
    else:
        for key, value in document.items():
            print(f"{key}: {value}")
    return HOLDS
