"""This machine's own rates: what the formulas of chapter 03 call bandwidth and peak, measured.

`this_machine` measures copies, matrix products, reads of a cache and the cost of a layer that has
nothing to read; `decode_times` measures the step that `prediction` predicts from those. PyTorch is
loaded when something is measured.

Each file is one idea: `profile` (the rates), `steps` (decode steps), `tasks` (what is timed),
`tensors` and `sizes` (made of what, and how large), `timing` (how), `machine` (where) and `store`
(the file that remembers).
"""

from firsttoken.measure.profile import this_machine
from firsttoken.measure.steps import decode_times

__all__ = ["decode_times", "this_machine"]
