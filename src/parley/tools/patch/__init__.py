"""Patches: parsed, matched against the files, and written completely or not at all.

`extract` finds a patch in a command, `parser` parses it, `paths` resolves and checks its paths, `matching` finds
the places of its chunks, `plan` verifies all of it without writing, and `commit` writes it. `turndiff` shows what a
turn has changed, with `diffs`. `limits` and `deadline` limit size and time. `threads` runs the writing. None of
these modules knows turns or the order of events; `tools/apply_patch.py` does.
"""
