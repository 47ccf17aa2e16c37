"""Training: one configuration, one run folder, and a run that goes on where it was interrupted."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .checkpoint import learner_files, restore_learner
from .config import ConfigError, dump_toml, resolved
from .policy_files import ALGORITHMS
from .progress import progress_bar
from .registry import did_you_mean, load_object, resolve, squash
from .rollout import evaluate, one_thread
from .store import RunFolder


Point = dict[str, float | None]  # of a learning curve: steps, mean, low, high


@dataclass(frozen=True)
class TrainConfig:
    """Everything that decides a training run. The names are those of `--set key=value`.

    Attributes:
        environment: a target.
        algorithm: of Stable-Baselines3 or sb3-contrib by name ("ppo", "maskable-ppo", "sac"), or
            "module:Class" of a learner with their protocol.
        policy: the policy class of the algorithm; "auto" takes the one for the observations.
        steps: environment steps in all.
        seed: of the weights, the sampling and the training episodes.
        rows: rows of the environment that advance together.
        settings: keyword arguments of the environment.
        wrappers: names of wrappers around it, innermost first.
        hyperparameters: keyword arguments of the algorithm. `"linear 1e-3"` falls from 1e-3 to 0
            over the run (where the algorithm takes a schedule); `policy_kwargs.activation_fn`
            is a name.
        normalise_observations: keep running statistics and divide by them (stored with the
            policy).
        normalise_rewards: likewise for rewards, in training only.
        device: "cpu" (the faster one for small networks), "cuda", or "auto".
        evaluate_every: steps between evaluations, each with a checkpoint.
        evaluation_episodes: episodes of an evaluation.
        evaluation_seed: whose episodes; never the training episodes.
        tensorboard: also write event files for TensorBoard (the `log` extra).
    """

    environment: str
    algorithm: str = "ppo"
    policy: str = "auto"
    steps: int = 100_000
    seed: int = 0
    rows: int = 64
    settings: dict[str, Any] = field(default_factory=dict)
    wrappers: list[str] = field(default_factory=list)
    hyperparameters: dict[str, Any] = field(default_factory=dict)
    normalise_observations: bool = False
    normalise_rewards: bool = False
    device: str = "cpu"
    evaluate_every: int = 20_000
    evaluation_episodes: int = 256
    evaluation_seed: int = 1_000_003
    tensorboard: bool = False

    def __post_init__(self) -> None:
        for name in ("steps", "rows", "evaluate_every", "evaluation_episodes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: got {getattr(self, name)}, allowed 1 or more")
        if self.evaluation_seed == self.seed:
            raise ConfigError(f"evaluation_seed: {self.seed} is the seed of training; take another")


@dataclass(frozen=True)
class Training:
    """What a training run left.

    Attributes:
        folder: the run folder; also a policy reference.
        policy: the trained policy.
        curve: one entry an evaluation: `steps`, `mean`, `low`, `high` of the return.
        seconds: wall time of this call (a resumed run does not count what it had done before).
    """

    folder: Path
    policy: Any
    curve: list[Point]
    seconds: float


def train(config: TrainConfig, run: str | Path, *, progress: bool = False) -> Training:
    """Train, evaluate on held-out episodes as it goes, and keep checkpoints.

    The run folder holds the resolved configuration (`config.toml`, which gives the same run
    again), and in `checkpoints/` the last two states and the best policy so far (`best-...`).
    Called again on the same folder, it resumes from the last checkpoint, or returns at once what
    was finished. The global random states are left as they were.

    Args:
        config: what to train.
        run: the run folder.
        progress: show a progress bar on stderr.

    Raises:
        RunMismatch: the folder holds another run.
        ConfigError: the configuration does not fit the algorithm.
        RunLocked: another process trains there.
    """
    from .policy_loading import load_policy

    start = time.monotonic()
    folder = RunFolder.create_or_resume(run, {"kind": "training", **resolved(config)})
    with folder.lock(), _own_random_state(), one_thread():
        folder.write("config.toml", dump_toml(resolved(config)).encode())
        learner = _build(config, Path(run))
        try:
            if hasattr(learner, "get_parameters") and hasattr(learner, "policy_aliases"):
                curve = _train_sb3(learner, config, folder, progress)
            else:
                curve = _train_other(learner, config, folder, progress)
        finally:
            learner.env.close()
    env = resolve(config.environment).make(1, wrappers=config.wrappers, **config.settings)
    try:
        policy = load_policy(str(run), env)
    finally:
        env.close()
    return Training(Path(run), policy, curve, time.monotonic() - start)


def algorithm_class(name: str) -> type[Any]:
    """The class of an algorithm: of Stable-Baselines3, of sb3-contrib, or `module:Class`.

    Raises:
        ConfigError: unknown name, with near ones.
        ImportError: the `train` extra is not installed.
    """
    if ":" in name:
        return load_object(name)  # type: ignore[no-any-return]
    known = {squash(a): a for a in ALGORITHMS}
    if squash(name) not in known:
        raise ConfigError(
            f"algorithm: got {name!r}{did_you_mean(name, ALGORITHMS)} "
            f"Allowed: {', '.join(sorted(ALGORITHMS))}, or module:Class"
        )
    chosen = known[squash(name)]
    package = ALGORITHMS[chosen][0]
    try:
        return load_object(f"{package}:{chosen}")  # type: ignore[no-any-return]
    except ImportError as missing:
        raise ImportError(f'{chosen} needs {package}: pip install "palestra[train]"') from missing


def _build(config: TrainConfig, run: Path) -> Any:
    from gymnasium import spaces

    from .views import make

    cls = algorithm_class(config.algorithm)
    env = make(
        config.environment, "sb3", config.rows, wrappers=config.wrappers, **config.settings
    )
    if config.normalise_observations or config.normalise_rewards:
        from stable_baselines3.common.vec_env import VecNormalize

        gamma = config.hyperparameters.get("gamma", 0.99)
        env = VecNormalize(
            env,
            norm_obs=config.normalise_observations,
            norm_reward=config.normalise_rewards,
            gamma=gamma,
        )
    policy = config.policy
    if policy == "auto":
        nested = isinstance(env.observation_space, spaces.Dict)
        kind = "MultiInput" if nested else "Mlp"
        policy = kind + ("LstmPolicy" if cls.__name__ == "RecurrentPPO" else "Policy")
    log = {"tensorboard_log": str(run / "tensorboard")} if config.tensorboard else {}
    arguments = {**_decoded(config.hyperparameters), **log}
    try:
        learner = cls(policy, env, seed=config.seed, device=config.device, **arguments)
    except TypeError as refusal:
        raise ConfigError(f"hyperparameters: {cls.__name__} refuses them: {refusal}") from refusal
    return learner


def _decoded(hyperparameters: Mapping[str, Any]) -> dict[str, Any]:
    """Hyperparameters as Stable-Baselines3 wants them: schedules and classes instead of text."""
    arguments = {name: _scheduled(name, value) for name, value in hyperparameters.items()}
    extra = dict(arguments.get("policy_kwargs", {}))
    if isinstance(extra.get("activation_fn"), str):
        from torch import nn

        named = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU, "gelu": nn.GELU, "silu": nn.SiLU}
        name = extra["activation_fn"].lower()
        if name not in named:
            raise ConfigError(
                f"policy_kwargs.activation_fn: got {extra['activation_fn']!r}, "
                f"allowed {', '.join(named)}"
            )
        extra["activation_fn"] = named[name]
    if extra:
        arguments["policy_kwargs"] = extra
    return arguments


def _scheduled(name: str, value: Any) -> Any:
    if not (isinstance(value, str) and value.startswith("linear ")):
        return value
    try:
        first = float(value.removeprefix("linear "))
    except ValueError:
        raise ConfigError(f"{name}: got {value!r}, allowed a number or 'linear 1e-3'") from None
    return lambda remaining: first * remaining


def _train_sb3(
    algorithm: Any, config: TrainConfig, folder: RunFolder, progress: bool
) -> list[Point]:
    from stable_baselines3.common.callbacks import BaseCallback

    curve: list[Point] = []
    resumed = folder.latest("step-")
    if resumed is not None:
        files = {file.name: file.read_bytes() for file in resumed.iterdir()}
        curve = restore_learner(algorithm, files)["curve"]

    class Watch(BaseCallback):  # type: ignore[misc]
        """Evaluates and keeps checkpoints between rollouts; nothing in it draws random numbers."""

        def __init__(self, advance: Any) -> None:
            super().__init__()
            self.advance = advance

        def _on_rollout_start(self) -> None:
            due = (len(curve)) * config.evaluate_every
            if self.num_timesteps >= due:
                self.keep()

        def keep(self) -> None:
            curve.append(_score(algorithm, config))
            algorithm.logger.record("eval/return", curve[-1]["mean"])
            _keep(folder, algorithm, curve)

        def _on_step(self) -> bool:
            self.advance(self.training_env.num_envs)
            return True

    done = algorithm.num_timesteps
    label = f"training {type(algorithm).__name__} on {config.environment}"
    with progress_bar(label, config.steps, progress) as advance:
        advance(done)
        if done < config.steps:
            watch = Watch(advance)
            algorithm.learn(config.steps - done, callback=watch, reset_num_timesteps=resumed is None)
            watch.keep()
    return curve


def _score(algorithm: Any, config: TrainConfig) -> Point:
    evaluation = evaluate(
        algorithm,
        config.environment,
        episodes=config.evaluation_episodes,
        seed=config.evaluation_seed,
        settings={**config.settings, "wrappers": config.wrappers},
    )
    mean = evaluation.mean()
    return {
        "steps": int(algorithm.num_timesteps),
        "mean": mean.estimate,
        "low": mean.low,
        "high": mean.high,
    }


def _keep(folder: RunFolder, algorithm: Any, curve: list[Point]) -> None:
    files = learner_files(algorithm, {"curve": curve})
    steps = f"{algorithm.num_timesteps:012d}"
    means = [point["mean"] or 0.0 for point in curve]
    if means[-1] >= max(means):
        from .policy_files import policy_files

        folder.publish(f"best-{steps}", policy_files(algorithm), keep=1)
    folder.publish(f"step-{steps}", files, keep=2)


def _train_other(
    learner: Any, config: TrainConfig, folder: RunFolder, progress: bool
) -> list[Point]:
    """A learner with `learn(total_timesteps)`, `predict` and `policy_files()` of its own.

    It is trained in pieces of `evaluate_every` steps. If it has `state_files()` and
    `restore_files(files)`, an interrupted run resumes from them.
    """
    curve: list[Point] = []
    done = 0
    resumed = folder.latest("step-")
    if resumed is not None and hasattr(learner, "restore_files"):
        files = {file.name: file.read_bytes() for file in resumed.iterdir()}
        notes = learner.restore_files(files)
        curve, done = notes["curve"], notes["steps"]
    label = f"training {type(learner).__name__} on {config.environment}"
    with progress_bar(label, config.steps, progress) as advance:
        advance(done)
        while done < config.steps:
            piece = min(config.evaluate_every, config.steps - done)
            learner.learn(total_timesteps=piece)
            done += piece
            learner.num_timesteps = done
            curve.append(_score(learner, config))
            notes = {"curve": curve, "steps": done}
            folder.publish(f"step-{done:012d}", learner.state_files(notes), keep=2)
            advance(piece)
    return curve


@contextlib.contextmanager
def _own_random_state() -> Iterator[None]:
    """Stable-Baselines3 seeds the global generators; give them back as they were."""
    import torch

    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002
