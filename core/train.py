"""Training: one configuration, one run folder, and a run that goes on where it was interrupted."""

from __future__ import annotations

import inspect
import math
import re
import time
import types
import typing
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .checkpoint import learner_files, restore_chance, restore_learner
from .code_identity import code_files
from .config import NONE, ConfigError, checked, dump_toml, resolved, shown
from .disk import to_json
from .global_random import preserved
from .play import one_thread
from .policy import takes_masks
from .policy_files import DESCRIPTION, STATISTICS, WEIGHTS
from .progress import progress_bar
from .registry import did_you_mean, load_object, resolve, squash
from .rollout import MOST_ROWS, evaluate
from .safe_files import MalformedFile, strict_json
from .sb3_networks import ACTIVATIONS, ALGORITHMS, SETTINGS
from .store import RunFolder, named_files
from .streams import check_seed
from .tracking import Tracking, check_names

if TYPE_CHECKING:
    from .film import Film

DEFAULT_ROLLOUT = 2048

Point = dict[str, Any]  # of a learning curve: steps, mean, low, high (None: too few episodes)

Tell = Callable[[Sequence[Point]], None]  # what a tracker hears of a curve as it grows

PROGRESS = "progress.json"  # in every state of a run: steps done and the learning curve
POLICY_FILES = (DESCRIPTION, WEIGHTS, STATISTICS)
DEVICE = re.compile(r"auto|cpu|mps|cuda(:[0-9]{1,3})?")
DEVICES = "cpu, cuda, cuda:N, mps or auto"
COUNTS = ("steps", "rows", "evaluate_every", "evaluation_episodes")
OWN_SETTINGS = ("rows", "wrappers")  # options of a training, not of its environment
_COUNT, _RATE, _SHARE = (1, math.inf), (0, math.inf), (0, 1)
RANGES = {  # of hyperparameters that no algorithm takes outside of them: least and most
    "batch_size": _COUNT,
    "buffer_size": _COUNT,
    "clip_range": _RATE,
    "exploration_final_eps": _SHARE,
    "exploration_fraction": _SHARE,
    "exploration_initial_eps": _SHARE,
    "gae_lambda": _SHARE,
    "gamma": _SHARE,
    "learning_rate": _RATE,
    "learning_starts": _RATE,
    "n_epochs": _COUNT,
    "n_steps": _COUNT,
    "policy_delay": _COUNT,
    "target_update_interval": _COUNT,
    "tau": _SHARE,
    "train_freq": _COUNT,
}
REFUSALS = (ArithmeticError, AssertionError, LookupError, RuntimeError, TypeError, ValueError)
SET_ELSEWHERE = {
    "policy": "set it as `policy`",
    "env": "set it as `environment`",
    "seed": "set it as `seed`",
    "device": "set it as `device`",
    "tensorboard_log": "set `tensorboard`; the files go into the run folder",
    "verbose": "the progress bar and the learning curve say what is to be said",
}


class ResumedDifferently(UserWarning):
    """A training run goes on, but will not equal an unbroken one."""


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
        device: "cpu" (the faster one for small networks), "cuda", "cuda:N", "mps", or "auto".
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
        for name in COUNTS:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise ConfigError(f"{name}: got {value!r}, allowed a whole number")
            if value < 1:
                raise ConfigError(f"{name}: got {value}, allowed 1 or more")
        if self.rows > MOST_ROWS:
            raise ConfigError(f"rows: got {self.rows}, allowed at most {MOST_ROWS} (2**20)")
        if not DEVICE.fullmatch(self.device):
            raise ConfigError(f"device: got {self.device!r}, allowed {DEVICES}")
        for name in OWN_SETTINGS:
            if name in self.settings:
                raise ConfigError(
                    f"settings.{name}: got {self.settings[name]!r}, allowed settings of the "
                    f"environment; set it as `{name}`"
                )
        for name in ("seed", "evaluation_seed"):
            try:
                check_seed(getattr(self, name), name)
            except (TypeError, ValueError) as problem:
                raise ConfigError(str(problem)) from None
        if self.evaluation_seed == self.seed:
            raise ConfigError(f"evaluation_seed: {self.seed} is the seed of training; take another")


@dataclass(frozen=True)
class Training:
    """What a training run left.

    Attributes:
        folder: the run folder; also a policy reference.
        policy: the trained policy.
        curve: one entry an evaluation: `steps`; `mean`, `low`, `high` of the return; `metrics`, the
            means of the other columns of the episodes.
        seconds: wall time of this call (a resumed run does not count what it had done before).
    """

    folder: Path
    policy: Any
    curve: list[Point]
    seconds: float

    def _repr_html_(self) -> str:
        """The learning curve for a notebook."""
        from .notebook import training_markup

        return training_markup(str(self.folder), self.curve)


def train(
    config: TrainConfig, run: str | Path, *, progress: bool = False, track: Sequence[str] = ()
) -> Training:
    """Train, evaluate on held-out episodes as it goes, and keep checkpoints.

    The run folder holds the resolved configuration (`config.toml`, which gives the same run
    again), and in `checkpoints/` the last two states and the best policy so far (`best-...`).
    Called again on the same folder, it resumes from the last checkpoint, or returns at once what
    was finished. A run that is refused before it has trained leaves no folder, so that the
    corrected one finds its place free. The global random states are left as they were.

    On-policy algorithms on an environment with `snapshot` end, when resumed, with the same bits
    as an unbroken run (on the CPU; everything runs on one thread). Elsewhere a resumed run is
    sound but another one: off-policy algorithms go on with an empty replay buffer, environments
    without `snapshot` with new episodes. A warning says so.

    Args:
        config: what to train.
        run: the run folder.
        progress: show a progress bar on stderr.
        track: names of trackers that get the curve as it grows: "tensorboard", "wandb", "mlflow".

    Raises:
        RunMismatch: the folder holds another run.
        ConfigError: the configuration does not fit the algorithm or the environment.
        RunLocked: another process trains there.
    """
    from .policy_loading import load_policy

    start = time.monotonic()
    cls = algorithm_class(config.algorithm)
    options = resolved(config)
    check_names(track)
    identity = {"kind": "training", "files": files_of(config), **options}
    folder = RunFolder.create_or_resume(run, identity)
    with folder.lock(), preserved(), one_thread():
        folder.write("config.toml", dump_toml(options).encode())
        curve: list[Point] = []
        tracking = Tracking(track, folder.path, options)
        try:
            _train(cls, config, folder, curve, progress, tracking.points)
            tracking.finish(config.steps, lambda: _film(config, folder.path))
        except (Exception, SystemExit):  # sys.exit in an environment's code is a failure too
            if folder.created and (not curve or curve[-1]["steps"] == 0):
                folder.withdraw()
            raise
        finally:
            tracking.close()
    env = resolve(config.environment).make(1, wrappers=config.wrappers, **config.settings)
    try:
        policy = load_policy(Path(run).resolve(), env)
    finally:
        env.close()
    return Training(Path(run), policy, curve, time.monotonic() - start)


def files_of(config: TrainConfig) -> dict[str, str]:
    """SHA-256 of every file, of data or of code, that a configuration names, by dotted option."""
    code = {
        "environment": resolve(config.environment).reference,
        "algorithm": config.algorithm,
        "wrappers": config.wrappers,
    }
    return named_files(resolved(config)) | code_files(code)


def check(config: TrainConfig) -> None:
    """Build what a training begins with, environment and learner, and throw it away.

    Raises:
        ConfigError: the configuration does not fit the algorithm or the environment.
        ImportError: the `train` extra is not installed.
    """
    cls = algorithm_class(config.algorithm)
    with preserved(), one_thread():
        env = _environment(cls, config)
        try:
            _learner(cls, config, env, Path())
        finally:
            env.close()


def _film(config: TrainConfig, run: Path) -> Film:
    """A held-out episode under the trained policy."""
    from .film import Film

    settings = {**config.settings, "wrappers": config.wrappers}
    return Film(config.environment, run, seed=config.evaluation_seed, settings=settings)


def _train(
    cls: type[Any],
    config: TrainConfig,
    folder: RunFolder,
    curve: list[Point],
    progress: bool,
    tell: Tell,
) -> None:
    """Train, or go on; the points of the learning curve are appended to `curve`, and told."""
    files: dict[str, bytes] = {}
    done = 0
    if (resumed := folder.latest("step-")) is not None:
        files = {file.name: file.read_bytes() for file in resumed.iterdir()}
        curve += learning_progress(resumed)
        done = curve[-1]["steps"]
        _keep_best(folder, files, curve)  # a run may have been killed before it came to that
        tell(curve)
        if done >= config.steps:
            return
    env = _environment(cls, config)
    try:
        learner = _learner(cls, config, env, folder.path)
        if hasattr(learner, "get_parameters") and hasattr(learner, "policy_aliases"):
            _train_sb3(learner, config, folder, files, curve, progress, tell)
        else:
            _train_other(learner, config, folder, files, curve, done, progress, tell)
    finally:
        env.close()


def learning_progress(checkpoint: Path) -> list[Point]:
    """The learning curve in a checkpoint of a training, up to its own step.

    Raises:
        MalformedFile: no such file as `train` writes.
    """
    file = checkpoint / PROGRESS
    if not file.is_file():
        raise MalformedFile(f"{file}: is missing")
    stored = strict_json(file.read_bytes(), str(file))
    try:
        curve = checked(stored, {"steps": int, "curve": list[_Point]})["curve"]
    except ConfigError as problem:
        raise MalformedFile(f"{file}: {problem}") from None
    if not curve or curve[-1].steps != stored["steps"]:
        raise MalformedFile(f"{file}: curve must end at steps = {stored['steps']}")
    return [vars(point) for point in curve]


@dataclass(frozen=True)
class _Point:
    """A point of a learning curve, as `progress.json` holds it."""

    steps: int
    mean: float
    low: float | None
    high: float | None
    metrics: dict[str, float] = field(default_factory=dict)


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


def _environment(cls: Any, config: TrainConfig) -> Any:
    from .views import make

    env = make(config.environment, "sb3", config.rows, wrappers=config.wrappers, **config.settings)
    if hasattr(env.batch, "action_masks") and not takes_masks(cls):
        raise ConfigError(
            f"algorithm: {cls.__name__} does not look at action masks, which "
            f"{config.environment} has; its predict has no argument action_masks. "
            "maskable-ppo does"
        )
    if not (config.normalise_observations or config.normalise_rewards):
        return env
    from stable_baselines3.common.vec_env import VecNormalize

    return VecNormalize(
        env,
        norm_obs=config.normalise_observations,
        norm_reward=config.normalise_rewards,
        gamma=config.hyperparameters.get("gamma", 0.99),
    )


def _learner(cls: type[Any], config: TrainConfig, env: Any, run: Path) -> Any:
    from gymnasium import spaces

    _check_names(cls, config.hyperparameters)
    _check_device(config.device)
    policy = config.policy
    known = getattr(cls, "policy_aliases", None)
    if policy != "auto" and known and policy not in known:
        raise ConfigError(
            f"policy: got {policy!r}{did_you_mean(policy, known)} "
            f"Allowed for {cls.__name__}: auto, {', '.join(known)}"
        )
    if policy == "auto":
        nested = isinstance(env.observation_space, spaces.Dict)
        kind = "MultiInput" if nested else "Mlp"
        policy = kind + ("LstmPolicy" if cls.__name__ == "RecurrentPPO" else "Policy")
    log = {"tensorboard_log": str(run / "tensorboard")} if config.tensorboard else {}
    network = config.hyperparameters.get("policy_kwargs") or {}
    architecture = network.get("net_arch", []) if isinstance(network, Mapping) else []
    if known and not SETTINGS["net_arch"](architecture):
        raise ConfigError(
            f"hyperparameters.policy_kwargs.net_arch: got {shown(architecture)}, allowed a list of "
            "numbers of units, or a table of such lists by pi, vf and qf"
        )
    given = {**_rollout_length(cls, config.rows), **_decoded(config.hyperparameters)}
    arguments = {name: _checked(cls, name, value) for name, value in given.items()}
    try:
        learner = cls(policy, env, seed=config.seed, device=config.device, **arguments, **log)
    except REFUSALS as refusal:
        said = " ".join(str(refusal).split()) or type(refusal).__name__
        raise ConfigError(f"{cls.__name__} refuses this configuration: {said}") from refusal
    if hasattr(learner, "set_logger") and not config.tensorboard:
        from stable_baselines3.common.logger import Logger

        learner.set_logger(Logger(folder=None, output_formats=[]))  # its own makes a folder in /tmp
    return learner


def _check_device(device: str) -> None:
    """Stable-Baselines3 would take the CPU in place of a device that is not there."""
    import torch

    kind, _, number = device.partition(":")
    found = {
        "cuda": torch.cuda.device_count(),
        "mps": int(torch.backends.mps.is_available()),
    }
    if int(number or 0) >= found.get(kind, 1):
        there = [name for name, count in found.items() if count]
        raise ConfigError(
            f"device: got {device!r}, which torch does not find here; allowed "
            f"{', '.join(['cpu', *there, 'auto'])}"
        )


def _rollout_length(cls: type[Any], rows: int) -> dict[str, int]:
    """2048 samples a rollout, as Stable-Baselines3's default of n_steps means for one row."""
    n_steps = inspect.signature(cls).parameters.get("n_steps")
    if n_steps is None or n_steps.default != DEFAULT_ROLLOUT:
        return {}
    return {"n_steps": max(DEFAULT_ROLLOUT // rows, 8)}


def _check_names(cls: type[Any], hyperparameters: Mapping[str, Any]) -> None:
    parameters = inspect.signature(cls).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    known = [name for name in parameters if name not in (*SET_ELSEWHERE, "_init_setup_model")]
    for name in hyperparameters:
        if name in SET_ELSEWHERE:
            raise ConfigError(f"hyperparameters.{name}: {SET_ELSEWHERE[name]}")
        if name not in known:
            raise ConfigError(
                f"hyperparameters: {cls.__name__} has no {name!r}{did_you_mean(name, known)} "
                f"It has: {', '.join(known)}"
            )


def _checked(cls: type[Any], name: str, value: Any) -> Any:
    """A hyperparameter of the type that the algorithm declares and of a possible size.

    Some wrong ones would be noticed only in the middle of a training, or never.
    """
    parameter = inspect.signature(cls).parameters.get(name)
    members = [] if parameter is None else _members(parameter.annotation)
    if members and not any(_fits(value, member) for member in members):
        if tuple in members and isinstance(value, list):
            return tuple(value)  # a file has lists only
        words = [_IN_WORDS[member] for member in members if member in _IN_WORDS]
        allowed = " or ".join(words) or str(getattr(parameter, "annotation", ""))
        raise ConfigError(f"hyperparameters.{name}: got {shown(value)}, allowed {allowed}")
    least, most = RANGES.get(name, (-math.inf, math.inf))
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and not least <= value <= most:
        allowed = f"{least} or more" if most == math.inf else f"{least} to {most}"
        raise ConfigError(f"hyperparameters.{name}: got {shown(value)}, allowed {allowed}")
    return value


_IN_WORDS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a string",
    dict: "a table",
    tuple: "a list",
    list: "a list",
    types.NoneType: f'"{NONE}"',
    Callable: "'linear 1e-3'",
}


def _members(annotation: Any) -> list[Any]:
    """The types of an annotation without their parameters; empty if it cannot be judged here."""
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        parts = [_members(part) for part in typing.get_args(annotation)]
        return [member for part in parts for member in part] if all(parts) else []
    kind = types.NoneType if annotation is None else origin or annotation
    if kind in (inspect.Parameter.empty, Any, object) or not isinstance(kind, type):
        return []
    plain: dict[Any, Any] = {Mapping: dict, Sequence: list}
    return [plain.get(kind, kind)]


def _fits(value: Any, member: Any) -> bool:
    if member is Callable:
        return callable(value) and not isinstance(value, type)
    if member is type:
        return isinstance(value, type)
    if isinstance(value, bool):
        return member is bool
    if member is int:
        return isinstance(value, int) and abs(value) < 2**63
    if member is float:
        if isinstance(value, int):
            return abs(value) < 2**63
        return isinstance(value, float) and math.isfinite(value)
    return isinstance(value, member)


def _decoded(hyperparameters: Mapping[str, Any]) -> dict[str, Any]:
    """Hyperparameters as Stable-Baselines3 wants them: schedules and classes instead of text."""
    arguments = {name: _scheduled(name, value) for name, value in hyperparameters.items()}
    extra = arguments.get("policy_kwargs") or {}
    if not isinstance(extra, Mapping):
        raise ConfigError(f"hyperparameters.policy_kwargs: got {shown(extra)}, allowed a table")
    extra = dict(extra)
    if isinstance(extra.get("activation_fn"), str):
        from torch import nn

        named = {name.lower(): name for name in ACTIVATIONS}
        name = extra["activation_fn"].lower()
        if name not in named:
            raise ConfigError(
                f"hyperparameters.policy_kwargs.activation_fn: got {extra['activation_fn']!r}, "
                f"allowed {', '.join(ACTIVATIONS)}"
            )
        extra["activation_fn"] = getattr(nn, named[name])
    if extra:
        arguments["policy_kwargs"] = extra
    if arguments.get("replay_buffer_class") == "HerReplayBuffer":
        from stable_baselines3 import HerReplayBuffer

        arguments["replay_buffer_class"] = HerReplayBuffer
    return arguments


def _scheduled(name: str, value: Any) -> Any:
    if not (isinstance(value, str) and value.startswith("linear ")):
        return value
    try:
        first = float(value.removeprefix("linear "))
    except ValueError:
        first = math.nan
    if not (math.isfinite(first) and first >= 0):
        raise ConfigError(
            f"hyperparameters.{name}: got {value!r}, allowed a number or 'linear 1e-3'"
        )
    return lambda remaining: first * remaining


def _train_sb3(
    algorithm: Any,
    config: TrainConfig,
    folder: RunFolder,
    files: Mapping[str, bytes],
    curve: list[Point],
    progress: bool,
    tell: Tell,
) -> None:
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

    if files:
        restore_learner(algorithm, files)
        if isinstance(algorithm, OffPolicyAlgorithm):
            _warn_resumed(folder, "with an empty replay buffer, which is not stored")
        elif not hasattr(algorithm.env.unwrapped.batch, "snapshot"):
            _warn_resumed(folder, "with new episodes: the environment has no snapshot")

    class Watch(BaseCallback):
        """Evaluates and keeps checkpoints between rollouts; nothing in it draws random numbers."""

        def __init__(self, advance: Any) -> None:
            super().__init__()
            self.advance = advance
            self.begins = bool(files)

        def _on_rollout_start(self) -> None:
            if self.begins:
                restore_chance(algorithm, files)
                self.begins = False
            elif self.num_timesteps >= len(curve) * config.evaluate_every:
                self.keep()

        def keep(self) -> None:
            curve.append(_score(algorithm, config, int(self.num_timesteps)))
            algorithm.logger.record("eval/return", curve[-1]["mean"])
            _keep(folder, learner_files(algorithm), curve)
            tell(curve)

        def _on_step(self) -> bool:
            self.advance(self.training_env.num_envs)
            return True

    done = algorithm.num_timesteps
    label = f"training {type(algorithm).__name__} on {config.environment}"
    with progress_bar(label, config.steps, progress) as advance:
        advance(done)
        watch = Watch(advance)
        algorithm.learn(config.steps - done, callback=watch, reset_num_timesteps=not files)
        watch.keep()


def _train_other(
    learner: Any,
    config: TrainConfig,
    folder: RunFolder,
    files: Mapping[str, bytes],
    curve: list[Point],
    done: int,
    progress: bool,
    tell: Tell,
) -> None:
    """A learner of another make, trained in pieces of `evaluate_every` steps.

    It is built as Stable-Baselines3's are and has `learn(total_timesteps)`, `predict`, and
    `policy_files()`, which gives what `palestra.policy_files.policy_files` would. If it also has
    `state_files()` and `restore_files(files)` (name -> bytes), an interrupted run resumes from
    its last piece; otherwise nothing is kept before the end, and the run begins again.
    """
    keeps = hasattr(learner, "state_files") and hasattr(learner, "restore_files")
    if files:
        learner.restore_files(files)
    label = f"training {type(learner).__name__} on {config.environment}"
    with progress_bar(label, config.steps, progress) as advance:
        advance(done)
        while done < config.steps:
            piece = min(config.evaluate_every, config.steps - done)
            learner.learn(total_timesteps=piece)
            done += piece
            curve.append(_score(learner, config, done))
            state = learner.state_files() if keeps else {}
            if keeps or done >= config.steps:
                _keep(folder, {**learner.policy_files(), **state}, curve)
            tell(curve)
            advance(piece)


def _score(learner: Any, config: TrainConfig, steps: int) -> Point:
    evaluation = evaluate(
        learner,
        config.environment,
        episodes=config.evaluation_episodes,
        seed=config.evaluation_seed,
        settings={**config.settings, "wrappers": config.wrappers},
    )
    mean = evaluation.mean()
    means = {
        name: float(evaluation.column(name).mean())
        for name in evaluation.table.column_names
        if name not in ("episode", "return")
    }
    known = {name: value for name, value in means.items() if math.isfinite(value)}
    return {
        "steps": steps, "mean": mean.estimate, "low": mean.low, "high": mean.high, "metrics": known
    }  # fmt: skip


def _keep(folder: RunFolder, files: Mapping[str, bytes], curve: list[Point]) -> None:
    steps = curve[-1]["steps"]
    progress = to_json({"steps": steps, "curve": curve})
    folder.publish(f"step-{steps:012d}", {**files, PROGRESS: progress}, keep=2)
    _keep_best(folder, files, curve)


def _keep_best(folder: RunFolder, files: Mapping[str, bytes], curve: list[Point]) -> None:
    """Publish the policy of a checkpoint too, if it has the best evaluation so far."""
    means = [point["mean"] for point in curve]
    if means[-1] == max(means):
        policy = {name: files[name] for name in POLICY_FILES if name in files}
        folder.publish(f"best-{curve[-1]['steps']:012d}", policy, keep=1)


def _warn_resumed(folder: RunFolder, how: str) -> None:
    warnings.warn(
        f"{folder.path}: the run goes on {how}. It will differ from an unbroken one",
        ResumedDifferently,
        stacklevel=5,
    )
