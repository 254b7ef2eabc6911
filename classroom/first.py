"""The first process of a sandbox: it ends with the grader, and everything inside ends with it.

The kernel kills whatever is left in a sandbox when its first process ends: stopped or not, whatever
it forked, whichever signals it ignores. A grader that is killed can end nothing any more, so this
process waits until nobody holds the grader's end of the wire. (That its parent has ended is told to
no program that has become another user.)

It runs no code but this. From inside it can neither be killed nor stopped, and its memory and
descriptors are closed to the others, although they are the same user.
"""

import contextlib
import ctypes
import os
import select
import socket
import threading

from wire import Peer

PR_SET_DUMPABLE = 4


def hide(is_hidden: bool) -> None:
    """Close /proc/PID/mem and the like of this process to others of its user, or open them."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_DUMPABLE, ctypes.c_ulong(not is_hidden), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "this process cannot be hidden")


def end_with(wire: socket.socket) -> None:
    """End this process as soon as nobody holds the other end of a wire, or if that goes unseen."""
    try:
        poll = select.poll()
        poll.register(wire, 0)  # that the other end is gone is told without being asked for
        poll.poll()
    finally:
        os._exit(1)


def stay_first(wires: list[socket.socket]) -> None:
    """Return in a child; the caller itself stays, as the first process of the sandbox.

    The grader reads on the first wire how the child ended. What the child has left goes on: with
    the last of it, or with the grader, this process ends.
    """
    hide(True)
    program = os.fork()
    if program == 0:
        hide(False)
        return
    for wire in wires[1:]:
        wire.close()
    threading.Thread(target=end_with, args=[wires[0]], daemon=True).start()
    with contextlib.suppress(ChildProcessError):  # nobody is left
        while True:
            ended, status = os.wait()
            if ended == program:
                Peer(wires[0]).write("gone", os.waitstatus_to_exitcode(status))
    os._exit(0)
