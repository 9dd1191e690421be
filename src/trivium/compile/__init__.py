"""Floor 4: from a graph to a plan: passes, memory plan, emission, tactics.

Most starts find their plan and need no pass, so nothing is imported here: `compile.build` compiles.
"""
