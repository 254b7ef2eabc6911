"""The chapters that still wait for their second edition. The list only gets shorter."""

WAITING: frozenset[str] = frozenset()
