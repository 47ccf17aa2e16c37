"""Policies that do not learn: classical, model-based and optimal controllers.

Each follows the policy protocol of the core, so that it is evaluated on the same episodes, by
the same runner, as a policy that learns.
"""

CATALOGUE = {
    "wait": "palestra.controllers.nmr:Wait",
    "deft": "palestra.controllers.nmr:Deft",
    "deft-compensated": "palestra.controllers.nmr:CompensatedDeft",
    "ninety": "palestra.controllers.nmr:Ninety",
    "echo": "palestra.controllers.nmr:Echo",
    "echo-ninety": "palestra.controllers.nmr:EchoNinety",
}
