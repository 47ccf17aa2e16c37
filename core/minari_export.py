"""Recorded episodes as a Minari dataset, for learners that read those.

Episodes are handed over as buffers, one at a time. Minari's own collector is not used: it needs
jax, and would play the episodes again.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .registry import Target, is_registered, resolve
from .streams import Streams

if TYPE_CHECKING:
    from .trajectories import Trajectories

OUR_SETTINGS = ("horizon", "max_episode_steps", "metrics", "wrappers")  # not of gymnasium.make


def export(
    trajectories: Trajectories,
    dataset_id: str,
    *,
    description: str | None = None,
    author: str | None = None,
    author_email: str | None = None,
    code_permalink: str | None = None,
) -> Any:
    """Write all episodes of a run as a local Minari dataset, in HDF5. Pictures stay exact.

    `dataset.recover_environment()` gives the environment where the run names a registered one.
    There each episode of the dataset plays again: reset with its `seed` and `options`, then its
    actions. Infos, T + 1 long as Minari's are, hold `dt` (seconds) and `action_probability`; what
    is unknown, and the entry of the reset, is NaN.

    Args:
        trajectories: a recorded run whose episodes have all been played.
        dataset_id: "(namespace/)(environment/)name-v0".
        description: for people; by default environment, policy, seed and number of episodes.
        author: who made it.
        author_email: where to ask.
        code_permalink: where the code is.

    Returns:
        The `minari.MinariDataset`, as `minari.load_dataset(dataset_id)` gives it.

    Raises:
        ImportError: the `offline` extra is not installed.
        ValueError: an id that is not Minari's, or of a dataset that exists; several agents, which
            Minari does not have; episodes that have not been played.
        CorruptFile: a file of the run is damaged; then no dataset is begun.
    """
    try:
        import minari
        from minari.dataset.minari_dataset import parse_dataset_id
    except ImportError:
        raise ImportError(
            "to_minari needs Minari, which is not installed: pip install 'palestra[offline]'"
        ) from None
    if trajectories.agents:
        raise ValueError(
            f"to_minari: the run has the agents {', '.join(trajectories.agents)}; a Minari dataset "
            "has one. Read the steps of each agent from the run folder"
        )
    parse_dataset_id(dataset_id)  # Minari itself asks when it has made a folder already
    for _ in trajectories.tables():  # everything is there and sound, before anything is written
        pass
    config = trajectories.config
    origin = _Origin(trajectories)
    known = {
        "description": description
        or f"{len(trajectories)} episodes of seed {config['seed']} of {config['environment']}, "
        f"played by {config['policy']}; recorded with palestra",
        "author": author,
        "author_email": author_email,
        "code_permalink": code_permalink,
    }
    with warnings.catch_warnings():  # it warns of every field of the metadata that nobody gave
        warnings.filterwarnings("ignore", category=UserWarning, module=r"minari\.")
        return minari.create_dataset_from_buffers(
            dataset_id,
            origin.buffers(),
            env=origin.spec,
            algorithm_name=str(config["policy"]),
            observation_space=trajectories.observation_space,
            action_space=trajectories.action_space,
            data_format="hdf5",  # Minari 0.5.4 cannot read the infos of its Arrow format back
            jpeg_encoding=False,
            **known,
        )


class _Origin:
    """Where recorded episodes came from, in Gymnasium's terms.

    Attributes:
        spec: of the environment; None where it is no registered name.
    """

    def __init__(self, trajectories: Trajectories) -> None:
        self.trajectories = trajectories
        config = trajectories.config
        self.seed: int = config["seed"]
        self.spec: Any = None
        self.streams: Streams | None = None
        if not is_registered(config["environment"]):
            return
        where = resolve(config["environment"])
        if where.entry is not None:
            self.spec = _our_spec(where, config["settings"])
        else:
            self.spec = _gymnasiums_spec(where, config["settings"])
            env = where.make(1, **config["settings"])
            self.streams = Streams(env.stream_name(), 1)  # they seed each episode's reset
            self.streams.set_seeds([self.seed])
            env.close()

    def buffers(self) -> Iterator[Any]:
        """The episodes as Minari takes them."""
        from minari.data_collector import EpisodeBuffer

        for number, episode in enumerate(self.trajectories):
            seed, options = self._reset(number)
            yield EpisodeBuffer(
                id=number,
                seed=seed,
                options=options,
                observations=episode.observations,
                actions=episode.actions,
                rewards=episode.rewards,
                terminations=episode.terminated,
                truncations=episode.truncated,
                infos={
                    "dt": np.append(np.nan, episode.durations),
                    "action_probability": np.append(np.nan, episode.probabilities),
                },
            )

    def _reset(self, number: int) -> tuple[int, dict[str, Any] | None]:
        """Seed and options with which Gymnasium's interface begins an episode."""
        if self.streams is None:
            return self.seed, {"episode": number}
        self.streams.episode[0] = number
        return self.streams.seed32(0), None


def _our_spec(where: Target, settings: Mapping[str, Any]) -> Any:
    import gymnasium

    assert where.entry is not None
    if where.entry.agents:
        return None
    spec = copy.deepcopy(gymnasium.spec(where.entry.id))
    spec.kwargs = {**spec.kwargs, **settings}
    return spec


def _gymnasiums_spec(where: Target, settings: Mapping[str, Any]) -> Any:
    """The spec of a foreign environment; None where our wrappers change it, or a plug-in's."""
    import gymnasium

    if where.name not in gymnasium.registry or settings.get("wrappers"):
        return None
    spec = copy.deepcopy(gymnasium.spec(where.name))
    spec.kwargs = {**spec.kwargs, **{k: v for k, v in settings.items() if k not in OUR_SETTINGS}}
    limits = [settings.get("horizon"), settings.get("max_episode_steps"), spec.max_episode_steps]
    spec.max_episode_steps = min((n for n in limits if n is not None), default=None)
    return spec
