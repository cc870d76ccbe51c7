"""The engine of VTC's artifact in virtual time, and the policies that were or can be run on it.

Theory of operation: VTC (Sheng et al., OSDI 2024) published not only a policy but the runs of an
engine under it and under others, with what every client saw. ``engine`` is that engine's loop,
built anew; its constants in ``engine_model.calibrations`` are fitted on the first-come run alone.
What the other policies do is then predicted and can be held against what they did, and a policy
that was never run there, such as the production scheduler, can be compared in the same ensemble.
"""
