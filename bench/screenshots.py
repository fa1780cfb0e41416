"""Makes the screenshots of the page for the documentation: `python -m bench.screenshots DIRECTORY`.

The screenshots show a server with the scripted provider, with conversations in every state.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any, Final

from bench.model import running_model
from bench.resident import HttpPeer, Resident, resident

__all__: list[str] = []

DESKTOP: Final[Any] = {"width": 1280, "height": 800}
PHONE: Final[Any] = {"width": 390, "height": 780}

SLUG: Final = '''\
*** Begin Patch
*** Add File: slug.py
+"""Make slugs from titles."""
+
+import re
+
+
+def slug(title: str) -> str:
+    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
*** Add File: test_slug.py
+from slug import slug
+
+
+def test_words_are_joined() -> None:
+    assert slug("Hello, World") == "hello-world"
*** End Patch'''
CASEFOLD: Final = """\
*** Begin Patch
*** Update File: slug.py
@@
 def slug(title: str) -> str:
-    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
+    return re.sub(r"[^a-z0-9]+", "-", title.casefold()).strip("-") or "untitled"
*** End Patch"""
PLAN: Final = {
    "explanation": None,
    "plan": [
        {"step": "Write slug.py with a test", "status": "completed"},
        {"step": "Handle empty titles", "status": "in_progress"},
        {"step": "Run the tests", "status": "pending"},
    ],
}
ANSWER: Final = """\
`slug()` now handles titles without letters.

| title | slug |
| --- | --- |
| `Hello, World` | `hello-world` |
| `!!!` | `untitled` |

```python
from slug import slug

print(slug("Hello, World"))  # hello-world
```

Shall I also fold accents, so that *Café* becomes `cafe`?"""


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"call": {"name": name, "arguments": arguments}}


def shell(script: str) -> dict[str, Any]:
    return call("shell", command=["bash", "-lc", script])


REPLIES: Final[list[list[dict[str, Any]]]] = [
    [
        {"reasoning": "**Planning the change**\nA small module and a test first."},
        {"text": "I write a small module with a test first."},
        call("apply_patch", input=SLUG),
    ],
    [call("update_plan", **PLAN), call("apply_patch", input=CASEFOLD)],
    [shell("python3 -c 'import test_slug; test_slug.test_words_are_joined(); print(\"1 passed\")'")],
    [{"text": ANSWER}, {"usage": {"input_tokens": 5210, "output_tokens": 420, "cached_input_tokens": 4000}}],
    [
        {"text": "Now the whole test suite, and then the release notes."},
        shell("make test && git tag --annotate v1.4.0 --message 'Version 1.4.0'"),
    ],
    [{"text": "Done."}],
]


def main(target: Path) -> None:
    from playwright.sync_api import sync_playwright

    target.mkdir(parents=True, exist_ok=True)
    executable = shutil.which("chromium") or shutil.which("chromium-browser")
    with running_model() as url, resident(url) as files:
        script = files.work / "script.json"
        script.write_text(json.dumps({"replies": REPLIES}))
        settings = (
            'model_provider="page"',
            'model_providers.page.name="page"',
            'model_providers.page.wire_api="scripted"',
            f"model_providers.page.script={json.dumps(str(script))}",
            'approval_policy="untrusted"',
            'sandbox_mode="workspace-write"',
        )
        with resident(url, settings=settings) as server, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox", "--disable-gpu"])
            prepare(server)
            context = browser.new_context(viewport=DESKTOP, device_scale_factor=1.5)
            page = context.new_page()
            page.goto(server.page)
            shoot(page, target)
            phone = browser.new_context(
                viewport=PHONE, device_scale_factor=1.5, is_mobile=True, has_touch=True, color_scheme="dark",
                storage_state=context.storage_state(),
            )  # fmt: skip
            other = phone.new_page()
            other.goto(page.url.partition("#")[0])
            other.locator(".waiting-card button").first.wait_for()
            other.wait_for_timeout(800)
            other.screenshot(path=target / "page-phone-list.png")
            other.locator(".waiting-card a").first.click()
            other.locator(".transcript .approval-buttons").wait_for()
            other.wait_for_timeout(800)
            other.screenshot(path=target / "page-phone.png")
            browser.close()


def prepare(server: Resident) -> None:
    """Start conversations in several directories."""
    titles = {
        "website": ("Add a dark colour scheme", "Why is the search slow on the second page?"),
        "blog": ("Write a function that makes slugs from titles, with a test",),
        "tools": ("Release version 1.4.0", "Update the dependencies", "Explain the retry loop in fetch.py"),
    }
    for directory, texts in titles.items():
        path = server.work / directory
        path.mkdir()
        for text in texts:
            with HttpPeer(server) as peer:
                conversation = peer.create(path)
                peer.say(conversation, text)
                if text.startswith("Update"):
                    peer.tool("conversationInterrupt", conversation_id=conversation)
                    continue
                approve_all(peer, conversation)
                if text.startswith("Release"):
                    peer.say(conversation, "Now publish it")


def approve_all(peer: HttpPeer, conversation: str) -> None:
    """Approve every request of a conversation until its turn has ended."""
    state = "running"
    while state != "idle":
        state = peer.tool("conversationStatus", conversation_id=conversation)["state"]
        for one in peer.tool("approvalsList", conversation_id=conversation)["approvals"]:
            peer.tool("approvalAnswer", approval_id=one["approval_id"], decision="approved")
        time.sleep(0.05)


def shoot(page: Any, target: Path) -> None:
    page.locator(".waiting-card").first.wait_for()
    page.get_by_text("makes slugs from titles").first.click()
    page.locator(".turn").first.wait_for()
    page.wait_for_timeout(1000)
    page.screenshot(path=target / "page-conversation.png")
    page.get_by_role("tab", name="Changes").click()
    page.wait_for_timeout(500)
    page.screenshot(path=target / "page-changes.png")
    page.locator(".waiting-card a").first.click()
    page.locator(".transcript .approval-buttons").wait_for()
    page.wait_for_timeout(800)
    page.screenshot(path=target / "page-approval.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
