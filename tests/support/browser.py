"""A real browser, driven through its own debugging protocol: open a page, read it, click, type, take a picture."""

from __future__ import annotations

import base64
import itertools
import json
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from websockets.sync.client import connect

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)
SIZE = (1280, 1000)
START_SECONDS = 60.0
SEEN_SECONDS = 60.0
LOOK_SECONDS = 0.1
ANSWER_SECONDS = 60.0
# All text of the page: shadow roots and the values of fields too, because that is what a person reads.
TEXT = """(() => {
  const words = [];
  const walk = node => {
    if (node.nodeType === Node.TEXT_NODE) words.push(node.textContent);
    if (['INPUT', 'TEXTAREA'].includes(node.nodeName)) words.push(node.value, node.placeholder);
    if (['SCRIPT', 'STYLE'].includes(node.nodeName)) return;
    if (node.shadowRoot) walk(node.shadowRoot);
    node.childNodes.forEach(walk);
    if (['DIV', 'P', 'LI', 'TR', 'H1', 'H2', 'H3', 'LABEL', 'BUTTON'].includes(node.nodeName)) words.push('\\n');
  };
  walk(document.body);
  return words.join(' ');
})()"""
# Two frames later the page has been drawn in its new size; a page in the background has none.
DRAWN = """Promise.race([
  new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true)))),
  new Promise(done => setTimeout(() => done(false), 1000)),
])"""
# The innermost visible thing with these words, a button, a link or a tab before plain text: where it is, when nothing
# lies over it. A menu that is about to close takes all clicks for itself.
CLICK = """(words => {
  const shown = one => one.getClientRects().length > 0;
  const says = one => (one.textContent || one.getAttribute('aria-label') || '').trim() === words
    || one.getAttribute('aria-label') === words || one.id === words;
  for (const kind of ['button, a, [role=tab], [role=menuitem], [role=option], label', '*']) {
    const found = [...document.querySelectorAll(kind)].filter(one => says(one) && shown(one)).pop();
    if (!found) continue;
    found.scrollIntoView({block: 'center'});
    const place = found.getBoundingClientRect();
    const [x, y] = [place.x + place.width / 2, place.y + place.height / 2];
    const top = document.elementFromPoint(x, y);
    const whole = [null, document.body, document.documentElement];
    return !whole.includes(top) && (found.contains(top) || top.contains(found)) ? [x, y] : null;
  }
  return null;
})"""


class Browser:
    """One headless Chromium with one page."""

    def __init__(self, profile: Path, pictures: Path) -> None:
        self.pictures = pictures
        program = shutil.which("chromium") or "chromium"
        words = [program, *FLAGS, f"--window-size={SIZE[0]},{SIZE[1]}", f"--user-data-dir={profile}", "about:blank"]
        self.process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self._numbers = itertools.count(1)
        self._socket = connect(self._address(), max_size=None)
        (page,) = [one for one in self._ask("Target.getTargets")["targetInfos"] if one["type"] == "page"]
        attached = self._ask("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session: str | None = attached["sessionId"]
        self.ask("Page.enable")

    def _address(self) -> str:
        assert self.process.stderr is not None
        deadline = time.monotonic() + START_SECONDS
        for line in self.process.stderr:
            if found := re.search(r"DevTools listening on (ws://\S+)", line):
                return found[1]
            assert time.monotonic() < deadline, "the browser did not start"
        raise AssertionError("the browser ended before it could be asked anything")

    def _ask(self, method: str, session: str | None = None, **given: Any) -> Any:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": given, **({"sessionId": session} if session else {})}
        self._socket.send(json.dumps(message))
        while True:
            answer = json.loads(self._socket.recv(timeout=ANSWER_SECONDS))
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer.get('error')}"
                return answer["result"]

    def ask(self, method: str, **given: Any) -> Any:
        """One command of the protocol, to the page."""
        return self._ask(method, self._session, **given)

    def script(self, code: str) -> Any:
        """The value of an expression in the page."""
        answer = self.ask("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def open(self, address: str) -> None:
        """Go to a page; what it shows comes later."""
        self.ask("Page.navigate", url=address)

    def text(self) -> str:
        """What the page says, with single spaces."""
        return re.sub(r"\s+", " ", self.script(f"document.body ? {TEXT} : ''") or "")

    def sees(self, *words: str, seconds: float = SEEN_SECONDS) -> str:
        """The page's text, as soon as all `words` are in it; an AssertionError with the text when they are not."""
        deadline = time.monotonic() + seconds
        while missing := [word for word in words if word not in self.text()]:
            if time.monotonic() > deadline:
                picture = self.picture("missing")
                raise AssertionError(f"the page does not say {missing}; it says {self.text()[:4000]!r}; see {picture}")
            time.sleep(LOOK_SECONDS)
        return self.text()

    def click(self, words: str, seconds: float = SEEN_SECONDS) -> None:
        """Click on what says exactly this, or has it as its label or id."""
        deadline, before = time.monotonic() + seconds, None
        # What is still moving would be missed.
        while not (place := self.script(f"{CLICK}({json.dumps(words)})")) or place != before:
            assert time.monotonic() < deadline, f"nothing to click says {words!r}: {self.text()[:3000]!r}"
            before = place
            time.sleep(LOOK_SECONDS)
        for kind in ("mousePressed", "mouseReleased"):
            self.ask("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1)

    def type(self, text: str) -> None:
        """Put text where the cursor is."""
        self.ask("Input.insertText", text=text)

    def fill(self, selector: str, text: str, seconds: float = SEEN_SECONDS) -> None:
        """Replace what a field holds, as a person would: select all, type over it."""
        focus = f"(one => one ? (one.focus(), one.select && one.select(), true) : false)({selector})"
        deadline = time.monotonic() + seconds
        while not self.script(focus):
            assert time.monotonic() < deadline, f"there is no field {selector}: {self.text()[:3000]!r}"
            time.sleep(LOOK_SECONDS)
        self.type(text)

    def picture(self, name: str, whole: bool = True) -> Path:
        """Store what the page looks like, all of it unless told otherwise."""
        self.pictures.mkdir(parents=True, exist_ok=True)
        path = self.pictures / f"{name}.png"
        height = self._content_height() if whole else SIZE[1]
        self._resize(height)
        path.write_bytes(base64.b64decode(self.ask("Page.captureScreenshot", format="png")["data"]))
        self._resize(SIZE[1])  # whoever clicks next is to see everything back in its place
        return path

    def _resize(self, height: int) -> None:
        """Give the page this height; returns when it has been drawn so."""
        size = {"width": SIZE[0], "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.ask("Emulation.setDeviceMetricsOverride", **size)
        self.script(DRAWN)

    def _content_height(self) -> int:
        """How high the page would have to be to be seen without scrolling, within bounds."""
        inside = "Math.max(...[...document.querySelectorAll('*')].map(one => one.scrollHeight))"
        return int(min(max(self.script(inside) or 0, SIZE[1]), 6000))

    def stop(self) -> None:
        """End the browser and its helpers."""
        self._socket.close()
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stderr:
            self.process.stderr.close()
