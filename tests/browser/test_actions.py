"""Actions on the page: messages, queue, branches, comments, search, settings, and answers from the list."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect

from kit.builders.images import PNG
from kit.clients.page import DESKTOP, PHONE, open_page
from kit.clients.reading import until_state
from kit.clients.shell_turns import sh
from kit.servers.http_server import HttpServer
from parley.testing import HOLD, Call, ScriptedModel

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.long]

PATCH = "*** Begin Patch\n*** Add File: a.py\n+x = 1\n+y = 2\n*** End Patch"


SENDERS = """async ({ me, isShared }) => {
    const script = document.querySelector("script[type=module]").src
    const { itemView } = await import(new URL("transcript/item_view.js", script))
    const context = { me: () => me, isShared: () => isShared, canSend: () => false }
    const label = (principal) =>
        itemView({ kind: "user", id: "m", content: [], principal }, context).node.querySelector(".who").textContent
    return [undefined, "local", "ada", me].map(label)
}"""
"""Returns the labels of a message without a principal, and of messages of `local`, `ada` and `me`."""

HIDDEN_NAMES = """(select) => {
    const style = getComputedStyle(select)
    const canvas = document.createElement("canvas").getContext("2d")
    canvas.font = `${style.fontWeight} ${style.fontSize} ${style.fontFamily}`
    const arrow = 20
    const room = select.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight) - arrow
    const names = [...select.options].map((option) => option.text.replace(" (unchanged)", ""))
    return names.filter((name) => canvas.measureText(`${name} (unchanged)`).width > room)
}"""
"""Returns the names that do not fit into a select element when they are the current value."""


GIVE_FILE = """(node, event) => {
    const transfer = new DataTransfer()
    transfer.items.add(new File(["text of a file"], `${event}.txt`, { type: "text/plain" }))
    const options = { bubbles: true, cancelable: true }
    if (event === "paste") node.dispatchEvent(new ClipboardEvent(event, { ...options, clipboardData: transfer }))
    else node.dispatchEvent(new DragEvent(event, { ...options, dataTransfer: transfer }))
}"""


async def choose(page: Page, action: str) -> None:
    """Choose an action of the menu of the conversation."""
    await page.locator(".menu summary").click()
    await page.locator(".menu-items").get_by_role("button", name=action, exact=True).click()


async def test_messages_join_or_wait_in_a_queue_that_can_be_edited(
    browser: Browser, server: HttpServer, model: ScriptedModel
) -> None:
    async with open_page(browser, server, **DESKTOP) as user:
        await user.start_conversation()
        model.says("working ", HOLD, "on it")
        await user.send("start")
        await user.sees("working")
        for text in ("first queued", "second queued"):
            await user.message.fill(text)
            await user.button("Queue").click()
            await expect(user.page.locator(".queue")).to_contain_text(text)
        await user.button("Remove the queued message").first.click()
        await expect(user.page.locator(".queue li")).to_have_count(1)
        await user.button("Edit the queued message").click()
        await user.page.get_by_role("textbox", name="Queued message").fill("changed in the queue")
        await user.button("Save the queued message").click()
        await expect(user.page.locator(".queue")).to_contain_text("changed in the queue")
        model.says("joined")
        await user.send("also this")
        await user.sees("also this")
        model.says("last")
        model.release()
        await user.sees("last")
        await user.sees_state("Done")

        messages = await user.transcript.locator(".user .message-body").all_inner_texts()
        assert [text.strip() for text in messages] == ["start", "also this", "changed in the queue"]


async def test_a_turn_is_interrupted_and_continued(
    browser: Browser, server: HttpServer, model: ScriptedModel
) -> None:
    async with open_page(browser, server, **DESKTOP) as user:
        await user.start_conversation()
        model.says("long ", HOLD, "story")
        await user.send("tell")
        await user.sees("long")
        await user.page.get_by_role("button", name="Stop").click()
        await user.sees("Interrupted by page")
        await user.sees_state("Interrupted")
        model.says("the rest")
        await user.button("Continue").click()
        await user.sees("the rest")
        await user.sees_state("Done")

        model.says("another ", HOLD, "story")
        await user.send("more")
        await user.sees("another")
        await user.message.fill("afterwards")
        await user.message.press("Alt+Enter")
        await expect(user.page.locator(".queue")).to_contain_text("afterwards")
        await user.page.get_by_role("button", name="Stop").click()
        await expect(user.page.locator(".queue-title")).to_have_text("Queue, paused")
        model.says("the queued answer")
        await user.button("Resume").click()
        await user.sees("the queued answer")
        await expect(user.page.locator(".queue")).to_be_hidden()


async def test_an_edited_message_begins_a_branch(
    browser: Browser, server: HttpServer, model: ScriptedModel
) -> None:
    async with open_page(browser, server, **DESKTOP) as user:
        await user.start_conversation()
        for question, answer in (("one", "answer 1"), ("two", "answer 2"), ("three", "answer 3")):
            model.says(answer)
            await user.send(question)
            await user.sees(answer)
            await user.sees_state("Done")
        second = user.transcript.locator(".user", has_text="two")
        await second.hover()
        await second.get_by_role("button", name="Edit and resend").click()
        await expect(user.message).to_have_value("two")
        model.says("answer 2b")
        await user.send("two, edited")
        await user.sees("answer 2b")
        await user.sees_state("Done")
        shown = user.transcript.locator(".turn:not([hidden]) .agent")
        assert await shown.all_text_contents() == ["answer 1", "answer 2b"]
        assert [one["content"] for one in model.requests[-1].body["messages"][-3:]] == [
            "one", "answer 1", "two, edited"
        ]  # fmt: skip

        await user.button("Earlier version").click()
        assert await shown.all_text_contents() == ["answer 1", "answer 2", "answer 3"]
        model.says("answer 4")
        await user.send("four")
        await user.sees("answer 4")
        await user.sees_state("Done")
        assert await shown.all_text_contents() == ["answer 1", "answer 2", "answer 3", "answer 4"]
        assert model.requests[-1].body["messages"][-2]["content"] == "answer 3"


async def test_a_fork_from_a_message_ends_with_it(
    browser: Browser, server: HttpServer, model: ScriptedModel
) -> None:
    async with open_page(browser, server, **DESKTOP) as user:
        first = await user.start_conversation()
        for question, answer in (("one", "answer 1"), ("two", "answer 2")):
            model.says(answer)
            await user.send(question)
            await user.sees(answer)
            await user.sees_state("Done")
        message = user.transcript.locator(".user", has_text="one")
        await message.hover()
        await message.get_by_role("button", name="Fork from here").click()
        await expect(user.page.locator(".entry")).to_have_count(2)
        assert first not in user.page.url
        await user.sees("answer 1")
        assert await user.transcript.locator(".user").count() == 1
        model.says("answer 3")
        await user.send("three")
        await user.sees("answer 3")
        assert [one["content"] for one in model.requests[-1].body["messages"][-3:]] == ["one", "answer 1", "three"]


async def test_comments_on_lines_are_sent_as_one_message(
    browser: Browser, server: HttpServer, model: ScriptedModel
) -> None:
    model.says(Call("apply_patch", {"input": PATCH}))
    model.says("written")
    async with open_page(browser, server, **DESKTOP) as user:
        await user.start_conversation()
        await user.send("write")
        await user.button("Approve").click()
        await user.sees_state("Done")
        await user.page.get_by_role("tab", name="Changes").click()
        await expect(user.page.locator(".changes")).to_contain_text("Changes made by commands are not shown.")
        assert await user.page.locator(".changes option").all_text_contents() == ["write (latest)"]
        for line, comment in ((1, "Use a name."), (2, "And here.")):
            row = user.page.locator(".changes tr.add").nth(line - 1)
            await row.hover()
            await row.get_by_role("button").click()
            await user.page.get_by_role("textbox", name="Comment").fill(comment)
            await user.button("Add comment").click()
        await expect(user.page.locator(".composer-note").first).to_contain_text("2 comments")
        await user.page.reload()
        await expect(user.page.locator(".composer-note").first).to_contain_text("2 comments")
        model.says("thanks")
        await user.button("Send comments").click()
        await user.sees("thanks")
        await user.sees_state("Done")

        sent = model.requests[-1].body["messages"][-1]["content"]
        assert sent == (
            "Comments on the changes:\n\na.py, line 1:\n```\nx = 1\n```\nUse a name.\n\n"
            "a.py, line 2:\n```\ny = 2\n```\nAnd here."
        )
        await expect(user.page.locator(".composer-note").first).to_be_hidden()


async def test_the_changes_of_all_turns_are_shown_by_turn_and_file(
    browser: Browser, server: HttpServer, model: ScriptedModel
) -> None:
    async with open_page(browser, server, **DESKTOP) as user:
        await user.start_conversation()
        for patch in (PATCH, "*** Begin Patch\n*** Update File: a.py\n@@\n-y = 2\n+y = 3\n*** End Patch"):
            model.says(Call("apply_patch", {"input": patch}))
            model.says("written")
            await user.send(f"write {len(model.requests)}")
            await user.button("Approve").click()
            await user.sees_state("Done")
        await user.page.get_by_role("tab", name="Changes").click()
        choice = user.page.get_by_role("combobox", name="Turn")
        await expect(user.page.locator(".changes .total")).to_have_text("1 file +1−1")
        await choice.select_option("All turns")
        await expect(user.page.locator(".changes .total")).to_have_text("2 turns +3−1")
        parts = user.page.locator(".changes").locator("h2, .path")
        await expect(parts.filter(has_text="a.py")).to_have_count(2)
        assert await parts.all_inner_texts() == ["write 0", "a.py", "write 2", "a.py"]


async def test_an_approval_is_denied_with_a_reason_from_the_list(
    browser: Browser, server: HttpServer, model: ScriptedModel
) -> None:
    model.says(sh("call", "touch made"))
    client = await server.client(capabilities={"elicitation": {}})
    conversation = await client.create()
    async with open_page(browser, server, **DESKTOP) as user:
        await client.say(conversation, "go")
        card = user.page.locator(".waiting-card")
        await expect(card.locator("pre")).to_have_text("touch made")
        assert await user.page.title() == "(1) Parley"
        await card.locator("a").focus()
        model.says("understood")
        await expect(card.get_by_role("button", name="Deny with a reason…")).to_be_enabled()
        await user.page.keyboard.press("r")
        await user.page.keyboard.type("use another name")
        await user.page.keyboard.press("Enter")
        await expect(card).to_have_count(0)
        await expect(user.page.locator(".entry[data-state=unread]")).to_have_count(1)
        await user.open(conversation)
        await user.sees("understood")
        await expect(user.page.locator(".entry[data-state=done]")).to_have_count(1)

    assert "use another name" in model.requests[-1].body["messages"][-1]["content"]


async def test_a_patch_that_the_server_refuses_is_shown_with_the_reason(
    browser: Browser, server: HttpServer, model: ScriptedModel
) -> None:
    (server.work / "a.py").write_text("x = 1\n")
    patch = "*** Begin Patch\n*** Update File: a.py\n@@\n-x = 1\n+x = 2\n*** End Patch"
    model.says(
        Call("apply_patch", {"input": "*** Begin Patch\n*** End Patch"}), Call("apply_patch", {"input": patch})
    )
    model.says("finished")
    async with open_page(browser, server, **DESKTOP) as user:
        await user.start_conversation()
        await user.send("go")
        await user.sees("Patch not applied: empty patch")
        call = user.transcript.locator(".call.patch")
        await expect(call.get_by_role("button", name="Approve", exact=True)).to_be_enabled()
        (server.work / "a.py").write_text("x = 3\n")
        await call.get_by_role("button", name="Approve", exact=True).click()
        await user.sees("finished")
        await expect(call).to_have_attribute("data-state", "failed")
        await expect(call).to_contain_text('Failed to find expected lines ["x = 1"]')


async def test_a_change_is_approved_from_the_list_with_its_diff_in_view(
    browser: Browser, server: HttpServer, model: ScriptedModel
) -> None:
    model.says(Call("apply_patch", {"input": PATCH}))
    model.says("written")
    client = await server.client(capabilities={"elicitation": {}})
    await client.say(await client.create(cwd=str(server.work)), "go")
    async with open_page(browser, server, **PHONE) as user:
        card = user.page.locator(".waiting-card")
        for line in ("x = 1", "y = 2"):
            await expect(card.locator("tr.add", has_text=line)).to_be_in_viewport(ratio=1)
        await expect(card.get_by_role("button", name="Approve", exact=True)).to_be_in_viewport(ratio=1)
        await card.get_by_role("button", name="Approve", exact=True).tap()
        await expect(user.page.locator(".entry[data-state=unread]")).to_have_count(1)

    assert (server.work / "a.py").read_text() == "x = 1\ny = 2\n"


async def test_approvals_are_answered_with_one_key_and_for_the_session(
    browser: Browser, server: HttpServer, model: ScriptedModel
) -> None:
    for number in range(2):
        model.says(sh(f"call{number}", "echo ran >> made"))
    model.says("finished")
    async with open_page(browser, server, **DESKTOP) as user:
        await user.start_conversation()
        await user.send("go")
        await user.sees_state("Waiting for you")
        await expect(user.transcript.locator("[data-key=s]")).to_be_enabled()
        await user.message.press("Escape")
        await user.page.keyboard.press("s")
        await user.sees("finished")
        await user.sees_state("Done")

    assert (server.work / "made").read_text() == "ran\nran\n"


async def test_a_call_with_a_repeated_id_is_shown_beside_the_denied_call(
    browser: Browser, server: HttpServer, model: ScriptedModel
) -> None:
    async with open_page(browser, server, **DESKTOP) as user:
        await user.start_conversation()
        for name in ("first", "second"):  # in the same turn
            model.says(sh("same", f"touch {name}"))
        model.says("one")
        await user.send("go")
        for name in ("first", "second"):
            await user.sees(f"touch {name}")
            await (
                user.transcript.locator("[data-state=asking]")
                .get_by_role("button", name="Deny", exact=True)
                .click()
            )
            await expect(user.transcript.locator(".call", has_text=f"touch {name}")).to_have_attribute(
                "data-state", "denied"
            )
        await user.sees_state("Done")
        model.says(sh("same", "touch third"))  # in the next turn
        model.says("two")
        await user.send("again")
        await (
            user.transcript.locator("[data-state=asking]").get_by_role("button", name="Approve", exact=True).click()
        )
        await user.sees("two")
        await user.page.reload()
        await user.sees("two")

        states = await user.transcript.locator(".call").evaluate_all(
            "calls => calls.map(call => [call.querySelector('.call-label').textContent, call.dataset.state])"
        )
        assert states == [["touch first", "denied"], ["touch second", "denied"], ["touch third", "ended"]]


async def test_images_and_files_are_chosen_pasted_dropped_and_sent(
    browser: Browser, server: HttpServer, model: ScriptedModel, tmp_path: Path
) -> None:
    (tmp_path / "dot.png").write_bytes(PNG)
    (tmp_path / "notes.txt").write_text("some notes")
    async with open_page(browser, server, **DESKTOP) as user:
        await user.start_conversation()
        await user.page.get_by_label("Files to attach").set_input_files(
            [tmp_path / "dot.png", tmp_path / "notes.txt"]
        )
        await expect(user.page.locator(".attachment")).to_have_count(2)
        for event, target in (("paste", user.message), ("drop", user.transcript)):
            await target.evaluate(GIVE_FILE, event)
        await expect(user.page.locator(".attachment")).to_have_count(4)
        await user.button("Remove drop.txt").click()
        await expect(user.page.locator(".attachment")).to_have_count(3)
        model.says("seen")
        await user.send("look")
        await user.sees("seen")
        await expect(user.transcript.locator("img.attached")).to_have_count(1)

    kinds = [part["type"] for part in model.requests[0].body["messages"][-1]["content"]]
    assert kinds == ["text", "image_url", "text", "text"]
    assert (
        base64.b64encode(PNG).decode() in model.requests[0].body["messages"][-1]["content"][1]["image_url"]["url"]
    )


async def test_find_reaches_messages_that_are_not_loaded(
    browser: Browser, server: HttpServer, model: ScriptedModel
) -> None:
    client = await server.client()
    conversation = await client.create()
    for number in range(120):
        model.says("filler")
        await client.say(conversation, "needle" if number == 3 else f"question {number}")
        await until_state(client, conversation, "idle")
    async with open_page(browser, server, **DESKTOP) as user:
        await user.open(conversation)
        await user.sees("question 119")
        assert await user.transcript.locator(".user", has_text="needle").count() == 0
        await user.transcript.press("f")
        await user.page.get_by_role("searchbox", name="Find in conversation").fill("needle")
        await expect(user.page.locator(".find-count")).to_have_text("– of 1")
        await user.page.keyboard.press("Enter")
        await expect(user.transcript.locator(".user", has_text="needle")).to_be_in_viewport()


async def test_conversations_are_renamed_forked_archived_and_deleted(
    browser: Browser, server: HttpServer, model: ScriptedModel
) -> None:
    async with open_page(browser, server, **DESKTOP) as user:
        first = await user.start_conversation()
        model.says("answer")
        await user.send("question")
        await user.sees("answer")
        await user.sees_state("Done")
        await choose(user.page, "Rename…")
        await user.page.get_by_role("textbox", name="Title").fill("A new title")
        await user.button("Rename").click()
        await expect(user.page.locator(".screen-title")).to_have_text("A new title")
        await choose(user.page, "Fork")
        await expect(user.page.locator(".entry")).to_have_count(2)
        assert first not in user.page.url
        await user.sees("answer")
        await choose(user.page, "Archive")
        await expect(user.page.locator(".entry")).to_have_count(1)
        await user.button("Archived").click()
        await expect(user.page.locator(".entry .title")).to_have_text("A new title")
        await user.button("All").click()
        await user.open(first)
        await choose(user.page, "Delete…")
        await user.button("Delete").click()
        await expect(user.page.locator(".entry")).to_have_count(0)


async def test_settings_are_shown_and_chosen_for_the_next_turn(
    browser: Browser, server: HttpServer, model: ScriptedModel
) -> None:
    async with open_page(browser, server, **DESKTOP) as user:
        await user.start_conversation()
        model_name = user.page.get_by_role("combobox", name="Model")
        policy, sandbox = user.page.get_by_label("Approval policy"), user.page.get_by_label("Sandbox")
        await user.page.locator(".turn-settings summary").click()
        await expect(policy.locator("option:checked")).to_have_text("Ask before commands (unchanged)")
        await expect(sandbox.locator("option:checked")).to_have_text("Write in the directory (unchanged)")
        await expect(model_name).to_have_attribute("placeholder", "scripted-model")
        await model_name.fill("another-model")
        await policy.select_option("never")
        await sandbox.select_option("danger-full-access")
        model.says(sh("call", "touch made"))
        model.says("done")
        await user.send("go")
        await user.sees_state("Done")
        await user.page.locator(".turn-settings summary").click()
        await expect(policy.locator("option:checked")).to_have_text("Never ask (unchanged)")
        await expect(sandbox.locator("option:checked")).to_have_text("Full access (unchanged)")
        await expect(model_name).to_have_attribute("placeholder", "another-model")

    assert model.requests[0].body["model"] == "another-model"
    assert (server.work / "made").exists()


async def test_the_names_of_all_policies_fit_into_the_settings(browser: Browser, server: HttpServer) -> None:
    async with open_page(browser, server, **DESKTOP) as user:
        await user.start_conversation()
        await user.page.locator(".turn-settings summary").click()
        policy = user.page.get_by_label("Approval policy")
        await expect(policy.locator("option", has_text="The model decides")).to_have_count(1)
        for label in ("Approval policy", "Sandbox"):
            assert await user.page.get_by_label(label).evaluate(HIDDEN_NAMES) == []


async def test_a_shared_conversation_can_be_read_and_nothing_else(
    browser: Browser, server: HttpServer, model: ScriptedModel
) -> None:
    client = await server.client()
    conversation = await client.create()
    model.says("shared answer")
    await client.say(conversation, "shared question")
    await until_state(client, conversation, "idle")
    token = await server.create_token("share", "observer", conversation=conversation)
    async with open_page(
        browser, server, address=lambda url: f"{url.partition('#')[0]}#token={token}", **DESKTOP
    ) as user:
        await user.sees("shared answer")
        await expect(user.page.locator(".composer")).to_be_hidden()
        await expect(user.transcript.locator(".user .who")).to_have_text("serve")
        assert await user.page.evaluate(SENDERS, {"me": "share", "isShared": True}) == [
            "User",
            "User",
            "ada",
            "You",
        ]
        assert await user.page.evaluate(SENDERS, {"me": "share", "isShared": False}) == ["You", "You", "ada", "You"]
        head, screen = [await user.page.locator(one).bounding_box() for one in (".app-head", ".screen")]
        assert head is not None
        assert screen is not None
        assert screen["y"] - (head["y"] + head["height"]) < 2  # no space where the list would be
        assert screen["y"] + screen["height"] == DESKTOP["viewport"]["height"]
        assert "token" not in user.page.url
        assert await user.button("New conversation").count() == 0
        assert await user.transcript.get_by_role("button", name="Edit and resend").count() == 0
