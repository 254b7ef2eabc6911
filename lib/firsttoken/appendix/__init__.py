"""The library of the appendices: `debugging` (A) and `interview` (B)."""
