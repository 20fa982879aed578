"""A real Chromium without a window, driven over a pipe (the Chrome DevTools Protocol: JSON, each message with a NUL)."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.program import DEADLINE, until

WHERE = Path(__file__).parents[2] / "tools" / "chromium.sh"
# Nothing that the browser does by itself is to be seen in a test. Root cannot have Chromium's sandbox.
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


def program() -> str:
    """Where Chromium is. Raises ``LookupError`` where there is none."""
    done = subprocess.run([str(WHERE), "--where"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise LookupError(done.stderr.strip())
    return done.stdout.strip()


class BrowserError(Exception):
    """What the browser says of a command that it cannot carry out, or of a script that failed."""


class Browser:
    """A running Chromium. A context manager: it has ended after it."""

    def __init__(self, profile: Path, enter: Sequence[str] = ()) -> None:
        """Starts it with an empty profile in a folder; ``enter`` is put before its command (another namespace)."""
        theirs, self._ours = os.pipe()
        read, write = os.pipe()
        # It reads commands from descriptor 3 and writes to 4.
        onto = f'exec "$@" 3<&{theirs} 4>&{write}'
        words = [program(), *OPTIONS, f"--user-data-dir={profile}", "about:blank"]
        with (profile.parent / "chromium.log").open("w") as log:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *enter, "bash", "-c", onto, "bash", *words],
                pass_fds=(theirs, write),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        os.close(theirs)
        os.close(write)
        self._changed = threading.Condition()
        self._answers: dict[int, dict[str, Any]] = {}
        self._events: list[dict[str, Any]] = []
        self._ended = False
        self._last = 0
        self._reader = threading.Thread(target=self._read, args=(read,), daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join(DEADLINE)
        os.close(self._ours)

    def call(self, method: str, session: str = "", **parameters: Any) -> Any:
        """Has a command carried out, and gives its result. Raises ``BrowserError``."""
        with self._changed:
            self._last += 1
            number = self._last
        message = {"id": number, "method": method, "params": parameters} | ({"sessionId": session} if session else {})
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._ours, data) :]
        with self._changed:
            if not self._changed.wait_for(lambda: number in self._answers or self._ended, DEADLINE) or self._ended:
                raise BrowserError(f"{method}: no answer")
            answer = self._answers.pop(number)
        if "error" in answer:
            raise BrowserError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def events(self, session: str, *methods: str) -> list[Any]:
        """What has happened in a session, of these kinds."""
        with self._changed:
            return [
                each["params"]
                for each in self._events
                if each.get("sessionId") == session and each["method"] in methods
            ]

    def open(self, width: int = 1280, height: int = 900, *, dark: bool = False, touch: bool = False) -> Tab:
        """Opens a tab."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        tab = Tab(self, session)
        for domain in ("Page", "Runtime", "Network", "Log"):
            tab.call(f"{domain}.enable")
        tab.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=touch)
        tab.prefer(dark=dark)
        return tab

    def _read(self, descriptor: int) -> None:
        rest = b""
        with open(descriptor, "rb", buffering=0) as stream:
            while chunk := stream.read(1 << 16):
                *messages, rest = (rest + chunk).split(b"\0")
                with self._changed:
                    for each in map(json.loads, messages):
                        if "id" in each:
                            self._answers[each["id"]] = each
                        else:
                            self._events.append(each)
                    self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()


KEYS = {
    "Tab": (9, ""),
    "Enter": (13, "\r"),
    "Escape": (27, ""),
    "ArrowUp": (38, ""),
    "ArrowDown": (40, ""),
    "Space": (32, " "),
    "/": (191, "/"),
}


class Tab:
    """One tab, and what somebody does in it."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session

    def call(self, method: str, **parameters: Any) -> Any:
        """See ``Browser.call``."""
        return self._browser.call(method, self._session, **parameters)

    def events(self, *methods: str) -> list[Any]:
        """See ``Browser.events``."""
        return self._browser.events(self._session, *methods)

    def go(self, url: str) -> None:
        """Goes somewhere."""
        answer = self.call("Page.navigate", url=url)
        if "errorText" in answer:
            raise BrowserError(f"{url}: {answer['errorText']}")

    def js(self, expression: str) -> Any:
        """Gives the value of an expression (a promise is waited for). Raises ``BrowserError``."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise BrowserError(details.get("exception", {}).get("description", details["text"]))
        return answer["result"].get("value")

    def wait(self, expression: str) -> Any:
        """Waits until an expression gives something, and gives that."""
        found: list[Any] = []

        def there() -> bool:
            found[:] = [self.js(f"({expression}) || null")]
            return bool(found[0])

        try:
            until(there, f"{expression}", every=0.05)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; the page: {self.js('document.body.innerText')[:2000]}") from error
        return found[0]

    def text(self, selector: str) -> str:
        """The text of an element, as it is shown."""
        return str(self.js(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def press(self, key: str, times: int = 1) -> None:
        """Presses a key."""
        code, text = KEYS[key]
        for _ in range(times):
            common = {"key": " " if key == "Space" else key, "code": key, "windowsVirtualKeyCode": code}
            self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **common)
            self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def type(self, text: str) -> None:
        """Types a text where the focus is."""
        self.call("Input.insertText", text=text)

    def prefer(self, *, dark: bool) -> None:
        """Says whether the user prefers dark colours."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def resize(self, width: int, height: int) -> None:
        """Gives the window another size."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def picture(self) -> bytes:
        """The window as PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def requests(self) -> list[str]:
        """The URLs of everything that was asked for."""
        return [each["request"]["url"] for each in self.events("Network.requestWillBeSent")]

    def complaints(self) -> list[str]:
        """Errors and warnings of the console, exceptions, and what a policy has kept from happening."""
        found = [each["exceptionDetails"]["text"] for each in self.events("Runtime.exceptionThrown")]
        found += [
            str(each["args"])
            for each in self.events("Runtime.consoleAPICalled")
            if each["type"] in ("error", "warning")
        ]
        return found + [
            each["entry"]["text"]
            for each in self.events("Log.entryAdded")
            if each["entry"]["level"] in ("error", "warning")
        ]
