"""The built-in script of the scripted provider: a short conversation that needs no key."""

from __future__ import annotations

from typing import Final

from parley.models.script import Script, Step

__all__ = ["DEMONSTRATION"]

DEMONSTRATION: Final = Script(
    delta_delay_ms=25,
    replies=(
        (
            Step(reasoning="Somebody is trying this out. A greeting, then, and a word on what I am."),
            Step(delay_ms=200),
            Step(
                text="Hello! I am not a model, only a script that comes with Parley, so that you can see how a "
                "conversation streams before you give it a key.\n\n"
                "Each word of this is a delta. A client that joins now gets all of it up to here at once, and "
                "the rest as it comes. "
            ),
            Step(delay_ms=400),
            Step(text="Say something else, and I will go on."),
        ),
        (
            Step(reasoning="They came back. Time to mention what happens when they leave."),
            Step(
                text="Try this: close the client while I am talking, and open another one.\n\n"
                "The turn belongs to the server and not to the client. It continues while no client reads it, and "
                "a client that returns gets every word once: first the text so far, then the rest as it comes."
            ),
        ),
        (
            Step(
                text="That was nearly all I know by heart. To talk to something that listens, name a provider in "
                "`config.toml`:\n\n"
                "```toml\n"
                'model = "your-model"\n'
                'model_provider = "mine"\n\n'
                "[model_providers.mine]\n"
                'name = "Mine"\n'
                'base_url = "https://example.com/v1"\n'
                'env_key = "MY_API_KEY"\n'
                "```\n\n"
                "Or write me a better script. From here on I repeat myself."
            ),
        ),
    ),
)
