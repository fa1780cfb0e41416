"""The list of conversations: states, groups, filters, search, the count, and the dialog of a new conversation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from kit.clients.page import DESKTOP, open_page
from kit.clients.reading import until_state
from kit.clients.shell_turns import sh
from kit.servers.http_server import HttpServer
from parley.testing import HOLD, ScriptedModel

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.long]


async def test_the_list_shows_every_state_by_directory_with_filters_and_search(
    browser: Browser, server: HttpServer, model: ScriptedModel
) -> None:
    client = await server.client(capabilities={"elicitation": {}})
    ids = {}
    for name, directory in (("done", "first"), ("failed", "first"), ("archived", "second"), ("working", "second")):
        ids[name] = await client.create(cwd=f"/tmp/{directory}")
        if name == "failed":
            model.fails(400, body="no such model")
        else:
            model.says("a needle in the answer" if name == "done" else "answer", *[HOLD] * (name == "working"))
        await client.say(ids[name], f"the {name} one")
        if name != "working":
            await until_state(client, ids[name], "idle")
    await client.call("conversationArchive", conversation_id=ids["archived"])
    await model.wait_until_held()
    ids["waiting"] = await client.create(cwd="/tmp/second")
    model.says(sh("call", "touch made"))
    await client.say(ids["waiting"], "the waiting one")
    await until_state(client, ids["waiting"], "asking")

    async with open_page(browser, server, **DESKTOP) as user:
        entries = user.page.locator(".entry")
        await expect(user.page.locator(".list section.group")).to_have_count(2)
        assert await user.page.locator(".list h2 .name").all_inner_texts() == ["second", "first"]
        states = {
            await one.locator(".title").inner_text(): await one.get_by_role("img").get_attribute("aria-label")
            for one in await entries.all()
        }
        assert states == {
            "the working one": "Working",
            "the failed one": "Failed",
            "the done one": "Done, not read",
        }
        await expect(user.page.locator(".waiting-card .title")).to_have_text("the waiting one")
        waiting, first = user.page.locator(".waiting-card"), entries.first
        above = [await one.evaluate("node => node.getBoundingClientRect().top") for one in (waiting, first)]
        assert above == sorted(above)
        await expect(user.page).to_have_title("(3) Parley")
        await expect(user.page.locator("link[rel=icon]")).to_have_attribute("href", re.compile("^data:image/png"))
        for label, titles in (
            ("Working", ["the working one"]),
            ("Failed", ["the failed one"]),
            ("Unread", ["the failed one", "the done one"]),
            ("Archived", ["the archived one"]),
        ):
            await user.button(label).click()
            await expect(entries.locator(".title")).to_have_text(titles)
        await user.button("All").click()
        await user.page.keyboard.press("/")
        await user.page.keyboard.type("failed")
        await expect(entries.locator(".title")).to_have_text(["the failed one"])
        await user.page.get_by_role("searchbox").fill("needle")
        await user.page.locator(".hit", has_text="a needle in the answer").click()
        await user.sees("a needle in the answer")
        assert f"#c={ids['done']}&seq=" in user.page.url


async def test_a_conversation_begins_with_a_directory_a_model_and_a_profile(
    browser: Browser, model: ScriptedModel, tmp_path: Path
) -> None:
    config = '[profiles.careful]\napproval_policy = "untrusted"\nmodel = "careful-model"\n'
    async with HttpServer(model, tmp_path / "home", config=config) as server:
        (server.work / "project").mkdir()
        async with open_page(browser, server, **DESKTOP) as user:
            await user.button("New conversation").click()
            await user.page.get_by_role("combobox", name="Directory").fill(str(server.work / "project"))
            policy, model_name = user.page.get_by_label("Approvals"), user.page.get_by_label("Model", exact=True)
            await expect(policy.locator("option:checked")).to_have_text("Default (Never ask)")
            await user.page.get_by_label("Profile").select_option("careful")
            await expect(policy.locator("option:checked")).to_have_text("Default (Ask before commands)")
            await expect(model_name).to_have_attribute("placeholder", "careful-model")
            await model_name.fill("another-model")
            model.says(sh("call", "touch made"))
            model.says("finished")
            await user.page.get_by_role("textbox", name="First message (optional)").fill("go")
            await user.button("Start").click()
            await user.button("Approve").click()
            await user.sees("finished")
            await expect(user.page.locator(".screen-tokens")).to_contain_text("another-model")

        assert model.requests[0].body["model"] == "another-model"
        assert (server.work / "project" / "made").exists()


async def test_search_and_filters_reach_conversations_that_are_not_loaded(
    browser: Browser, server: HttpServer, model: ScriptedModel
) -> None:
    client = await server.client()
    old = await client.create()
    model.fails(400, body="no such model")
    await client.say(old, "the first one")
    await until_state(client, old, "idle")
    await client.call("conversationRename", conversation_id=old, title="a needle")
    for _ in range(200):
        await client.create()
    async with open_page(browser, server, **DESKTOP) as user:
        entries = user.page.locator(".entry")
        await expect(entries).to_have_count(200)
        search = user.page.get_by_role("searchbox", name="Search conversations and messages")
        await search.fill("needle")
        await expect(entries.locator(".title")).to_have_text(["a needle"])
        await search.fill("")
        await expect(entries).to_have_count(200)
        await user.button("Failed").click()
        await expect(entries.locator(".title")).to_have_text(["a needle"])
        await user.button("All").click()
        await expect(entries).to_have_count(200)
        await user.button("Load more conversations").click()
        await expect(entries).to_have_count(201)
