"""The server's program: its command line, signals, and one of its processes without the other."""

import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys

import httpx
import numpy as np
import psutil
import pytest

from firsttoken.models.llama import load_model
from firsttoken.models.lora import Adapter, save_adapter
from server.served import NAME, ExactModel, Served, eventually
from server.test_faults import LONG, SLOW_S, fail_all


def start(*options: str, **more) -> tuple[subprocess.Popen, str]:
    """Start the real program on a free port; return it and its address, which it says itself."""
    command = [sys.executable, "-m", "firsttoken.server", "--model", "draft", "--port", "0"]
    more = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | more
    program = subprocess.Popen([*command, *options], **more)
    found = re.match(r"Dashboard: (http://\S+)/ ", program.stdout.readline())
    assert found, program.communicate()
    return program, found[1]


def gone(process: psutil.Process) -> bool:
    """Say whether a process has ended; whoever adopted it may not have looked yet."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_an_engine_that_is_killed_turns_health_red_and_fails_what_waits():
    with Served(ExactModel(SLOW_S), max_batch=2, apart=True) as served:
        fail_all(served, lambda: multiprocessing.active_children()[0].kill(), "killed")
    assert not multiprocessing.active_children()


def test_an_engine_whose_front_is_killed_ends_by_itself():
    program, url = start()
    others = psutil.Process(program.pid).children(recursive=True)
    assert others
    fields = LONG | {"model": NAME, "max_tokens": 500, "n": 20, "stream": True}
    with httpx.stream("POST", f"{url}/v1/completions", json=fields, timeout=300) as got:
        next(got.iter_lines())
        program.kill()
        program.communicate(timeout=300)
    eventually(lambda: all(map(gone, others)))


@pytest.mark.parametrize("to_all", [False, True], ids=["a stop", "Ctrl-C, and a stop of all"])
def test_a_signal_lets_what_is_under_way_finish_and_leaves_no_process(to_all):
    program, url = start(start_new_session=True)
    others = psutil.Process(program.pid).children(recursive=True)
    fields = LONG | {"model": NAME, "max_tokens": 300, "stream": True}
    with httpx.stream("POST", f"{url}/v1/completions", json=fields, timeout=300) as got:
        lines = got.iter_lines()
        assert next(lines).startswith("data: ")
        if to_all:
            os.killpg(program.pid, signal.SIGINT)
            os.killpg(program.pid, signal.SIGTERM)
        else:
            program.send_signal(signal.SIGTERM)
        rest = list(lines)
    assert rest[-2] == "data: [DONE]" and len(rest) > 100
    _, errors = program.communicate(timeout=300)
    assert errors == "" and program.returncode == 0
    # The engine's process has been waited for; multiprocessing's tracker ends with its parent.
    eventually(lambda: all(map(gone, others)))


def test_the_command_line_names_adapters(tmp_path):
    arch = load_model("draft").arch
    pairs = {(0, "o_proj"): (np.ones((1, arch.d_model)), np.ones((arch.d_model, 1)))}
    save_adapter(Adapter(1, 1.0, pairs), tmp_path / "made")
    program, url = start(
        "--adapter", f"one={tmp_path / 'made'}", "--adapter", f"two={tmp_path}/made"
    )
    try:
        cards = httpx.get(f"{url}/v1/models", timeout=300).json()["data"]
        assert [card["id"] for card in cards] == [NAME, "one", "two"]
        fields = {"model": "two", "prompt": "a", "max_tokens": 2}
        assert (
            httpx.post(f"{url}/v1/completions", json=fields, timeout=300).json()["model"] == "two"
        )
    finally:
        program.terminate()
        program.communicate(timeout=300)


def test_a_taken_port_is_said_in_one_line():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "firsttoken.server", "--port", port]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and port in done.stderr
