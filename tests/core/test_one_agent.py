"""One agent of several as an environment of its own: the others act between its turns."""

import numpy as np
import pytest

import palestra
from palestra.batch import Episodes
from palestra.one_agent import OneAgent
from palestra.policy_loading import load_policy

TEAM = "palestra.controllers.nmr_team:"
OTHERS = {"toggle": f"{TEAM}Alternate", "relax": f"{TEAM}FlipBack"}
OIL = {"sample": "oil", "eps": 0.1}


class Steady:
    """Always the same train of 60-degree pulses."""

    def predict(self, observation, state=None, episode_start=None, deterministic=True):
        shot = np.array([-2 / 3, -1 / 3, 0.9], np.float32)
        return np.tile(shot, (len(observation), 1)), state


def test_its_episodes_are_those_of_the_team():
    team = {**OTHERS, "align": Steady()}
    whole = palestra.evaluate(team, "NMRTeam", episodes=24, seed=5, settings=OIL)
    settings = {"environment": "NMRTeam", "agent": "align", "others": OTHERS, "settings": OIL}
    one = palestra.evaluate(
        Steady(), "palestra.one_agent:OneAgent", episodes=24, seed=5, settings=settings
    )
    for name in ("measurement_time", "share", "shots"):
        np.testing.assert_array_equal(one.column(name), whole.column(name))
    np.testing.assert_allclose(one.column("return"), whole.column("return/align"), atol=1e-9)
    np.testing.assert_allclose(one.column("duration"), whole.column("duration"), rtol=1e-12)
    assert (one.column("length") < whole.column("length")).all()  # its own turns only


def test_every_role_has_its_turns_alone():
    for agent, space in (("toggle", "Discrete(3)"), ("relax", "Box(-1.0, 1.0, (2,), float32)")):
        others = {**OTHERS, "align": f"{TEAM}Echoes"}
        del others[agent]
        env = OneAgent(3, environment="NMRTeam", agent=agent, others=others, settings=OIL)
        assert str(env.action_space) == space
        episodes = Episodes(env)
        episodes.reset(0)
        assert env.observation_space.contains(episodes.observe()[0])
        assert env.env.acting()[:, ("toggle", "align", "relax").index(agent)].all()


def test_an_episode_that_the_others_end_at_once_is_over_at_the_first_turn(tmp_path):
    file = tmp_path / "quitter.py"
    file.write_text(
        "import numpy as np\n"
        "class Quit:\n"
        "    def predict(self, observation, state=None, episode_start=None, deterministic=True):\n"
        "        return np.full(len(observation), 2), state\n"
    )
    others = {"toggle": f"{file}:Quit", "relax": f"{TEAM}FlipBack"}
    env = OneAgent(2, environment="NMRTeam", agent="align", others=others, settings=OIL)
    episodes = Episodes(env)
    episodes.reset(0)
    step, ended = episodes.advance(np.zeros((2, 3), np.float32))
    assert ended == 2
    assert step.terminated.all()
    assert (step.duration == 0).all()


def test_what_is_no_agent_or_no_team():
    with pytest.raises(ValueError, match="agent: got 'boss', allowed toggle, align, relax"):
        OneAgent(1, environment="NMRTeam", agent="boss", others=OTHERS)
    with pytest.raises(ValueError, match="agent: got 'align', allowed none: one agent"):
        OneAgent(1, environment="NMRRelax", agent="align", others={})
    with pytest.raises(ValueError, match="policies: got one for"):
        OneAgent(1, environment="NMRTeam", agent="align", others={"toggle": OTHERS["toggle"]})


def test_the_teams_policies_fit_their_roles():
    env = palestra.make("NMRTeam", "aec").batch
    policy = load_policy({**OTHERS, "align": f"{TEAM}Echoes"}, env)
    episodes = Episodes(env)
    episodes.reset(0)
    actions, _ = policy.predict(episodes.observe())
    assert {name: np.shape(a) for name, a in actions.items()} == {
        "toggle": (1,), "align": (1, 3), "relax": (1, 2),
    }  # fmt: skip
