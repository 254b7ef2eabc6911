"""What guesses, and which guesses are worth checking: chapter 13.

`heads` are networks that read the target's features, `lookup` needs no network, `growing` makes
their guesses a tree, `planning` chooses the tree. `suffix_automaton` and `typical` are algorithms
of the chapter; `drafts_torch` has the networks to be trained. `speculative.trees` checks trees; its
names stand here, too.
"""

from firsttoken.drafts.heads import (
    EagleDraft,
    FeatureDraft,
    LikelyDraft,
    MedusaDraft,
    MultiTokenDraft,
    RecurrentDraft,
    multi_token_heads,
)
from firsttoken.drafts.lookup import FirstDraft, SuffixDraft
from firsttoken.drafts.planning import best_tree, expected_tree_tokens, goodput_gamma, sibling_ranks
from firsttoken.drafts.suffix_automaton import SuffixAutomaton
from firsttoken.drafts.typical import accepted_distribution, typical_acceptance
from firsttoken.speculative.trees import branches, tree_mask, verify_tree, verify_tree_greedy

__all__ = [
    "EagleDraft",
    "FeatureDraft",
    "FirstDraft",
    "LikelyDraft",
    "MedusaDraft",
    "MultiTokenDraft",
    "RecurrentDraft",
    "SuffixAutomaton",
    "SuffixDraft",
    "accepted_distribution",
    "best_tree",
    "branches",
    "expected_tree_tokens",
    "goodput_gamma",
    "multi_token_heads",
    "sibling_ranks",
    "tree_mask",
    "typical_acceptance",
    "verify_tree",
    "verify_tree_greedy",
]
