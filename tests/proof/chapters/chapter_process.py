"""Runs a chapter in a process of its own, with forks where a reader's way branches.

`chapter_runs.py` starts it: steps come in on standard input, what was found goes out on standard
output, both as JSON. A fork stands where the chapter stands, so that what is above a branch runs
once; whatever a branch does, the chapter itself does not notice. Where a cell is edited, the fork
waits until the chapter has come to its end: how little an edit can reach is known only then. No
kernel: its threads would not survive a fork.
"""

import faulthandler
import importlib
import itertools
import json
import os
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from types import FunctionType, ModuleType, NoneType
from typing import Any

import joblib
import tqdm
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from firsttoken.models.llama import Llama
from firsttoken.models.tokenizer import Tokenizer
from reach import cells_to_run, without_slow

# No call changes such a value: a model and a tokenizer keep nothing of what went through them.
CONSTANT = (ModuleType, type, FunctionType, str, bytes, int, float, NoneType, Llama, Tokenizer)
CLAIMS = "FIRSTTOKEN_CLAIMS"
SLOW_S = 2.0


class Reader:
    """Runs cells one after the other, and holds the figures that they showed."""

    def __init__(self, cell_timeout_s: float) -> None:
        self.cell_timeout_s = cell_timeout_s
        self.shell = InteractiveShell.instance(config=Config(HistoryManager={"enabled": False}))
        self.figures: list[tuple[str, Any]] = []
        self.cell = ""
        self.ever_constant, self.not_constant = set[str](), set[str]()
        explore = importlib.import_module("firsttoken.page.explore")
        explore.display = self._keep

    def _keep(self, box: Any, _face: Any) -> None:
        self.figures.append((self.cell, box))

    def run(self, cell: str, source: str) -> Any:
        """Return the value of a cell's last expression; an error in it is raised here."""
        self.cell = cell
        self.figures = [figure for figure in self.figures if figure[0] != cell]
        # It ends the process even inside compiled code, and says where.
        faulthandler.dump_traceback_later(self.cell_timeout_s, exit=True)
        done = self.shell.run_cell(source)
        faulthandler.cancel_dump_traceback_later()
        if error := done.error_before_exec or done.error_in_exec:
            raise CellError(f"{cell}: {type(error).__name__}: {error}") from error
        constants = self.constants()
        self.ever_constant |= constants
        self.not_constant |= self.shell.user_ns.keys() - constants
        return done.result

    def run_twice(self, cell: str, source: str) -> Any:
        """Do as `run`, and again, as readers do; but what takes long mostly measures."""
        start_s = processor_s()
        value = self.run(cell, source)
        return self.run(cell, source) if processor_s() - start_s < SLOW_S else value

    def constants(self) -> set[str]:
        """Return the names whose values no call can change."""
        return {name for name, value in self.shell.user_ns.items() if is_constant(value)}

    def use_solutions(self) -> None:
        """Give each `answer` the value of `answer_solution`."""
        names = self.shell.user_ns
        names |= {
            name.removesuffix("_solution"): value
            for name, value in names.items()
            if name.endswith("_solution")
        }

    def move_sliders(self, everywhere: bool) -> None:
        """Move each slider, since a later cell may have taken a name of its figure's.

        Everywhere: each through all of its values, then all of them to every corner.
        """
        for cell, box in self.figures:
            *rows, picture = box.children
            self._must_show(cell, picture, "as it was shown")
            sliders = [row.children[-1] if hasattr(row, "children") else row for row in rows]
            starts = [slider.index for slider in sliders]
            lasts = [len(slider.options) - 1 for slider in sliders]
            for k, last in enumerate(lasts):
                for index in range(last + 1) if everywhere else (0, last):
                    self._move(cell, picture, sliders, [*starts[:k], index, *starts[k + 1 :]])
            for corner in itertools.product(*((0, last) for last in lasts)) if everywhere else ():
                self._move(cell, picture, sliders, corner)
            self._move(cell, picture, sliders, starts)

    def _move(self, cell: str, picture: Any, sliders: list, indices: Sequence[int]) -> None:
        for slider, index in zip(sliders, indices, strict=True):
            slider.index = index
        self._must_show(cell, picture, ", ".join(f"{s.description} {s.label}" for s in sliders))

    def _must_show(self, cell: str, picture: Any, where: str) -> None:
        if "ft-error" in picture.value:
            raise CellError(f"{cell}: {where}: {picture.value}")


def processor_s() -> float:
    """Return the processor time so far, with that of processes that were waited for."""
    return sum(os.times()[:4])


class CellError(Exception):
    """What a cell or a figure of it did instead of working."""


def main(request: dict) -> dict:
    """Run the chapter as it is, and its branches from where they begin."""
    tqdm.tqdm.monitor_interval = 0  # a thread of its own
    joblib.parallel_config(backend="sequential")  # the same results without processes and threads
    reader, steps, heard = Reader(request["cell_timeout_s"]), request["steps"], {}
    report: dict[str, Any] = {"verdicts": [], "answered": [], "complaints": []}
    waiting: list[tuple[str, Fork]] = []
    thorough, slow = request["thorough"], list[int]()

    def branch(what: str, task: Callable[[], Any]) -> Any:
        return joined(what, Fork(lambda _: task()), None)

    def joined(what: str, fork: "Fork", told: Any) -> Any:
        value, complaint = fork.outcome(told)
        report["complaints"] += [f"{what}: {complaint}"] if complaint else []
        return value

    def check(step: dict) -> Any:
        return heard_from(reader.run(step["cell"], step["source"]))

    def edited(edits: dict[int, str], found: dict, all_of_them: bool = True) -> None:
        reader.figures.clear()
        sources = [step["source"] for step in steps]
        chosen = cells_to_run(sources, edits, reader.constants(), found["always_constant"])
        if not all_of_them:
            chosen = without_slow(sources, edits, chosen, found["slow"])
        for index in chosen:
            reader.run(steps[index]["cell"], edits.get(index, sources[index]))
        reader.move_sliders(everywhere=False)

    def invited(edits: dict[int, str], found: dict) -> None:
        os.environ.pop(CLAIMS, None)
        edited(edits, found, thorough)

    def answered(step: dict, answer: str) -> Any:
        reader.run("answer", answer)
        return check(step)

    def solved(step: dict) -> Any:
        reader.use_solutions()
        return check(step)

    tries = tries_of(steps)
    left_out = {index: "" for index, step in enumerate(steps) if step["further"]}
    apart = False
    try:
        for index, step in enumerate(steps):
            if step["further"] and not apart:
                apart = True
                fork = Fork(lambda found: edited(left_out, found))
                waiting.append(("without the further parts", fork))
            for what, at, source in tries:
                if at == index:
                    edit = {at: source}
                    waiting.append((what, Fork(lambda found, edit=edit: invited(edit, found))))
            start_s, run = processor_s(), reader.run_twice if thorough else reader.run
            value = run(step["cell"], step["source"])
            slow += [index] if processor_s() - start_s > SLOW_S else []
            number = step["exercise"]
            if step["part"] == "check":
                heard[number] = step, heard_from(value)
                report["verdicts"].append([number, "stub", heard[number][1][0]])
                for answer in step["answers"]:
                    what = f"{step['cell']}: an answer"
                    said = branch(what, lambda step=step, answer=answer: answered(step, answer))
                    report["answered"].append(said)
            elif step["part"] == "solution":
                asked, before = heard[number]
                shown = branch(f"{asked['cell']}: again", lambda asked=asked: check(asked))
                report["verdicts"].append([number, "shown", shown != before])
                after = branch(f"{asked['cell']}: solved", lambda asked=asked: solved(asked))
                report["verdicts"].append([number, "solution", bool(after and after[0])])
        always = sorted(reader.ever_constant - reader.not_constant)
        while waiting:
            joined(*waiting.pop(0), {"always_constant": always, "slow": slow})
        reader.move_sliders(everywhere=True)
    except CellError as error:
        report["complaints"].append(str(error))
    finally:
        for _, fork in waiting:
            fork.end()
    return report


def tries_of(steps: Sequence[dict]) -> list[tuple[str, int, str]]:
    """Return for each edit what to call it, its cell, and the source of that then."""
    return [
        (
            f"{step['cell']}: {edit['from']!r} → {edit['to']!r}",
            index,
            step["source"].replace(edit["from"], edit["to"]),
        )
        for index, step in enumerate(steps)
        for edit in step["invited"]
    ]


def is_constant(value: Any) -> bool:
    """Return whether no call can change a value, nor what a frozen one holds."""
    if not getattr(getattr(value, "__dataclass_params__", None), "frozen", False):
        return isinstance(value, CONSTANT)
    try:
        hash(value)
    except TypeError:  # it holds a list, for one
        return False
    return True


def heard_from(result: Any) -> list:
    """Return whether a check is passed, and what it says."""
    return [bool(result), str(getattr(result, "message", ""))]


class Fork:
    """A copy of this process, which stands still until it is told to do its task."""

    def __init__(self, task: Callable[[Any], Any]) -> None:
        others = [thread.name for thread in threading.enumerate()][1:]
        if others:
            raise CellError(f"a cell left threads running, which no fork survives: {others}")
        parent = os.getpid()
        told, self.telling = os.pipe()
        self.hearing, said = os.pipe()
        self.child = os.fork()
        if not self.child:
            try:
                # Later forks hold the other end of the pipe, too: it is not closed with the parent.
                while not select.select([told], [], [], 1)[0]:
                    if os.getppid() != parent:
                        os._exit(0)
                with open(told) as pipe:
                    value = json.loads(pipe.readline())
                with open(said, "w") as pipe:
                    json.dump(_outcome(lambda: task(value)), pipe)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)  # whatever happens, the copy does not go on as the chapter
        os.close(told)
        os.close(said)

    def outcome(self, told: Any) -> tuple[Any, str]:
        """Let it begin; return what its task gives, and what went wrong there."""
        with open(self.telling, "w") as pipe:
            pipe.write(f"{json.dumps(told)}\n")
        with open(self.hearing) as pipe:
            heard = pipe.read()
        _, status = os.waitpid(self.child, 0)
        if not heard:
            return (
                None,
                f"the process ended with status {status}; after the time for a cell with 256",
            )
        return tuple(json.loads(heard))

    def end(self) -> None:
        """Make an end of it, whether it has begun or not."""
        os.close(self.telling)
        os.close(self.hearing)
        os.kill(self.child, signal.SIGKILL)
        os.waitpid(self.child, 0)


def _outcome(task: Callable[[], Any]) -> tuple[Any, str]:
    try:
        return task(), ""
    except CellError as error:
        return None, str(error)


if __name__ == "__main__":
    # What cells print goes to standard error, also what their own processes print.
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)
        json.dump(main(json.load(sys.stdin)), out)
