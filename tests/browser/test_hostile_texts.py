"""Texts from models, commands and files are shown as text, however they look."""

from __future__ import annotations

import re
import sys
from typing import Any
from unicodedata import category

import pytest
from playwright.async_api import Browser, expect

from kit.clients.page import DESKTOP, PHONE, open_page
from kit.clients.shell_turns import sh
from kit.servers.http_server import HttpServer
from parley.testing import Call, Pieces, Reasoning, ScriptedModel
from parley.wire.text import unseen

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.long]

MARKUP = """<script>window.pwned = 1</script><img src=x onerror="window.pwned = 1"> <b>not bold</b>

<iframe srcdoc="<script>parent.pwned = 1</script>"></iframe>

[click](javascript:window.pwned=1) [data](data:text/html,<script>1</script>) [good](https://example.org/a?b=c)
[tricky](java\tscript:window.pwned=1) <javascript:window.pwned=1> ![picture](https://example.org/pixel.png)

- [ ] <svg onload=window.pwned=1>

| <u>a</u> | [x](vbscript:1) |
| --- | --- |
| <style>*{display:none}</style> | `<i>` |

```html" onclick="window.pwned=1
<script>window.pwned = 1</script>
```
"""
BIDI = "rm -rf /tmp/x \u202e# txt.elif a ylno\u202c \u2066\u200b\x07end"
LIKE_HEADERS = """*** Begin Patch
*** Update File: tool.py
@@
 import os
-"\\n-- keep me"
+LIMIT = 10
+++ os.system("echo first")
--- guard
+x = 1\r+++ os.system("echo second")
+y = 1\u2028--- os.system("echo third")
 print("done")
*** End Patch"""
CHANGED = "tr:is(.add, .delete)"
LINES = """rows => rows.map(row => [row.className, [...row.querySelector(".text").childNodes]
    .filter(node => !node.matches?.("button, .sign")).map(node => node.textContent).join("")])"""
ESCAPES = (
    r"printf '\033]0;title\007\033[31mred\033[0m \033[2J\033[10;10Hmoved "
    r"\033]8;;http://example.org\033\\link\033]8;;\033\\ "
    r"\n 10%%\r100%%\n<b>&amp;\n'"
)

FAIL = """
const matchAll = String.prototype.matchAll
String.prototype.matchAll = function (pattern) {
    if (this.includes("BROKEN")) throw new Error("broken")
    return matchAll.call(this, pattern)
}
"""

# The horizontal positions of the characters of the last text in an element.
PLACES = """node => {
    const text = node.lastChild
    const range = document.createRange()
    return Array.from(text.data, (_, index) => {
        range.setStart(text, index)
        range.setEnd(text, index + 1)
        return range.getBoundingClientRect().left
    })
}"""


async def test_markup_and_links_are_text(browser: Browser, server: HttpServer, model: ScriptedModel) -> None:
    model.says(Reasoning(MARKUP), Pieces(MARKUP, 7))
    async with open_page(browser, server, **DESKTOP) as user:
        await user.start_conversation()
        await user.send(MARKUP)
        await user.sees_state("Done")
        await user.transcript.locator("details.reasoning summary").click()
        agent = user.transcript.locator(".agent")
        await expect(agent).to_contain_text('<img src=x onerror="window.pwned = 1">')

        addresses = await user.transcript.locator("a:not(.permalink)").evaluate_all(
            "links => links.map(link => link.getAttribute('href'))"
        )
        assert set(addresses) == {"https://example.org/a?b=c", "https://example.org/pixel.png"}
        assert await user.page.evaluate("window.pwned") is None
        forbidden = "script, iframe, style, svg[onload], b, u, i, img, [onclick], [onerror]"
        assert await user.transcript.locator(f":is({forbidden})").count() == 0
        await expect(agent.locator("code").last).to_have_text("<script>window.pwned = 1</script>")


async def test_the_command_to_approve_shows_every_character(
    browser: Browser, server: HttpServer, model: ScriptedModel
) -> None:
    model.says(Call("shell", {"command": ["bash", "-c", BIDI]}))
    async with open_page(browser, server, **DESKTOP) as user:
        conversation = await user.start_conversation()
        await user.send("go")
        await user.sees_state("Waiting for you")

        shown = user.transcript.locator("pre.command-text")
        await expect(shown).to_have_text(
            "rm -rf /tmp/x ⟨U+202E⟩# txt.elif a ylno⟨U+202C⟩ ⟨U+2066⟩⟨U+200B⟩⟨U+0007⟩end"
        )
        await user.page.evaluate("location.hash = ''")
        card = user.page.locator(".waiting-card pre.command-text")
        await expect(card).to_contain_text("⟨U+202E⟩# txt.elif")
        await user.page.locator(".waiting-card").get_by_role("button", name="Deny", exact=True).click()
        await user.open(conversation)
        await user.sees("Denied by page")


async def test_changed_lines_that_look_like_headers_are_shown(
    browser: Browser, server: HttpServer, model: ScriptedModel
) -> None:
    (server.work / "tool.py").write_text('import os\n"\\n-- keep me"\n-- guard\nprint("done")\n')
    model.says(Call("apply_patch", {"input": LIKE_HEADERS}))
    shown = [
        ["delete", '"\\n-- keep me"'],
        ["add", "LIMIT = 10"],
        ["add", '++ os.system("echo first")'],
        ["delete", "-- guard"],
        ["add", 'x = 1⟨U+000D⟩+++ os.system("echo second")'],
        ["add", 'y = 1⟨U+2028⟩--- os.system("echo third")'],
    ]
    async with open_page(browser, server, **DESKTOP) as user:
        await user.start_conversation()
        await user.send("go")
        await user.sees_state("Waiting for you")
        assert sorted(await user.transcript.locator(CHANGED).evaluate_all(LINES)) == sorted(shown)
        await expect(user.transcript.locator(".counts").first).to_have_text("+4−2")
        await user.page.evaluate("location.hash = ''")
        card = user.page.locator(".waiting-card").locator(CHANGED)
        await card.first.wait_for()
        assert sorted(await card.evaluate_all(LINES)) == sorted(shown)


@pytest.mark.parametrize("view", [DESKTOP, PHONE], ids=["desktop", "phone"])
async def test_the_end_of_a_command_is_not_below_a_scroll_area_when_it_is_approved(
    browser: Browser, server: HttpServer, model: ScriptedModel, view: dict[str, Any]
) -> None:
    script = "true" + "\n" * 40 + "true\n" * 60 + "touch made"
    model.says(Call("shell", {"command": ["bash", "-c", script]}))
    model.says("finished")
    is_whole = "node => node.scrollHeight <= node.clientHeight + 1"
    async with open_page(browser, server, **view) as user:
        conversation = await user.start_conversation()
        await user.send("go")
        await user.sees_state("Waiting for you")
        command = user.transcript.locator("pre.command-text")
        await expect(command).to_contain_text("true\n39 empty lines\ntrue\ntrue\n")
        assert await command.evaluate(is_whole)

        await user.page.evaluate("location.hash = ''")
        card = user.page.locator(".waiting-card")
        await expect(card.locator("[data-key=d]")).to_be_enabled()
        await expect(card.locator("[data-key=a]")).to_be_disabled()
        await card.locator(".waiting-title").focus()
        await user.page.keyboard.press("a")
        await expect(card.locator("pre.command-text")).to_contain_text("touch made")
        await card.get_by_role("button", name="Show all 101 lines").click()
        await expect(card.locator("[data-key=a]")).to_be_enabled()
        assert await card.locator("pre.command-text").evaluate(is_whole)
        assert not (server.work / "made").exists()
        await card.locator("[data-key=a]").click()
        await user.open(conversation)
        await user.sees("finished")


async def test_a_long_change_in_the_list_is_approved_after_all_of_it_was_shown(
    browser: Browser, server: HttpServer, model: ScriptedModel
) -> None:
    client = await server.client(capabilities={"elicitation": {}})
    lines = "\n+x = 1" * 60
    model.says(Call("apply_patch", {"input": f"*** Begin Patch\n*** Add File: a.py{lines}\n*** End Patch"}))
    await client.say(await client.create(cwd=str(server.work)), "go")
    async with open_page(browser, server, **DESKTOP) as user:
        card = user.page.locator(".waiting-card")
        await expect(card.locator("[data-key=d]")).to_be_enabled()
        await expect(card.locator("[data-key=a]")).to_be_disabled()
        await card.get_by_role("button", name="Show all 60 lines").click()
        await expect(card.locator("[data-key=a]")).to_be_enabled()


@pytest.mark.parametrize("kind", ["line", "lines"])
async def test_a_change_is_approved_after_all_of_it_was_shown(
    browser: Browser, server: HttpServer, model: ScriptedModel, kind: str
) -> None:
    rest = "x" * 3_100 if kind == "line" else "\n+x = 1" * 450
    model.says(Call("apply_patch", {"input": f"*** Begin Patch\n*** Add File: a.py\n+{rest}; last\n*** End Patch"}))
    model.says("finished")
    async with open_page(browser, server, **DESKTOP) as user:
        conversation = await user.start_conversation()
        await user.send("go")
        card, call = user.page.locator(".waiting-card"), user.transcript.locator(".call")
        for view in (call, card):
            if view is card:
                await user.page.evaluate("location.hash = ''")
            await expect(view.locator("[data-key=d]")).to_be_enabled()
            for key in ("a", "s"):
                for button in await view.locator(f"[data-key={key}]").all():
                    await expect(button).to_be_disabled()
            await expect(view.get_by_text("Show all of it before you approve it.")).to_be_visible()
            if kind == "lines":
                await view.locator(".file > summary").click()
                await expect(view.locator("[data-key=a]")).to_be_disabled()
            while await view.locator(".more").count():
                await view.locator(".more").last.click()
            await expect(view).to_contain_text("; last")
            await expect(view.locator("[data-key=a]")).to_be_enabled()
            await expect(view.get_by_text("Show all of it before you approve it.")).to_be_hidden()
        await card.locator("[data-key=a]").click()
        await user.open(conversation)
        await user.sees("finished")

    assert (server.work / "a.py").read_text().endswith("; last\n")


async def test_right_to_left_letters_keep_their_order_in_a_request(
    browser: Browser, server: HttpServer, model: ScriptedModel
) -> None:
    line = 'touch "\u05d0" > 1; rm -rf 2 # "\u05d1"'
    patch = f"*** Begin Patch\n*** Add File: \u05d0 1 \u05d1.sh\n+{line}\n*** End Patch"
    client = await server.client(capabilities={"elicitation": {}})
    for call in (sh("call", line), Call("apply_patch", {"input": patch})):
        model.says(call)
        await client.say(await client.create(cwd=str(server.work)), "go")
    async with open_page(browser, server, **DESKTOP) as user:
        for name in ("pre.command-text", ".path", "tr.add .text"):
            shown = user.page.locator(f".waiting-card {name}")
            await expect(shown).to_have_count(1)
            places = await shown.evaluate(PLACES)
            assert len(places) > 5
            assert places == sorted(places), name


@pytest.mark.parametrize(
    ("hidden", "shown"),
    [
        ("\u200b" * 29_000, "⟨U+200B⟩ × 29000"),
        ("a\u200b" * 14_500, "a⟨U+200B⟩" * 14_500),
        ("\u200b\u200b\U000e0100\u202e", "⟨U+200B⟩⟨U+200B⟩⟨U+E0100⟩⟨U+202E⟩"),
    ],
    ids=["repeated", "alternating", "different"],
)
async def test_a_command_with_many_invisible_characters_is_shown_and_answered(
    browser: Browser, server: HttpServer, model: ScriptedModel, hidden: str, shown: str
) -> None:
    client = await server.client(capabilities={"elicitation": {}})
    await client.create()
    conversation = await client.create()
    model.says(sh("call", f"touch ran #{hidden}"))
    await client.say(conversation, "go")
    async with open_page(browser, server, **DESKTOP) as user:
        card = user.page.locator(".waiting-card")
        await expect(card.locator("pre")).to_be_visible()
        assert await card.locator("pre").text_content() == f"touch ran #{shown}"
        await expect(user.page.locator("a.entry")).to_have_count(1)
        await user.open(conversation)
        command = user.transcript.locator("pre.command-text")
        await expect(command).to_be_visible()
        assert await command.text_content() == f"touch ran #{shown}"
        assert await command.locator("span").count() <= 200
        model.says("understood")
        await user.button("Deny").click()
        await user.sees("understood")


async def test_a_request_that_cannot_be_drawn_can_only_be_denied_and_hides_nothing_else(
    browser: Browser, server: HttpServer, model: ScriptedModel
) -> None:
    client = await server.client(capabilities={"elicitation": {}})
    await client.create()
    conversation = await client.create()
    model.says("before it", sh("call", "touch BROKEN"))
    await client.say(conversation, "go")
    async with open_page(browser, server, **DESKTOP) as user:
        await user.page.add_init_script(FAIL)
        await user.page.reload()
        note = "This request cannot be shown. You can only deny it."
        card = user.page.locator(".waiting-card")
        await expect(card).to_contain_text(note)
        await expect(card.get_by_role("button")).to_have_text(["Deny", "Deny with a reason…"])
        await expect(user.page.locator("a.entry")).to_have_count(1)
        await user.open(conversation)
        await user.sees("before it")
        await user.sees(note)
        model.says("after it")
        await user.transcript.get_by_role("button", name="Deny", exact=True).click()
        await user.sees("after it")
        await user.sees("This part of the conversation cannot be shown.")


@pytest.mark.parametrize("sandbox", ["workspace-write", "danger-full-access"])
async def test_only_the_server_says_that_a_command_leaves_the_sandbox(
    browser: Browser, server: HttpServer, model: ScriptedModel, sandbox: str
) -> None:
    leaves = sandbox == "workspace-write"  # without a sandbox, a command cannot leave it
    command = ["touch", "a"] if leaves else ["touch", ", outside the sandbox"]
    model.says(Call("shell", {"command": command}))
    admin = await server.client()
    conversation = await admin.create(approval_policy="untrusted", sandbox=sandbox)
    await admin.say(conversation, "go")
    async with open_page(browser, server, **DESKTOP) as user:
        card = user.page.locator(".waiting-card")
        await expect(card.get_by_role("button", name="Approve", exact=True)).to_be_visible()
        await expect(card.get_by_text("Runs outside the sandbox")).to_have_count(int(leaves))
        await user.open(conversation)
        await expect(user.transcript.get_by_role("button", name="Approve", exact=True)).to_be_visible()
        await expect(user.transcript.get_by_text("Runs outside the sandbox")).to_have_count(int(leaves))


async def test_a_patch_is_applied_outside_the_sandbox(
    browser: Browser, server: HttpServer, model: ScriptedModel
) -> None:
    model.says(Call("apply_patch", {"input": "*** Begin Patch\n*** Add File: new\n+x\n*** End Patch"}))
    admin = await server.client()
    conversation = await admin.create(approval_policy="on-request", sandbox="read-only")
    await admin.say(conversation, "go")
    async with open_page(browser, server, **DESKTOP) as user:
        await user.open(conversation)
        await expect(user.transcript.get_by_text("Applied outside the sandbox")).to_be_visible()
        await expect(user.page.get_by_text("Runs outside the sandbox")).to_have_count(0)


async def test_every_invisible_character_of_the_server_is_invisible_to_the_page(
    browser: Browser, server: HttpServer
) -> None:
    characters = "".join(chr(code) for code in range(0x110000) if category(chr(code)) not in ("Cn", "Co", "Cs"))
    invisible = {*unseen(characters), 0xE000} - {ord("\t"), ord("\n")}
    async with open_page(browser, server, **DESKTOP) as user:
        module = await user.page.evaluate("document.querySelector('link[href$=\"text/visible.js\"]').href")
        shown: str = await user.page.evaluate(
            "async ([module, text]) => (await import(module)).visibleText(text)",
            [module, "".join(map(chr, invisible)) + "größe\t日本 🙂\n"],
        )

    assert {0x0605, 0x180F, 0x2800, 0x1BCA0, 0x13430, 0xE0100, 0x3000} < invisible
    assert {int(code, 16) for code in re.findall(r"⟨U\+([0-9A-F]+)⟩", shown)} == invisible
    assert shown.endswith("⟩größe\t日本 🙂\n")


async def test_terminal_output_is_text_with_colours(
    browser: Browser, server: HttpServer, model: ScriptedModel
) -> None:
    model.says(sh("call", f"{ESCAPES}; exit 1"))
    async with open_page(browser, server, **DESKTOP) as user:
        await user.start_conversation()
        await user.send("go")
        await user.button("Approve").click()
        await user.sees_state("Done")

        terminal = user.transcript.locator(".terminal")
        await expect(terminal).to_contain_text("100%\n<b>&amp;\n")
        assert await terminal.inner_text() == "red moved link \n100%\n<b>&amp;\n"
        await expect(terminal.locator(".fg-1")).to_have_text("red")
        assert await terminal.locator("a, b").count() == 0


@pytest.mark.parametrize(
    ("script", "shown", "elements"),
    [
        ("'ab\\b' * 11_000", "a" * 4_000 + " … 7,001 more characters in this line", 2),
        ("'\\x1b[31ma\\x1b[32mb\\b' * 3 + '\\r\\x1b[0mX\\n'", "Xaab\n", 3),
        ("'ab\\b' * 10 + '\\x1b[5D\\r12\\x1b[K3\\n'", "123\n", 1),
        ("('\\x01' * 3_000 + '\\n') * 300", ("⟨U+0001⟩ × 3000\n" * 300), 600),
    ],
    ids=["backspaces", "colours", "cleared", "control-characters"],
)
async def test_output_with_many_control_characters_needs_few_elements(
    browser: Browser, server: HttpServer, model: ScriptedModel, script: str, shown: str, elements: int
) -> None:
    model.says(sh("call", f'{sys.executable} -c "import sys; sys.stdout.write({script})"; exit 1'))
    async with open_page(browser, server, **DESKTOP) as user:
        await user.start_conversation()
        await user.send("go")
        await user.button("Approve").click()
        await user.sees_state("Done")

        terminal = user.transcript.locator(".terminal")
        assert await terminal.text_content() == shown
        assert await terminal.locator(".line *").count() == elements


@pytest.mark.parametrize(
    "text",
    [
        ">" * 5_000 + " end",
        "*" * 19_000 + "` end",
        ("**_a" * 2_250 + "\n") * 7 + "end",
        ("**_a" * 700 + "\n\n") * 20 + "end",
        "|a" * 2_000 + "|\n" + "|-" * 2_000 + "|\n" + "a\n" * 2_000 + "end",
        "> " + "|a" * 400 + "|\n> " + "-|" * 400 + "\n" + "> a\n" * 200 + "end",
        "a\n" * 20_000 + "end",
    ],
    ids=["levels", "delimiters", "emphasis", "paragraphs", "table", "quoted-table", "lines"],
)
async def test_a_text_that_the_markdown_parser_cannot_read_is_shown_unchanged(
    browser: Browser, server: HttpServer, model: ScriptedModel, text: str
) -> None:
    model.says(Pieces(text, 1_000))
    model.says("after it")
    async with open_page(browser, server, **DESKTOP) as user:
        await user.start_conversation()
        await user.send("go")
        await user.sees_state("Done")
        await user.send("and now")
        await expect(user.transcript.locator(".agent").last).to_contain_text("after it")

        plain = user.transcript.locator(".agent").first
        if len(text) > 30_000:
            await plain.locator(".more").click()
        assert await plain.evaluate("node => node.textContent") == text


async def test_texts_of_ten_megabytes_are_shown_in_parts(
    browser: Browser, server: HttpServer, model: ScriptedModel
) -> None:
    long_line = "x" * 10_000_000
    model.says(long_line[:3_000_000], sh("call", "head -c 10000000 /dev/zero | tr '\\0' y; exit 1"))
    client = await server.client(capabilities={"elicitation": {}})
    conversation = await client.create()
    async with open_page(browser, server, **DESKTOP) as user:
        await user.open(conversation)
        await client.say(conversation, long_line)
        await user.button("Approve").click()
        await user.sees_state("Done")

        sizes = await user.transcript.locator(".user .plain, .agent, .terminal").evaluate_all(
            "nodes => nodes.map(node => node.textContent.length)"
        )
        assert len(sizes) == 4
        assert max(sizes) < 60_000
        await expect(user.transcript.locator(".user .more")).to_contain_text("10.0 million characters left")
        await expect(user.transcript.locator(".terminal .gap").first).to_be_visible()
        assert await user.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
