"""One file per kind. Every method runs on the engine's one loop thread unless its docstring says otherwise.

No method reads the wall clock, the environment or a global random generator, and none sets process-wide state.
"""
