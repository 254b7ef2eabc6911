"""What a check finds: one cause, and the numbers that speak for it."""

from collections.abc import Mapping
from dataclasses import dataclass

HEALTHY = "healthy"


@dataclass(frozen=True)
class Finding:
    """The likeliest cause of a symptom, in a few words, and why: a sentence with numbers.

    Where nothing is wrong the cause is "healthy".

    >>> print(Finding("queue", "2.1 of 2.4 s passed in the line."))
    queue: 2.1 of 2.4 s passed in the line.
    """

    cause: str
    evidence: str

    def __str__(self) -> str:
        return f"{self.cause}: {self.evidence}"


@dataclass(frozen=True, repr=False)
class Verdicts:
    """Findings by the name of what was judged; they show one under the other."""

    findings: Mapping[str, Finding]

    def __repr__(self) -> str:
        width = max(map(len, self.findings), default=0)
        return "\n".join(f"{name:{width}} → {found}" for name, found in self.findings.items())


def verdicts(**findings: Finding) -> Verdicts:
    """Return findings side by side, each behind the name of what was judged.

    >>> verdicts(healthy=Finding("healthy", "All fits."), broken=Finding("mask", "Nothing."))
    healthy → healthy: All fits.
    broken  → mask: Nothing.
    """
    return Verdicts(findings)
