"""Patches: read, matched against the files, and written as a whole or not at all.

`recognise` finds a patch in a command, `grammar` reads it, `matching` finds its place in a file,
`plan` verifies all of it without writing, `commit` writes. None of it knows turns or events'
order; `tools/apply_patch.py` does.
"""
