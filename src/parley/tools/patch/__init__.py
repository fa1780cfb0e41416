"""Patches: read, matched against the files, and written as a whole or not at all.

`recognise` finds a patch in a command, `grammar` reads it, `paths` judges the names in it, `matching`
finds its place in a file, `plan` verifies all of it without writing, `commit` writes, and `confined`
has that done by a process within bounds. `turndiff` shows what a turn has changed, `diffs` compares for
both. `limits` says how much is too much, `patience` for how long. `threads` is where all of it runs.
None of it knows turns or the order of events; `tools/apply_patch.py` does.
"""
