"""The recording of `parley chat` in the README: `python -m docs.recording` writes `docs/images/chat.svg`.

The model is the script of the tutorial, so the recording needs neither a key nor a network. It needs tmux.
"""
