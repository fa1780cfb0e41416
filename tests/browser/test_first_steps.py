"""The first minutes with the page: the dialog of a new conversation, and keys while the focus changes."""

from __future__ import annotations

import asyncio

import pytest
from playwright.async_api import Browser, expect

from kit.clients.page import DESKTOP, PHONE, open_page
from kit.clients.reading import until_state
from kit.clients.shell_turns import sh
from kit.servers.http_server import HttpServer
from parley.testing import Call, Reasoning, ScriptedModel

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_the_first_message_is_sent_and_the_next_keys_write_a_message(
    browser: Browser, server: HttpServer, model: ScriptedModel
) -> None:
    model.says(sh("call", "touch made"))
    async with open_page(browser, server, **DESKTOP) as user:
        await user.page.keyboard.press("n")
        await expect(user.page.get_by_role("textbox", name="First message (optional)")).to_be_focused()
        await user.page.keyboard.type("go on")
        await user.page.keyboard.press("Enter")
        await user.sees("go on")
        await expect(user.message).to_be_focused()
        await user.sees_state("Waiting for you")
        await expect(user.transcript.locator("[data-key=a]")).to_be_enabled()
        await user.page.keyboard.type("a nada")
        await expect(user.message).to_have_value("a nada")
        await expect(user.page.get_by_role("dialog")).to_have_count(0)
        await user.sees_state("Waiting for you")

    assert not (server.work / "made").exists()


@pytest.mark.long
async def test_start_moves_the_focus_into_the_message(
    browser: Browser, server: HttpServer, model: ScriptedModel
) -> None:
    async with open_page(browser, server, **DESKTOP) as user:
        await user.start_conversation()
        await expect(user.message).to_be_focused()
        await user.page.keyboard.type("no shortcuts")
        await expect(user.message).to_have_value("no shortcuts")
        await expect(user.transcript.locator(".turn")).to_have_count(0)
        assert model.requests == []


@pytest.mark.long
async def test_a_key_opens_one_dialog_and_further_keys_wait_for_it(
    browser: Browser, server: HttpServer, model: ScriptedModel
) -> None:
    model.says(sh("call", "touch made"))
    async with open_page(browser, server, **DESKTOP) as user:
        await user.start_conversation()
        await user.send("go")
        await expect(user.transcript.locator("[data-key=a]")).to_be_enabled()
        await user.message.press("Escape")
        await user.page.evaluate(
            "key => key.split('').forEach((one) =>"
            " document.body.dispatchEvent(new KeyboardEvent('keydown', { key: one, bubbles: true })))",
            "nna",
        )
        await expect(user.page.get_by_role("dialog")).to_have_count(1)
        await user.page.keyboard.type("a")
        await user.sees_state("Waiting for you")

    assert not (server.work / "made").exists()


@pytest.mark.long
async def test_a_key_shows_an_approval_that_is_not_in_view_and_does_not_answer_it(
    browser: Browser, server: HttpServer, model: ScriptedModel
) -> None:
    model.says("\n\n".join(f"paragraph {number}" for number in range(200)))
    model.says(sh("call", "touch made"))
    model.says("finished")
    async with open_page(browser, server, **DESKTOP) as user:
        await user.start_conversation()
        await user.send("tell a long story")
        await user.sees_state("Done")
        await user.send("go")
        approve = user.transcript.locator("[data-key=a]")
        await expect(approve).to_be_enabled()
        await user.message.press("Escape")
        await user.page.locator(".scroller").evaluate("scroller => { scroller.scrollTop = 0 }")
        await expect(approve).not_to_be_in_viewport()
        await user.page.keyboard.press("a")
        await expect(approve).to_be_in_viewport(ratio=1)
        await user.sees_state("Waiting for you")
        assert not (server.work / "made").exists()
        await user.page.keyboard.press("a")
        await user.sees("finished")

    assert (server.work / "made").exists()


@pytest.mark.long
async def test_keys_answer_the_open_request_and_not_a_denied_or_a_folded_one(
    browser: Browser, server: HttpServer, model: ScriptedModel
) -> None:
    patch = "*** Begin Patch\n*** Add File: denied.py\n+x = 1\n*** End Patch"
    model.says(sh("first", "touch first"), Call("apply_patch", {"input": patch}, "second"))
    model.says(sh("third", "touch third"))
    model.says("finished")
    async with open_page(browser, server, **DESKTOP) as user:
        await user.start_conversation()
        await user.send("go")
        asking = user.transcript.locator(".call[data-state=asking]")
        for shown in ("touch first", "denied.py"):
            await expect(asking).to_contain_text(shown)
            if shown == "denied.py":
                await asking.locator("summary").first.click()
                await asking.locator("summary").first.click()
            await asking.get_by_role("button", name="Deny", exact=True).click()
        await expect(asking).to_contain_text("touch third")
        await expect(user.transcript.locator(".approval-buttons")).to_have_count(1)
        await expect(asking.locator("[data-key=a]")).to_be_enabled()

        await asking.locator("summary").click()
        await user.message.press("Escape")
        await user.page.keyboard.press("a")
        await expect(asking.locator("pre.command-text")).to_be_in_viewport(ratio=1)
        await user.sees_state("Waiting for you")
        assert not (server.work / "third").exists()
        await user.page.keyboard.press("a")
        await user.sees("finished")

    assert sorted(path.name for path in server.work.iterdir()) == ["third"]


@pytest.mark.long
async def test_the_click_that_brings_the_page_to_the_front_answers_nothing(
    browser: Browser, server: HttpServer, model: ScriptedModel
) -> None:
    model.says(sh("call", "touch made"))
    async with open_page(browser, server, **DESKTOP) as user:
        await user.start_conversation()
        await user.send("go")
        approve = user.transcript.locator("[data-key=a]")
        for target, event in (("window", "focus"), ("document", "visibilitychange")):
            await expect(approve).to_be_enabled()
            is_disabled = f"button => {{ {target}.dispatchEvent(new Event('{event}')); return button.disabled }}"
            assert await approve.evaluate(is_disabled)
        await expect(approve).to_be_enabled()
        await approve.click()
        await expect(user.transcript.locator(".exit")).to_have_text("exit 0")


@pytest.mark.long
async def test_a_held_key_answers_only_one_approval(
    browser: Browser, server: HttpServer, model: ScriptedModel
) -> None:
    model.says(sh("first", "touch first"))
    model.says(sh("second", "touch second"))
    model.says("finished")
    async with open_page(browser, server, **DESKTOP) as user:
        await user.start_conversation()
        await user.send("go")
        approve = user.transcript.locator("[data-key=a]")
        await expect(approve).to_be_enabled()
        await user.message.press("Escape")
        await user.page.keyboard.down("a")
        await user.sees("touch second")
        for _ in range(30):
            await user.page.keyboard.down("a")
            await asyncio.sleep(0.03)
        await user.page.keyboard.up("a")
        await expect(approve).to_be_enabled()
        await user.sees_state("Waiting for you")
        assert not (server.work / "second").exists()
        await user.page.keyboard.press("a")
        await user.sees("finished")

    assert (server.work / "second").exists()


@pytest.mark.long
async def test_a_directory_that_does_not_exist_has_a_hint_and_is_not_proposed_again(
    browser: Browser, server: HttpServer, model: ScriptedModel
) -> None:
    missing = str(server.work / "missing")
    model.says(sh("call", "touch made"))
    model.says("failed")
    async with open_page(browser, server, **DESKTOP) as user:
        directory = user.page.get_by_role("combobox", name="Directory")
        await user.button("New conversation").click()
        proposed = await directory.input_value()
        await directory.fill("~/project")
        await user.button("Start").click()
        await expect(user.page.get_by_role("alert").filter(has_text="whole path")).to_be_visible()
        await directory.fill(missing)
        await expect(user.page.get_by_role("dialog")).to_contain_text("does not check whether it exists")
        await user.page.get_by_role("textbox", name="First message (optional)").fill("go")
        await user.button("Start").click()
        await user.button("Approve").click()
        await user.sees_state("Done")
        await expect(user.transcript.locator(".exit.failed")).to_have_text("exit -1")
        await expect(user.transcript.locator(".terminal")).to_contain_text(
            f"working directory {missing} cannot be used"
        )
        await user.button("New conversation").click()
        await expect(directory).to_have_value(proposed)


@pytest.mark.long
async def test_a_directory_in_which_a_command_ran_is_proposed(
    browser: Browser, server: HttpServer, model: ScriptedModel
) -> None:
    other = server.work / "other"
    other.mkdir()
    model.says(sh("call", "pwd"))
    model.says("finished")
    async with open_page(browser, server, **DESKTOP) as user:
        directory = user.page.get_by_role("combobox", name="Directory")
        await user.button("New conversation").click()
        await directory.fill(str(other))
        await user.button("Start").click()
        await user.send("go")
        await user.sees("finished")
        await expect(user.transcript.locator(".exit")).to_have_text("exit 0")
        await user.button("New conversation").click()
        await expect(directory).to_have_value(str(other))


@pytest.mark.long
async def test_a_command_that_ran_out_of_time_shows_the_reason_below_its_output(
    browser: Browser, server: HttpServer, model: ScriptedModel
) -> None:
    model.says(Call("shell", {"command": ["bash", "-c", "echo begun; exec sleep 60"], "timeout_ms": 1500}))
    model.says("finished")
    async with open_page(browser, server, **DESKTOP) as user:
        await user.start_conversation()
        await user.send("go")
        await user.button("Approve").click()
        await user.sees("finished")
        await expect(user.transcript.locator(".exit.failed")).to_have_text("exit -1")
        await expect(user.transcript.locator(".terminal")).to_contain_text("command timed out")
        await expect(user.transcript.locator(".terminal")).to_contain_text("begun")


@pytest.mark.long
async def test_the_header_and_the_filter_use_one_word_for_a_failed_turn(
    browser: Browser, server: HttpServer, model: ScriptedModel
) -> None:
    model.fails(400, body="no such model")
    async with open_page(browser, server, **DESKTOP) as user:
        await user.start_conversation()
        await expect(user.page.locator(".entry.empty")).to_have_count(1)
        await user.send("go")
        await user.sees_state("Failed")
        await user.button("Failed").click()
        await expect(user.page.locator(".entry")).to_have_count(1)
        await expect(user.page.locator(".entry.empty")).to_have_count(0)


@pytest.mark.long
async def test_many_requests_leave_room_for_the_list(
    browser: Browser, server: HttpServer, model: ScriptedModel
) -> None:
    client = await server.client(capabilities={"elicitation": {}})
    done = await client.create()
    model.says("finished")
    await client.say(done, "an older conversation")
    await until_state(client, done, "idle")
    async with open_page(browser, server, **DESKTOP) as user:
        for number in range(6):
            model.says(sh(f"call{number}", "touch made\n" * 40))
            await client.say(await client.create(), f"question {number}")
        await expect(user.page.locator(".waiting-card")).to_have_count(6)
        await expect(user.page.locator(".entry", has_text="an older conversation")).to_be_in_viewport(ratio=1)
        last = user.page.locator(".waiting-card").last
        await last.get_by_role("button", name="Deny", exact=True).scroll_into_view_if_needed()
        await expect(last.get_by_role("button", name="Deny", exact=True)).to_be_in_viewport(ratio=1)


@pytest.mark.long
async def test_a_shared_conversation_fits_on_a_phone(
    browser: Browser, server: HttpServer, model: ScriptedModel
) -> None:
    client = await server.client()
    conversation = await client.create()
    model.says(Reasoning("a first line of reasoning that is much too long for one line of a phone"), "answer")
    await client.say(conversation, "question")
    await until_state(client, conversation, "idle")
    token = await server.create_token("share", "observer", conversation=conversation)
    async with open_page(
        browser, server, address=lambda url: f"{url.partition('#')[0]}#token={token}", **PHONE
    ) as user:
        await user.sees("answer")
        title = await user.page.locator(".screen-title").bounding_box()
        assert title is not None
        assert title["x"] >= 12
        label = await user.transcript.locator(".reasoning-label").bounding_box()
        assert label is not None
        assert label["height"] < 30  # one line
        await expect(user.transcript.get_by_role("link", name="Link to this turn")).to_be_visible()
