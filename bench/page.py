"""Measures the web page in Chromium: the work of the browser for a turn with many deltas, and opening a long
conversation."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final

from bench.homes import keep_turns
from bench.report import NotAvailable, Row
from bench.resident import HttpPeer, Resident, resident
from bench.servers import Parley

__all__ = ["SECTION", "page"]

DELTAS: Final = 10_000
GROUP: Final = 3
"""The number of deltas after which the model pauses."""
PAUSE_MS: Final = 2
"""The length of a pause. With pauses between the groups, the page receives more than 1,000 deltas per second."""
TURNS: Final = 5_000
MILLISECONDS: Final = 120_000
"""The time limit of one step in the browser."""
NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
SECTION: Final = (
    "## Heading\n\nSome **bold** words, `code` and a [link](https://example.org) in a long paragraph.\n\n"
    "- first item of a list\n- second item\n\n```python\ndef answer() -> int:\n    return 42\n```\n\n"
    "| name | value |\n| --- | --- |\n| one | 1 |\n\n"
)
WATCH: Final = """
window.frames_ms = []
window.long_tasks = []
new PerformanceObserver((list) => list.getEntries().forEach((one) => window.long_tasks.push(one.duration)))
    .observe({ type: "longtask" })
const channel = new MessageChannel()
let start = 0
channel.port1.onmessage = () => window.frames_ms.push(performance.now() - start)
const frame = () => {
    start = performance.now()
    channel.port2.postMessage(0)
    requestAnimationFrame(frame)
}
requestAnimationFrame(frame)
"""


def page(base_url: str, *, repetitions: int) -> list[Row]:
    executable = next((path for name in NAMES if (path := shutil.which(name)) is not None), None)
    if executable is None:
        raise NotAvailable("Chromium is not installed")
    return [*_deltas(base_url, executable), *_opening(base_url, executable, repetitions)]


@contextmanager
def _browser(executable: str, server: Resident) -> Iterator[tuple[Any, Any]]:
    """Open the page in a new browser and sign in. Yield the page and its developer tools."""
    from playwright.sync_api import sync_playwright  # no other measure needs it

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=executable, args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        )
        view = browser.new_page(viewport={"width": 1280, "height": 860})
        view.set_default_timeout(MILLISECONDS)
        view.goto(server.page)
        view.locator(".connection[data-state=live]").wait_for()
        tools = view.context.new_cdp_session(view)
        tools.send("Performance.enable", {"timeDomain": "threadTicks"})  # CPU time, not wall time
        yield view, tools
        browser.close()


def _metrics(tools: Any) -> dict[str, float]:
    return {one["name"]: one["value"] for one in tools.send("Performance.getMetrics")["metrics"]}


def _deltas(base_url: str, executable: str) -> list[Row]:
    with resident(base_url) as first:  # the script must be in a directory that outlives the server's start
        script = first.work / "script.json"
        words = (SECTION * (DELTAS // len(SECTION.split()) + 1)).split(" ")[:DELTAS]
        steps: list[dict[str, Any]] = []
        for start in range(0, DELTAS, GROUP):
            steps += [{"text": " ".join(words[start : start + GROUP]) + " "}, {"delay_ms": PAUSE_MS}]
        script.write_text(json.dumps({"replies": [steps]}))
        settings = (
            'model_provider="page"',
            'model_providers.page.name="page"',
            'model_providers.page.wire_api="scripted"',
            f"model_providers.page.script={json.dumps(str(script))}",
        )
        with resident(base_url, settings=settings) as server:
            with HttpPeer(server) as peer:
                conversation = peer.create(server.work)
            with _browser(executable, server) as (view, tools):
                received: list[float] = []
                tools.send("Network.enable")
                tools.on(
                    "Network.dataReceived",
                    lambda event: received.append(max(event["encodedDataLength"], event["dataLength"])),
                )
                view.evaluate(f"location.hash = 'c={conversation}'")
                view.locator(".composer").wait_for()
                view.evaluate(WATCH)
                before = _metrics(tools)
                received.clear()
                with HttpPeer(server) as peer:
                    peer.say(conversation, "go")
                view.locator(".badge[data-state=working]").wait_for()
                view.locator(".badge[data-state=done]").wait_for()
                after = _metrics(tools)
                frames: list[float] = view.evaluate("window.frames_ms")
                long_tasks: list[float] = view.evaluate("window.long_tasks")
    spent = {name: (after[name] - before[name]) * 1000 for name in ("ScriptDuration", "LayoutDuration")}
    seconds = after["Timestamp"] - before["Timestamp"]
    rate = f"{DELTAS:,} words of markdown at {DELTAS / seconds:,.0f} deltas/s"
    name = Parley.name
    worst = max(long_tasks, default=0.0)
    return [
        Row(
            what="page, script for 10,000 deltas", unit="ms", values={name: spent["ScriptDuration"]}, notes=(rate,)
        ),
        Row(
            what="page, layout for 10,000 deltas", unit="ms", values={name: spent["LayoutDuration"]}, notes=(rate,)
        ),
        Row(
            what="page, script and layout per frame",
            unit="ms",
            values={name: median(frames)},
            budget="at most 8 ms (median)",
            kept=median(frames) <= 8,
            notes=(f"{len(frames)} frames, from the first callback of a frame to its end",),
        ),
        Row(
            what="page, longest task",
            unit="ms",
            values={name: worst},
            budget="at most 50 ms",
            kept=worst <= 50,
            notes=("0 if no task took more than 50 ms",),
        ),
        Row(
            what="page, bytes on the wire for 10,000 deltas",
            unit="B",
            values={name: sum(received)},
            notes=("everything that the page received during the turn",),
        ),
    ]


def _opening(base_url: str, executable: str, repetitions: int) -> list[Row]:
    name = Parley.name
    first: list[float] = []
    with resident(base_url) as server:
        # Running so many turns would take longer than everything else that this module measures.
        home = Path(server.environ[Parley.home_variable])
        conversation = keep_turns(
            home, "A question of ordinary length about the code in this directory", turns=TURNS
        )
        with _browser(executable, server) as (view, _):
            painted = view.evaluate("performance.getEntriesByType('paint').at(-1)?.startTime ?? 0")
            for _ in range(repetitions):
                view.evaluate("location.hash = ''")
                view.locator(".screen").wait_for(state="detached")
                first.append(_until_shown(view, f"c={conversation}"))
            began = view.evaluate("performance.now()")
            while view.evaluate(
                "(() => { const s = document.querySelector('.scroller'); s.scrollTop = 0;"
                f" return document.querySelectorAll('.turn').length < {TURNS} }})()"
            ):
                view.wait_for_timeout(5)
            everything = view.evaluate("performance.now()") - began
    return [
        Row(
            what=f"page, open a conversation of {TURNS:,} turns",
            unit="ms",
            values={name: min(first)},
            budget="under 1,000 ms",
            kept=min(first) < 1000,
            notes=(f"until the last turn is visible; best of {repetitions}",),
        ),
        Row(
            what=f"page, load all {TURNS:,} turns",
            unit="ms",
            values={name: everything},
            notes=("by scrolling to the beginning",),
        ),
        Row(
            what="page, first view",
            unit="ms",
            values={name: painted},
            budget="under 300 ms",
            kept=painted < 300,
            notes=("first contentful paint in a new browser without a cache",),
        ),
    ]


def _until_shown(view: Any, address: str) -> float:
    """Open a conversation. Return the milliseconds until its last turn is drawn."""
    milliseconds: float = view.evaluate(
        """(address) => new Promise((resolve) => {
            const began = performance.now()
            location.hash = address
            const check = () => {
                const turns = document.querySelectorAll('.screen .turn .agent')
                if (turns.length) requestAnimationFrame(() => setTimeout(() => resolve(performance.now() - began)))
                else requestAnimationFrame(check)
            }
            check()
        })""",
        address,
    )
    return milliseconds
