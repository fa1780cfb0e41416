"""Parses patches, matches them against the files, and writes each patch completely or not at all.

`extract` finds a patch in a command, and `parser` parses it. `paths` resolves and checks its paths. `matching`
finds the positions of its chunks. `plan` verifies the whole patch without writing, and `commit` writes it in a
thread from `threads`. `turndiff` shows what a turn has changed, with hunks from `diffs`. `limits` and `deadline`
limit size and time. `tools/apply_patch.py` calls these modules, and appends the events of a patch to the log.
"""
