"""Reading on the page: the position while text streams, links to positions, narrow windows, right-to-left text."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from kit.clients.page import DESKTOP, open_page
from kit.clients.reading import until_state
from kit.clients.shell_turns import sh
from kit.servers.http_server import HttpServer
from kit.servers.push_service import SubscribedBrowser
from parley.testing import HOLD, Call, Reasoning, ScriptedModel, Usage

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.long]

MARKDOWN = """# Title

A paragraph with **bold**, `code` and [a link][ref].
It has two lines.

- one
- two

  a paragraph in an item

  1. inner
- [x] done

```python
def f():

    return "```"
```

> quoted
> text

| a | b |
|---|---|
| 1 | 2 |

    indented code

Setext
------
***
~~~
open fence [ref]: nothing
~~~

[ref]: https://example.org/

last *words*"""

PATCH = "*** Begin Patch\n*** Add File: {}\n+x = 1\n+y = 2\n+z = 3\n+a = 4\n*** End Patch"

CHANGE = """*** Begin Patch
*** Update File: a.py
@@
-def hello(name): pass
+def hello(title): pass
*** Delete File: b.py
*** End Patch"""

RENDER = """async ([text, seed]) => {
    const module = (name) => import(new URL(name, document.querySelector('script[type=module]').src))
    const { fillMarkdown } = await module('text/markdown.js')
    const { StreamingText } = await module('text/streaming.js')
    const whole = document.createElement('div')
    fillMarkdown(whole, text)
    const streamed = document.createElement('div')
    const streaming = new StreamingText(streamed)
    for (let end = 0, state = seed; end < text.length; ) {
        state = (state * 1103515245 + 12345) % 2147483648
        end = Math.min(text.length, end + 1 + (state % 23))
        streaming.update(text.slice(0, end))
    }
    const before = streamed.textContent.replace(/\\s+/g, '')
    streaming.finish(text)
    return [whole.innerHTML, streamed.innerHTML, before.length > 0]
}"""


SUBSCRIBE = """subscription => {
    PushManager.prototype.subscribe = async () => ({ toJSON: () => subscription, unsubscribe: async () => true })
}"""

# A push message arrives while the page is hidden, and the person clicks the notification.
PUSH = """async id => {
    const all = clients.matchAll.bind(clients)
    const hidden = (page) => ({
        visibilityState: "hidden", focus: async () => {}, postMessage: (message) => page.postMessage(message),
    })
    clients.matchAll = async (options) => (await all(options)).map(hidden)
    const shown = new Promise((resolve) => {
        registration.showNotification = async (title, options) => resolve({ ...options, title, close() {} })
    })
    dispatchEvent(Object.assign(new PushEvent("push", { data: id }), { waitUntil() {} }))
    const notification = await shown
    const click = Object.assign(new Event("notificationclick"), { notification, waitUntil() {} })
    dispatchEvent(click)
    return [notification.title, notification.body, notification.data]
}"""


async def test_a_text_that_arrives_in_pieces_looks_like_the_whole_text(
    browser: Browser, server: HttpServer
) -> None:
    async with open_page(browser, server, **DESKTOP) as user:
        for seed in range(30):
            whole, streamed, had_text = await user.page.evaluate(RENDER, [MARKDOWN, seed])
            assert streamed == whole, seed
            assert had_text


async def test_a_turn_shows_its_plan_output_diff_and_tokens_while_it_runs(
    browser: Browser, model: ScriptedModel, tmp_path: Path
) -> None:
    counting = f'[model_providers.counts]\nname = "Counts"\nbase_url = "{model.base_url}"\nstream_usage = true\n'
    config = f'approval_policy = "untrusted"\nmodel_provider = "counts"\n{counting}'
    plan = {"plan": [{"step": "look", "status": "completed"}, {"step": "write", "status": "in_progress"}]}
    waits = sh("command", "echo begun; until [ -e go ]; do sleep 0.02; done; exit 3")
    model.says(Reasoning("**Look** first"), Call("update_plan", plan), waits)
    model.says(Call("apply_patch", {"input": CHANGE}))
    model.says("```python\nx = 1\n```", Usage(input_tokens=5000, output_tokens=170))
    async with HttpServer(model, tmp_path / "home", config=config) as server:
        (server.work / "a.py").write_text("def hello(name): pass\n")
        (server.work / "b.py").write_text("left\n")
        async with open_page(browser, server, **DESKTOP) as user:
            await user.start_conversation()
            await user.send("go")
            await user.button("Approve").click()
            await expect(user.transcript.locator(".terminal")).to_have_text("begun\n")
            await expect(user.transcript.locator(".call.command .call-status")).to_have_text("Running")
            (server.work / "go").touch()
            await expect(user.transcript.locator(".exit.failed")).to_have_text("exit 3")
            steps = user.transcript.get_by_role("group", name="Plan").get_by_role("listitem")
            await expect(steps).to_have_text(["look", "write"])
            await expect(steps.get_by_role("img", name="in progress")).to_have_count(1)
            await expect(user.transcript.locator(".reasoning-body")).to_be_hidden()
            loaded = (
                "performance.getEntriesByType('resource').filter(one => one.name.includes('/highlight/')).length"
            )
            assert await user.page.evaluate(loaded) == 0
            await user.button("Approve").click()
            await user.sees_state("Done")
            await expect(user.transcript.locator("code .hl-number")).to_have_text("1")
            assert await user.page.evaluate(loaded) == 2  # the core and one language
            await expect(user.transcript.locator(".turn-foot .tokens")).to_have_text("5.2k tokens")
            await expect(user.page.locator(".screen-tokens")).to_contain_text("5.2k tokens")

            await user.transcript.press("c")
            files = user.page.locator(".changes .file")
            await expect(files.locator(".path")).to_have_text(["a.py", "b.py"])
            assert await files.first.locator("mark").all_inner_texts() == ["name", "title"]


async def test_the_reading_position_is_kept_while_text_streams(
    browser: Browser, server: HttpServer, model: ScriptedModel
) -> None:
    paragraph = "A line of text that is long enough to fill a part of the window.\n\n"
    model.says(paragraph * 40, HOLD, paragraph * 40, "the end")
    async with open_page(browser, server, **DESKTOP) as user:
        await user.start_conversation()
        await user.send("write")
        await model.wait_until_held()
        await expect(user.transcript.locator(".agent p")).to_have_count(40)
        at_end = "node => Math.abs(node.scrollHeight - node.scrollTop - node.clientHeight) < 4"
        await expect(user.transcript.locator(".agent p").nth(39)).to_be_in_viewport()
        assert await user.transcript.evaluate(at_end)

        await user.transcript.evaluate("node => node.scrollTo(0, 300)")
        latest = user.page.get_by_role("button", name="Latest")
        await latest.wait_for()
        model.release()
        await user.sees("the end")
        await user.sees_state("Done")
        assert await user.transcript.evaluate("node => node.scrollTop") == 300

        await latest.click()
        assert await user.transcript.evaluate(at_end)
        await expect(latest).to_be_hidden()


async def test_an_approval_that_follows_an_approval_is_in_view(
    browser: Browser, server: HttpServer, model: ScriptedModel
) -> None:
    model.says("A line.\n\n" * 40, Call("apply_patch", {"input": PATCH.format("a.py")}))
    for name in ("b.py", "c.py", "d.py"):
        model.says(Call("apply_patch", {"input": PATCH.format(name)}))
    model.says("finished")
    async with open_page(browser, server, **DESKTOP) as user:
        await user.start_conversation()
        await user.send("go")
        for name in ("a.py", "b.py", "c.py", "d.py"):
            card = user.transcript.locator(".call.patch", has_text=name)
            await expect(card.locator("[data-key=a]")).to_be_in_viewport(ratio=1)
            await expect(card.locator("[data-key=a]")).to_be_enabled()
            await card.locator("[data-key=a]").evaluate("button => button.click()")
        await user.sees_state("Done")
        await expect(user.transcript.get_by_text("finished")).to_be_in_viewport()


async def test_a_link_to_a_position_shows_it(browser: Browser, server: HttpServer, model: ScriptedModel) -> None:
    client = await server.client()
    conversation = await client.create()
    for number in range(150):
        model.says(f"answer {number}")
        await client.say(conversation, f"question {number}")
        await until_state(client, conversation, "idle")
    found = await client.call("conversationSearch", text="question 7", conversation_id=conversation, limit=100)
    seq = found["messages"][-1]["seq"]
    async with open_page(browser, server, **DESKTOP) as user:
        await user.open(conversation, seq)
        await expect(user.transcript.get_by_text("question 7", exact=True)).to_be_in_viewport()
        await user.transcript.press("g")
        await expect(user.transcript.get_by_text("answer 149")).to_be_in_viewport()


async def test_the_page_fits_into_narrow_and_wide_windows_and_shows_right_to_left_text(
    browser: Browser, server: HttpServer, model: ScriptedModel
) -> None:
    model.says("שלום עולם, hello.\n\nHello שלום.\n", HOLD, Call("shell", {"command": ["touch", "x" * 200]}))
    model.says("done")
    async with open_page(browser, server, viewport={"width": 320, "height": 640}, reduced_motion="reduce") as user:
        await user.start_conversation()
        await user.send("مرحبا")
        await model.wait_until_held()
        await expect(user.transcript.locator(".pulse")).to_be_visible()
        assert await user.page.evaluate("document.getAnimations().length") == 0  # the person wants reduced motion
        model.release()
        await user.sees_state("Waiting for you")
        fits = "document.documentElement.scrollWidth <= innerWidth"
        assert await user.page.evaluate(fits), await user.page.evaluate(
            "[...document.querySelectorAll('*')].filter(n => n.getBoundingClientRect().right > innerWidth + 1)"
            ".map(n => n.className)"
        )
        directions = await user.transcript.locator(".agent p").evaluate_all(
            "nodes => nodes.map(node => getComputedStyle(node).direction)"
        )
        assert directions == ["rtl", "ltr"]
        await user.button("Back to the list").click()
        await user.page.locator(".waiting-card").wait_for()
        assert await user.page.evaluate(fits)
        await user.page.locator(".waiting-card a").click()
        await user.page.set_viewport_size({"width": 3440, "height": 1440})
        await expect(user.page.locator(".list")).to_be_visible()
        assert await user.page.evaluate(fits)
        for part in (user.transcript.locator(".turn"), user.page.locator(".composer")):
            box = await part.bounding_box()
            assert box is not None
            assert box["width"] < 900  # lines stay readable


async def test_the_page_can_be_installed_and_is_notified_while_it_is_hidden(
    browser: Browser, server: HttpServer, model: ScriptedModel
) -> None:
    client = await server.client()
    conversation = await client.create()
    async with open_page(browser, server, permissions=["notifications"], **DESKTOP) as user:
        devtools = await user.context.new_cdp_session(user.page)
        manifest = await devtools.send("Page.getAppManifest")
        assert (manifest["errors"], manifest["url"]) == ([], f"{server.service.page_url}manifest.webmanifest")
        errors = (await devtools.send("Page.getInstallabilityErrors"))["installabilityErrors"]
        assert {one["errorId"] for one in errors} <= {"in-incognito"}

        subscription = SubscribedBrowser("https://fcm.googleapis.com/fcm/send/abc:def").subscription()
        await user.page.evaluate(SUBSCRIBE, subscription)
        await user.button("Notify me").click()
        await expect(user.page.locator(".toast")).to_have_text("You are notified, also while the page is closed.")
        (sign_in,) = await server.server.store.sign_ins()
        assert sign_in.push is not None

        (worker,) = user.context.service_workers
        assert worker.url == f"{server.service.page_url}sw.js"
        notification = await worker.evaluate(PUSH, conversation)
        assert notification == ["Parley", "A conversation needs you.", conversation]
        await user.page.wait_for_url(f"**/#c={conversation}")
        refused = await user.page.evaluate(
            "(() => { try { trustedTypes.createPolicy('other', {}); return false } catch { return true } })()"
        )
        assert refused
        user.problems.clear()
        await user.page.evaluate("window.violations = []")


async def test_a_hidden_page_shows_a_notification(
    browser: Browser, server: HttpServer, model: ScriptedModel
) -> None:
    client = await server.client(capabilities={"elicitation": {}})
    conversation = await client.create()
    async with open_page(browser, server, permissions=["notifications"], **DESKTOP) as user:
        await user.page.evaluate(
            """() => {
                window.shown = []
                window.Notification = class {
                    constructor(title, options) { window.shown.push([title, options.body]) }
                }
                window.Notification.permission = 'granted'
                Object.defineProperty(document, 'visibilityState', { get: () => 'hidden' })
            }"""
        )
        model.says("answer")
        await client.say(conversation, "a task")
        await expect(user.page).to_have_title("(1) Parley")
        assert await user.page.evaluate("window.shown") == [["a task", "Finished"]]
