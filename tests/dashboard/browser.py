"""Drives a real Chromium over its DevTools protocol."""

import base64
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from websockets.sync.client import ClientConnection, connect

DEADLINE_S = 60.0
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)


def find_chromium() -> str | None:
    """The path of Chromium; None if it is not installed."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


class Page:
    """One page of the browser."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._number = 0
        self.errors: list[str] = []
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **arguments: Any) -> Any:
        """Call a method of the protocol."""
        self._number += 1
        number = self._number
        self._connection.send(json.dumps({"id": number, "method": method, "params": arguments}))
        while True:
            message = json.loads(self._connection.recv(timeout=DEADLINE_S))
            if message.get("id") == number:
                assert "error" not in message, f"{method}: {message['error']}"
                return message["result"]
            self._collect_error(message)

    def _collect_error(self, message: dict[str, Any]) -> None:
        if message.get("method") == "Runtime.exceptionThrown":
            details = message["params"]["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description") or details["text"])
        elif message.get("method") == "Log.entryAdded" and message["params"]["entry"]["level"] == "error":
            self.errors.append(message["params"]["entry"]["text"])

    def open(self, url: str, *, width: int = 1600, height: int = 950, scheme: str = "light") -> None:
        """Open a page, and wait until it has drawn a view."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.evaluate("document.isOld = true")  # it may be a page of the same address, which has drawn a view
        self.call("Page.navigate", url=url)
        self.wait_for("!document.isOld && document.body?.dataset.drawn !== undefined")

    def leave(self) -> None:
        """Leave the page, and wait until its scripts have ended."""
        self.call("Page.navigate", url="about:blank")
        self.wait_for("location.href === 'about:blank'")

    def evaluate(self, script: str) -> Any:
        """The value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait_for(self, condition: str) -> None:
        """Wait until an expression is true."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            if self.evaluate(f"Boolean({condition})"):
                return
            time.sleep(0.05)
        raise AssertionError(f"not true within {DEADLINE_S} s: {condition}; errors: {self.errors}")

    def press(self, key: str, code: int = 0, text: str = "") -> None:
        """Press a key."""
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                windowsVirtualKeyCode=code,
                text=text if kind == "keyDown" else "",
            )

    def screenshot(self, path: Path) -> None:
        """Save what the page shows."""
        path.parent.mkdir(parents=True, exist_ok=True)
        found = self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(found["data"]))


@contextmanager
def run_browser(chromium: str) -> Iterator[Page]:
    """Run Chromium with an empty profile."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        process = subprocess.Popen(
            [chromium, *FLAGS, f"--user-data-dir={folder}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            with connect(_page_address(Path(folder), process), max_size=None, proxy=None) as connection:
                yield Page(connection)
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)


def _page_address(folder: Path, process: subprocess.Popen[bytes]) -> str:
    """The address of the first page. Chromium writes its port into its profile."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline and process.poll() is None:
        file = folder / "DevToolsActivePort"
        if file.exists() and (lines := file.read_text().split()):
            with urlopen(f"http://127.0.0.1:{lines[0]}/json/list") as response:
                pages = [each for each in json.load(response) if each["type"] == "page"]
            if pages:
                return str(pages[0]["webSocketDebuggerUrl"])
        time.sleep(0.05)
    raise AssertionError("Chromium did not start")
