"""What is asked of a chapter that runs: its exercises, its invitations, its core by itself."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from reading import core

from proof.chapters.chapter_answers import Answer
from test_chapters import Chapter, exercise_cells

PROCESS = Path(__file__).with_name("chapter_process.py")
TESTS = PROCESS.parents[2]  # from where the process imports reach.py


class Report(NamedTuple):
    """What a run of a chapter showed.

    verdicts:   {(number, part): what the check of an exercise says}, where the part is "stub",
                "shown" (once the solution's cell has run: does the check say anything else now?)
                or "solution" (each `answer` is given the value of `answer_solution`).
    answered:   what the check says of each answer that was handed in.
    complaints: where the chapter, or a branch of it, did not run to its end, and why.
    """

    verdicts: dict[tuple[str, str], bool]
    answered: dict[Answer, str]
    complaints: list[str]


def run_chapter(
    chapter: Chapter,
    folder: Path,
    answers: Sequence[Answer] = (),
    cell_timeout_s: float = 400,
    thorough: bool = False,
) -> Report:
    """Run a notebook once, with a branch from where it begins for each of these.

    Every edit that a cell invites is made, and all cells below that it can reach must still run
    (`reach.py`); there, as for a reader, a claim that does not hold is no error. Without its
    further parts the chapter must run, too. And every answer to an exercise is checked. At the
    end of the run and of each edit's branch the sliders of its cells are moved, since a later cell
    may have taken a name of theirs.

    Unless it is `thorough`, cells run once, and an edit leaves out cells that took over 2 s of a
    processor, unless they are what is edited, with those that need them. Thoroughly, each cell that
    takes less runs twice, as readers run them, and edits leave out nothing.
    """
    needed = {cell.id for cell in core(chapter.notebook)}
    steps = [
        {
            "cell": cell.id,
            "source": cell.source,
            "further": cell.id not in needed,
            "invited": cell.metadata.get("invited", []),
            "exercise": "",
            "part": "",
            "answers": [],
        }
        for cell in chapter.notebook.cells
    ]
    asked = []
    for number, parts in exercise_cells(chapter).items():
        for part, (index,) in parts.items():
            steps[index] |= {"exercise": number, "part": part}
            if part == "check":
                here = [answer for answer in answers if answer.exercise == number]
                steps[index]["answers"] = [answer.source for answer in here]
                asked += [(index, answer) for answer in here]
    cells = zip(steps, chapter.notebook.cells, strict=True)
    request = {
        "steps": [step for step, cell in cells if cell.cell_type == "code"],
        "cell_timeout_s": cell_timeout_s,
        "thorough": thorough,
    }
    said = _in_a_process(request, folder)
    in_order = [answer for _, answer in sorted(asked, key=lambda pair: pair[0])]
    words = {True: "passed", False: "failed"}
    return Report(
        {(number, part): verdict for number, part, verdict in said["verdicts"]},
        {
            answer: f"{words[heard[0]]} {heard[1]}" if heard else "stopped"
            for answer, heard in zip(in_order, said["answered"], strict=False)
        },
        said["complaints"],
    )


def _in_a_process(request: dict, folder: Path) -> dict:
    path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, PROCESS],
        input=json.dumps(request),
        cwd=folder,
        # OpenMP's threads do not survive a fork: a product there would wait for them for ever.
        env=os.environ
        | {"MPLBACKEND": "agg", "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": path}
        | {"OMP_THREAD_LIMIT": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.fail(f"the chapter's process ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout)
