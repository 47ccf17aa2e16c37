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
    "ninety-5t1": "palestra.controllers.nmr_shots:Ninety5T1",
    "ninety-126": "palestra.controllers.nmr_shots:Ninety126",
    "ernst": "palestra.controllers.nmr_shots:Ernst",
    "cpmg-5t1": "palestra.controllers.nmr_shots:CPMG5T1",
    "cpmg-tuned": "palestra.controllers.nmr_shots:CPMGTuned",
    "de-cpmg": "palestra.controllers.nmr_shots:DECPMG",
    "deft-shots": "palestra.controllers.nmr_shots:DEFT",
    "bssfp": "palestra.controllers.nmr_shots:BSSFP",
    "ir-bssfp": "palestra.controllers.nmr_shots:IRbSSFP",
    "saturation-recovery": "palestra.controllers.nmr_shots:SaturationRecovery",
    "inversion-recovery": "palestra.controllers.nmr_shots:InversionRecovery",
    "cpmg-worst-case": "palestra.controllers.nmr_shots:WorstCaseCPMG",
    "adaptive-cpmg": "palestra.controllers.nmr_shots:AdaptiveCPMG",
}
