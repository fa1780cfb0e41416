"""The built-in script of the scripted provider: a short conversation that needs no key."""

from __future__ import annotations

from typing import Final

from parley.models.script import Script, Step

__all__ = ["DEMONSTRATION"]

DEMONSTRATION: Final = Script(
    delta_delay_ms=25,
    replies=(
        (
            Step(reasoning="A first message. I greet the user and say what I am."),
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
            Step(reasoning="A second message. I explain what happens when a client leaves."),
            Step(
                text="Try this: close the client while I am talking, and open another one.\n\n"
                "The turn belongs to the server and not to the client. It continues while no client reads it, and "
                "a client that returns gets every word once: first the text so far, then the rest as it comes."
            ),
        ),
        (
            Step(
                text="This script is almost over. To talk to a real model, name a provider in "
                "`config.toml`:\n\n"
                "```toml\n"
                'model = "your-model"\n'
                'model_provider = "mine"\n\n'
                "[model_providers.mine]\n"
                'name = "Mine"\n'
                'base_url = "https://example.com/v1"\n'
                'env_key = "MY_API_KEY"\n'
                "```\n\n"
                "You can also write a script of your own. From now on, I repeat this text."
            ),
        ),
    ),
)
