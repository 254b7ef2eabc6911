"""One process of `Workers`, started by `python -m firsttoken.parallel.parallel_torch.worker`."""

import os
import pickle
import queue
import sys
import threading
import traceback
from datetime import timedelta
from typing import Any, BinaryIO

import torch
import torch.distributed as dist

from firsttoken.parallel.parallel_torch.communicator import Communicator


def write_frame(stream: BinaryIO, content: bytes) -> None:
    """Write bytes with their length before them."""
    stream.write(len(content).to_bytes(8, "big") + content)
    stream.flush()


def read_frame(stream: BinaryIO) -> bytes | None:
    """Return what `write_frame` wrote; None where the stream has ended."""
    head = stream.read(8)
    if len(head) < 8:
        return None
    size = int.from_bytes(head, "big")
    content = stream.read(size)
    return content if len(content) == size else None


def join_group(rank: int, n: int, store_file: str, timeout_s: float) -> None:
    """Meet the other processes through a file, and connect with each over the loopback device."""
    store = dist.FileStore(store_file, n)
    limit = timedelta(seconds=timeout_s)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=n, timeout=limit)


def do_job(frame: bytes) -> bytes:
    """Run one job; return its result, or what it raised and where."""
    try:
        function, arguments, members = pickle.loads(frame)
        return pickle.dumps(("done", function(Communicator(members), *arguments)))
    except Exception as error:
        name = f"{type(error).__name__}: {error}"
        return pickle.dumps(("raised", (name, traceback.format_exc())))


def main() -> None:
    rank, n, store_file, timeout_s = sys.argv[1:]
    # What a job prints goes where errors go: the first stream belongs to the results.
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    jobs: queue.Queue[bytes] = queue.Queue()

    def listen() -> None:
        # The end of the stream is the end of whoever started this process. A job that waits for
        # others in a collective would never notice.
        while (frame := read_frame(sys.stdin.buffer)) is not None:
            jobs.put(frame)
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    torch.set_num_threads(1)
    join_group(int(rank), int(n), store_file, float(timeout_s))
    ready: Any = ("done", os.getpid())
    write_frame(results, pickle.dumps(ready))
    while True:
        write_frame(results, do_job(jobs.get()))


if __name__ == "__main__":
    main()
